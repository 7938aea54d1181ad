"""Snapshots of what Python code defines: instances, classes, functions and modules.

Only classes, functions and modules of the user are protected. `scope` says which those
are, and collects the global names that functions of the user use.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

from stepper.kernels.in_kernel.undo.builtin_types import ROWS
from stepper.kernels.in_kernel.undo.object_snapshots import (
    EMPTY,
    MODULE_DICT,
    Row,
    are_identical,
    frozen,
    get_mro,
    is_same_dict,
    restore_dict,
    unprotected,
)

HEAP_TYPE = 1 << 9  # a flag of classes that are not static C types
POINTER = 8  # bytes
get_class_dict: Callable[[Any], Any] = type.__dict__["__dict__"].__get__
get_bases: Any = type.__dict__["__bases__"]
get_basic_size: Callable[[Any], int] = type.__dict__["__basicsize__"].__get__
get_flags: Callable[[Any], int] = type.__dict__["__flags__"].__get__
set_class: Any = object.__dict__["__class__"]
get_arguments: Any = BaseException.__dict__["args"]
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
    """Return False, until the part is installed."""
    return False


class Scope:
    """What belongs to the user, and the global names that the user's functions use."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.names: set[str] = set()
        # The ids of library modules whose attributes the cell assigns.
        self.changed_modules: set[int] = set()
        self.local_modules: dict[str, bool] = {"__main__": True}
        self.is_local_file: Callable[[str], bool] = is_never_local
        # Whether the run that ends now has failed.
        self.has_failed = False

    def is_local(self, name: Any) -> bool:
        """Return whether a module is part of the user's project."""
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
    """Return the descriptor of an instance's `__dict__`, or None if there is none."""
    for base in get_mro(kind):
        descriptor = get_class_dict(base).get("__dict__")
        if descriptor is not None and base is not type:
            is_plain = type(descriptor) is types.GetSetDescriptorType
            return descriptor if is_plain else None
    return None


def get_slot(slot: Any, value: Any) -> Any:
    """Return the value of a slot, or EMPTY."""
    try:
        return slot.__get__(value)
    except AttributeError:
        return EMPTY


def make_instance_row(kind: Any, classes: list[Any]) -> Row | None:
    """Return the row of a class without a builtin base, or None if it has no state.

    A state consists of the class, `__dict__`, its items, and the values of the slots.
    """
    descriptor = find_dict_descriptor(kind)
    slots = find_slots(classes)
    if descriptor is None and not slots:
        return None
    get_dict = descriptor.__get__ if descriptor else None
    is_local = scope.is_local(get_class_dict(kind).get("__module__"))

    def take(value: Any) -> Any:
        attributes = get_dict(value) if get_dict else {}
        slot_values = [get_slot(slot, value) for slot in slots]
        return kind, attributes, dict.copy(attributes), slot_values

    def list_children(state: Any) -> Any:
        children = [*state[2].values(), *state[3]]
        if is_local:
            return [*children, kind]
        # Libraries count ids; these need not be the same again.
        return [child for child in children if type(child) is not itertools.count]

    def is_same(value: Any, state: Any) -> bool:
        if type(value) is not kind:
            return False
        if get_dict:
            attributes = get_dict(value)
            if attributes is not state[1] or not is_same_dict(attributes, state[2]):
                return False
        slot_values = [get_slot(slot, value) for slot in slots]
        return are_identical(slot_values, state[3])

    def restore(value: Any, state: Any) -> None:
        _, attributes, items, slot_values = state
        if type(value) is not kind:
            set_class.__set__(value, kind)
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
    """Return the row of a class that is derived from a builtin type."""

    def take(value: Any) -> Any:
        return base.take(value), instance.take(value)

    def list_children(state: Any) -> Any:
        return [*base.children(state[0]), *instance.children(state[1])]

    def is_same(value: Any, state: Any) -> bool:
        is_same_base = base.is_same is None or base.is_same(value, state[0])
        return is_same_base and bool(instance.is_same(value, state[1]))  # type: ignore

    def restore(value: Any, state: Any) -> None:
        if base.is_same and not base.is_same(value, state[0]):
            base.restore(value, state[0])
        instance.restore(value, state[1])

    list_current = None
    if base.list_current is not None:
        list_base = base.list_current

        def list_current(value: Any) -> Any:
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
    """Return whether a class was created by Python code and has no hidden C fields."""
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
get_parts = [types.FunctionType.__dict__[name] for name in FUNCTION_PARTS]


