"""What stands in the journal: a class for each kind of line. It may be a stranger's, edited, or of another stepper.

(A few lines over 300: it is a list of lines, read by name.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from stepper.common import json_decode
from stepper.policy.cell_changes import hash_source
from stepper.policy.model import (
    NOTHING_OMITTED,
    Fault,
    Key,
    Moment,
    OmittedOutput,
    Outcome,
    Run,
    Verdict,
)

EVENT_CLASSES: dict[str, type[Event]] = {}


@dataclass(frozen=True)
class Event:
    """A line of the journal. A field that is named in `optional` is written only where it says something."""

    kind: ClassVar[str]
    optional: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, kind: str, optional: tuple[str, ...] = ()) -> None:
        """Have lines of that kind read as this class."""
        cls.kind, cls.optional = kind, optional
        EVENT_CLASSES[kind] = cls

    def to_json(self) -> dict[str, Any]:
        """Return the line (dataclasses.asdict copies each value, which costs more than a write)."""
        data = {"event": self.kind, **vars(self)}
        if data.get("fault") is not None:
            data["fault"] = asdict(data["fault"])
        for name in self.optional:
            if not data[name]:
                del data[name]
        if "left_out" in data:
            # orjson knows no tuples with names
            data["left_out"] = tuple(data["left_out"])
        return data


@dataclass(frozen=True, kw_only=True)
class Created(Event, kind="created"):
    """A new notebook was made, maybe under a name that another one had before."""

    at: Moment = ""


@dataclass(frozen=True, kw_only=True)
class Renamed(Event, kind="renamed"):
    """The notebook was renamed; `former` is the name that it had before."""

    at: Moment = ""
    former: str = ""


@dataclass(frozen=True, kw_only=True)
class Replaced(Event, kind="replaced"):
    """The file of a stopped notebook holds another notebook, which is not stopped."""

    at: Moment = ""


@dataclass(frozen=True, kw_only=True)
class AgentWrote(Event, kind="agent_wrote"):
    """What the agent wrote into a stopped notebook, by its marks: that is no other notebook, for which the stop ends."""

    at: Moment = ""
    marks: list[str]


@dataclass(frozen=True, kw_only=True)
class PlanChanged(Event, kind="plan"):
    """The plan as it is from now on, in the form of `plan.to_json`."""

    at: Moment = ""
    plan: Any


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event, kind="start", optional=("by", "outside_agent")):
    """A run is to begin: all that a daemon needs which finds it unfinished."""

    run: int
    key: Key
    at: Moment
    tool_use_id: str | None = None
    by: str = ""
    outside_agent: bool = False
    request: str = ""  # by which the kernel knows it
    timeout: float = 0.0  # seconds
    cell_id: str
    number: int = 0
    index: int = -1
    source: str = ""
    tags: tuple[str, ...] = ()
    kernel: str = ""

    def create_run(
        self, outcome: Outcome, verdict: Verdict, fault: Fault | None, seconds: float
    ) -> Run:
        """Return the run that it became."""
        return Run(
            run=self.run,
            cell_id=self.cell_id,
            number=self.number,
            index=self.index,
            step=self.key if isinstance(self.key, int) else None,
            source_hash=hash_source(self.source),
            started_at=self.at,
            duration_s=round(seconds, 4),
            outcome=outcome,
            verdict=verdict,
            fault=fault,
            kernel=self.kernel,
            tool_use_id=self.tool_use_id,
            by=self.by,
            outside_agent=self.outside_agent,
            key=self.key,
        )


@dataclass(frozen=True, kw_only=True)
class RunVoided(Event, kind="void"):
    """A run that was to begin never did: the call may yet run it."""

    run: int = 0
    tool_use_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunEnded(
    Run,
    Event,
    kind="run",
    optional=(
        "by",
        "outside_agent",
        "displays",
        "left_out",
        "unmet",
        "figures",
        "packages",
        "imports",
        "bound",
    ),
):
    """A run ended."""

    # how often stepper itself had run it before, after a transient error
    repeat: int = 0
    execution_count: int | None = None
    displays: dict[str, list[int]] = field(default_factory=dict)
    left_out: OmittedOutput = NOTHING_OMITTED
    request: str = ""
    # in what its step's criterion is false, so that the step is not done
    unmet: str = ""
    # the key of a picture → what is known of the figure
    figures: dict[str, str] = field(default_factory=dict)
    # → version, where no earlier run had that one
    packages: dict[str, str] = field(default_factory=dict)
    # modules of the project → those of the project that they import, where no earlier
    # run had that
    imports: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # names that it bound → prints of their values (`dataflow`)
    bound: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PreflightFailed(Run, Event, kind="held", optional=("by", "outside_agent")):
    """A fault was found before a cell ran: it did not run."""

    at: Moment = ""


@dataclass(frozen=True, kw_only=True)
class ScratchExecuted(Event, kind="scratch"):
    """`stepper eval` ran code, which may have changed anything."""

    at: Moment = ""
    source: str = ""
    outcome: Outcome = Outcome.OK
    duration_s: float = 0.0
    fault: Fault | None = None


@dataclass(frozen=True, kw_only=True)
class ExternalExecution(Event, kind="elsewhere", optional=("error", "bound")):
    """Another client (a console, JupyterLab) had the kernel run code, of which the first line is kept.

    `after` is the last run that came before it.
    """

    at: Moment
    after: int
    kernel: str
    code: str
    duration_s: float = 0.0
    error: str = ""
    bound: dict[str, str] = field(default_factory=dict)  # as of a run


@dataclass(frozen=True, kw_only=True)
class KernelChanged(Event, kind="kernel", optional=("kernel", "pid", "why")):
    """A kernel was `started`, or its state was `lost`."""

    what: str
    kernel: str = ""
    pid: int | None = None
    why: str = ""
    at: Moment = ""


@dataclass(frozen=True, kw_only=True)
class Stopped(Event, kind="stop", optional=("error",)):
    """No further cell runs until the person says so: `block` tells why, `error` in one line.

    `key` is None where no cell is to blame: the kernel died while nothing ran.
    """

    at: Moment = ""
    key: Key | None
    cell_id: str
    block: str
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class RunReported(Event, kind="report"):
    """What the agent read of a run; run 0 where nothing ran."""

    run: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Backgrounded(Event, kind="handed", optional=("matched",)):
    """A call was handed on: who made it was told that it goes on, and is to be told once how it ended.

    `session` is who is told: another one that learns of it at its start takes it over. `matched`: the line that it was
    to be woken by was told.
    """

    at: Moment = ""
    call: str
    session: str = ""
    matched: bool = False


@dataclass(frozen=True, kw_only=True)
class BackgroundReported(Event, kind="told"):
    """How a call that was handed on ended was told."""

    at: Moment = ""
    call: str


@dataclass(frozen=True, kw_only=True)
class Undelivered(Event, kind="unheard", optional=("call", "session", "line")):
    """What came of an edit reached nobody: the agent is to be told, and with `line` the user.

    `call` is one that was handed on to `session`.
    """

    at: Moment = ""
    text: str
    call: str = ""
    session: str = ""
    line: str = ""


@dataclass(frozen=True, kw_only=True)
class Delivered(Event, kind="heard"):
    """All that was unheard has been told."""

    at: Moment = ""


@dataclass(frozen=True, kw_only=True)
class LateOutput(Event, kind="late", optional=("why",)):
    """Something came for a cell besides its run. `there`: it is on the cell."""

    at: Moment = ""
    cell_id: str
    source_hash: str
    characters: int
    shows: int
    updates: int
    left_out: OmittedOutput
    displays: dict[str, list[int]]
    there: bool
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class OutputsPending(Event, kind="unwritten"):
    """Outputs that could not be written into the notebook and wait."""

    run: int
    cell_id: str
    number: int
    source: str
    step: int | None
    outputs: list[Any]
    execution_count: int | None
    timings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class OutputsWritten(Event, kind="written"):
    """Outputs that waited wait no longer: written, or left out for a reason."""

    run: int = 0
    cell_id: str
    why_not: str | None = None


@dataclass(frozen=True, kw_only=True)
class Continued(Event, kind="continue", optional=("answer",)):
    """The person lifted a stop, maybe with an answer to what it asks."""

    at: Moment = ""
    answer: str = ""


@dataclass(frozen=True, kw_only=True)
class Restored(Event, kind="restore", optional=("keeps_stop",)):
    """The cells that had succeeded ran again in a fresh kernel. This lifts a stop, unless it `keeps_stop`."""

    at: Moment = ""
    keeps_stop: bool = False


@dataclass(frozen=True, kw_only=True)
class Fixed(Event, kind="fix", optional=("hint",)):
    """The person granted fresh retries, which lifts a stop, maybe with a hint."""

    at: Moment = ""
    key: Key | None = None
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Skipped(Event, kind="skip"):
    """The person skipped a step or a cell, which lifts a stop."""

    at: Moment = ""
    key: Key
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Reopened(Event, kind="reopen"):
    """The user reopened a skipped step."""

    at: Moment = ""
    key: Key


@dataclass(frozen=True, kw_only=True)
class Confirmed(Event, kind="confirm"):
    """The agent takes a step for done although its criterion is false, for a reason in its own words."""

    at: Moment = ""
    key: Key
    reason: str


@dataclass(frozen=True, kw_only=True)
class Verified(Event, kind="verified", optional=("unstable",)):
    """A replay came to its end: `sources` is the fingerprint of what it replayed, `text` how many were as recorded."""

    at: Moment
    reproduces: bool
    sources: str
    text: str
    unstable: tuple[str, ...] = ()  # ids of cells that differed between fresh runs


def parse_event(line: Mapping[str, Any]) -> Event | None:
    """Return the event that a line of the journal is, None for one of an unknown kind (a newer stepper's).

    Raise KeyError, TypeError or ValueError where it is not as stepper writes it.
    """
    kind = line.get("event")
    event = EVENT_CLASSES.get(kind) if isinstance(kind, str) else None
    return json_decode.decode(event, line) if event else None
