"""Former values of names that other objects still contain.

If a cell runs again and binds a name to an equal value, cells that read the name are
not stale. But a list that contains the former object keeps the former object: a later
change in place of one of the two objects does not change the other. This module finds
the names with such lists or other containers. Only values of the types that have a
fingerprint matter.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import is_a
from stepper.kernels.in_kernel.undo.image_recording import (
    LOST,
    MISSING,
    Image,
    list_bindings,
)
from stepper.kernels.in_kernel.undo.object_walk import (
    clock,
    find_row,
    get_module,
    search_in_half_time,
)
from stepper.kernels.in_kernel.undo.pandas_types import (
    get_attributes,
    uses_copy_on_write,
)
from stepper.kernels.in_kernel.value_fingerprints import MAX_ITEMS

SECONDS = 0.02  # for the search for the names
MAX_MEMBERS = 10 * MAX_ITEMS
PLAIN_CONTAINERS = (list, tuple, set, frozenset)
UNKNOWN_NAMES = ""  # stands for names that were not found
# The references that `getrefcount` counts for an item of a dict without other ones.
probe = {0: object()}
OWN_REFERENCES = sys.getrefcount(probe[0])


class FormerValues:
    """The values that names had before an undo, by name."""

    def __init__(self) -> None:
        self.values: Any = {}
        # Weak references, so that a former class can be garbage-collected and its base
        # class no longer lists the former class as a subclass.
        self.classes: Any = {}
        # The values and the objects in them, by id.
        self.members: Any = {}
        # The number of known references to each member.
        self.references: Any = {}

    def add(self, name: str, value: Any) -> None:
        """Add a value of a name that the undo removes from the namespace.

        Values of unsupported types are ignored.
        """
        if value is MISSING or value is LOST:
            return
        if is_users_class(value):
            reference = weakref.ref(value)
            classes = self.classes.setdefault(name, [])
            classes.append(reference)
        elif is_supported(value):
            values = self.values.setdefault(name, [])
            values.append(value)

    def find_containers(self, images: list[Image], namespace: Any) -> Any:
        """Return the names whose values contain former values, by former name.

        The first dict is for values, and the second for classes, whose instances count.
        UNKNOWN_NAMES stands for names that were not found, although something refers to
        the former value.
        """
        contents = self.collect_shared_members()
        class_ids = self.list_class_ids()
        values: Any = {}
        classes: Any = {}
        if not contents and not class_ids:
            return values, classes
        roots = list_roots(images, namespace)
        deadline = clock() + SECONDS
        for name, keys in contents.items():
            containers = find_names(roots, keys, deadline)
            if not containers:
                containers.add(UNKNOWN_NAMES)
            values[name] = sorted(containers)
        for name, keys in class_ids.items():
            containers = find_names(roots, keys, deadline)
            if containers:
                classes[name] = sorted(containers)
        return values, classes

    def list_class_ids(self) -> Any:
        """Return the ids of the former classes that still exist, by name."""
        class_ids = {}
        for name, references in self.classes.items():
            keys = set()
            for reference in references:
                kind = reference()
                if kind is not None:
                    keys.add(id(kind))
            if keys:
                class_ids[name] = keys
        return class_ids

    def collect_shared_members(self) -> Any:
        """Return the ids of the members to which other objects refer, by former name.

        Names without such members are left out.
        """
        keys_by_name = self.collect_members()
        self.count_references()
        all_shared = self.find_shared_members()
        contents = {}
        for name, keys in keys_by_name.items():
            shared = keys & all_shared
            if shared:
                contents[name] = shared
        return contents

    def collect_members(self) -> Any:
        """Find the members: the values and the objects in them. Return ids by name."""
        keys_by_name = {}
        for name, values in self.values.items():
            keys: set[int] = set()
            for value in values:
                self.add_members(value, keys)
                self.add_reference(value)
            keys_by_name[name] = keys
        return keys_by_name

    def add_members(self, root: Any, keys: set[int]) -> None:
        """Add a value and the objects in it to the members, and their ids to `keys`."""
        queue = [root]
        while queue and len(self.members) <= MAX_MEMBERS:
            value = queue.pop()
            key = id(value)
            if key in keys or not is_supported(value):
                continue
            keys.add(key)
            if is_frame(value):
                clear_column_cache(value)
            self.members[key] = value
            parts = list_parts(value)
            queue += parts

    def add_reference(self, value: Any) -> None:
        """Count one more known reference to a value."""
        key = id(value)
        count = self.references.get(key, 0)
        self.references[key] = count + 1

    def count_references(self) -> None:
        """Count the references among the members."""
        for value in self.members.values():
            for part in list_parts(value):
                self.add_reference(part)

    def find_shared_members(self) -> set[int]:
        """Return the ids of the members that can change and have other references.

        Other references are those that are not from a member or this object.
        """
        members = self.members
        shared = set()
        for key in members:
            # A variable for the member would be another reference.
            count = sys.getrefcount(members[key]) - OWN_REFERENCES
            known_count = self.references.get(key, 0)
            if count > known_count and can_change(members[key]):
                shared.add(key)
        return shared


def is_users_class(value: Any) -> bool:
    """Return whether a value is a class that a cell defines."""
    return is_a(value, type) and get_module(value) == "__main__"


def is_supported(value: Any) -> bool:
    """Return whether a value is a small container, an array or a frame.

    Only such values have fingerprints and may contain objects that change in place.
    """
    kind = type(value)
    if kind in PLAIN_CONTAINERS or kind is dict:
        return len(value) <= MAX_ITEMS
    return is_array(value) or is_frame(value)


def is_array(value: Any) -> bool:
    """Return whether a value is a numpy array, and not of a subclass."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def is_frame(value: Any) -> bool:
    """Return whether a value is a DataFrame or Series, and not of a subclass."""
    pandas = sys.modules.get("pandas")
    if pandas is None:
        return False
    return type(value) in (pandas.DataFrame, pandas.Series)


