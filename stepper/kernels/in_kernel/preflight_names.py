"""The names and modules that a cell can use, for the preflight check of the next cell.

Only the user's names change often. The description of the environment is sent with a
mark, and only if it has changed: a request contains the mark of the description that
the daemon has.
"""

from __future__ import annotations

import builtins
import dis
import os
import sys
import types
from typing import Any, NamedTuple

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

MAX_NAMES_SIZE = 60_000  # characters of all names together
MAX_MODULES = 3000
MAX_PATHS = 100
MAX_PATH = 4096  # characters
MAX_VERSION = 40
STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
DIST_INFO = ".dist-info"
# Finders that find only builtin modules and modules in the folders of sys.path.
KNOWN_FINDERS = {
    "BuiltinImporter",
    "FrozenImporter",
    "PathFinder",
    "DistutilsMetaFinder",
    "_SixMetaPathImporter",
}
INITIAL_MODULES = set(sys.modules)  # modules that no cell imported
PYTHON_VERSION = {"Python": sys.version.split()[0]}
cache: dict[str, Any] = {
    "environment": None,  # that was described last
    "mark": "",  # of its description
    "description": {},
    "folders": None,  # the folders of installed packages with their modification times
    "installed": {},  # the versions of the packages in these folders
}


class Environment(NamedTuple):
    """The state of the kernel that decides which names and modules a cell can use."""

    modules: set[str]
    path: list[str]
    finders: list[str]
    magics: list[str] | None
    builtins: list[str]
    local_versions: dict[str, str]


def collect_preflight_facts(known_mark: Any) -> dict[str, Any]:
    """Return the facts for the preflight check, as a dict that JSON can encode.

    `known_mark` is the mark of the environment description that the daemon already has.
    The description is left out if it has this mark.
    """
    names = [] if has_custom_transforms() else list_loadable_names()
    return {
        "names": names,
        "own_input": shell.user_ns.get("input", missing) is not missing,
        "cwd": shorten(os.getcwd(), MAX_PATH),
        "lasting": describe_environment(known_mark),
    }


def list_loadable_names() -> list[str]:
    """Return all names that a cell can use, except builtins and numbered results.

    Return an empty list if some names are unknown, or if the names are too long in
    total: an incomplete list would cause false alarms.
    """
    names = [*shell.user_ns, *global_names]
    for value in list(shell.user_ns.values()):
        if type(value) is types.FunctionType:
            code = value.__code__
            # A call of a function with `global x` may bind x.
            if STORE_GLOBAL in code.co_code[::2]:
                names.extend(code.co_names)
    loadable = [
        name for name in names if type(name) is str and not is_history_name(name)
    ]
    is_too_long = sum(map(len, loadable)) > MAX_NAMES_SIZE
    if is_too_long or run_state.get("binds_any_name"):
        return []
    return [shorten(name) for name in loadable]


def is_history_name(name: str) -> bool:
    """Return whether a name refers to a numbered input or output, such as `_i7`.

    The number of such names grows with each cell, and the preflight check ignores them.
    """
    if not name.startswith("_"):
        return False
    number = name.lstrip("_").removeprefix("i")
    return number.isdecimal()


def has_custom_transforms() -> bool:
    """Return whether code other than IPython and the helper may transform cells."""
    for transformer in shell.ast_transformers:
        if not type(transformer).__module__.startswith("_stepper_helper"):
            return True
    if shell.input_transformers_post:
        return True
    transforms = count_transforms(shell.input_transformer_manager)
    return bool(transforms != DEFAULT_TRANSFORMS)


def count_transforms(manager: Any) -> list[int]:
    """Return the numbers of input transforms of an IPython transformer manager.

    The numbers are those of the three kinds of transforms.
    """
    return [
        len(manager.cleanup_transforms),
        len(manager.line_transforms),
        len(manager.token_transformers),
    ]


def count_default_transforms() -> list[int]:
    """Return the numbers of input transforms of a new transformer manager."""
    return count_transforms(type(shell.input_transformer_manager)())


DEFAULT_TRANSFORMS = call_safely(count_default_transforms)


