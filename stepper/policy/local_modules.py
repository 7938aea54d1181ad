"""What happened to changed modules of the project before a cell ran, as the kernel's helper reports it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OldModule:
    """A module whose file has changed and that was not reloaded: why, and with which error in which line."""

    name: str
    file: str
    why: str  # deleted, compiled, syntax, raised, dependent, interrupted, warn, autoreload
    error: str = ""
    line: int = 0


@dataclass(frozen=True)
class ModuleChanges:
    """The modules that were reloaded, and those that were not."""

    reloaded: tuple[str, ...] = ()
    # reloaded because they compute something from a changed module at their import
    dependents: tuple[str, ...] = ()
    old: tuple[OldModule, ...] = ()
    # names of the notebook that a reloaded module no longer has; the module
    lost: tuple[tuple[str, ...], ...] = ()
    classes: bool = False  # a reloaded module had classes


UNCHANGED = ModuleChanges()
