"""The modules of the user's project in `sys.modules`.

If a cell failed, the next version imports a module of the project again that only the
failed version had imported: the module's code may have changed its names since then.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from stepper.kernels.in_kernel.undo.object_snapshots import RestoreError
from stepper.kernels.in_kernel.undo.python_objects import scope
from stepper.kernels.in_kernel.undo.state_row import GlobalState

STANDARD_LIBRARY = os.path.dirname(os.__file__)


class LoadedModules:
    """The modules in `sys.modules`. Only modules of the user are compared."""

    def __init__(self, modules: dict[str, Any]) -> None:
        self.modules = modules

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LoadedModules):
            return False
        return not any(list_differences(self.modules, other.modules))

    __hash__ = None  # type: ignore[assignment]


def list_differences(current: dict[str, Any], former: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the user's modules that were added, replaced or removed."""
    if current == former:
        return
    for name in {*current, *former}:
        module = current.get(name)
        old_module = former.get(name)
        if module is not old_module and (is_users(module) or is_users(old_module)):
            yield name


def is_users(module: Any) -> bool:
    """Return whether this is a module with a file of the user's project."""
    if type(module) is not types.ModuleType:
        return False
    path = module.__dict__.get("__file__")
    if type(path) is not str or path.startswith(STANDARD_LIBRARY):
        return False
    return "site-packages" not in path and scope.is_local_file(path)


def take_modules(module: Any) -> LoadedModules:
    return LoadedModules(dict.copy(module.modules))


def keep_imported(
    former: LoadedModules, current: LoadedModules, new_modules: set[str]
) -> LoadedModules:
    """Add the modules that a run imported, unless it failed or used them."""
    if scope.has_failed:
        return former
    added = {name: current.modules[name] for name in new_modules}
    return LoadedModules({**former.modules, **added})


def restore_modules(module: Any, state: LoadedModules) -> None:
    """Restore the modules; new ones are removed, so that they are imported again."""
    for name in list(list_differences(module.modules, state.modules)):
        former = state.modules.get(name)
        parent, _, attribute = name.rpartition(".")
        parent_module = module.modules.get(parent)
        if former is not None:
            module.modules[name] = former
            if parent_module is not None:
                setattr(parent_module, attribute, former)
            continue
        user = find_user(name)
        if user:
            raise RestoreError(f"`{user}` uses module {name}")
        del module.modules[name]
        if parent_module is not None:
            vars(parent_module).pop(attribute, None)


def find_user(name: str) -> str:
    """Return the name of a value of the user that comes from a module, or ""."""
    module = sys.modules[name]
    for key, value in scope.namespace.items():
        origin = getattr(type(value), "__module__", None)
        if isinstance(value, (type, types.FunctionType)):
            origin = value.__module__
        is_from_module = value is module or origin == name
        if is_from_module and not key.startswith("_"):
            return key
    return ""


STATE = GlobalState(
    "imported modules",
    "sys",
    take_modules,
    restore_modules,
    keep_imported=keep_imported,
)