def take_function(value: Any) -> Any:
    """Return a function's attributes. A library's function has only its closure."""
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
    parts = [part.__get__(value) for part in get_parts]
    attributes = value.__dict__
    return parts, attributes, dict.copy(attributes), closure, module


def list_function_children(state: Any) -> Any:
    parts, _, items, closure, module = state
    children = [*items.values(), *closure, module]
    if parts:
        children += [parts[1], parts[2]]
    return children


def is_same_function(value: Any, state: Any) -> bool:
    parts, attributes, items, _, _ = state
    if not parts:
        return True
    current = [part.__get__(value) for part in get_parts]
    if not are_identical(current, parts) or value.__dict__ is not attributes:
        return False
    return is_same_dict(attributes, items)


def restore_function(value: Any, state: Any) -> None:
    """Restore the code, the defaults and the attributes of a function."""
    parts, attributes, items, _, _ = state
    for part, item in zip(get_parts, parts):
        if part.__get__(value) is not item:
            part.__set__(value, item)
    value.__dict__ = attributes
    if not is_same_dict(attributes, items):
        restore_dict(attributes, items)


def take_class(value: Any) -> Any:
    """Return attributes, bases and subclasses of one of the user's classes, else None.

    Other classes have a state only if the cell assigns their attributes.
    """
    attributes = get_class_dict(value)
    is_users = scope.is_local(attributes.get("__module__"))
    if not is_users and id(value) not in scope.changed_modules:
        return None
    items = {
        name: item for name, item in attributes.items() if name not in CLASS_CACHES
    }
    subclasses = type.__subclasses__(value) if is_users else []
    return items, get_bases.__get__(value), subclasses, is_users


def list_class_children(state: Any) -> Any:
    items, bases, _, is_users = state
    return [*items.values(), *bases] if is_users else []


def is_same_class(value: Any, state: Any) -> bool:
    items, bases, subclasses, is_users = state
    if not are_identical(get_bases.__get__(value), bases):
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
    if not are_identical(get_bases.__get__(value), bases):
        get_bases.__set__(value, bases)
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
    """Return the names of a module of the user, or of one that the cell changes.

    Return None for other modules.
    """
    attributes = get_module_dict(value)
    if attributes is scope.namespace:
        return None
    is_users = scope.is_local(attributes.get("__name__"))
    if not is_users and id(value) not in scope.changed_modules:
        return None
    items = dict.copy(attributes)
    for name in MODULE_INTERNALS:
        items.pop(name, None)
    return items, is_users


def list_module_children(state: Any) -> Any:
    items, is_users = state
    children = list(items.values())
    if is_users:
        return children
    return [child for child in children if is_shallow_child(child)]


def is_shallow_child(value: Any) -> bool:
    """Return whether an object in a library's module may be changed through it."""
    kind = type(value)
    if issubclass(kind, type):
        scope.changed_modules.add(id(value))
        return True
    if issubclass(kind, types.ModuleType):
        return False
    return kind in (list, dict, set) or is_python_class(kind)


def list_module_items(value: Any) -> Any:
    """Return the names of a module with their values."""
    items = dict.copy(get_module_dict(value))
    for name in MODULE_INTERNALS:
        items.pop(name, None)
    return items


def is_same_module(value: Any, state: Any) -> bool:
    current = list_module_items(value)
    items = state[0]
    return len(current) == len(items) and all(
        current.get(name, EMPTY) is item for name, item in items.items()
    )


def restore_module(value: Any, state: Any) -> None:
    attributes = get_module_dict(value)
    internals = {
        name: attributes[name] for name in MODULE_INTERNALS if name in attributes
    }
    MODULE_DICT.restore(attributes, {**state[0], **internals})


def take_arguments(value: Any) -> Any:
    return (get_arguments.__get__(value),)


def is_same_exception(value: Any, state: Any) -> bool:
    return get_arguments.__get__(value) is state[0]


def restore_arguments(value: Any, state: Any) -> None:
    get_arguments.__set__(value, state[0])


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
ROWS[types.SimpleNamespace] = frozen(lambda value: [value.__dict__])
ROWS[types.FrameType] = unprotected("frame", is_quiet=True)
ROWS[types.TracebackType] = unprotected("traceback", is_quiet=True)
