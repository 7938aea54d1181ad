"""Shallow snapshots of objects: how to take, compare and restore the state of a type.

A snapshot holds references to an object's items, not copies of them. Restoring is done
in place, so identities and aliases stay intact. A `Row` describes a type. Only methods
of the builtin types are called, never those of the user's classes. The only exception
is an OrderedDict, which hashes its keys during an iteration.
"""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

is_identical = operator.is_
get_mro: Callable[[Any], tuple[Any, ...]] = type.__dict__["__mro__"].__get__
# Seconds per item of a container and per byte of a buffer, to take and compare a state.
ITEM_SECONDS = 6e-8
BYTE_SECONDS = 5e-10
SAMPLES = 64
EMPTY: Any = object()  # the content of an empty slot or closure cell


class RestoreError(Exception):
    """An object's state cannot be restored. The message is the reason."""


class UnprotectedError(Exception):
    """No snapshot of an object is possible. The message says what the object is."""


def take_nothing(value: Any) -> Any:
    """Return an empty state, or no children of a state."""
    return ()


def restore_nothing(value: Any, state: Any) -> None:
    """Raise RestoreError, because the object is immutable or unprotected."""
    raise RestoreError("it cannot be restored")


class Row(NamedTuple):
    """How to take, compare and restore the states of the objects of a type.

    `take` returns the state of an object, and `children` the objects in a state.
    `is_same` compares an object with a state; it is None for an immutable type. A type
    with a `label` is unprotected: the state of an object is only a fingerprint. Equal
    fingerprints prove that the object has not changed if `is_conclusive` is true. If
    `is_quiet` is true, objects of the type in containers are ignored.

    `measure` returns the seconds and the bytes that a snapshot costs. `sample` returns
    a fingerprint of an object that is too large for a snapshot. `list_current` returns
    the objects in an object without a copy of its content, which `take` would make.
    """

    take: Callable[[Any], Any] = take_nothing
    children: Callable[[Any], Iterable[Any]] = take_nothing
    is_same: Callable[[Any, Any], bool] | None = None
    restore: Callable[[Any, Any], None] = restore_nothing
    label: str = ""
    is_conclusive: bool = False
    is_quiet: bool = False
    measure: Callable[[Any], tuple[float, int]] | None = None
    sample: Callable[[Any], Any] | None = None
    list_current: Callable[[Any], Iterable[Any]] | None = None


def are_identical(first: Iterable[Any], second: Iterable[Any]) -> bool:
    """Return whether the items of two iterables of the same length are identical."""
    return all(map(is_identical, first, second))


def make_measure(get_length: Callable[[Any], int]) -> Callable[[Any], Any]:
    """Return a `measure` function for a container, from a function for its length."""

    def measure(value: Any) -> Any:
        """Return the seconds and the bytes that a snapshot of a container costs."""
        length = get_length(value)
        return length * ITEM_SECONDS, length * 8

    return measure


def make_is_same(take: Callable[[Any], Any]) -> Callable[[Any, Any], bool]:
    """Return an `is_same` function for states that consist of plain values."""

    def is_same(value: Any, state: Any) -> bool:
        """Return whether an object still has the given state."""
        return bool(take(value) == state)

    return is_same


def make_unprotected_row(
    label: str, take: Callable[[Any], Any] = take_nothing, **options: Any
) -> Row:
    """Return the row of a type whose objects cannot be restored.

    `label` is the kind of object, `take` returns a fingerprint, and `options` are
    further fields of the row.
    """
    is_same = make_is_same(take)
    return Row(take=take, is_same=is_same, label=label, **options)


def make_immutable_row(take: Callable[[Any], Iterable[Any]]) -> Row:
    """Return the row of an immutable type. `take` returns the objects in an object."""
    return Row(
        take=take,
        children=list,
    )


# lists, dicts, sets


def is_same_list(value: Any, state: Any) -> bool:
    """Return whether a list has the items of a state."""
    if list.__len__(value) != len(state):
        return False
    return are_identical(state, list.__iter__(value))


def restore_list(value: Any, state: Any) -> None:
    """Replace the items of a list by those of a state."""
    list.__setitem__(value, slice(None), state)


