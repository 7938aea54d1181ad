"""What a cell can load and import: for the look at the next one before it runs.

All but the user's names seldom changes, and is told only where it has.
"""

from __future__ import annotations

import builtins
import dis
import os
import sys
import types
from typing import Any

from stepper.kernels.in_kernel.cell_sources import global_names, run_state
from stepper.kernels.in_kernel.module_reload import (
    list_loaded_versions,
    list_local_imports,
)
from stepper.kernels.in_kernel.safe_inspect import (
    call_safely,
    clock,
    missing,
    shell,
    shorten,
)

ALL = 60_000  # characters of all names that are told
STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
# Finders of modules that bring none which a listing of sys.path does not show.
FINDERS = {
    "BuiltinImporter",
    "FrozenImporter",
    "PathFinder",
    "DistutilsMetaFinder",
    "_SixMetaPathImporter",
}
FIRST = set(sys.modules)  # what no cell imported
PYTHON = {"Python": sys.version.split()[0]}
last: dict[str, Any] = {
    "seen": None,
    "mark": "",
    "told": {},
    "folders": None,
    "installed": {},
}


def describe_loadable(known: Any) -> dict[str, Any]:
    return {
        "names": [] if altered() else every_name(),
        "own_input": shell.user_ns.get("input", missing) is not missing,
        "cwd": shorten(os.getcwd(), 4096),
        "lasting": lasting(known),
    }


def every_name() -> list[str]:
    """All names that a cell can load, builtins aside, or none: half of them would raise false alarms."""
    codes = [
        value.__code__
        for value in list(shell.user_ns.values())
        if type(value) is types.FunctionType
    ]
    # `global x`: what a function may bind in the namespace when it is called
    bound = [
        name
        for code in codes
        if STORE_GLOBAL in code.co_code[::2]
        for name in code.co_names
    ]
    names = [
        name
        for name in (*shell.user_ns, *global_names, *bound)
        if type(name) is str and not numbered(name)
    ]
    if sum(map(len, names)) > ALL or run_state.get("at_will"):
        return []
    return [shorten(name) for name in names]


def numbered(name: str) -> bool:
    """Whether IPython may keep an input or an output by that name, more of them with each cell: no look judges one."""
    return name[:1] == "_" and name.lstrip("_").removeprefix("i").isdecimal()


def altered() -> bool:
    """Whether something else than IPython's own goes over a cell before it is run."""
    others = [
        one
        for one in shell.ast_transformers
        if not type(one).__module__.startswith("_stepper_helper")
    ]
    return (
        bool(others)
        or bool(shell.input_transformers_post)
        or steps(shell.input_transformer_manager) != USUAL
    )


def steps(transformers: Any) -> int:
    return len(transformers.cleanup_transforms) + len(transformers.line_transforms)


USUAL = call_safely(lambda: steps(type(shell.input_transformer_manager)()))


def lasting(known: Any) -> dict[str, Any]:
    """The mark of what is there now, with all of it unless `known`, which the daemon holds, is that mark."""
    seen = (
        {name for name in list(sys.modules) if type(name) is str},
        [one for one in sys.path if type(one) is str][:100],
        [getattr(one, "__name__", type(one).__name__) for one in sys.meta_path],
        magics(),
        [name for name in vars(builtins) if type(name) is str],
        list_loaded_versions(),
    )
    if seen != last["seen"]:
        modules, path, finders, called, built_in, local = seen
        told = {
            "imported": sorted({shorten(name.split(".")[0]) for name in modules})[
                :3000
            ],
            "path": [shorten(one, 4096) for one in path],
            "other_finders": bool({*finders} - FINDERS),
            "magics": called,
            "builtins": [shorten(name) for name in built_in],
            "python": list(sys.version_info[:2]),
            "versions": {
                **{
                    name: version
                    for name in modules - FIRST
                    if (version := call_safely(version_of, name))
                },
                **local,
                **PYTHON,
            },
            "local_imports": call_safely(list_local_imports) or {},
        }
        last.update(seen=seen, mark=str(clock()), told=told)
    return {"mark": last["mark"], **({} if known == last["mark"] else last["told"])}


def version_of(name: str) -> str | None:
    """What a package says of itself, without asking it: a lazy one is loaded by any attribute."""
    if (
        "." in name
        or name[:1] == "_"
        or name in getattr(sys, "stdlib_module_names", ())
    ):
        return None
    for module, said in ((name, "__version__"), (f"{name}._version", "version")):
        if isinstance(sys.modules.get(module), types.ModuleType):
            version = object.__getattribute__(sys.modules[module], "__dict__").get(said)
            if type(version) is str and version:
                return str(shorten(version, 40))
    found: dict[str, str] = call_safely(installed) or {}
    return found.get(name.lower())


def installed() -> Any:
    """The versions of what is installed, by the names of the folders that say it: nothing is imported or read."""
    folders = [
        one
        for one in sys.path
        if type(one) is str and one.endswith("-packages") and os.path.isdir(one)
    ]
    seen = [(folder, os.stat(folder).st_mtime_ns) for folder in folders]
    if seen != last["folders"]:
        found: dict[str, str] = {}
        for entry in (
            entry
            for folder in folders
            for entry in os.listdir(folder)
            if entry.endswith(".dist-info")
        ):
            name, _, version = entry[: -len(".dist-info")].partition("-")
            found.setdefault(name.lower(), shorten(version, 40))
        last.update(folders=seen, installed=found)
    return last["installed"]


def magics() -> list[str] | None:
    """The names that call a magic without `%`; None where any name may."""
    if shell.autocall:
        return None
    return (
        [name for kind in shell.magics_manager.lsmagic().values() for name in kind]
        if shell.automagic
        else []
    )
