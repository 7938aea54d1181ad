"""The undo of the fake kernel: it follows the same contract as the helper.

It protects bindings, lists, dicts, sets and attributes of objects.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stepper.policy.undo_model import (
    CHANGED,
    DELETED,
    NEW,
    REBOUND,
    RestoreRequest,
    RestoreResult,
    UndoFacts,
    UndoImages,
    UndoRequest,
    Unprotected,
)

MISSING = object()
OTHER_CODE = "changed by code outside the cells"


@dataclass
class Image:
    """The state before a run, reduced to what the run changed."""

    run: int  # 0: code that is not a run of a cell
    bindings: dict[str, Any] = field(default_factory=dict)
    # Name → ids of the changed objects that it reaches.
    objects: dict[str, list[int]] = field(default_factory=dict)
    # Id → a changed object and its content before.
    contents: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    unprotected: dict[str, str] = field(default_factory=dict)


def iterate_reachable(value: Any) -> Iterator[Any]:
    """Yield the objects that a value contains and that can be protected."""
    pending, seen_ids = [value], set[int]()
    while pending:
        item = pending.pop()
        if id(item) in seen_ids:
            continue
        seen_ids.add(id(item))
        if isinstance(item, list | set):
            pending += item
        elif isinstance(item, dict):
            pending += item.values()
        elif type(item).__module__ == "__main__":
            pending += vars(item).values()
        else:
            continue
        yield item


def copy_content(item: Any) -> Any:
    if isinstance(item, list | set | dict):
        return item.copy()
    return dict(vars(item))


def set_content(item: Any, content: Any) -> None:
    if isinstance(item, list):
        item[:] = content
        return
    target = item if isinstance(item, set | dict) else vars(item)
    target.clear()
    target.update(content)


class FakeUndo:
    """The images of one kernel; `names` is the namespace."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.images: list[Image] = []
        self.last: dict[str, int] = {}
        self.last_undo: tuple[RestoreRequest, UndoFacts] | None = None

    def list_values(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self.names.items()
            if not name.startswith("__")
        }

    def start(self, request: UndoRequest) -> None:
        """Restore what a request asks for, and take an image."""
        self.add_boundary()
        self.last_undo = None
        self.restored = None
        if request.restore is not None:
            self.restored = self.restore(request.restore)
        self.run = request.run
        self.seconds = request.seconds
        self.before = self.list_values()
        self.contents = {
            name: [(item, copy_content(item)) for item in iterate_reachable(value)]
            for name, value in self.before.items()
        }
        self.generators = {
            name: repr(value.gi_frame.f_locals)
            for name, value in self.before.items()
            if isinstance(value, types.GeneratorType) and value.gi_frame
        }

    def finish_other(self) -> UndoFacts:
        """Return the facts on an execution that is not a run of a cell."""
        rebound = self.add_boundary()
        self.last = {name: id(value) for name, value in self.list_values().items()}
        return UndoFacts(0, rebound=tuple(rebound), ends_reach=bool(rebound))

    def add_boundary(self) -> list[str]:
        """Record and return the names that other code has bound since the last run."""
        present = {name: id(value) for name, value in self.list_values().items()}
        names = set[str]()
        if self.images:
            names = {
                name
                for name in present.keys() | self.last.keys()
                if present.get(name) != self.last.get(name)
            }
            if names:
                self.images.append(Image(0, dict.fromkeys(names, MISSING)))
        return sorted(names)

    def finish(self) -> UndoFacts:
        """Keep what the run changed; return the facts."""
        after = self.list_values()
        image, changes = Image(self.run), {}
        for name in self.before.keys() | after.keys():
            old, new = self.before.get(name, MISSING), after.get(name, MISSING)
            if old is not new:
                image.bindings[name] = old
                changes[name] = (
                    NEW if old is MISSING else DELETED if new is MISSING else REBOUND
                )
            changed = [
                (item, content)
                for item, content in self.contents.get(name, ())
                if copy_content(item) != content
            ]
            if changed:
                image.objects[name] = [id(item) for item, _ in changed]
                image.contents |= {id(entry[0]): entry for entry in changed}
                changes.setdefault(name, CHANGED)
        unprotected = {}
        for name, variables in self.generators.items():
            value = self.before[name]
            if not value.gi_frame or repr(value.gi_frame.f_locals) != variables:
                unprotected[name] = Unprotected("generator", 0, True)
                image.unprotected[name] = "generator"
                changes.setdefault(name, CHANGED)
        self.images.append(image)
        self.last = {name: id(value) for name, value in after.items()}
        oldest = self.find_oldest()
        return UndoFacts(
            self.run,
            0.001,
            dict(sorted(changes.items())),
            unprotected,
            self.restored,
            self.find_reach(),
            UndoImages(oldest, 1000, 1_000_000),
        )

    def find_oldest(self) -> int:
        return next((image.run for image in self.images if image.run), 0)

    def find_reach(self) -> int:
        reach = 0
        for image in reversed(self.images):
            if image.run == 0 or image.unprotected:
                break
            reach = image.run
        return reach

    def undo(self, request: RestoreRequest) -> UndoFacts:
        """Undo runs outside of a run; return the facts, as before if repeated."""
        if self.last_undo is None or self.last_undo[0] != request:
            self.last_undo = request, self._undo(request)
        return self.last_undo[1]

    def _undo(self, request: RestoreRequest) -> UndoFacts:
        self.add_boundary()
        known_runs = {image.run for image in self.images}
        unknown = tuple(run for run in request.runs if run not in known_runs)
        if request.names is None and unknown:
            return UndoFacts(0, unknown=unknown)
        result = self.restore(request)
        if request.names is None:
            self.images = [
                image
                for image in self.images
                if image.run not in request.runs or image.unprotected
            ]
        images = UndoImages(self.find_oldest(), 1000, 1_000_000)
        return UndoFacts(0, restore=result, reach=self.find_reach(), images=images)

    def restore(self, request: RestoreRequest) -> RestoreResult:
        """Undo runs in place, and by binding names again."""
        restored: dict[str, set[int]] = {}
        refused = {}
        mentioned = {
            name
            for image in self.images
            for name in (*image.bindings, *image.objects, *image.unprotected)
            if request.names is None or name in request.names
        }
        for name in sorted(mentioned):
            runs, is_refused = self.restore_binding(name, request.runs)
            if is_refused:
                refused[name] = OTHER_CODE
            restored[name] = runs
            for image in self.images:
                if image.run in request.runs and name in image.unprotected:
                    refused[name] = image.unprotected.pop(name)
        reached = {
            name: {
                number
                for image in self.images
                for number in image.objects.get(name, ())
            }
            for name in mentioned
        }
        done: dict[int, tuple[set[int], str]] = {}  # by id of a changed object
        for name in mentioned - self.names.keys():
            for image in self.images:
                if image.run in request.runs and name in image.objects:
                    restored[name].add(image.run)
        for name in sorted(mentioned & self.names.keys()):
            pending, seen_ids = reached[name], set[int]()
            while pending or not seen_ids:
                for number in pending:
                    if number not in done:
                        done[number] = self.restore_content(number, request.runs)
                    runs, problem = done[number]
                    restored[name] |= runs
                    if problem:
                        refused[name] = problem
                # The restored objects may contain others that were changed.
                value = self.names.get(name)
                seen_ids |= pending | {0}
                pending = {id(item) for item in iterate_reachable(value)} - seen_ids
        for name, value in self.list_values().items():
            for item in iterate_reachable(value):
                runs, _ = done.get(id(item), (set(), ""))
                restored.setdefault(name, set()).update(runs)
        self.last = {name: id(value) for name, value in self.list_values().items()}
        numbers = {
            name: tuple(sorted(runs, reverse=True))
            for name, runs in restored.items()
            if runs
        }
        known_runs = {image.run for image in self.images}
        return RestoreResult(
            unknown=tuple(run for run in request.runs if run not in known_runs),
            restored={
                name: runs
                for name, runs in numbers.items()
                if name in self.names and name not in refused
            },
            removed={
                name: runs for name, runs in numbers.items() if name not in self.names
            },
            not_restored=refused,
        )

    def restore_binding(
        self, name: str, runs: tuple[int, ...]
    ) -> tuple[set[int], bool]:
        """Undo the bindings of a name; return the runs, and whether one was refused."""
        undone = set[int]()
        images = [image for image in self.images if name in image.bindings]
        while images and images[-1].run in runs:
            image = images.pop()
            value = image.bindings.pop(name)
            self.names.pop(name, None)
            if value is not MISSING:
                self.names[name] = value
            undone.add(image.run)
        is_other = bool(images) and not images[-1].run
        return undone, is_other and any(image.run in runs for image in images)

    def restore_content(
        self, number: int, runs: tuple[int, ...]
    ) -> tuple[set[int], str]:
        """Undo the changes of an object in place; return the runs, and a problem.

        The problem is that another run has changed the object since.
        """
        undone = set[int]()
        images = [image for image in self.images if number in image.contents]
        while images and images[-1].run in runs:
            image = images.pop()
            set_content(*image.contents.pop(number))
            undone.add(image.run)
        if images and any(image.run in runs for image in images):
            return undone, f"run {images[-1].run} changed it and is not undone"
        return undone, ""