def clear_column_cache(frame: Any) -> None:
    """Clear the columns that pandas 2 has cached for a frame.

    They refer to the frame's arrays, and would count as references of other objects.
    """
    cache = get_attributes(frame).get("_item_cache")
    if cache:
        cache.clear()


def list_parts(value: Any) -> list[Any]:
    """Return the objects in a value, as often as the value refers to them."""
    kind = type(value)
    if kind in PLAIN_CONTAINERS:
        return list(value)
    if kind is dict:
        return list(dict.values(value))
    if is_array(value):
        if value.dtype.kind == "O" and value.base is None:
            return list(value.ravel().tolist())
        return [value.base]
    if is_frame(value) and not uses_copy_on_write():
        return [block.values for block in value._mgr.blocks]
    return []


def can_change(value: Any) -> bool:
    """Return whether a value, or an object in it, can change in place."""
    kind = type(value)
    if kind in (tuple, frozenset):
        return any(map(can_change, value))
    row = find_row(kind)
    if row is None:
        return False
    return row.is_same is not None or bool(row.label)


def list_roots(images: list[Image], namespace: Any) -> list[tuple[str, Any]]:
    """Return the values that cells can reach now or after a further undo, with names.

    The results of cells have the name `_`.
    """
    bindings = list_bindings(namespace, {})
    roots = list(bindings.items())
    for name in ("Out", "_", "__", "___"):
        value = namespace.get(name)
        roots.append(("_", value))
    for image in images:
        for name, value in image.bindings.items():
            if value is not MISSING and value is not LOST:
                roots.append((name, value))
        for change in image.objects.values():
            _, row, state = change.snapshot
            children = row.children(state)
            for name in change.names:
                roots += [(name, child) for child in children]
    return roots


def find_names(
    roots: Iterable[tuple[str, Any]], keys: set[int], deadline: float
) -> set[str]:
    """Return the names whose values contain an object with one of the ids in `keys`.

    If the search of another value was not complete, the result contains UNKNOWN_NAMES.
    """
    names = set[str]()
    for name, value in roots:
        if name in names:
            continue
        search = search_in_half_time(value, keys, deadline)
        if search.reached:
            names.add(name)
        elif not search.is_complete:
            names.add(UNKNOWN_NAMES)
    return names
