"""The walk from names to all objects that can be reached, with a snapshot of each."""

from __future__ import annotations

import enum
import time
import types
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.undo.builtin_types import PLAIN_TYPES, ROWS
from stepper.kernels.in_kernel.undo.library_types import (
    LibraryRow,
    find_c_type_row,
    find_library_row,
    get_package,
)
from stepper.kernels.in_kernel.undo.object_snapshots import (
    Row,
    UnprotectedError,
    get_mro,
    make_unprotected_row,
    take_nothing,
)
from stepper.kernels.in_kernel.undo.python_objects import (
    CLASS,
    KERNEL_PACKAGES,
    MODULE,
    combine_rows,
    is_python_class,
    make_instance_row,
    scope,
)

# Other processes must not shorten the time for a walk.
clock = getattr(time, "thread_time", time.monotonic)
TOO_LARGE = "too large"
CHECK_INTERVAL = 64  # objects between two checks of the time
MIN_SLOW_SECONDS = 1e-4  # a shorter copy is made even if it ends after the deadline
MIN_LONG = 20  # children whose types are compared together
get_module: Callable[[type], Any] = type.__dict__["__module__"].__get__
get_qualname: Callable[[type], str] = type.__dict__["__qualname__"].__get__
UNREADABLE = make_unprotected_row("object whose state cannot be read")
IGNORED = make_unprotected_row("object of the kernel", is_quiet=True)
# Ids of types. These types exist as long as the process.
static_rows: dict[int, Row] = {id(kind): row for kind, row in ROWS.items()}
plain_ids: set[int] = set(map(id, PLAIN_TYPES))
# The same for classes that may be deleted, for the duration of an image.
class_rows: dict[int, Row] = {}
plain_class_ids: set[int] = set()


def forget_classes() -> None:
    """Clear the tables of classes, whose ids may be used again."""
    class_rows.clear()
    plain_class_ids.clear()


def find_row(kind: Any) -> Row | None:
    """Return the row of a type, or None if its objects have no state."""
    key = id(kind)
    row = static_rows.get(key) or class_rows.get(key)
    if row is None and key not in plain_ids and key not in plain_class_ids:
        row = make_row(kind)
        if row is None:
            plain_class_ids.add(key)
        else:
            class_rows[key] = row
    return row


class BaseRow(NamedTuple):
    """The row of the nearest base class that is in a table or written in C.

    The row is None if there is no such class, or if its objects have no state.
    `python_classes` are the Python classes before the base class. `is_complete` means
    that the row also covers the attributes that these classes add.
    """

    row: Row | None
    python_classes: list[Any]
    is_complete: bool = False


def make_row(kind: Any) -> Row | None:
    """Return the row for a type that is not in a table, or None if it has no state.

    The row is that of the first base class in a table, combined with one for the
    attributes that Python classes add.
    """
    if issubclass(kind, type):
        return CLASS
    if issubclass(kind, types.ModuleType):
        return MODULE
    base_row, python_classes, is_complete = find_base_row(kind)
    if is_complete:
        return base_row
    if get_package(kind) in KERNEL_PACKAGES:
        return IGNORED
    if base_row is not None and base_row.label:
        return base_row
    if not python_classes:
        return base_row
    instance_row = make_instance_row(kind, python_classes)
    if instance_row is None or base_row is None:
        return instance_row or base_row
    return combine_rows(base_row, instance_row)


def find_base_row(kind: Any) -> BaseRow:
    """Return the row of a class's nearest base class that is in a table or in C."""
    python_classes: list[Any] = []
    for base in get_mro(kind):
        if base is object:
            break
        library_row = find_library_row(base)
        if library_row is not None:
            return BaseRow(library_row.row, python_classes, library_row.is_complete)
        if id(base) in plain_ids:
            return BaseRow(None, python_classes, is_plain_subclass(kind, base))
        static_row = static_rows.get(id(base))
        if static_row is not None:
            return BaseRow(static_row, python_classes)
        is_exception = issubclass(base, BaseException)
        if is_python_class(base):
            python_classes.append(base)
        elif not is_exception:  # a type in C that is not in a table
            c_row = find_named_row(kind) or find_c_type_row(base, kind)
            row = c_row.row if c_row else make_opaque_row(base)
            return BaseRow(row, python_classes, is_complete=True)
    return BaseRow(None, python_classes)