def sample_list(value: Any) -> Any:
    """Return the length of a list, and the identity of some items."""
    length = list.__len__(value)
    step = max(1, length // SAMPLES)
    items = list.__getitem__(value, slice(None, None, step))
    ids = [id(item) for item in items]
    return length, ids


def list_dict_children(state: Any) -> Any:
    """Return the keys and values in the state of a dict."""
    return [*state, *state.values()]


def is_same_dict(value: Any, state: Any) -> bool:
    """Return whether a dict has the keys and values of a state, in the same order."""
    if dict.__len__(value) != len(state):
        return False
    keys = dict.__iter__(value)
    if not are_identical(state, keys):
        return False
    items = dict.values(value)
    return are_identical(state.values(), items)


def restore_dict(value: Any, state: Any) -> None:
    """Replace the items of a dict by those of a state."""
    # `update` with a dict uses the stored hashes: no `__hash__` is called.
    dict.clear(value)
    dict.update(value, state)


def sample_dict(value: Any) -> Any:
    """Return the length of a dict, and the identity of some values."""
    length = dict.__len__(value)
    step = max(1, length // SAMPLES)
    items = itertools.islice(dict.values(value), 0, None, step)
    return length, [id(item) for item in items]


def restore_module(value: Any, state: Any) -> None:
    """Restore a module's `__dict__` name by name: other threads may use the module."""
    # The finalizer of a removed item may remove other items.
    for name in list(value):
        if name not in state:
            value.pop(name, None)
    for name, item in state.items():
        if value.get(name, EMPTY) is not item:
            value[name] = item


def is_same_module(value: Any, state: Any) -> bool:
    """Return whether a module's `__dict__` has the items of a state, in any order."""
    if is_same_dict(value, state):
        return True
    if len(value) != len(state):
        return False
    return all(value.get(name, EMPTY) is item for name, item in state.items())


def take_ordered(value: Any) -> Any:
    """Return the keys and the values of an OrderedDict, in its order."""
    keys = list(collections.OrderedDict.__iter__(value))
    copy = dict.copy(value)
    return keys, [copy[key] for key in keys]


def list_ordered_children(state: Any) -> Any:
    """Return the keys and values in the state of an OrderedDict."""
    keys, values = state
    return [*keys, *values]


def is_same_ordered(value: Any, state: Any) -> bool:
    """Return whether an OrderedDict has the keys and values of a state, in order."""
    keys, values = take_ordered(value)
    former_keys, former_values = state
    is_same_size = len(keys) == len(former_keys)
    are_keys_same = is_same_size and are_identical(keys, former_keys)
    return are_keys_same and are_identical(values, former_values)


def restore_ordered(value: Any, state: Any) -> None:
    """Replace the items of an OrderedDict by those of a state."""
    keys, values = state
    collections.OrderedDict.clear(value)
    for key, item in zip(keys, values):
        collections.OrderedDict.__setitem__(value, key, item)


FACTORY_DESCRIPTOR: Any = collections.defaultdict.__dict__["default_factory"]


def take_default(value: Any) -> Any:
    """Return the items and the default factory of a defaultdict."""
    return dict.copy(value), FACTORY_DESCRIPTOR.__get__(value)


def list_default_children(state: Any) -> Any:
    """Return the keys, the values and the factory in the state of a defaultdict."""
    items, factory = state
    return [*list_dict_children(items), factory]


def is_same_default(value: Any, state: Any) -> bool:
    """Return whether a defaultdict has the items and the factory of a state."""
    items, factory = state
    return FACTORY_DESCRIPTOR.__get__(value) is factory and is_same_dict(value, items)


def restore_default(value: Any, state: Any) -> None:
    """Restore the items and the factory of a defaultdict."""
    items, factory = state
    restore_dict(value, items)
    FACTORY_DESCRIPTOR.__set__(value, factory)


def take_set(value: Any) -> Any:
    """Return a copy of a set, and its items in the order of iteration."""
    return set.copy(value), list(set.__iter__(value))


def list_set_children(state: Any) -> Any:
    """Return the items in the state of a set."""
    order: list[Any] = state[1]
    return order


def is_same_set(value: Any, state: Any) -> bool:
    """Return whether a set has the same items as a state, in any order."""
    _, order = state
    if set.__len__(value) != len(order):
        return False
    if are_identical(order, set.__iter__(value)):
        return True
    return set(map(id, order)) == set(map(id, set.__iter__(value)))


def restore_set(value: Any, state: Any) -> None:
    """Restore the items of a set, in the former order of iteration if possible."""
    items, order = state
    set.clear(value)
    set.update(value, items)
    # Items of the user's classes are not hashed: `__hash__` may be the user's code.
    is_plain = {*map(type, order)} <= {int, str, float}
    if is_plain and not are_identical(order, set.__iter__(value)):
        set.clear(value)
        set.update(value, order)


def restore_deque(value: Any, state: Any) -> None:
    """Replace the items of a deque by those of a state."""
    collections.deque.clear(value)
    collections.deque.extend(value, state)


def is_same_deque(value: Any, state: Any) -> bool:
    """Return whether a deque has the items of a state."""
    if collections.deque.__len__(value) != len(state):
        return False
    return are_identical(state, collections.deque.__iter__(value))


LIST = Row(
    take=list.copy,
    children=list,
    is_same=is_same_list,
    restore=restore_list,
    measure=make_measure(list.__len__),
    sample=sample_list,
)
DICT = Row(
    take=dict.copy,
    children=list_dict_children,
    is_same=is_same_dict,
    restore=restore_dict,
    measure=make_measure(dict.__len__),
    sample=sample_dict,
)
MODULE_DICT = DICT._replace(restore=restore_module, is_same=is_same_module)
CONTAINERS: dict[Any, Row] = {
    list: LIST,
    dict: DICT,
    collections.OrderedDict: Row(
        take=take_ordered,
        children=list_ordered_children,
        is_same=is_same_ordered,
        restore=restore_ordered,
        measure=make_measure(dict.__len__),
        sample=sample_dict,
    ),
    collections.defaultdict: Row(
        take=take_default,
        children=list_default_children,
        is_same=is_same_default,
        restore=restore_default,
        measure=make_measure(dict.__len__),
        sample=sample_dict,
    ),
    set: Row(
        take=take_set,
        children=list_set_children,
        is_same=is_same_set,
        restore=restore_set,
        measure=make_measure(set.__len__),
    ),
    collections.deque: Row(
        take=list,
        children=list,
        is_same=is_same_deque,
        restore=restore_deque,
        measure=make_measure(collections.deque.__len__),
    ),
}
