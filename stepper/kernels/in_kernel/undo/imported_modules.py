"""The modules of the user's project in `sys.modules`.

If a failed cell imported a module of the project, an undo removes the module, so that
the next version of the cell imports it again: the failed version may have changed the
module's names.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import is_a
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
        if module is old_module:
            continue
        if is_local_module(module) or is_local_module(old_module):
            yield name


def is_local_module(module: Any) -> bool:
    """Return whether an object is a module with a file of the user's project."""
    if type(module) is not types.ModuleType:
        return False
    path = module.__dict__.get("__file__")
    if type(path) is not str or path.startswith(STANDARD_LIBRARY):
        return False
    return "site-packages" not in path and scope.is_local_file(path)


def take_modules(module: Any) -> LoadedModules:
    """Return the loaded modules."""
    return LoadedModules(dict.copy(module.modules))


def keep_imported(
    former: LoadedModules, current: LoadedModules, new_modules: set[str]
) -> LoadedModules:
    """Return the former modules, plus those that a run imported if it did not fail."""
    if scope.has_failed:
        return former
    added = {name: current.modules[name] for name in new_modules}
    return LoadedModules({**former.modules, **added})


def restore_modules(module: Any, state: LoadedModules) -> None:
    """Restore the user's modules. Remove new ones, so that they are imported again.

    Raise RestoreError if something uses a new module.
    """
    modules = module.modules
    names = list(list_differences(modules, state.modules))
    new_names = {name for name in names if name not in state.modules}
    for name in new_names:
        user = find_user(name, new_names)
        if user:
            raise RestoreError(f"`{user}` uses module {name}")
    for name in names:
        parent, _, attribute = name.rpartition(".")
        parent_names = vars(modules[parent]) if parent in modules else {}
        if name in new_names:
            del modules[name]
            parent_names.pop(attribute, None)
        else:
            modules[name] = state.modules[name]
            parent_names[attribute] = state.modules[name]


def find_user(name: str, new_names: set[str]) -> str:
    """Return a name of the user or a local module that uses a new module, or "".

    `new_names` are the new modules. They do not count as users of each other, because
    they are removed together.
    """
    module = sys.modules[name]
    for key, value in scope.namespace.items():
        # `globals()` accepts keys that are not strings.
        user = str(key)
        if is_from_module(value, module) and not user.startswith("_"):
            return user
    parent, _, attribute = name.rpartition(".")
    for other_name, other in list(sys.modules.items()):
        is_other = other_name not in new_names and is_local_module(other)
        items = dict(vars(other)) if is_other else {}
        if other_name == parent:
            items.pop(attribute, None)  # removed together with the module
        if any(is_from_module(value, module) for value in items.values()):
            return other_name
    return ""


def is_from_module(value: Any, module: Any) -> bool:
    """Return whether a value is a module or comes from it.

    A class or function that the module defines comes from it, and so does an instance
    of such a class.
    """
    origin = getattr(type(value), "__module__", None)
    if is_a(value, (type, types.FunctionType)):
        origin = value.__module__
    return value is module or origin == module.__name__


STATE = GlobalState(
    "imported modules",
    "sys",
    take_modules,
    restore_modules,
    keep_imported=keep_imported,
)
