"""The image of a run: the state before the run, reduced to what the run changed."""

from __future__ import annotations

import os
import re
import sys
import time
import types
import weakref
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.safe_inspect import is_a
from stepper.kernels.in_kernel.undo.global_state import (
    find_changes,
    get_label,
    take_states,
)
from stepper.kernels.in_kernel.undo.image_memory import Sizes
from stepper.kernels.in_kernel.undo.object_snapshots import take_nothing
from stepper.kernels.in_kernel.undo.object_walk import (
    TOO_LARGE,
    UNREADABLE,
    Snapshot,
    Walk,
    add_children,
    find_row,
    list_current_children,
    search_in_half_time,
)
from stepper.kernels.in_kernel.undo.object_walk import clock as walk_clock
from stepper.kernels.in_kernel.undo.python_objects import scope

clock = time.monotonic
OTHER_NAMES_SECONDS = 0.03  # for names that contain an object that has no snapshot
MAX_VISITS = 20_000  # objects that are visited to find the names of a change
CHANGED = "changed"
UNKNOWN = "unknown"
MISSING: Any = object()  # the binding of a name that does not exist
LOST: Any = object()  # a former binding that was too large to be kept
KINDS = ("changes", "calls", "reads", "binds")
IPYTHON_NAMES = re.compile(
    r"_{1,3}|_i{1,3}|_i?\d+|_[iod]h|__\w+__|_exit_code|In|Out|exit|quit|get_ipython"
)


class Loss(NamedTuple):
    """Why a name or an object cannot be restored, and its size in bytes.

    `change` is CHANGED or UNKNOWN: the run changed or may have changed the value.
    """

    reason: str
    size: int
    change: str


# Of a name whose value may contain other objects, because there were too many or the
# state of one could not be read.
NOT_VISITED = Loss("not searched completely", 0, UNKNOWN)


class Change:
    """An object that a run changed: its snapshot, and the names that reach it."""

    def __init__(self, snapshot: Snapshot, names: set[str]) -> None:
        self.snapshot = snapshot
        self.names = names


class LargeValue(NamedTuple):
    """A value that is too large to be kept: its identity and a fingerprint.

    `take` is the function that computed the fingerprint `sample`. `reference` is a weak
    reference, or a function that returns None if the class, such as `list`, does not
    support weak references.
    """

    reference: Any
    identity: int
    size: int
    take: Any
    sample: Any


class Image:
    """The state before a run, reduced to what the run changed.

    The image of an execution by another client has `run` 0. It only records that older
    images are not valid for its names and objects.
    """

    def __init__(self, run: int) -> None:
        self.run = run
        self.bindings: dict[str, Any] = {}  # name → the former value
        self.objects: dict[int, Change] = {}  # by id
        self.states: dict[str, Any] = {}  # name of a global state → the former state
        self.unprotected: dict[str, Loss] = {}  # by name
        # The names that were not restored when the run was undone, with the reasons.
        self.failed: dict[str, str] = {}
        self.sizes = Sizes([])

    def forget_states(self) -> None:
        """Forget the former states, because no later undo goes back to them."""
        self.bindings = {}
        self.objects = {}
        self.states = {}
        self.measure()

    def measure(self) -> None:
        """Update the size of what the image keeps alive."""
        states = [change.snapshot.state for change in self.objects.values()]
        values = [*self.bindings.values(), *states, *self.states.values()]
        self.sizes = Sizes(values)


def list_bindings(namespace: Any, hidden: Any) -> Any:
    """Return the names that cells have bound, with their values.

    `hidden` contains the names that IPython has bound.
    """
    bindings = {}
    for name, value in list(namespace.items()):
        if type(name) is not str or IPYTHON_NAMES.fullmatch(name):
            continue
        if value is not hidden.get(name, MISSING):
            bindings[name] = value
    return bindings


