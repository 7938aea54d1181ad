"""Snapshots of what Python code defines: instances, classes, functions and modules.

Only classes, functions and modules of the user have snapshots, and those of libraries
that the cell itself changes. `scope` says which modules are the user's, and collects
the global names that functions of the user use.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import is_a
from stepper.kernels.in_kernel.undo.builtin_types import ROWS
from stepper.kernels.in_kernel.undo.object_snapshots import (
    EMPTY,
    MODULE_DICT,
    Row,
    are_identical,
    get_mro,
    is_same_dict,
    make_immutable_row,
    make_unprotected_row,
    restore_dict,
)

HEAP_TYPE = 1 << 9  # a flag of classes that are not static C types
POINTER = 8  # bytes
get_class_dict: Callable[[Any], Any] = type.__dict__["__dict__"].__get__
BASES_DESCRIPTOR: Any = type.__dict__["__bases__"]
get_basic_size: Callable[[Any], int] = type.__dict__["__basicsize__"].__get__
get_flags: Callable[[Any], int] = type.__dict__["__flags__"].__get__
CLASS_DESCRIPTOR: Any = object.__dict__["__class__"]
ARGUMENTS_DESCRIPTOR: Any = BaseException.__dict__["args"]
# Objects of these packages belong to the kernel.
KERNEL_PACKAGES = {
    "IPython",
    "asyncio",
    "debugpy",
    "ipykernel",
    "jupyter_client",
    "tornado",
    "traitlets",
    "zmq",
}
# Entries of a class that Python itself writes.
CLASS_CACHES = {
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__dict__",
    "__slotnames__",
    "__weakref__",
}
MODULE_INTERNALS = {"__builtins__", "__loader__", "__spec__"}


def is_never_local(path: str) -> bool:
    """Return False: no file is local until the part is installed."""
    return False


class Scope:
    """The user's namespace and modules, and what the walk over objects collects."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        # Global names that the functions of the user that were visited use.
        self.names: set[str] = set()
        # The ids of library modules whose attributes the cell assigns.
        self.changed_modules: set[int] = set()
        # Name of a module → whether the module is part of the user's project.
        self.local_modules: dict[str, bool] = {"__main__": True}
        self.is_local_file: Callable[[str], bool] = is_never_local
        # Whether the run that ends now has failed.
        self.has_failed = False

    def is_local(self, name: Any) -> bool:
        """Return whether a module is part of the user's project, by its name.

        Return False for a module that is not loaded.
        """
        if type(name) is not str:
            return False
        is_local = self.local_modules.get(name)
        if is_local is None:
            if name not in sys.modules:
                return False
            path = getattr(sys.modules[name], "__file__", None)
            is_local = type(path) is str and self.is_local_file(path)
            self.local_modules[name] = is_local
        return is_local


scope = Scope({})


# instances


def find_slots(classes: list[Any]) -> Any:
    """Return the descriptors of the slots of classes."""
    slots = []
    for kind in classes:
        for attribute in get_class_dict(kind).values():
            if type(attribute) is types.MemberDescriptorType:
                slots.append(attribute)
    return slots


def find_dict_descriptor(kind: Any) -> Any:
    """Return the descriptor of the `__dict__` of a class's instances.

    Return None if the instances have no `__dict__`, or if code in Python returns it.
    """
    for base in get_mro(kind):
        descriptor = get_class_dict(base).get("__dict__")
        if descriptor is not None and base is not type:
            is_plain = type(descriptor) is types.GetSetDescriptorType
            return descriptor if is_plain else None
    return None


def get_slot(slot: Any, value: Any) -> Any:
    """Return the value in a slot of an object, or EMPTY."""
    try:
        return slot.__get__(value)
    except AttributeError:
        return EMPTY


