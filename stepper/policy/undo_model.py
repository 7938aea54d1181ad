"""Values of undo: what a kernel is asked to undo, and what it reports.

The helper in the kernel keeps the state before each run of a cell (a before-image). It
receives `UndoRequest` as metadata of an execute request, and reports `UndoFacts` in its
message on the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

# How a run changed a name: the values of `UndoFacts.changes`.
CHANGED = "changed"  # in place
REBOUND = "rebound"
NEW = "new"
DELETED = "deleted"
# The helper reports at most this many changed names of a run.
MAX_CHANGES = 300

RunsByName = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class MentionedNames:
    """The names of the user namespace that a source mentions.

    `changes` are names whose objects change in place. `calls` are names whose methods
    are called, or that are passed to calls. With `everything`, the source may also
    change any other name. With `reads_everything`, it may also read any other name.
    """

    changes: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    binds: frozenset[str] = frozenset()
    everything: bool = False
    reads_everything: bool = False

    @property
    def names(self) -> frozenset[str]:
        """All names that the source reads, changes or binds."""
        return self.changes | self.calls | self.reads | self.binds

    def to_json(self) -> dict[str, list[str]]:
        """Return the names as the kernel receives them."""
        return {
            "changes": sorted(self.changes),
            "calls": sorted(self.calls),
            "reads": sorted(self.reads),
            "binds": sorted(self.binds),
        }


@dataclass(frozen=True)
class RestoreRequest:
    """The runs that a kernel undoes, newest first.

    Only `names` are restored; None stands for all names. `own_runs` are the runs of the
    cell that runs again or was deleted: no later request undoes them once more.
    """

    runs: tuple[int, ...]
    names: frozenset[str] | None
    own_runs: tuple[int, ...] = ()

    @property
    def other_runs(self) -> tuple[int, ...]:
        """The runs of other cells."""
        return tuple(run for run in self.runs if run not in self.own_runs)

    @property
    def sorted_names(self) -> tuple[str, ...] | None:
        """The names in alphabetical order; None stands for all names."""
        return None if self.names is None else tuple(sorted(self.names))

    def to_json(self) -> dict[str, Any]:
        """Return the request as the kernel receives it."""
        return {"runs": self.runs, "names": self.sorted_names}


@dataclass(frozen=True)
class UndoRequest:
    """The undo part of a run of a cell.

    `memory` is the number of bytes for all before-images, or None for the default.
    `seconds` is the time for one before-image. `restore` is carried out before the run.
    """

    run: int
    names: MentionedNames
    seconds: float
    memory: int | None = None
    restore: RestoreRequest | None = None

    def to_json(self, default_memory: int) -> dict[str, Any]:
        """Return the request as metadata of an execute request."""
        data = {
            "run": self.run,
            "names": self.names.to_json(),
            "everything": self.names.everything,
            "memory": default_memory if self.memory is None else self.memory,
            "seconds": self.seconds,
        }
        if self.restore is not None:
            data["restore"] = self.restore.to_json()
        return data


@dataclass(frozen=True)
class Unprotected:
    """A value that a run may have changed and that cannot be restored.

    `reason` is a noun phrase or an adjective, such as "generator" or "too large".
    `bytes` is the size if it is the reason, or 0. `is_changed` is False if it is not
    known whether the run changed the value.
    """

    reason: str
    bytes: int = 0
    is_changed: bool = False


def _parse_unprotected(value: Any) -> Unprotected:
    """Return the value of a JSON list `[reason, bytes]` or `[reason, bytes, state]`."""
    if not isinstance(value, list | tuple) or len(value) not in (2, 3):
        raise TypeError(f"unexpected value: {value!r:.100}")
    reason, size, *states = value
    if not isinstance(reason, str) or not isinstance(size, int):
        raise TypeError(f"unexpected value: {value!r:.100}")
    return Unprotected(reason, size, states == [CHANGED])


@dataclass(frozen=True)
class RestoreResult:
    """The names that a kernel restored, removed or could not restore.

    `restored` and `removed` contain the undone runs by name, `not_restored` the reasons
    by name. A removed name did not exist before the undone runs. `seconds` is the
    duration.
    """

    restored: dict[str, tuple[int, ...]] = field(default_factory=dict)
    removed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    not_restored: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    bytes: int = 0

    def __bool__(self) -> bool:
        """Return whether the result names anything."""
        return bool(self.restored or self.removed or self.not_restored)


class UndoImages(NamedTuple):
    """The before-images that a kernel keeps.

    `oldest` is the oldest run with an image, or 0. `bytes` is what only the images keep
    alive, and `memory` the number of bytes that they may use.
    """

    oldest: int = 0
    bytes: int = 0
    memory: int = 0

    def __bool__(self) -> bool:
        return self.oldest > 0


NO_IMAGES = UndoImages()


@dataclass(frozen=True)
class UndoFacts:
    """The facts that a kernel reports on the before-image of a run.

    `seconds` is the time that the image and the comparison took. `changes` says how the
    run changed names (see CHANGED, REBOUND, NEW and DELETED). `reach` is the oldest run
    that can still be undone completely, or 0. `unknown` are the requested runs that the
    kernel has never kept an image of: then it undid nothing.

    After an execution that is not a run of a cell, `rebound` are the names that it
    bound or deleted (None if they are unknown), and `ends_reach` says that it changed
    something that runs had changed, or bound a name.
    """

    run: int
    seconds: float = 0.0
    changes: dict[str, str] = field(default_factory=dict)
    unprotected: dict[str, Annotated[Unprotected, _parse_unprotected]] = field(
        default_factory=dict
    )
    restore: RestoreResult | None = None
    reach: int = 0
    images: UndoImages = NO_IMAGES
    unknown: tuple[int, ...] = ()
    rebound: tuple[str, ...] | None = None
    ends_reach: bool = False
