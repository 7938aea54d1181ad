"""The undo of runs: names, objects and global state return to their before-images.

For each name and each object, the images are walked from the newest to the oldest. The
oldest image of an undone run contains the state to restore. An image of another run
ends the walk. Afterwards, everything is compared with the images once more.
"""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.safe_inspect import call_safely
from stepper.kernels.in_kernel.undo.before_images import log
from stepper.kernels.in_kernel.undo.former_values import FormerValues
from stepper.kernels.in_kernel.undo.global_state import (
    get_label,
    get_position,
    restore_state,
)
from stepper.kernels.in_kernel.undo.image_recording import (
    CHANGED,
    LOST,
    MISSING,
    NOT_VISITED,
    Image,
    Loss,
    add_unprotected,
    clock,
    has_changed,
)
from stepper.kernels.in_kernel.undo.object_snapshots import RestoreError, Row
from stepper.kernels.in_kernel.undo.object_walk import clock as walk_clock
from stepper.kernels.in_kernel.undo.object_walk import (
    find_row,
    forget_classes,
    list_current_children,
    search_in_half_time,
)
from stepper.kernels.in_kernel.undo.python_objects import scope

OTHER_CODE = "changed by code outside the cells"
DROPPED = "the state before the run was dropped to save memory"
DIFFERENT = "its state after the undo is not the former state"
REACH_SECONDS = 0.2  # to search the values of requested names for changed objects


class Target(NamedTuple):
    """The state to restore of a name, an object or a global state.

    `images` are the images of undone runs that contain a state, newest first, and
    `entry` is the state in the last of them. `problem` is the reason why states in
    older images cannot be restored, or an empty string.
    """

    images: list[Image]
    entry: Any
    problem: str