def make_instance_row(kind: Any, classes: list[Any]) -> Row | None:
    """Return the row for the attributes of a class's instances.

    Return None if the instances have neither `__dict__` nor slots. `classes` are the
    Python classes from which the class is derived. A state consists of the class,
    `__dict__`, a copy of `__dict__`, and the values of the slots.
    """
    descriptor = find_dict_descriptor(kind)
    slots = find_slots(classes)
    if descriptor is None and not slots:
        return None
    get_dict = descriptor.__get__ if descriptor else None
    is_local = scope.is_local(get_class_dict(kind).get("__module__"))

    def take(value: Any) -> Any:
        """Return the state of an instance."""
        attributes = get_dict(value) if get_dict else {}
        slot_values = [get_slot(slot, value) for slot in slots]
        return kind, attributes, dict.copy(attributes), slot_values

    def list_children(state: Any) -> Any:
        """Return the values of the attributes, and a class of the user."""
        _, _, items, slot_values = state
        children = [*items.values(), *slot_values]
        if is_local:
            return [*children, kind]
        # Libraries count ids, which may differ after an undo.
        return [child for child in children if type(child) is not itertools.count]

    def is_same(value: Any, state: Any) -> bool:
        """Return whether an instance has the class and the attributes of a state."""
        _, former_attributes, items, former_slot_values = state
        if type(value) is not kind:
            return False
        if get_dict:
            attributes = get_dict(value)
            if attributes is not former_attributes:
                return False
            if not is_same_dict(attributes, items):
                return False
        slot_values = [get_slot(slot, value) for slot in slots]
        return are_identical(slot_values, former_slot_values)

    def restore(value: Any, state: Any) -> None:
        """Restore the class and the attributes of an instance."""
        _, attributes, items, slot_values = state
        if type(value) is not kind:
            CLASS_DESCRIPTOR.__set__(value, kind)
        if get_dict:
            if get_dict(value) is not attributes:
                descriptor.__set__(value, attributes)
            if not is_same_dict(attributes, items):
                restore_dict(attributes, items)
        for slot, item in zip(slots, slot_values):
            if get_slot(slot, value) is item:
                continue
            if item is EMPTY:
                slot.__delete__(value)
            else:
                slot.__set__(value, item)

    return Row(
        take=take,
        children=list_children,
        is_same=is_same,
        restore=restore,
    )


def combine_rows(base: Row, instance: Row) -> Row:
    """Return the row of a class that is derived from a builtin or library type.

    `base` is the row of this type, and `instance` that of the instances' attributes. A
    state is a tuple of both states.
    """

    def take(value: Any) -> Any:
        """Return the state of an object."""
        return base.take(value), instance.take(value)

    def list_children(state: Any) -> Any:
        """Return the objects in a state."""
        base_state, instance_state = state
        children = instance.children(instance_state)
        return [*base.children(base_state), *children]

    def is_same(value: Any, state: Any) -> bool:
        """Return whether an object still has the given state."""
        base_state, instance_state = state
        is_same_base = base.is_same is None or base.is_same(value, base_state)
        if not is_same_base:
            return False
        return bool(instance.is_same(value, instance_state))  # type: ignore[misc]

    def restore(value: Any, state: Any) -> None:
        """Restore the state of an object."""
        base_state, instance_state = state
        if base.is_same and not base.is_same(value, base_state):
            base.restore(value, base_state)
        instance.restore(value, instance_state)

    list_current = None
    if base.list_current is not None:
        list_base = base.list_current

        def list_current(value: Any) -> Any:
            """Return the objects in an object."""
            attributes = instance.children(instance.take(value))
            return [*list_base(value), *attributes]

    return base._replace(
        take=take,
        children=list_children,
        is_same=is_same,
        restore=restore,
        list_current=list_current,
    )


def is_python_class(kind: Any) -> bool:
    """Return whether a class was created by Python code and adds no fields in C."""
    if not get_flags(kind) & HEAP_TYPE:
        return False
    attributes = get_class_dict(kind)
    fields = int("__dict__" in attributes)
    fields += int("__weakref__" in attributes)
    if "__slots__" in attributes:
        fields += len(find_slots([kind]))
    added = get_basic_size(kind) - get_basic_size(kind.__base__)
    return added <= fields * POINTER


# functions, classes, modules


def add_global_names(code: types.CodeType, names: set[str]) -> None:
    """Add the names that a function's code and the functions in it use."""
    names.update(code.co_names)
    for constant in code.co_consts:
        if type(constant) is types.CodeType:
            add_global_names(constant, names)


FUNCTION_PARTS = (
    "__code__",
    "__defaults__",
    "__kwdefaults__",
    "__doc__",
    "__name__",
    "__qualname__",
)
FUNCTION_DESCRIPTORS = [types.FunctionType.__dict__[name] for name in FUNCTION_PARTS]