def describe_environment(known_mark: Any) -> dict[str, Any]:
    """Return the mark of the environment, and the description if the daemon lacks it.

    `known_mark` is the mark of the description that the daemon already has.
    """
    environment = read_environment()
    if environment != cache["environment"]:
        cache.update(
            environment=environment,
            mark=str(clock()),
            description=format_environment(environment),
        )
    if known_mark == cache["mark"]:
        return {"mark": cache["mark"]}
    return {"mark": cache["mark"], **cache["description"]}


def read_environment() -> Environment:
    """Return the names, folders and finders that cells can now use."""
    finders = [
        getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path
    ]
    path = [folder for folder in sys.path if type(folder) is str]
    return Environment(
        modules={name for name in list(sys.modules) if type(name) is str},
        path=path[:MAX_PATHS],
        finders=finders,
        magics=list_automagics(),
        builtins=[name for name in vars(builtins) if type(name) is str],
        local_versions=list_loaded_versions(),
    )


def format_environment(environment: Environment) -> dict[str, Any]:
    """Return the description of an environment, as a dict that JSON can encode."""
    modules = environment.modules
    packages = {shorten(name.split(".")[0]) for name in modules}
    return {
        "imported": sorted(packages)[:MAX_MODULES],
        "path": [shorten(folder, MAX_PATH) for folder in environment.path],
        "other_finders": bool({*environment.finders} - KNOWN_FINDERS),
        "magics": environment.magics,
        "builtins": [shorten(name) for name in environment.builtins],
        "python": list(sys.version_info[:2]),
        "versions": list_versions(modules, environment.local_versions),
        "local_imports": call_safely(list_local_imports) or {},
    }


def list_versions(modules: set[str], local_versions: dict[str, str]) -> dict[str, str]:
    """Return the versions of the modules that cells imported, and of Python.

    `modules` are the names of all loaded modules, and `local_versions` the versions of
    the project's modules. Modules without a known version are left out.
    """
    versions = {}
    for name in modules - INITIAL_MODULES:
        version = call_safely(find_version, name)
        if version:
            versions[name] = version
    return {**versions, **local_versions, **PYTHON_VERSION}


def find_version(name: str) -> str | None:
    """Return the version of the package that an imported module belongs to, or None.

    None is returned for submodules, private modules, modules of the standard library,
    and unknown versions. The version is read from the module's `__dict__`, because an
    attribute access would load a lazy module.
    """
    if "." in name or name[:1] == "_":
        return None
    if name in getattr(sys, "stdlib_module_names", ()):
        return None
    for module_name, attribute in (
        (name, "__version__"),
        (f"{name}._version", "version"),
    ):
        module = sys.modules.get(module_name)
        if isinstance(module, types.ModuleType):
            version = object.__getattribute__(module, "__dict__").get(attribute)
            if type(version) is str and version:
                return str(shorten(version, MAX_VERSION))
    installed: dict[str, str] = call_safely(list_installed_versions) or {}
    return installed.get(name.lower())


def list_installed_versions() -> Any:
    """Return the versions of installed packages, by package name in lower case.

    The folders of packages are read only if one of them has changed.
    """
    folders = []
    for folder in sys.path:
        is_packages = type(folder) is str and folder.endswith("-packages")
        if is_packages and os.path.isdir(folder):
            folders.append(folder)
    stamps = [(folder, os.stat(folder).st_mtime_ns) for folder in folders]
    if stamps != cache["folders"]:
        versions = read_installed_versions(folders)
        cache.update(folders=stamps, installed=versions)
    return cache["installed"]


def read_installed_versions(folders: list[str]) -> dict[str, str]:
    """Return the versions of the packages in these folders, by name in lower case.

    The versions are part of the names of the `.dist-info` folders.
    """
    versions: dict[str, str] = {}
    for folder in folders:
        for entry in os.listdir(folder):
            if entry.endswith(DIST_INFO):
                name, _, version = entry[: -len(DIST_INFO)].partition("-")
                versions.setdefault(name.lower(), shorten(version, MAX_VERSION))
    return versions


def list_automagics() -> list[str] | None:
    """Return the names of the magics that can be called without `%`.

    Return None if `%autocall` is on: any name can then be called without parentheses.
    """
    if shell.autocall:
        return None
    if not shell.automagic:
        return []
    # A cell magic needs `%%`.
    return list(shell.magics_manager.lsmagic()["line"])