def is_plain_subclass(kind: Any, base: Any) -> bool:
    """Return whether the objects of a class derived from a plain class have no state.

    This is true if the plain class is written in Python. The members of the user's
    enumerations are an exception, because they may have attributes that change.
    """
    is_users_enum = base is enum.Enum and scope.is_local(get_module(kind))
    return is_python_class(base) and not is_users_enum


def find_named_row(kind: Any) -> LibraryRow | None:
    """Return the row of the first base class that is in the table of libraries."""
    for base in get_mro(kind):
        row = find_library_row(base)
        if row is not None:
            return row
    return None


def make_opaque_row(kind: Any) -> Row:
    """Return the row of a type in C whose state cannot be read."""
    name = f"{get_module(kind)}.{get_qualname(kind)}"
    return make_unprotected_row(name, is_quiet=get_package(kind) in KERNEL_PACKAGES)


class Snapshot(NamedTuple):
    """An object, the row of its type, and the state that `row.take` returned."""

    target: Any
    row: Row
    state: Any


class Walk:
    """A walk over objects, name by name.

    `snapshots` contains a snapshot of each object with a state, and `unprotected` the
    objects that cannot be restored. `shared` contains the ids of the objects of
    earlier names that a name also reaches. `incomplete` are the names for which there
    was not enough time, and `frontier` are the objects that were not visited for them.
    """

    def __init__(self, seconds: float, max_bytes: int) -> None:
        self.deadline = clock() + seconds
        self.max_bytes = max_bytes
        self.visited: dict[int, Any] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.unprotected: dict[int, Snapshot] = {}
        self.owners: dict[int, str] = {}
        self.shared: dict[str, list[int]] = {}
        self.incomplete: list[str] = []
        self.frontier: list[Any] = []

    def ignore(self, values: Iterable[Any]) -> None:
        """Do not visit these objects."""
        for value in values:
            self.visited[id(value)] = value

    def add_name(self, name: str, value: Any) -> None:
        """Visit all objects that can be reached from the value of a name.

        Objects at a smaller distance from the value come first.
        """
        visited = self.visited
        root_id = id(value)
        queue = [value]
        count = 0
        shared: list[int] = []
        self.shared[name] = shared
        while queue:
            found_children: list[Any] = []
            remaining = iter(queue)
            for item in remaining:
                key = id(item)
                kind_id = id(type(item))
                if kind_id in plain_ids or kind_id in plain_class_ids:
                    continue
                if key in visited:
                    if self.owners.get(key, name) != name:
                        shared.append(key)
                    continue
                row = find_row(type(item))
                if row is None:
                    continue
                count += 1
                if count % CHECK_INTERVAL == 0 and clock() > self.deadline:
                    self.incomplete.append(name)
                    self.frontier += [item, *remaining, *found_children]
                    return
                visited[key] = item
                if row.label and row.is_quiet and key != root_id:
                    continue
                self.owners[key] = name
                state = self.take(key, item, row)
                if state is None:
                    continue
                children = row.children(state)
                if children:
                    add_children(children, found_children)
            queue = found_children

    def take(self, key: int, value: Any, row: Row) -> Any:
        """Store a snapshot of an object, and return its state.

        Return None if the object has no state. Return None and store a fingerprint if
        the object is too large, or its state cannot be read.
        """
        if row.measure is not None:
            try:
                seconds, size = row.measure(value)
            except UnprotectedError as error:
                self.add_fingerprint(key, value, row, 0, str(error))
                return None
            except Exception:
                self.add_fingerprint(key, value, UNREADABLE, 0, UNREADABLE.label)
                return None
            is_long = seconds > MIN_SLOW_SECONDS
            is_slow = is_long and seconds > self.deadline - clock()
            if is_slow or size > self.max_bytes:
                self.add_fingerprint(key, value, row, size, TOO_LARGE)
                return None
        try:
            state = row.take(value)
        except Exception:
            self.add_fingerprint(key, value, UNREADABLE, 0, UNREADABLE.label)
            return None
        if state is None:
            return None
        snapshot = Snapshot(value, row, state)
        if row.label:
            self.unprotected[key] = snapshot
        elif row.is_same is not None:
            self.snapshots[key] = snapshot
        return state

    def list_children(self, key: int) -> Iterable[Any]:
        """Return the objects that a visited object referred to before the run.

        The result is empty for an object that can change and has no snapshot.
        """
        snapshot = self.snapshots.get(key)
        if snapshot is not None:
            return snapshot.row.children(snapshot.state)
        value = self.visited[key]
        row = find_row(type(value))
        if row is None or row.is_same is not None or key in self.unprotected:
            return ()
        return row.children(row.take(value))

    def add_fingerprint(
        self, key: int, value: Any, row: Row, size: int, label: str
    ) -> None:
        """Store a fingerprint of an object if no snapshot of the object is possible.

        `label` is the reason, and `size` the size in bytes.
        """
        sample_row = make_unprotected_row(label, row.sample or take_nothing)
        try:
            state = sample_row.take(value)
        except Exception:  # for example, a sparse tensor has no address
            sample_row = make_unprotected_row(label)
            state = sample_row.take(value)
        sample_row = sample_row._replace(measure=lambda _: (0.0, size))
        self.unprotected[key] = Snapshot(value, sample_row, state)