def list_function_parts(function: Any) -> list[Any]:
    """Return the values of the attributes of a function in FUNCTION_PARTS."""
    return [descriptor.__get__(function) for descriptor in FUNCTION_DESCRIPTORS]


def take_function(value: Any) -> Any:
    """Return the parts, the attributes, the closure and the module of a function.

    The state of a library's function contains only the closure; it is None without a
    closure. The names that a cell's function uses are added to `scope`.
    """
    namespace = value.__globals__
    module = None
    is_users = namespace is scope.namespace
    if is_users:
        add_global_names(value.__code__, scope.names)
    elif scope.is_local(namespace.get("__name__")):
        is_users = True
        module = sys.modules.get(namespace["__name__"])
    closure = value.__closure__ or ()
    if not is_users:
        return ((), {}, {}, closure, None) if closure else None
    parts = list_function_parts(value)
    attributes = value.__dict__
    return parts, attributes, dict.copy(attributes), closure, module


def list_function_children(state: Any) -> Any:
    """Return the attributes, closure, module and default values in a function's state.

    The module is None for a function of a cell.
    """
    parts, _, items, closure, module = state
    children = [*items.values(), *closure, module]
    if parts:
        _, defaults, keyword_defaults, *_ = parts
        children += [defaults, keyword_defaults]
    return children


def is_same_function(value: Any, state: Any) -> bool:
    """Return whether a function has the parts and the attributes of a state.

    A library's function is not compared.
    """
    parts, attributes, items, _, _ = state
    if not parts:
        return True
    current = list_function_parts(value)
    if not are_identical(current, parts) or value.__dict__ is not attributes:
        return False
    return is_same_dict(attributes, items)


def restore_function(value: Any, state: Any) -> None:
    """Restore the parts and the attributes of a function of the user."""
    parts, attributes, items, _, _ = state
    for descriptor, part in zip(FUNCTION_DESCRIPTORS, parts):
        if descriptor.__get__(value) is not part:
            descriptor.__set__(value, part)
    value.__dict__ = attributes
    if not is_same_dict(attributes, items):
        restore_dict(attributes, items)


def take_class(value: Any) -> Any:
    """Return the attributes, the bases and the subclasses of a class.

    The last item says whether the class is the user's. Return None for a library's
    class, unless the cell may change the class: then its subclasses are left out.
    """
    attributes = get_class_dict(value)
    is_users = scope.is_local(attributes.get("__module__"))
    if not is_users and id(value) not in scope.changed_modules:
        return None
    items = {
        name: item for name, item in attributes.items() if name not in CLASS_CACHES
    }
    subclasses = type.__subclasses__(value) if is_users else []
    return items, BASES_DESCRIPTOR.__get__(value), subclasses, is_users


def list_class_children(state: Any) -> Any:
    """Return the attributes and the bases in the state of a class of the user."""
    items, bases, _, is_users = state
    return [*items.values(), *bases] if is_users else []


def is_same_class(value: Any, state: Any) -> bool:
    """Return whether a class has the attributes, bases and subclasses of a state."""
    items, bases, subclasses, is_users = state
    if not are_identical(BASES_DESCRIPTOR.__get__(value), bases):
        return False
    if is_users:
        current_subclasses = type.__subclasses__(value)
        if len(current_subclasses) != len(subclasses):
            return False
        if not are_identical(current_subclasses, subclasses):
            return False
    current = get_class_dict(value)
    count = sum(name not in CLASS_CACHES for name in current)
    return count == len(items) and all(
        current.get(name, EMPTY) is item for name, item in items.items()
    )


def restore_class(value: Any, state: Any) -> None:
    """Restore the attributes and bases of a class.

    New subclasses are not removed here: they are collected when nothing refers to them.
    """
    items, bases, _, _ = state
    if not are_identical(BASES_DESCRIPTOR.__get__(value), bases):
        BASES_DESCRIPTOR.__set__(value, bases)
    current = dict(get_class_dict(value))
    for name in current:
        if name not in items and name not in CLASS_CACHES:
            type.__delattr__(value, name)
    for name, item in items.items():
        if current.get(name, EMPTY) is not item:
            type.__setattr__(value, name, item)


def get_module_dict(value: Any) -> Any:
    """Return the `__dict__` of a module without a call of its methods."""
    attributes: dict[str, Any] = object.__getattribute__(value, "__dict__")
    return attributes