class Restore:
    """The undo of some runs.

    `runs` are their numbers. Only `names` in `namespace` are restored; None stands for
    all names. `restored` and `removed` are the undone runs by name, `not_restored` the
    reasons by name.
    """

    def __init__(self, runs: set[int], names: set[str] | None, namespace: Any) -> None:
        self.began = clock()
        self.runs = runs
        self.names = names
        self.namespace = namespace
        self.restored: dict[str, set[int]] = {}
        self.removed: dict[str, set[int]] = {}
        self.not_restored: dict[str, str] = {}
        # Names in `not_restored` that a later undo of other runs may restore.
        self.blocked: set[str] = set()
        # Old values are freed at the end: their `__del__` must not see a mixed state.
        self.kept: list[Any] = []
        self.former = FormerValues()

    def is_requested(self, name: str) -> bool:
        """Return whether the request includes a name or a global state."""
        return self.names is None or name in self.names

    def find_target(self, get_entries: Any, key: Any) -> Target:
        """Return the state to restore of a name, an object or a global state.

        `get_entries` returns the entries of an image: its bindings, objects or states.
        `key` is a key of these entries. The oldest image of an undone run has the state
        to restore, unless a newer image is of a run that is not undone.
        """
        images: list[Image] = []
        entry: Any = None
        kept_run: int | None = None  # the last run that is not undone
        for image in reversed(log.images):
            entries = get_entries(image)
            if key not in entries:
                continue
            if image.run not in self.runs:
                if kept_run is None:
                    kept_run = image.run
            elif kept_run is None:
                images.append(image)
                entry = entries[key]
            else:
                return Target(images, entry, describe_later_change(kept_run))
        return Target(images, entry, "")

    def list_keys(self, get_entries: Any) -> Any:
        """Return the keys of all entries in the images of the undone runs.

        See `find_target`. Keys in newer images come first.
        """
        keys: dict[Any, None] = {}
        for image in reversed(log.images):
            if image.run in self.runs:
                keys.update(dict.fromkeys(get_entries(image)))
        return list(keys)

    def run_all(self) -> Any:
        """Restore the requested names and states. Return the result for the daemon.

        What was restored is then removed from the images.
        """
        bindings = {}
        for name in filter(self.is_requested, self.list_keys(get_bindings)):
            bindings[name] = self.find_target(get_bindings, name)
        objects = {}
        for key in self.list_keys(get_objects):
            objects[key] = self.find_target(get_objects, key)
        names_by_key = self.select_objects(objects, bindings)
        for key, names in names_by_key.items():
            self.restore_object(objects[key], names)
        for name, target in bindings.items():
            self.restore_binding(name, target)
        states = filter(self.is_requested, self.list_keys(get_states))
        for name in sorted(states, key=get_position):
            self.restore_state(name)
        self.verify(objects, names_by_key, bindings)
        self.add_unprotected()
        self.remove_entries(objects, names_by_key, bindings)
        result = self.describe()
        record_failures(self.runs, self.not_restored, self.blocked)
        return result

    def fail(self, name: str, reason: str) -> None:
        """Record why a name is not restored. The first reason counts."""
        self.not_restored.setdefault(name, reason)

    def block(self, name: str, reason: str) -> None:
        """Record that a name is not restored because other code changed it later."""
        self.blocked.add(name)
        self.fail(name, reason)

    def restore_state(self, name: str) -> None:
        """Restore a global state, and remove it from the images.

        After an error, the state stays in the images.
        """
        target = self.find_target(get_states, name)
        if target.problem:
            self.block(name, target.problem)
        if not target.images:
            return
        try:
            is_restored = restore_state(name, target.entry)
        except Exception as error:
            self.fail(name, describe_failure(error))
            return
        label = get_label(name)
        if not is_restored:
            self.fail(name, label or DIFFERENT)
        elif not label:
            self.restored[name] = {image.run for image in target.images}
        for image in target.images:
            del image.states[name]
            image.unprotected.pop(name, None)

    def restore_object(self, target: Target, names: set[str]) -> None:
        """Restore an object in place. `names` are the requested names that reach it."""
        if target.problem:
            for name in names:
                self.block(name, target.problem)
        if not target.images:
            return
        value, row, state = target.entry.snapshot
        try:
            if row.is_same is None or row.is_same(value, state):
                return
            current_row = find_row(type(value)) or row
            self.kept.append(current_row.take(value))
            row.restore(value, state)
        except Exception as error:
            for name in names:
                self.fail(name, describe_failure(error))
            return
        runs = {image.run for image in target.images}
        for name in names:
            self.restored.setdefault(name, set()).update(runs)

    def restore_binding(self, name: str, target: Target) -> None:
        """Bind a name to its former value, or remove a name that did not exist."""
        if not target.images:
            if target.problem == OTHER_CODE:
                self.block(name, target.problem)
            return
        runs = {image.run for image in target.images}
        self.kept.append(self.namespace.get(name))
        self.add_former_values(name, target)
        if target.entry is LOST:
            self.fail(name, "too large")
        elif target.entry is MISSING:
            if name in self.namespace:
                del self.namespace[name]
                self.removed[name] = runs
        elif self.namespace.get(name, MISSING) is not target.entry:
            self.namespace[name] = target.entry
            self.restored.setdefault(name, set()).update(runs)

    def add_former_values(self, name: str, target: Target) -> None:
        """Remember the values that a name had since the state to restore."""
        values = [image.bindings[name] for image in target.images[:-1]]
        values.append(self.namespace.get(name, MISSING))
        for value in values:
            if value is not target.entry:
                self.former.add(name, value)

    def select_objects(self, objects: Any, bindings: Any) -> Any:
        """Return the names that reach each object to restore, by its id.

        An object is restored if a requested name reaches it, except a name that will be
        removed. It may have been changed through a name that is not requested, and be
        part of the value of a requested name. `objects` and `bindings` are the targets
        by id and by name.
        """
        reached: dict[int, set[str]] = {}
        selected: dict[int, set[str]] = {}
        for key in objects:
            names = set[str]()
            for image in log.images:
                if key in image.objects and image.run in self.runs:
                    names |= image.objects[key].names
            reached[key] = names
            selected[key] = set(filter(self.is_requested, names))
        if self.names is None:
            return selected
        removed = {name for name, target in bindings.items() if target.entry is MISSING}
        missing = {key for key, names in selected.items() if not names - removed}
        if missing:
            self.add_other_names(selected, missing, objects, bindings)
        names_by_key = {}
        for key, names in selected.items():
            if names - removed:
                names_by_key[key] = names | self.select_unchanged_names(reached[key])
            else:
                self.add_runs_of_removed_names(objects[key], names)
        return names_by_key

    def add_runs_of_removed_names(self, target: Target, names: set[str]) -> None:
        """Add the runs that changed an object to the undone runs of removed names.

        The object itself is not restored: other names may refer to it.
        """
        runs = {image.run for image in target.images}
        for name in names:
            if name in self.namespace:
                self.restored.setdefault(name, set()).update(runs)

    def select_unchanged_names(self, names: set[str]) -> set[str]:
        """Return the names that no run has bound since the oldest undone run."""
        is_undone = False
        unchanged = set(names)
        for image in log.images:
            is_undone = is_undone or image.run in self.runs
            if is_undone:
                unchanged -= image.bindings.keys()
        return unchanged

    def add_other_names(
        self,
        selected: dict[int, set[str]],
        missing: set[int],
        objects: Any,
        bindings: Any,
    ) -> None:
        """Add to `selected` the requested names whose values contain missing objects.

        `missing` are the ids of these objects. The values are searched in the state to
        restore. A name whose value is not searched completely is not restored.
        """

        def list_children(value: Any, row: Row) -> Any:
            """Return the objects in an object in the state to restore."""
            target = objects.get(id(value))
            if target is None or not target.images:
                return list_current_children(value, row)
            snapshot = target.entry.snapshot
            return snapshot.row.children(snapshot.state)

        deadline = walk_clock() + REACH_SECONDS
        for name in sorted(self.names or ()):
            value = self.namespace.get(name, MISSING)
            if name in bindings and bindings[name].images:
                value = bindings[name].entry
            if value is MISSING or value is LOST:
                continue
            search = search_in_half_time(value, missing, deadline, list_children)
            for key in search.reached:
                selected[key].add(name)
            if not search.is_complete:
                self.fail(name, NOT_VISITED.reason)

    def verify(
        self,
        objects: Any,
        names_by_key: Any,
        bindings: Any,
    ) -> None:
        """Compare the restored objects and names with the images.

        Names that differ are recorded as not restored.
        """
        for key, names in names_by_key.items():
            target = objects[key]
            if target.images and not self.is_restored(target.entry.snapshot):
                for name in names:
                    self.fail(name, DIFFERENT)
        for name, binding in bindings.items():
            if not binding.images or binding.entry is LOST:
                continue
            if self.namespace.get(name, MISSING) is not binding.entry:
                self.fail(name, DIFFERENT)

    def is_restored(self, snapshot: Any) -> bool:
        """Return whether an object has the state of a snapshot.

        Old values are freed if the object differs.
        """
        if has_changed(snapshot) is False:
            return True
        if self.kept:
            # A class has a new subclass until the subclass is collected.
            self.kept.clear()
            forget_classes()
            gc.collect()
        return has_changed(snapshot) is False

    def add_unprotected(self) -> None:
        """Record the names that the undone runs changed and that no image can restore.

        Names that an earlier undo has not restored are recorded again if they still
        exist and no run has bound them since.
        """
        bound_later = set[str]()
        for image in reversed(log.images):
            if image.run in self.runs:
                losses = image.unprotected.items()
                reasons = {name: loss.reason for name, loss in losses}
            else:
                # The undo of other runs may have removed a name.
                reasons = {
                    name: reason
                    for name, reason in image.failed.items()
                    if name in self.namespace
                }
            for name, reason in reasons.items():
                if name in self.removed or name in bound_later:
                    continue
                if self.is_requested(name):
                    self.fail(name, reason)
            if image.run not in self.runs:
                bound_later.update(image.bindings)
        for run in self.runs:
            for name in log.dropped.get(run, ()):
                if self.is_requested(name) and name not in bound_later:
                    self.fail(name, DROPPED)

    def remove_entries(
        self,
        objects: Any,
        names_by_key: Any,
        bindings: Any,
    ) -> None:
        """Remove the states that the undo used from the images, and update their sizes.

        Failures of earlier undos are removed for the requested names.
        """
        for name, target in bindings.items():
            for image in target.images:
                del image.bindings[name]
        for key in names_by_key:
            for image in objects[key].images:
                del image.objects[key]
        for image in log.images:
            if image.run not in self.runs:
                continue
            for name in filter(self.is_requested, list(image.failed)):
                del image.failed[name]
            image.measure()

    def describe(self) -> Any:
        """Return the result, as a dict that JSON can encode.

        A name that is not restored completely is only in `not_restored`. Names that are
        removed successfully are first deleted from `self.not_restored`.
        """
        for name in self.removed:
            # The value of a name that did not exist before need not be restored.
            if self.not_restored.get(name) not in (OTHER_CODE, DROPPED):
                self.not_restored.pop(name, None)
        restored = {}
        for name, runs in self.restored.items():
            if name not in self.not_restored and name not in self.removed:
                restored[name] = sorted(runs, reverse=True)
        removed = {}
        for name, runs in self.removed.items():
            if name not in self.not_restored:
                # Other runs may have changed the object in place.
                all_runs = runs | self.restored.get(name, set())
                removed[name] = sorted(all_runs, reverse=True)
        return {
            "restored": restored,
            "removed": removed,
            "not_restored": self.not_restored,
            "seconds": round(clock() - self.began, 5),
        }