class Recording:
    """The image of the run that is in progress."""

    def __init__(self, request: Any, bindings: Any, twins: set[str]) -> None:
        """Take the image. `twins` are names that the cell may change indirectly.

        See `Log.twins` in `before_images`.
        """
        began = clock()
        self.twins = twins
        self.run: int = request["run"]
        self.memory: int = request["memory"]
        # Name → the first of KINDS that applies to its use in the cell.
        self.kinds: dict[str, str] = {}
        mentioned = request["names"]
        for kind in KINDS:
            for name in mentioned.get(kind, ()):
                self.kinds.setdefault(name, kind)
        self.bindings = dict(bindings)
        self.large = self.find_large()
        self.walk = Walk(request["seconds"], self.memory)
        ignore_kernel_objects(self.walk)
        if request.get("everything"):
            for name in bindings:
                self.kinds.setdefault(name, "calls")
        self.take()
        self.states = take_states()
        self.module_names = set(sys.modules)
        self.seconds = clock() - began

    def find_large(self) -> Any:
        """Remove and return the values that are too large to be kept."""
        large = {}
        for name, value in self.bindings.items():
            size = measure_value(value)
            if size <= self.memory:
                continue
            row = find_row(type(value))
            take = row.sample if row and row.sample else take_nothing
            reference = make_reference(value)
            sample = take(value)
            large[name] = LargeValue(reference, id(value), size, take, sample)
        for name in large:
            del self.bindings[name]
        return large

    def take(self) -> None:
        """Take snapshots of all objects that the cell can reach.

        These include the objects that the functions which it may call use by name.
        """
        scope.names = set()
        scope.changed_modules = set()
        names = []
        for name, kind in self.kinds.items():
            if kind != "binds":
                names.append(name)
        visited: Any = set()
        while names:
            for name in names:
                self.take_name(name)
            visited.update(names)
            used_names = scope.names & self.bindings.keys()
            names = sorted(used_names - visited)
            for name in names:
                self.kinds.setdefault(name, "calls")

    def take_name(self, name: str) -> None:
        """Take snapshots of the objects that can be reached from a name."""
        if name not in self.bindings:
            return
        value = self.bindings[name]
        if self.kinds[name] == "changes":
            protect_changed_module(value)
        self.walk.add_name(name, value)

    def finish(self, bindings: Any) -> Image:
        """Compare the state with the snapshots from before the run.

        Return the before-image, which contains only what the run changed.
        """
        image = Image(self.run)
        large = self.compare_bindings(bindings, image)
        changed, unprotected = self.compare_objects()
        keys = {*changed, *unprotected}
        names_by_id = self.find_names(keys)
        self.add_twins(changed.keys(), names_by_id, image)
        for key, snapshot in changed.items():
            image.objects[key] = Change(snapshot, names_by_id[key])
        reported = self.add_unprotected_objects(unprotected, names_by_id, image)
        for name in self.walk.incomplete:
            add_unprotected(image, name, NOT_VISITED)
        self.add_other_names({**reported, **large}, image)
        new_modules = sys.modules.keys() - self.module_names
        mentioned = set(self.kinds)
        image.states = find_changes(self.states, take_states(), mentioned, new_modules)
        for name in image.states:
            label = get_label(name)
            if label:
                loss = Loss(label, 0, CHANGED)
                add_unprotected(image, name, loss)
        return image

    def add_unprotected_objects(
        self, unprotected: Any, names_by_id: Any, image: Image
    ) -> Any:
        """Add the names of objects that cannot be restored to the image.

        An object whose change is unknown counts only for names through which the cell
        may have changed it. Return the entries of `unprotected` that have a name.
        """
        reported = {}
        for key, loss in unprotected.items():
            names = names_by_id[key]
            if loss.change != CHANGED:
                names = {name for name in names if self.may_change(name, key)}
            for name in names:
                add_unprotected(image, name, loss)
            if names:
                reported[key] = loss
        return reported

    def compare_bindings(self, bindings: Any, image: Image) -> Any:
        """Add the former values of the names that the run bound or deleted.

        The names of values that are too large to be kept are added as names that cannot
        be restored. Return the losses by id of the value, if the run may have changed
        the value in place.
        """
        for name, former in self.bindings.items():
            if bindings.get(name, MISSING) is not former:
                image.bindings[name] = former
        for name in bindings:
            is_known = name in self.bindings or name in self.large
            if not is_known:
                image.bindings[name] = MISSING
        losses = {}
        for name, large in self.large.items():
            value = bindings.get(name, MISSING)
            if not is_same_value(large, value):
                image.bindings[name] = LOST
                image.unprotected[name] = Loss(TOO_LARGE, large.size, CHANGED)
            elif self.kinds.get(name, "binds") != "binds":
                sample = large.take(value)
                change = UNKNOWN if sample == large.sample else CHANGED
                loss = Loss(TOO_LARGE, large.size, change)
                image.unprotected[name] = loss
                losses[id(value)] = loss
        return losses

    def compare_objects(self) -> Any:
        """Return the changed snapshots, and the objects that cannot be restored.

        Both are dicts by id: the first contains snapshots, the second losses. An object
        that has certainly not changed is left out.
        """
        changed: dict[int, Snapshot] = {}
        unprotected: dict[int, Loss] = {}
        for key, snapshot in self.walk.snapshots.items():
            is_changed = has_changed(snapshot)
            if is_changed is None:
                unprotected[key] = Loss(UNREADABLE.label, 0, UNKNOWN)
            elif is_changed:
                changed[key] = snapshot
        for key, snapshot in self.walk.unprotected.items():
            row = snapshot.row
            is_changed = has_changed(snapshot)
            if is_changed is False and row.is_conclusive:
                continue
            change = CHANGED if is_changed else UNKNOWN
            size = row.measure(snapshot.target)[1] if row.measure else 0
            unprotected[key] = Loss(row.label, size, change)
        return changed, unprotected

    def may_change(self, name: str, key: int) -> bool:
        """Return whether the cell may have changed an object that looks unchanged.

        `key` is the id of the object, which the cell can reach through `name`. A cell
        that only reads a name may change the value itself, such as an iterator, but not
        the objects in the value.
        """
        is_used = self.kinds.get(name) in ("changes", "calls")
        snapshot = self.walk.unprotected.get(key)
        is_quiet = snapshot is not None and snapshot.row.is_quiet
        is_value = id(self.bindings.get(name, MISSING)) == key
        return is_used or (is_value and not is_quiet)

    def find_names(self, keys: set[int]) -> Any:
        """Return the names through which the cell could reach each object, by id."""
        names: Any = {}
        for key in keys:
            owner = self.walk.owners[key]
            names[key] = {owner}
        if not keys:
            return names
        for name, shared in self.walk.shared.items():
            reached = self.find_formerly_reachable(shared, keys)
            for key in reached:
                names[key].add(name)
        return names

    def add_other_names(self, unprotected: Any, image: Image) -> None:
        """Add the names that the cell does not use, but whose values share objects.

        `unprotected` contains the losses of objects by id. Those that have certainly
        changed count, and objects that were too large or not visited. A name whose
        value may contain one of them counts, too.
        """
        not_visited = list(self.walk.frontier)
        losses = {}
        for key, loss in unprotected.items():
            is_too_large = loss.reason == TOO_LARGE
            if loss.change == CHANGED or is_too_large:
                losses[key] = loss
            if is_too_large and key in self.walk.unprotected:
                snapshot = self.walk.unprotected[key]
                items = list_items(snapshot.target)
                add_children(items, not_visited)
        for value in not_visited:
            losses.setdefault(id(value), NOT_VISITED)
        if not losses:
            return
        for name, large_value in self.large.items():
            key = large_value.identity
            if key in losses:
                add_unprotected(image, name, losses[key])
        deadline = walk_clock() + OTHER_NAMES_SECONDS
        for name, value in self.bindings.items():
            if self.kinds.get(name, "binds") != "binds":
                continue
            search = search_in_half_time(value, losses.keys(), deadline)
            for key in search.reached:
                add_unprotected(image, name, losses[key])
            if not search.is_complete:
                add_unprotected(image, name, NOT_VISITED)

    def add_twins(self, keys: Any, names: Any, image: Image) -> None:
        """Add the names in `twins` whose values contain changed objects.

        `keys` are the ids of the changed objects, and `names` maps each id to the names
        of the object so far. If the search in a value is not complete, record that the
        name cannot be restored.
        """
        if not keys:
            return
        deadline = walk_clock() + OTHER_NAMES_SECONDS
        for name in sorted(self.twins & self.bindings.keys()):
            missing = {key for key in keys if name not in names[key]}
            if not missing:
                continue
            value = self.bindings[name]
            search = search_in_half_time(value, missing, deadline)
            for key in search.reached:
                names[key].add(name)
            if not search.is_complete:
                add_unprotected(image, name, NOT_VISITED)

    def find_formerly_reachable(self, roots: list[int], keys: set[int]) -> set[int]:
        """Return those of `keys` that could be reached from `roots` before the run.

        Both are ids of objects. At most MAX_VISITS objects are visited.
        """
        reached = set[int]()
        pending = list(roots)
        seen = set(roots)
        while pending and len(seen) < MAX_VISITS:
            key = pending.pop()
            if key in keys:
                reached.add(key)
            for child in self.walk.list_children(key):
                child_key = id(child)
                if child_key in self.walk.visited and child_key not in seen:
                    seen.add(child_key)
                    pending.append(child_key)
        return reached


