"""Changed modules of the project: which ones the helper reloaded before a cell.

The helper sends these dataclasses as JSON, so their field names are also in
`kernels/in_kernel/module_reload.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OldModule:
    """A module that was not reloaded although its file has changed.

    `error` and `line` are set if an exception prevented the reload.
    """

    name: str
    file: str
    # "deleted": the file. "compiled": a module without Python source. "syntax",
    # "raised": by the new source. "dependent": it uses a changed module at its import.
    # "interrupted": the reload. "warn": the setting. "autoreload": by the user's own.
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
