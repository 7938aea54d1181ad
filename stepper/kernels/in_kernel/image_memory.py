"""The memory that before-images keep alive, estimated within a fixed time."""

from __future__ import annotations

import gc
import sys
import types
from itertools import islice
from typing import Any

MAX_OBJECTS = 3000
MAX_ITEMS = 1000  # of a container, whose items are all visited
SAMPLE = 100
BIG = 65_536  # bytes of an object that is looked up among the user's objects
SKIPPED = (type, types.ModuleType, types.FunctionType, types.FrameType, types.CodeType)
PLAIN = (int, float, complex, bool, type(None))
CONTAINERS = (list, tuple, dict, set, frozenset)


class Sizes:
    """Sizes of objects: of each big object by id, and the sum of the others."""

    def __init__(self, values: Any) -> None:
        self.small = 0
        self.big: dict[int, int] = {}
        self._visit(list(values))

    @property
    def total(self) -> int:
        """The size of all objects in bytes."""
        return self.small + sum(self.big.values())

    def _visit(self, pending: list[Any]) -> None:
        seen = set[int]()
        while pending and len(seen) < MAX_OBJECTS:
            value = pending.pop()
            kind = type(value)
            key = id(value)
            if key in seen or kind in PLAIN or issubclass(kind, SKIPPED):
                continue
            seen.add(key)
            size = get_size(value)
            if kind in CONTAINERS and len(value) > MAX_ITEMS:
                size += self._estimate_items(value)
                pending += islice(value, SAMPLE)
            else:
                pending += gc.get_referents(value)
            if size >= BIG:
                self.big[key] = size
            else:
                self.small += size

    def _estimate_items(self, value: Any) -> int:
        """Return the size of a long container's items, from the first ones."""
        items = value.values() if type(value) is dict else value
        sample = list(islice(items, SAMPLE))
        sample_size = sum(map(get_size, sample))
        return int(sample_size * len(value) / len(sample))


def get_size(value: Any) -> int:
    """Return the size of an object without the objects that it refers to."""
    kind: Any = type(value)
    if str(kind.__module__).startswith("pandas.core"):
        return 200  # `__sizeof__` of a frame adds up its values
    try:
        size = kind.__sizeof__(value)
        size = max(size, getattr(value, "nbytes", 0) if is_view(value) else 0)
        return int(size)
    except Exception:
        return 0


def is_view(value: Any) -> bool:
    """Return whether an object is a view of an array, which may keep it alive."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def count_bytes(held: Any, user_values: Any) -> int:
    """Return the bytes that only images keep alive.

    Big objects that the user's values contain, too, are not counted.
    """
    big: dict[int, int] = {}
    for sizes in held:
        big.update(sizes.big)
    if big:
        in_use = Sizes(user_values).big
        for key in in_use:
            big.pop(key, None)
    small = sum(sizes.small for sizes in held)
    return int(small + sum(big.values()))
