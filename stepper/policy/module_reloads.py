"""Changed modules of the project: which ones the helper reloaded before a cell.

The helper sends these dataclasses as JSON, so their field names are also in
`kernels/in_kernel/module_reload.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OldModule:
    """A module that was not reloaded although its file has changed.

    `why` is deleted, compiled, syntax, raised, dependent, interrupted, warn or
    autoreload; `error` and `line` are those of an exception.
    """

    name: str
    file: str
    why: str
    error: str = ""
    line: int = 0


@dataclass(frozen=True)
class ModuleChanges:
    """The modules that were reloaded, and those that were not."""

    reloaded: tuple[str, ...] = ()
    # Reloaded because they compute values from a changed module when imported.
    dependents: tuple[str, ...] = ()
    old: tuple[OldModule, ...] = ()
    # Names that the notebook imported and the reloaded module no longer has, each with
    # the module.
    lost: tuple[tuple[str, ...], ...] = ()
    # Whether a reloaded module defines classes, whose old instances remain.
    classes: bool = False


UNCHANGED = ModuleChanges()
