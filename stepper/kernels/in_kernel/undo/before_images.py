"""The log of before-images: what each run of a cell changed, and the state before it.

Before a run, the bindings of the user's names are stored, with snapshots of the objects
that the cell may reach. After the run, only the differences are kept. `image_restore`
restores these states.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable
from itertools import islice
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import is_a
from stepper.kernels.in_kernel.undo.image_memory import Sizes, count_bytes
from stepper.kernels.in_kernel.undo.image_recording import (
    CHANGED,
    LOST,
    MISSING,
    UNKNOWN,
    Change,
    Image,
    Loss,
    Recording,
    add_unprotected,
    clock,
    has_changed,
    protect_changed_module,
)
from stepper.kernels.in_kernel.undo.object_walk import (
    TOO_LARGE,
    Snapshot,
    forget_classes,
)
from stepper.kernels.in_kernel.undo.process_state import pause_collector
from stepper.kernels.in_kernel.undo.python_objects import scope

MAX_CHANGES = 300  # names of a run that are reported
NOT_KEPT = "the state before the run was not kept"


class Log:
    """All images of this kernel, and the values at the end of the last execution."""

    def __init__(self) -> None:
        self.images: list[Image] = []  # oldest first
        # Run → the names of an image that was dropped.
        self.dropped: dict[int, set[str]] = {}
        # Name → the id of its value, when the names were last recorded.
        self.last_ids: dict[str, int] | None = None
        # Objects in images, during the execution by another client.
        self.watched: list[Snapshot] = []
        self.current: Recording | None = None  # of the run in progress
        self.memory = 0  # bytes for all images, as of the last run
        # Names whose values may contain a former and a current object of a cell.
        self.twins: set[str] = set()


log = Log()


def get_ids(bindings: Any) -> dict[str, int]:
    """Return the ids of the values by name."""
    return {name: id(value) for name, value in bindings.items()}


def record_names(bindings: Any) -> None:
    """Record the names at the end of an execution or undo."""
    log.last_ids = get_ids(bindings)


def record_boundary(bindings: Any) -> list[str]:
    """Return the names that were bound or deleted since `record_names` was called.

    No run changed these names. They are recorded in an image of an external execution.
    If there are no other images, nothing is recorded, and the list is empty.
    """
    if log.last_ids is None or not log.images:
        return []
    image = Image(0)
    current_ids = get_ids(bindings)
    for name in {*log.last_ids, *current_ids}:
        if log.last_ids.get(name) != current_ids.get(name):
            image.bindings[name] = MISSING
    if image.bindings:
        log.images.append(image)
    return list(image.bindings)


def forget_modules(names: set[str]) -> None:
    """Forget former states of reloaded modules, and of their functions and classes.

    An undo must not replace the new code by the former code.
    """
    for image in log.images:
        for key, change in list(image.objects.items()):
            if get_origin(change.snapshot.target) in names:
                del image.objects[key]


def get_origin(target: Any) -> Any:
    """Return the name of a module, or of the module of a class or function.

    Return None for other objects.
    """
    if is_a(target, types.ModuleType):
        return target.__name__
    if is_a(target, (type, types.FunctionType)):
        return target.__module__
    return None


def watch_external() -> None:
    """Take snapshots of all objects in images before another client's execution."""
    snapshots = {}
    for image in log.images:
        for key, change in image.objects.items():
            snapshots[key] = change.snapshot
    log.watched = []
    for target, row, former_state in snapshots.values():
        # A library's module or class has a state only if it is protected.
        protect_changed_module(target)
        try:
            state = row.take(target)
        except Exception:
            # The comparison then says that the object has changed, or is unreadable.
            state = former_state
        log.watched.append(Snapshot(target, row, state))


def finish_external() -> bool:
    """Record the objects in images that another client's execution changed.

    An object whose state cannot be read counts as changed. Return whether an object
    has changed.
    """
    image = Image(0)
    for snapshot in log.watched:
        if has_changed(snapshot) is not False:
            key = id(snapshot.target)
            image.objects[key] = Change(snapshot, set())
    log.watched = []
    if image.objects:
        log.images.append(image)
    return bool(image.objects)


def begin(request: Any, bindings: Any) -> None:
    """Take the image of a run that starts now.

    If this fails, record that the state before the run is unknown, and raise the error.
    """
    names = set[str]().union(*request["names"].values())
    forget_classes()
    was_enabled = pause_collector()
    try:
        log.current = Recording(request, bindings, log.twins)
    except BaseException:
        add_lost_image(request["run"], names)
        raise
    finally:
        if was_enabled:
            gc.enable()


