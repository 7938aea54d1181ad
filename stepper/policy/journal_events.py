"""The events of a notebook's journal: one class for each kind of line.

Kinds and field names are the file format. A journal may be edited, or be written by
another version of stepper, so each line is validated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from stepper.common import dataclass_decode
from stepper.policy.changed_cells import hash_source
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
from stepper.policy.undo_model import NO_IMAGES, NamesByName, UndoImages

EVENT_CLASSES: dict[str, type[Event]] = {}
# Fields with named tuples, which orjson does not support.
NAMED_TUPLES = {"left_out", "undo_images"}


@dataclass(frozen=True)
class Event:
    """A line of the journal.

    Fields in `optional` are omitted if their values are empty or false. Fields in
    `nullable` are omitted only if their values are None, because an empty tuple has
    another meaning.
    """

    kind: ClassVar[str]
    optional: ClassVar[tuple[str, ...]]
    nullable: ClassVar[tuple[str, ...]]

    def __init_subclass__(
        cls,
        kind: str,
        optional: tuple[str, ...] = (),
        nullable: tuple[str, ...] = (),
    ) -> None:
        """Register the class for the journal lines with this kind."""
        cls.kind = kind
        cls.optional = optional
        cls.nullable = nullable
        EVENT_CLASSES[kind] = cls

    def to_json(self) -> dict[str, Any]:
        """Return the event as JSON data for a line of the journal."""
        # dataclasses.asdict copies each value, which is slower than writing the line.
        data = {"event": self.kind, **vars(self)}
        if data.get("fault") is not None:
            data["fault"] = asdict(data["fault"])
        for name in self.optional:
            if not data[name]:
                del data[name]
        for name in self.nullable:
            if data[name] is None:
                del data[name]
        for name in NAMED_TUPLES & data.keys():
            data[name] = tuple(data[name])
        return data


@dataclass(frozen=True, kw_only=True)
class Created(Event, kind="created"):
    """A notebook was created. Earlier events belong to an earlier notebook."""

    at: Moment = ""


@dataclass(frozen=True, kw_only=True)
class Renamed(Event, kind="renamed"):
    """The notebook was renamed; `former` is its former name."""

    at: Moment = ""
    former: str = ""


@dataclass(frozen=True, kw_only=True)
class Replaced(Event, kind="replaced"):
    """The file of a stopped notebook now contains another notebook.

    The other notebook is not stopped.
    """

    at: Moment = ""


@dataclass(frozen=True, kw_only=True)
class AgentWrote(Event, kind="agent_wrote"):
    """The agent edited a stopped notebook.

    `marks` are the marks of the written content (see `notebook_identity.list_marks`).
    This content does not count as another notebook, so the agent cannot resume a
    stopped notebook by overwriting it.
    """

    at: Moment = ""
    marks: list[str]


@dataclass(frozen=True, kw_only=True)
class PlanChanged(Event, kind="plan"):
    """The plan was changed; `plan` is the new plan in the form of `plan.to_json`."""

    at: Moment = ""
    plan: Any


@dataclass(frozen=True, kw_only=True)
class RunStarted(
    Event,
    kind="start",
    optional=("by", "outside_agent", "undoes", "undoes_others"),
    nullable=("undoes_names",),
):
    """A run is about to start.

    The event contains everything that another daemon needs to finish the run.
    """

    run: int
    key: Key
    at: Moment
    tool_use_id: str | None = None
    by: str = ""
    outside_agent: bool = False
    request: str = ""  # message id of the execute request
    timeout: float = 0.0  # in seconds
    cell_id: str
    number: int = 0
    index: int = -1
    source: str = ""
    tags: tuple[str, ...] = ()
    kernel: str = ""
    # Earlier runs of the cell, and of other cells, that the kernel undoes before this
    # run.
    undoes: tuple[int, ...] = ()
    undoes_others: tuple[int, ...] = ()
    undoes_names: tuple[str, ...] | None = None  # None: all names

    def create_run(
        self, outcome: Outcome, verdict: Verdict, fault: Fault | None, seconds: float
    ) -> Run:
        """Return the finished run; `seconds` is its duration."""
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
    """The cell did not run, although `RunStarted` was recorded.

    The same tool call may start the run again.
    """

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
        "changes",
        "unprotected",
        "undo_reach",
        "undo_images",
    ),
):
    """A run has finished."""

    # How many times stepper has already repeated the run because of transient errors.
    repeat: int = 0
    execution_count: int | None = None
    # Display id → indexes of the outputs that show the display.
    displays: dict[str, list[int]] = field(default_factory=dict)
    left_out: OmittedOutput = NOTHING_OMITTED
    request: str = ""  # message id of the execute request
    # A message if the criterion of the step is false, otherwise empty.
    unmet: str = ""
    # Figure summaries by `output_comparison.picture_key`.
    figures: dict[str, str] = field(default_factory=dict)
    # Versions of packages that no earlier run used.
    packages: dict[str, str] = field(default_factory=dict)
    # New imports: module of the project → the modules of the project that it imports.
    imports: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # Fingerprints of the values that the run assigned, by name (see `dataflow`).
    bound: dict[str, str] = field(default_factory=dict)
    # How the run changed names, by name (see `undo_model.UndoFacts`).
    changes: dict[str, str] = field(default_factory=dict)
    # Names that the run changed and that cannot be restored, with the reasons.
    unprotected: dict[str, str] = field(default_factory=dict)
    # The oldest run that the kernel could undo completely after this run, or 0.
    undo_reach: int = 0
    # The before-images that the kernel kept after this run.
    undo_images: UndoImages = NO_IMAGES


@dataclass(frozen=True, kw_only=True)
class RunsUndone(
    Event,
    kind="undone",
    optional=(
        "runs",
        "others",
        "restored",
        "removed",
        "not_restored",
        "by_command",
        "lost",
        "undo_reach",
        "undo_images",
        "former_values",
        "former_classes",
    ),
    nullable=("names",),
):
    """The kernel restored the state before earlier runs.

    If `by_command` is false, the kernel did so before the cell `cell_id` ran again, or
    when the cell was deleted. `runs` are the undone runs of this cell, `others` the
    undone runs of other cells. If `by_command` is true, `stepper undo` undid `runs`,
    which may belong to several cells; these cells have not run again.
    """

    at: Moment = ""
    run: int = 0  # the number of the next run
    kernel: str = ""
    cell_id: str = ""
    runs: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    names: tuple[str, ...] | None = None  # the requested names; None: all names
    # The restored names, and the names that did not exist before, with their undone
    # runs.
    restored: dict[str, tuple[int, ...]] = field(default_factory=dict)
    removed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    # Names that could not be restored, with the reasons.
    not_restored: dict[str, str] = field(default_factory=dict)
    by_command: bool = False
    # Whether the kernel did not report what `stepper undo` undid.
    lost: bool = False
    # As in `RunEnded`, only if `by_command` is true.
    undo_reach: int = 0
    undo_images: UndoImages = NO_IMAGES
    # As in `RestoreResult`.
    former_values: NamesByName = field(default_factory=dict)
    former_classes: NamesByName = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PreflightFailed(Run, Event, kind="held", optional=("by", "outside_agent")):
    """A preflight check found an error, so the cell did not run."""

    at: Moment = ""


@dataclass(frozen=True, kw_only=True)
class ScratchExecuted(
    Event, kind="scratch", optional=("ends_reach",), nullable=("rebound",)
):
    """`stepper eval` executed code, which may have changed any variable.

    See `undo_model.UndoFacts` for `rebound` and `ends_reach`.
    """

    at: Moment = ""
    source: str = ""
    outcome: Outcome = Outcome.OK
    duration_s: float = 0.0
    fault: Fault | None = None
    rebound: tuple[str, ...] | None = None
    ends_reach: bool = False


@dataclass(frozen=True, kw_only=True)
class ExternalExecution(Event, kind="elsewhere", optional=("error", "bound")):
    """Another client (a console, JupyterLab) executed code in the kernel.

    `code` is the first line of the code. `after` is the number of the last run of a
    cell before this execution.
    """

    at: Moment
    after: int
    kernel: str
    code: str
    duration_s: float = 0.0
    error: str = ""
    bound: dict[str, str] = field(default_factory=dict)  # as in RunEnded


@dataclass(frozen=True, kw_only=True)
class KernelChanged(Event, kind="kernel", optional=("kernel", "pid", "why")):
    """A kernel started, or the variables of a kernel were lost.

    `what` is "started" for a new kernel. `why` is the reason for a loss.
    """

    what: str
    kernel: str = ""
    pid: int | None = None
    why: str = ""
    at: Moment = ""


@dataclass(frozen=True, kw_only=True)
class Stopped(Event, kind="stop", optional=("error",)):
    """The notebook was stopped: no cell runs until the user resumes it.

    `block` is the message about the stop, `error` the cause on one line. `key` is the
    step or cell that failed, or None if the kernel died while no cell was running.
    """

    at: Moment = ""
    key: Key | None
    cell_id: str
    block: str
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class RunReported(Event, kind="report"):
    """A report was delivered to the agent; `run` is 0 if no cell ran."""

    run: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Backgrounded(Event, kind="handed", optional=("matched",)):
    """A call continues in the background; its result will be reported once.

    `session` is the client session that receives the report; a later session can take
    over the call. `matched` is true if a line that matches the wake pattern was already
    reported.
    """

    at: Moment = ""
    call: str
    session: str = ""
    matched: bool = False


@dataclass(frozen=True, kw_only=True)
class BackgroundReported(Event, kind="told"):
    """The result of a background call was reported."""

    at: Moment = ""
    call: str


@dataclass(frozen=True, kw_only=True)
class Undelivered(Event, kind="unheard", optional=("call", "session", "line")):
    """A report that could not be delivered; `line` is the text for the user.

    If the report is on a background call, `call` is the id of the call, and `session`
    is the client session that should have received the report.
    """

    at: Moment = ""
    text: str
    call: str = ""
    session: str = ""
    line: str = ""


@dataclass(frozen=True, kw_only=True)
class Delivered(Event, kind="heard"):
    """All undelivered reports were delivered."""

    at: Moment = ""


@dataclass(frozen=True, kw_only=True)
class LateOutput(Event, kind="late", optional=("why",)):
    """Output of a cell arrived after its run.

    `characters` counts printed text, `shows` other new outputs, and `updates` the
    updates of displays. `there` is true if the output was written to the notebook;
    otherwise, `why` is the reason. `left_out` and `displays` are as in `RunEnded`.
    """

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
    """The outputs of a run could not be written into the notebook yet."""

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
    """Pending outputs were written to the notebook, or dropped.

    `why_not` is the reason if they were dropped.
    """

    run: int = 0
    cell_id: str
    why_not: str | None = None


@dataclass(frozen=True, kw_only=True)
class Continued(Event, kind="continue", optional=("answer",)):
    """The user resumed the notebook, possibly with an answer to a question."""

    at: Moment = ""
    answer: str = ""


@dataclass(frozen=True, kw_only=True)
class Restored(Event, kind="restore", optional=("keeps_stop",)):
    """The cells that succeeded were re-run in a new kernel.

    This resumes a stopped notebook, unless `keeps_stop` is true.
    """

    at: Moment = ""
    keeps_stop: bool = False


@dataclass(frozen=True, kw_only=True)
class Fixed(Event, kind="fix", optional=("hint",)):
    """The user resumed the notebook with new retries, possibly with a hint."""

    at: Moment = ""
    key: Key | None = None
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Skipped(Event, kind="skip"):
    """The user skipped a step or a cell, which resumes the notebook."""

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
    """A step was marked done although its criterion is false; `reason` says why."""

    at: Moment = ""
    key: Key
    reason: str


@dataclass(frozen=True, kw_only=True)
class Verified(Event, kind="verified", optional=("unstable",)):
    """A replay has finished.

    `sources` is a hash of the replayed sources. `text` is a short result, which says
    how many cells reproduce their recorded outputs.
    """

    at: Moment
    reproduces: bool
    sources: str
    text: str
    unstable: tuple[str, ...] = ()  # ids of cells that differed between fresh runs


def parse_event(line: Mapping[str, Any]) -> Event | None:
    """Return the event of a journal line, or None if its kind is unknown.

    Newer versions of stepper may write other kinds. Raise KeyError, TypeError or
    ValueError if the line is invalid.
    """
    kind = line.get("event")
    event_class = EVENT_CLASSES.get(kind) if isinstance(kind, str) else None
    if event_class is None:
        return None
    return dataclass_decode.decode(event_class, line)