class Search(NamedTuple):
    """The result of a search: the ids of those objects that a value contains.

    `is_complete` is False if other objects may be in the value, too: there was not
    enough time, or the state of an object could not be read.
    """

    reached: set[int]
    is_complete: bool


def measure_children(value: Any, row: Row) -> float:
    """Return the seconds that it takes to list the objects in an object."""
    if row.measure is None or row.list_current is not None:
        return 0.0
    return row.measure(value)[0]


def list_current_children(value: Any, row: Row) -> Any:
    """Return the objects that are now in an object. `row` is the row of its type."""
    if row.list_current is not None:
        return row.list_current(value)
    state = row.take(value)
    return [] if state is None else row.children(state)


def find_reachable(
    value: Any,
    keys: Collection[int],
    deadline: float,
    list_children: Callable[[Any, Row], Any] = list_current_children,
) -> Search:
    """Search for objects in a value. `keys` are the ids of the objects, at least one.

    The search ends at the deadline, in seconds of `clock`. `list_children` returns the
    objects in an object; its arguments are the object and the row of the object's type.
    """
    reached = set[int]()
    is_complete = True
    visited: dict[int, Any] = {}
    queue = [value]
    while queue:
        item = queue.pop()
        key = id(item)
        row = find_row(type(item))
        if row is None or key in visited:
            continue
        visited[key] = item
        if key in keys:
            reached.add(key)
            if len(reached) == len(keys):
                return Search(reached, is_complete=True)
        if row.children is take_nothing:
            continue
        now = clock()
        if now > deadline:
            return Search(reached, is_complete=False)
        try:
            if now + measure_children(item, row) > deadline:
                is_complete = False
                continue
            children = list_children(item, row)
        except Exception:
            is_complete = False
            continue
        add_children(children, queue)
    return Search(reached, is_complete)


def search_in_half_time(
    value: Any,
    keys: Collection[int],
    deadline: float,
    list_children: Callable[[Any, Row], Any] = list_current_children,
) -> Search:
    """Search like `find_reachable`, for half of the time until the deadline.

    This is for a search in several values with one deadline: a large value must not
    take the time of all values after it.
    """
    middle = (clock() + deadline) / 2
    return find_reachable(value, keys, middle, list_children)


def add_children(children: Iterable[Any], queue: list[Any]) -> None:
    """Add children to a queue, except those of plain types, which have no state."""
    children = list(children)
    # Most children are plain values, and this comparison is faster than the loop.
    if len(children) > MIN_LONG:
        kinds = set(map(id, map(type, children)))
        if kinds <= plain_ids:
            return
    for child in children:
        if id(type(child)) not in plain_ids:
            queue.append(child)