def list_items(value: Any) -> Any:
    """Return the objects in an object that has no snapshot."""
    row = find_row(type(value))
    return list_current_children(value, row) if row else []


def make_reference(value: Any) -> Any:
    """Return a weak reference to a value, or a function that returns None."""
    try:
        return weakref.ref(value)
    except TypeError:
        return take_no_value


def take_no_value() -> None:
    """Return None, like a weak reference to an object that was freed."""


def has_changed(snapshot: Snapshot) -> bool | None:
    """Return whether an object differs from its snapshot, or None if this is unknown.

    It is unknown if the state of the object cannot be read.
    """
    target, row, state = snapshot
    if row.is_same is None:
        return False
    try:
        return not row.is_same(target, state)
    except Exception:
        return None


def measure_value(value: Any) -> int:
    """Return the size of a value's own data in bytes, without objects that it contains.

    Return 0 if the size is unknown.
    """
    row = find_row(type(value))
    if row is None or row.measure is None:
        return 0
    try:
        _, size = row.measure(value)
    except Exception:
        return 0
    return size


def protect_changed_module(value: Any) -> None:
    """Protect the attributes of a value that is a library's module or class.

    Otherwise, only modules and classes of the user have snapshots.
    """
    if is_a(value, (types.ModuleType, type)):
        scope.changed_modules.add(id(value))


def is_same_value(large: LargeValue, value: Any) -> bool:
    """Return whether a value is the object of a LargeValue."""
    referenced = large.reference()
    if referenced is not None:
        return bool(referenced is value)
    # Another object may have the address by now, but then its fingerprint decides.
    return id(value) == large.identity


def ignore_kernel_objects(walk: Walk) -> None:
    """Exclude the kernel's own objects, and those that `global_state` restores."""
    walk.ignore([scope.namespace, sys, sys.modules, sys.path, os.environ])
    walk.ignore([getattr(os, "environb", None)])
    walk.ignore([scope.namespace.get("In"), scope.namespace.get("Out")])
    matplotlib = sys.modules.get("matplotlib")
    walk.ignore([getattr(matplotlib, "rcParams", None)])


def add_unprotected(image: Image, name: str, loss: Loss) -> None:
    """Add a name that cannot be restored. A known change has precedence."""
    former = image.unprotected.get(name)
    if former is None or (former.change == UNKNOWN and loss.change == CHANGED):
        image.unprotected[name] = loss
