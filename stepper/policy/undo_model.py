"""The undo requests to a kernel, and its reports.

The helper in the kernel keeps the state before each run of a cell (a before-image). The
helper receives an `UndoRequest` as metadata of an execute request, and reports
`UndoFacts` in its message on the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

# How a run changed a name: the values of `UndoFacts.changes`.
CHANGED = "changed"  # in place
REBOUND = "rebound"
NEW = "new"
DELETED = "deleted"
# The helper reports at most this many changed names of a run.
MAX_CHANGES = 300

NamesByName = dict[str, tuple[str, ...]]
# In a list of names: other names, which the kernel did not find.
UNKNOWN_NAMES = ""


@dataclass(frozen=True)
class MentionedNames:
    """The names of the user namespace that a source mentions.

    `changes` are names whose objects change in place. `calls` are names whose methods
    are called, or that are passed to calls. If `everything` is true, the source may
    also change any other name; if `reads_everything` is true, read any other name.
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
        """Return the names as JSON data for the kernel, without the two flags."""
        return {
            "changes": sorted(self.changes),
            "calls": sorted(self.calls),
            "reads": sorted(self.reads),
            "binds": sorted(self.binds),
        }


@dataclass(frozen=True)
class RestoreRequest:
    """A request to undo runs, newest first.

    Only the changes of `names` are undone; None means all names. `own_runs` are those
    of the runs that belong to the cell that runs again or was deleted. Later requests
    must not contain them.
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
        """The names in alphabetical order; None means all names."""
        return None if self.names is None else tuple(sorted(self.names))

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON data for the kernel."""
        return {
            "runs": self.runs,
            "names": self.sorted_names,
            "own_runs": self.own_runs,
        }


@dataclass(frozen=True)
class UndoRequest:
    """The request to take a before-image of a run and, before that, to undo other runs.

    `names` are the names that the source of the cell mentions. `memory` is the limit of
    all before-images in bytes, or None for the default. `seconds` is the time limit of
    this before-image. `restore` is None if no run must be undone.
    """

    run: int
    names: MentionedNames
    seconds: float
    memory: int | None = None
    restore: RestoreRequest | None = None

    def to_json(self, default_memory: int) -> dict[str, Any]:
        """Return the request as metadata of an execute request.

        `default_memory` is the default limit of all before-images in bytes.
        """
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
    `bytes` is the size of the value if the size is the reason, otherwise 0.
    `is_changed` is False if it is not known whether the run changed the value.
    """

    reason: str
    bytes: int = 0
    is_changed: bool = False


def _parse_unprotected(value: Any) -> Unprotected:
    """Parse a JSON list `[reason, bytes]` or `[reason, bytes, state]`.

    Raise TypeError if the list is invalid.
    """
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
    duration of the restore. `former_values` are the names of values that contain the
    object which a name had before the undo, by this name; `former_classes` are those
    that contain instances of a former class. `unknown` are the requested runs that the
    kernel has never kept an image of.
    """

    restored: dict[str, tuple[int, ...]] = field(default_factory=dict)
    removed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    not_restored: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    former_values: NamesByName = field(default_factory=dict)
    former_classes: NamesByName = field(default_factory=dict)
    unknown: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        """Return whether the result contains a name."""
        return bool(self.restored or self.removed or self.not_restored)


class UndoImages(NamedTuple):
    """The before-images that a kernel keeps.

    `oldest` is the oldest run with an image, or 0. `bytes` is the size of the objects
    that only the images keep alive, and `memory` the limit of this size in bytes.
    """

    oldest: int = 0
    bytes: int = 0
    memory: int = 0

    def __bool__(self) -> bool:
        """Return whether the kernel keeps an image."""
        return self.oldest > 0


NO_IMAGES = UndoImages()


@dataclass(frozen=True)
class UndoFacts:
    """The facts that a kernel reports on the before-image of a run.

    `seconds` is the time for taking the image and comparing it with the state after the
    run. `changes` maps names to CHANGED, REBOUND, NEW or DELETED. `reach` is the oldest
    run that can still be undone completely, or 0. `unknown` are requested runs without
    an image in this kernel; if there are any, the kernel undid nothing.

    After a scratch execution, `rebound` are the names that it bound or deleted (None if
    they are unknown). `ends_reach` is True if it bound or deleted a name, or changed an
    object that earlier runs had changed.
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