def take_module(value: Any) -> Any:
    """Return the items of a module, and whether the module is the user's.

    Return None for a library's module, unless the cell changes it, and for the
    namespace of the cells.
    """
    attributes = get_module_dict(value)
    if attributes is scope.namespace:
        return None
    is_users = scope.is_local(attributes.get("__name__"))
    if not is_users and id(value) not in scope.changed_modules:
        return None
    return list_module_items(value), is_users


def list_module_children(state: Any) -> Any:
    """Return the values in the state of a module.

    For a library's module, return only the values that the cell may change through the
    module. The classes of these are added to `scope.changed_modules`, so that they have
    snapshots.
    """
    items, is_users = state
    children = list(items.values())
    if is_users:
        return children
    changeable = list(filter(can_change, children))
    for child in changeable:
        if issubclass(type(child), type):
            scope.changed_modules.add(id(child))
    return changeable


def can_change(value: Any) -> bool:
    """Return whether a cell may change a value of a library's module.

    Such values are classes, lists, dicts, sets and instances of Python classes.
    """
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        return False
    is_container = kind in (list, dict, set)
    return is_container or issubclass(kind, type) or is_python_class(kind)


def list_module_items(value: Any) -> Any:
    """Return the names of a module with their values, without MODULE_INTERNALS."""
    items = dict.copy(get_module_dict(value))
    for name in MODULE_INTERNALS:
        items.pop(name, None)
    return items


def list_new_submodules(attributes: Any, items: Any) -> dict[str, Any]:
    """Return the loaded submodules in a module's `__dict__` that `items` lacks.

    Some packages, such as numpy, import a submodule when it is used first. If its name
    were removed, the package could not import the submodule again.
    """
    package = attributes.get("__name__")
    submodules = {}
    for name, item in dict.copy(attributes).items():
        if name in items or not is_a(item, types.ModuleType):
            continue
        if sys.modules.get(f"{package}.{name}") is item:
            submodules[name] = item
    return submodules


def is_same_module(value: Any, state: Any) -> bool:
    """Return whether a module has exactly the items of a state.

    Submodules that were loaded since then do not count.
    """
    current = list_module_items(value)
    items, _ = state
    for name in list_new_submodules(get_module_dict(value), items):
        current.pop(name, None)
    return len(current) == len(items) and all(
        current.get(name, EMPTY) is item for name, item in items.items()
    )


def restore_module(value: Any, state: Any) -> None:
    """Restore the items of a module, except MODULE_INTERNALS."""
    items, _ = state
    attributes = get_module_dict(value)
    internals = {
        name: attributes[name] for name in MODULE_INTERNALS if name in attributes
    }
    submodules = list_new_submodules(attributes, items)
    MODULE_DICT.restore(attributes, {**items, **submodules, **internals})


def take_arguments(value: Any) -> Any:
    """Return a tuple with the `args` of an exception."""
    return (ARGUMENTS_DESCRIPTOR.__get__(value),)


def is_same_exception(value: Any, state: Any) -> bool:
    """Return whether an exception has the `args` of a state."""
    return ARGUMENTS_DESCRIPTOR.__get__(value) is state[0]


def restore_arguments(value: Any, state: Any) -> None:
    """Set the `args` of an exception."""
    ARGUMENTS_DESCRIPTOR.__set__(value, state[0])


MODULE = Row(
    take=take_module,
    children=list_module_children,
    is_same=is_same_module,
    restore=restore_module,
)
CLASS = Row(
    take=take_class,
    children=list_class_children,
    is_same=is_same_class,
    restore=restore_class,
)
ROWS[types.FunctionType] = Row(
    take=take_function,
    children=list_function_children,
    is_same=is_same_function,
    restore=restore_function,
)
ROWS[types.ModuleType] = MODULE
ROWS[type] = CLASS
ROWS[BaseException] = Row(
    take=take_arguments,
    children=list,
    is_same=is_same_exception,
    restore=restore_arguments,
)
ROWS[types.SimpleNamespace] = make_immutable_row(lambda value: [value.__dict__])
ROWS[types.FrameType] = make_unprotected_row("frame", is_quiet=True)
ROWS[types.TracebackType] = make_unprotected_row("traceback", is_quiet=True)
