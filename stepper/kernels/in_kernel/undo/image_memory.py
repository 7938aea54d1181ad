"""The memory that before-images keep alive, estimated within a fixed time."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterable
from itertools import islice
from typing import Any

from stepper.kernels.in_kernel.undo.object_snapshots import get_mro
from stepper.kernels.in_kernel.undo.python_objects import HEAP_TYPE, get_flags

MAX_OBJECTS = 3000
MAX_USER_OBJECTS = 1000
MAX_ITEMS = 1000  # of a container, whose items are all visited
SAMPLE = 100
BIG = 65_536  # bytes of an object that is looked up among the user's objects
SKIPPED = (type, types.ModuleType, types.FunctionType, types.FrameType, types.CodeType)
PLAIN = (int, float, complex, bool, type(None))
CONTAINERS = (list, tuple, dict, set, frozenset)
# The ids of classes: a lookup of a class would call the metaclass.
PLAIN_IDS = set(map(id, PLAIN))
SIZED_TYPES = (*CONTAINERS, str, bytes)
SIZED_IDS = set(map(id, SIZED_TYPES))


class Sizes:
    """The sizes of values and of the objects in them, in bytes.

    `big` contains the size of each big object by id, and `small` the sum of the others,
    which may be an estimate. No objects are visited after `max_objects` objects, except
    objects with the same distance from the values.
    """

    def __init__(self, values: Iterable[Any], max_objects: int = MAX_OBJECTS) -> None:
        self.small = 0
        self.big: dict[int, int] = {}
        self._visit(list(values), max_objects)

    @property
    def total(self) -> int:
        """The size of all objects in bytes."""
        return self.small + sum(self.big.values())

    def _visit(self, level: list[Any], max_objects: int) -> None:
        """Visit objects in the order of their distance from the first ones.

        If there are many small objects at a distance, only some of them are visited.
        """
        seen = set[int]()
        while level and len(seen) < max_objects:
            next_level: list[Any] = []
            others = level
            if len(level) > max_objects:
                small_values, others = separate_small(level)
                step = 1 + len(small_values) // max_objects
                sample = small_values[::step]
                former_small = self.small
                self._add_new(sample, seen, next_level)
                sample_size = self.small - former_small
                # The objects that are not visited probably have the same sizes.
                self.small += sample_size * (step - 1)
            self._add_new(others, seen, next_level)
            level = next_level

    def _add_new(
        self, values: list[Any], seen: set[int], next_level: list[Any]
    ) -> None:
        """Add the sizes of objects whose ids are not in `seen`, and add their ids.

        The children of the objects are added to `next_level`.
        """
        for value in values:
            kind = type(value)
            if kind in PLAIN or issubclass(kind, SKIPPED):
                continue
            key = id(value)
            if key in seen:
                continue
            seen.add(key)
            self._add(key, value, next_level)

    def _add(self, key: int, value: Any, next_level: list[Any]) -> None:
        """Add the size of an object, and its children to `next_level`.

        Of a long container, only the first items are added.
        """
        size = get_size(value)
        kind = type(value)
        if kind in CONTAINERS and len(value) > MAX_ITEMS:
            items = value
            if kind is dict:
                items = value.values()
            sample = list(islice(items, SAMPLE))
            size += estimate_items(sample, len(value))
            next_level += sample
        else:
            next_level += gc.get_referents(value)
            next_level += list_owner(value)
        if size >= BIG:
            self.big[key] = size
        else:
            self.small += size


def separate_small(values: list[Any]) -> tuple[list[Any], list[Any]]:
    """Separate short texts and containers with few items from other values.

    Return both lists. Numbers are in neither list.
    """
    small_values = []
    others = []
    for value in values:
        kind_id = id(type(value))
        if kind_id in SIZED_IDS and len(value) <= MAX_ITEMS:
            small_values.append(value)
        elif kind_id not in PLAIN_IDS:
            others.append(value)
    return small_values, others


def estimate_items(sample: list[Any], count: int) -> int:
    """Return the size of the `count` items of a container in bytes, from some items."""
    sample_size = sum(map(get_size, sample))
    return int(sample_size * count / len(sample))


def get_size(value: Any) -> int:
    """Return the size of an object in bytes, without the objects that it refers to.

    Only C code is called: a `__sizeof__` in Python may run the user's code.
    """
    # An internal type of Python 3.9 has no base classes.
    for base in get_mro(type(value)) or ():
        if not get_flags(base) & HEAP_TYPE:
            size: int = base.__sizeof__(value)
            return size
    return 0


def list_owner(value: Any) -> list[Any]:
    """Return a list of the object that owns the memory of a numpy array.

    The item is None if the array owns its memory. The list is empty for a value that
    is not an array.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:
        return []
    return [value.base]


def count_bytes(image_sizes: Iterable[Sizes], user_values: Iterable[Any]) -> int:
    """Return the number of bytes that only images keep alive.

    Big objects are not counted if the user's values contain them.
    """
    big: dict[int, int] = {}
    total = 0
    for sizes in image_sizes:
        big.update(sizes.big)
        total += sizes.small
    if big:
        in_use = Sizes(user_values, MAX_USER_OBJECTS)
        for key in in_use.big:
            big.pop(key, None)
    return total + sum(big.values())
