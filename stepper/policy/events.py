"""What stands in the journal, a class for each kind of line, and the one reader, which refuses what is not so.

A journal may be a stranger's, edited, or of another stepper: what has no default must be there, everything that is
there must be of the kind that its field has, and keys without a field are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from stepper.policy.model import Fault, Key, Moment, Outcome, Run, moment

LeftOut = tuple[int, int, int]  # characters, outputs, their bytes


@dataclass(frozen=True)
class Event:
    """A line of the journal. A field that is named in `optional` is written only where it says something."""

    kind: ClassVar[str]
    optional: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the line (dataclasses.asdict copies each value, which costs more than a write)."""
        data = {"event": self.kind, **vars(self)}
        if data.get("fault") is not None:
            data["fault"] = asdict(data["fault"])
        for name in self.optional:
            if not data[name]:
                del data[name]
        return data


@dataclass(frozen=True, kw_only=True)
class Created(Event):
    """A new notebook was made, maybe under a name that another one had before."""

    kind = "created"
    at: Moment = ""


@dataclass(frozen=True, kw_only=True)
class Planned(Event):
    """The plan as it is from now on, in the form of `plan.to_json`."""

    kind = "plan"
    at: Moment = ""
    plan: Any


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """A run is to begin: all that a daemon needs which finds it unfinished."""

    kind = "start"
    run: int
    key: Key
    at: Moment
    tool_use_id: str | None = None
    request: str = ""  # by which the kernel knows it
    timeout: float = 0.0  # seconds
    cell_id: str
    number: int = 0
    index: int = -1
    source: str = ""
    tags: tuple[str, ...] = ()
    kernel: str = ""


@dataclass(frozen=True, kw_only=True)
class Voided(Event):
    """A run that was to begin never did: the call may yet run it."""

    kind = "void"
    run: int = 0
    tool_use_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ran(Run, Event):
    """A run ended."""

    kind = "run"
    optional = ("displays", "left_out")
    repeat: int = 0  # how often stepper itself had run it before, after a transient error
    execution_count: int | None = None
    displays: dict[str, list[int]] = field(default_factory=dict)
    left_out: LeftOut | None = None
    request: str = ""


@dataclass(frozen=True, kw_only=True)
class Held(Run, Event):
    """A fault was found before a cell ran: it did not run."""

    kind = "held"
    at: Moment = ""


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """`stepper eval` ran code, which may have changed anything."""

    kind = "scratch"
    at: Moment = ""
    source: str = ""
    outcome: Outcome = Outcome.OK
    duration_s: float = 0.0
    fault: Fault | None = None


@dataclass(frozen=True, kw_only=True)
class KernelChanged(Event):
    """A kernel was `started`, or its state was `lost`."""

    kind = "kernel"
    optional = ("kernel", "pid", "why")
    what: str
    kernel: str = ""
    pid: int | None = None
    why: str = ""
    at: Moment = ""


@dataclass(frozen=True, kw_only=True)
class Stopped(Event):
    """No further cell runs until the person says so. `error` is what the block names, for one line (since 0.2)."""

    kind = "stop"
    optional = ("error",)
    at: Moment = ""
    key: Key | None
    cell_id: str
    block: str
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Reported(Event):
    """What the agent read of a run; run 0 where nothing ran."""

    kind = "report"
    run: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Late(Event):
    """Something came for a cell besides its run. `there`: it is on the cell."""

    kind = "late"
    optional = ("why",)
    at: Moment = ""
    cell_id: str
    source_hash: str
    characters: int
    shows: int
    updates: int
    left_out: LeftOut
    displays: dict[str, list[int]]
    there: bool
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Unwritten(Event):
    """Outputs that could not be written into the notebook and wait."""

    kind = "unwritten"
    run: int
    cell_id: str
    number: int
    source: str
    step: int | None
    outputs: list[Any]
    execution_count: int | None
    timings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Written(Event):
    """Outputs that waited wait no longer: written, or left out for a reason."""

    kind = "written"
    run: int = 0
    cell_id: str
    why_not: str | None = None


@dataclass(frozen=True, kw_only=True)
class Continued(Event):
    """The person lifted a stop."""

    kind = "continue"
    at: Moment = ""


@dataclass(frozen=True, kw_only=True)
class Restored(Event):
    """The person had the cells that had ended well run again, which lifts a stop."""

    kind = "restore"
    at: Moment = ""


@dataclass(frozen=True, kw_only=True)
class Fixed(Event):
    """The person granted fresh retries, which lifts a stop."""

    kind = "fix"
    at: Moment = ""
    key: Key | None = None


@dataclass(frozen=True, kw_only=True)
class Skipped(Event):
    """The person skipped a step or a cell, which lifts a stop."""

    kind = "skip"
    at: Moment = ""
    key: Key
    reason: str = ""


KINDS: dict[str, type[Event]] = {event.kind: event for event in Event.__subclasses__()}


def read(line: Mapping[str, Any]) -> Event | None:
    """Return the event that a line of the journal is, None for one of an unknown kind (a newer stepper's).

    Raise KeyError, TypeError or ValueError where it is not as stepper writes it.
    """
    kind = line.get("event")
    event: Any = KINDS.get(kind) if isinstance(kind, str) else None
    return _record(event)(line) if event else None


def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return what makes a value of that type of what JSON holds, or raises."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return moment
    if origin is UnionType:
        return _either([(_in_json(each), _reader(each)) for each in inside])
    if is_dataclass(kind) and isinstance(kind, type):
        return _record(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if origin is tuple and inside[-1] is ...:
        each = _reader(inside[0])
        return lambda value: tuple(map(each, _a((list, tuple), value)))
    if origin is tuple:
        places = [_reader(place) for place in inside]
        return lambda value: tuple(read(item) for read, item in zip(places, _a((list, tuple), value), strict=True))
    if origin is list:
        of_item = _reader(inside[0])
        return lambda value: [of_item(item) for item in _a(list, value)]
    if origin is dict:
        of_value = _reader(inside[1])
        return lambda value: {str(name): of_value(item) for name, item in _a(dict, value).items()}
    return lambda value: _a(_in_json(kind), value)


@cache
def _record(cls: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(cls, include_extras=True)
    known = [
        (field.name, _reader(hints[field.name]), field.default is field.default_factory is MISSING)
        for field in fields(cls)
    ]
    return lambda value: cls(**{name: of(value[name]) for name, of, must in known if must or name in _a(dict, value)})


def _either(readers: list[tuple[Any, Callable[[Any], Any]]]) -> Callable[[Any], Any]:
    def either(value: Any) -> Any:
        for form, of in readers:
            if isinstance(value, form):
                return of(value)
        raise TypeError(f"not {value!r:.100}")

    return either


def _in_json(kind: Any) -> Any:
    """Return as which classes a value of that type stands in JSON."""
    if is_dataclass(kind):
        return dict
    origin = get_origin(kind) or kind
    return {float: (int, float), tuple: (list, tuple), Any: object}.get(origin, origin)


def _a(form: Any, value: Any) -> Any:
    if not isinstance(value, form):
        raise TypeError(f"not {value!r:.100}")
    return value
