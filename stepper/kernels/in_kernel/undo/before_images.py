"""The log of before-images: what each run of a cell changed, and the state before it.

Before a run, the bindings of the user's names and snapshots of the objects that the
cell may reach are taken. After the run, only what differs is kept. `image_restore`
goes back to these states.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable
from itertools import islice
from typing import Any

from stepper.kernels.in_kernel.undo.image_memory import Sizes, count_bytes
from stepper.kernels.in_kernel.undo.image_recording import (
    CHANGED,
    LOST,
    MISSING,
    UNKNOWN,
    Change,
    Image,
    Recording,
    add_unprotected,
    clock,
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
        self.images: list[Image] = []
        # Run → the names of an image that was dropped.
        self.dropped: dict[int, set[str]] = {}
        self.last_ids: dict[str, int] | None = None
        self.watched: list[Snapshot] | None = None
        self.current: Recording | None = None
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
    """Record and return the names that were bound or deleted outside of runs.

    These are the changes since the names were last recorded.
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
    """Forget former states of modules that were reloaded, and of what they define.

    The new code must not be replaced by the former one.
    """
    for image in log.images:
        for key, change in list(image.objects.items()):
            if get_origin(change.snapshot.target) in names:
                del image.objects[key]


def get_origin(target: Any) -> Any:
    """Return the name of a module, or of the module of a class or function."""
    if isinstance(target, types.ModuleType):
        return target.__name__
    if isinstance(target, (type, types.FunctionType)):
        return target.__module__
    return None


def watch_external() -> None:
    """Take snapshots of all objects in images before another client's execution."""
    targets = {}
    for image in log.images:
        for key, change in image.objects.items():
            targets[key] = change.snapshot
    log.watched = []
    for target, row, _ in targets.values():
        log.watched.append(Snapshot(target, row, row.take(target)))


def finish_external() -> bool:
    """Record the objects in images that another client's execution changed.

    Return whether there are any.
    """
    watched = log.watched or []
    log.watched = None
    image = Image(0)
    for snapshot in watched:
        target, row, state = snapshot
        if row.is_same is not None and not row.is_same(target, state):
            image.objects[id(target)] = Change(snapshot, set())
    if image.objects:
        log.images.append(image)
    return bool(image.objects)


def begin(request: Any, bindings: Any) -> None:
    """Take the image of a run that starts now."""
    was_enabled = pause_collector()
    forget_classes()
    names = set[str]().union(*request["names"].values())
    try:
        log.current = Recording(request, bindings, log.twins)
    except BaseException:
        add_lost_image(request["run"], names)
        raise
    finally:
        if was_enabled:
            gc.enable()


def add_lost_image(run: int, names: Iterable[str]) -> None:
    """Record that the state before a run is not known. It used these names."""
    image = Image(run)
    for name in names:
        add_unprotected(image, name, NOT_KEPT, 0, UNKNOWN)
    log.images.append(image)


def get_current_run() -> int:
    """Return the number of the run that is in progress, or 0."""
    return log.current.run if log.current else 0


def finish(bindings: Any, has_failed: bool) -> Any:
    """Keep what the run changed, and return the facts for the daemon."""
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
    unprotected = dict(islice(image.unprotected.items(), MAX_CHANGES))
    return {
        "run": recording.run,
        "seconds": round(seconds, 5),
        "changes": describe_changes(image, bindings),
        "unprotected": unprotected,
        "reach": find_reach(),
        "images": describe_images(size),
    }


def finish_image(recording: Recording, bindings: Any) -> Image:
    """Return what a run changed, without values that are too large."""
    try:
        image = recording.finish(bindings)
        drop_large_bindings(image, recording.memory)
        image.measure()
    except BaseException:
        add_lost_image(recording.run, recording.kinds)
        raise
    return image


def drop_large_bindings(image: Image, memory: int) -> None:
    """Drop former values that are larger than the memory for all images."""
    for name, value in image.bindings.items():
        if value is MISSING or value is LOST:
            continue
        size = Sizes([value]).total
        if size > memory:
            image.bindings[name] = LOST
            image.unprotected[name] = [TOO_LARGE, size, CHANGED]


def limit_memory(memory: int, bindings: Any) -> int:
    """Drop the oldest images that exceed the memory. Return the size of the others."""
    while True:
        held = [image.sizes for image in log.images]
        size = count_bytes(held, bindings.values())
        if size <= memory or not log.images:
            return size
        image = log.images.pop(0)
        names = {*image.bindings, *image.states, *image.unprotected, *image.failed}
        for change in image.objects.values():
            names |= change.names
        log.dropped[image.run] = names


def describe_changes(image: Image, bindings: Any) -> Any:
    """Return how a run changed names, as far as it is known."""
    changes = dict.fromkeys(image.states, CHANGED)
    for change in image.objects.values():
        changes.update(dict.fromkeys(change.names, CHANGED))
    for name, (_, _, state) in image.unprotected.items():
        if state == CHANGED:
            changes[name] = CHANGED
    for name, former in image.bindings.items():
        if former is MISSING:
            changes[name] = "new"
        else:
            changes[name] = "rebound" if name in bindings else "deleted"
    return dict(islice(changes.items(), MAX_CHANGES))


def describe_images(size: int) -> list[int]:
    """Return the oldest run with an image, the size of all images, and its limit."""
    oldest = next((image.run for image in log.images if image.run), 0)
    return [oldest, size, log.memory]


def measure_images(bindings: Any) -> int:
    """Return the bytes that only images keep alive."""
    return count_bytes([image.sizes for image in log.images], bindings.values())


def find_unknown_runs(runs: list[int]) -> list[int]:
    """Return the runs without an image, although none was dropped to save memory."""
    kept_runs = {image.run for image in log.images} | log.dropped.keys()
    return [run for run in runs if run not in kept_runs]


def drop_undone(runs: list[int]) -> None:
    """Drop the images of runs that were undone for all names.

    The names that could not be restored stay: they end the complete undo.
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
    """Return the oldest run that can still be undone completely, or 0."""
    reach = 0
    for image in reversed(log.images):
        if image.run == 0 or image.unprotected or image.failed:
            break
        reach = image.run
    return reach
