"""What a cell can load and import besides the user's names: it seldom changes, and is told only where it has."""

from __future__ import annotations

import builtins
import sys
from typing import Any

from stepper.kernel.inside.base import clock, shell, short

# Finders of modules that bring none which a listing of sys.path does not show.
FINDERS = {"BuiltinImporter", "FrozenImporter", "PathFinder", "DistutilsMetaFinder", "_SixMetaPathImporter"}
last: dict[str, Any] = {"seen": None, "mark": "", "told": {}}


def lasting(known: Any) -> dict[str, Any]:
    """The mark of what is there now, with all of it unless `known`, which the daemon holds, is that mark."""
    seen = (
        {name for name in list(sys.modules) if type(name) is str},
        [one for one in sys.path if type(one) is str][:100],
        [getattr(one, "__name__", type(one).__name__) for one in sys.meta_path],
        magics(),
        [name for name in vars(builtins) if type(name) is str],
    )
    if seen != last["seen"]:
        modules, path, finders, called, built_in = seen
        told = {
            "imported": sorted({short(name.split(".")[0]) for name in modules})[:3000],
            "path": [short(one, 4096) for one in path],
            "other_finders": bool({*finders} - FINDERS),
            "magics": called,
            "builtins": [short(name) for name in built_in],
            "python": list(sys.version_info[:2]),
        }
        last.update(seen=seen, mark=str(clock()), told=told)
    return {"mark": last["mark"], **({} if known == last["mark"] else last["told"])}


def magics() -> list[str] | None:
    """The names that call a magic without `%`; None where any name may."""
    if shell.autocall:
        return None
    return [name for kind in shell.magics_manager.lsmagic().values() for name in kind] if shell.automagic else []
