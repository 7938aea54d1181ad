"""The changed modules of the project that the helper reloads before a cell runs.

The helper sends these dataclasses as JSON, so their field names are also in
`kernels/in_kernel/module_reload.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

# The version of a module of the project is this prefix and a hash of its source.
SOURCE_PREFIX = "source "


@dataclass(frozen=True)
class OldModule:
    """A module that was not reloaded, although it or a module that it uses has changed.

    `error` and `line` are set if an exception prevented the reload. `why` is one of:

    - "deleted": the file was deleted.
    - "compiled": the module has no Python source.
    - "syntax": the new source has a syntax error.
    - "raised": the new source raised an exception.
    - "dependent": the module itself did not change, but its code uses a changed module
      when it is imported.
    - "interrupted": the reload was interrupted.
    - "warn": the setting `local_modules: warn` only reports changes.
    - "autoreload": the user's `%autoreload` is active.
    """

    name: str
    file: str
    why: str
    error: str = ""
    line: int = 0


@dataclass(frozen=True)
class ModuleChanges:
    """The changed modules that were reloaded, and those that were not (`old`)."""

    reloaded: tuple[str, ...] = ()
    # Modules that were reloaded because they use a changed module when imported.
    dependents: tuple[str, ...] = ()
    old: tuple[OldModule, ...] = ()
    # Pairs (name, module): names that were imported from a reloaded module, which no
    # longer defines them.
    lost: tuple[tuple[str, ...], ...] = ()
    # Whether a reloaded module defines classes, whose old instances remain.
    classes: bool = False


UNCHANGED = ModuleChanges()