def add_lost_image(run: int, names: Iterable[str]) -> None:
    """Record that the state before a run is unknown, for the names that it uses."""
    image = Image(run)
    loss = Loss(NOT_KEPT, 0, UNKNOWN)
    for name in names:
        add_unprotected(image, name, loss)
    log.images.append(image)


def finish(bindings: Any, has_failed: bool) -> Any:
    """Keep what the run changed, and return the facts for the daemon.

    Return None if the run has no image. If `has_failed` is true, the modules that the
    run imported count as its changes.
    """
    scope.has_failed = has_failed
    recording = log.current
    log.current = None
    record_names(bindings)
    if recording is None:
        return None
    was_enabled = pause_collector()
    began = clock()
    try:
        image = finish_image(recording, bindings)
        log.images.append(image)
        size = limit_memory(recording.memory, bindings)
    finally:
        forget_classes()
        if was_enabled:
            gc.enable()
    log.memory = recording.memory
    seconds = recording.seconds + clock() - began
    losses = islice(image.unprotected.items(), MAX_CHANGES)
    return {
        "run": recording.run,
        "seconds": round(seconds, 5),
        "changes": describe_changes(image, bindings),
        "unprotected": {name: list(loss) for name, loss in losses},
        "reach": find_reach(),
        "images": describe_images(size),
    }


def finish_image(recording: Recording, bindings: Any) -> Image:
    """Return the image of a run, without former values that are too large.

    If this fails, record that the state before the run is unknown, and raise the error.
    """
    try:
        image = recording.finish(bindings)
        drop_large_bindings(image, recording.memory)
        image.measure()
    except BaseException:
        add_lost_image(recording.run, recording.kinds)
        raise
    return image


def drop_large_bindings(image: Image, memory: int) -> None:
    """Drop former values that are larger than the memory for all images.

    Their names count as changed, and cannot be restored.
    """
    for name, value in image.bindings.items():
        if value is MISSING or value is LOST:
            continue
        size = Sizes([value]).total
        if size > memory:
            image.bindings[name] = LOST
            image.unprotected[name] = Loss(TOO_LARGE, size, CHANGED)


def limit_memory(memory: int, bindings: Any) -> int:
    """Drop the oldest images until the others fit into `memory` bytes.

    The names of a dropped image are recorded. Return the size of the other images.
    """
    while True:
        size = measure_images(bindings)
        if size <= memory or not log.images:
            return size
        image = log.images.pop(0)
        names = {*image.bindings, *image.states, *image.unprotected, *image.failed}
        for change in image.objects.values():
            names |= change.names
        log.dropped[image.run] = names


def describe_changes(image: Image, bindings: Any) -> Any:
    """Return the kind of change of each name that a run changed.

    A name is "new", "rebound" or "deleted", or its value or global state "changed". At
    most MAX_CHANGES names are included.
    """
    changes = dict.fromkeys(image.states, CHANGED)
    for change in image.objects.values():
        changes.update(dict.fromkeys(change.names, CHANGED))
    for name, loss in image.unprotected.items():
        if loss.change == CHANGED:
            changes[name] = CHANGED
    for name, former in image.bindings.items():
        if former is MISSING:
            changes[name] = "new"
        else:
            changes[name] = "rebound" if name in bindings else "deleted"
    return dict(islice(changes.items(), MAX_CHANGES))


def describe_images(size: int) -> list[int]:
    """Return the oldest run with an image, the size of all images, and its limit.

    The run is 0 if no run has an image. The sizes are in bytes.
    """
    oldest = next((image.run for image in log.images if image.run), 0)
    return [oldest, size, log.memory]


def measure_images(bindings: Any) -> int:
    """Return the number of bytes that only images keep alive."""
    image_sizes = [image.sizes for image in log.images]
    return count_bytes(image_sizes, bindings.values())


def find_unknown_runs(runs: list[int]) -> list[int]:
    """Return the runs that never had an image.

    Runs whose images were dropped to save memory are not included.
    """
    kept_runs = {image.run for image in log.images} | log.dropped.keys()
    return [run for run in runs if run not in kept_runs]


def drop_undone(runs: list[int]) -> None:
    """Drop the images of runs that were undone for all names.

    The image of a run with names that could not be restored stays, without states: it
    ends the reach of undo.
    """
    kept = []
    for image in log.images:
        if image.run in runs:
            image.forget_states()
            if not image.unprotected and not image.failed:
                continue
        kept.append(image)
    log.images = kept


def find_reach() -> int:
    """Return the oldest run that can be undone completely with all later runs, or 0."""
    reach = 0
    for image in reversed(log.images):
        if image.run == 0 or image.unprotected or image.failed:
            break
        reach = image.run
    return reach