def get_bindings(image: Image) -> Any:
    """Return the former values by name."""
    return image.bindings


def get_objects(image: Image) -> Any:
    """Return the changes of objects by id."""
    return image.objects


def get_states(image: Image) -> Any:
    """Return the former global states by name."""
    return image.states


def record_failures(
    runs: Collection[int], not_restored: dict[str, str], blocked: Collection[str] = ()
) -> None:
    """Record the names that an undo did not restore, in the oldest image of its runs.

    An image with such names ends the reach of undo. `blocked` are the names that a
    later undo of other runs may restore.
    """
    undone = [image for image in log.images if image.run in runs]
    if not undone:
        return
    oldest = undone[0]
    for name, reason in not_restored.items():
        if name in scope.namespace:
            oldest.failed[name] = reason
        if name not in blocked:
            loss = Loss(reason, 0, CHANGED)
            add_unprotected(oldest, name, loss)


def describe_later_change(run: int) -> str:
    """Return the reason why a state from before a run is not restored.

    The run changed the state and is not undone. `run` is 0 for an execution by another
    client.
    """
    if run == 0:
        return OTHER_CODE
    return f"run {run} changed it and is not undone"


def describe_failure(error: Exception) -> str:
    """Return the reason why an error prevented the restore of a state."""
    if isinstance(error, RestoreError):
        return str(error)
    return f"the undo failed with {type(error).__name__}"


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignore interrupts, so that a restore and its result are complete.

    A restore is short, and the daemon repeats an interrupt that had no effect. Blocking
    the signal in this thread would not help: another thread would receive it.
    """
    former = None
    if threading.current_thread() is threading.main_thread():
        former = signal.getsignal(signal.SIGINT)
    if former is None:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def restore(request: Any, namespace: Any) -> Any:
    """Undo the runs of a request, and return the result for the daemon."""
    names = request["names"]
    requested = None if names is None else set(names)
    undo = Restore(set(request["runs"]), requested, namespace)
    forget_classes()
    try:
        result = undo.run_all()
        undo.kept.clear()
        containers = call_safely(undo.former.find_containers, log.images, namespace)
    finally:
        forget_classes()
    values, classes = containers or ({}, {})
    for name, container_names in values.items():
        log.twins.update((name, *container_names))
    result.update(former_values=values, former_classes=classes)
    return result
