"""What the journal's events add up to: the plan, each step's standing, the stop, what ran in which kernel.

`State` is changed by `apply` alone, event by event, so that a daemon that starts anew knows what the last one knew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from stepper.policy import plan as plans
from stepper.policy.model import Kind, Outcome, Plan, StepStatus, Verdict

Key = int | str  # a step's id, or the id of a cell in no step

KEPT = 50  # runs of which fault and report are in memory; the journal has all of them
HELD_IN_A_ROW = 3  # faults found before a cell ran that count as one attempt

# What is kept in memory of an older run.
SLIM = ("run", "cell_id", "key", "step", "source_hash", "started_at", "duration_s", "outcome", "verdict", "tool_use_id")

# How a run's end moves a step. A cancelled run leaves the step where it was.
AFTER_RUN = {
    Verdict.FINE: StepStatus.DONE,
    Verdict.RECOVERABLE: StepStatus.FAILED,
    Verdict.TRANSIENT: StepStatus.FAILED,
    Verdict.UNRECOVERABLE: StepStatus.FAILED,
}


@dataclass
class Progress:
    """How far a step (or a cell in no step) is. `attempts` are the retries made since the count began."""

    status: StepStatus = StepStatus.PENDING
    cell_id: str | None = None
    index: int = -1  # where its cell stood
    attempts: int = 0
    failing: bool = False
    runs: int = 0
    reason: str = ""  # why it was skipped
    held: str = ""  # the source hash that was not run last, because of what was found before
    held_count: int = 0  # how often in a row


@dataclass(frozen=True)
class Stop:
    """The state in which no further cell of the notebook runs until the person says so.

    `key` is None where no cell is to blame: the kernel died while nothing ran.
    """

    key: Key | None
    cell_id: str
    block: str


@dataclass
class Shown:
    """What a cell shows of its last run: display id → which outputs; what the limits leave out; by which source."""

    source_hash: str
    displays: dict[str, list[int]] = field(default_factory=dict)
    left_out: tuple[int, int, int] = (0, 0, 0)  # characters, outputs, their bytes
    late_characters: int = 0  # that came after the run, and messages that were no text
    late_others: int = 0


@dataclass
class Came:
    """What came for a cell besides its run and was not told yet."""

    characters: int = 0
    outputs: int = 0
    updates: int = 0
    left_out: tuple[int, int, int] = (0, 0, 0)  # of all that the cell got
    lost: bool = False  # the cell was changed or deleted since it ran


@dataclass
class State:
    """One notebook's standing."""

    plan: Plan = field(default_factory=Plan)
    progress: dict[Key, Progress] = field(default_factory=dict)
    stop: Stop | None = None
    runs: list[dict[str, Any]] = field(default_factory=list)
    next_run: int = 1
    running: dict[str, Any] | None = None
    kernel: str = ""  # the id of the kernel that ran last
    lost: str = ""  # why the last kernel's state is gone; told once, with the next run
    ran: dict[str, str] = field(default_factory=dict)  # cell id → source hash, ok in the present kernel
    ran_ever: dict[str, str] = field(default_factory=dict)  # cell id → source hash, whatever became of it
    tool_use_ids: set[str] = field(default_factory=set)
    seconds: float = 0.0  # spent in runs
    counts: dict[int, str] = field(default_factory=dict)  # execution count → cell id, in the present kernel
    requests: dict[str, tuple[str, str]] = field(default_factory=dict)  # → cell id, source hash; in the present kernel
    shown: dict[str, Shown] = field(default_factory=dict)  # cell id →, in the present kernel
    came: dict[str, Came] = field(default_factory=dict)  # cell id →
    reports: dict[int, str] = field(default_factory=dict)  # run → what the agent read; 0: where nothing ran
    last_report: int | None = None
    unwritten: dict[str, dict[str, Any]] = field(default_factory=dict)  # cell id → outputs that wait for the notebook
    unread: int = 0  # events that could not be understood
    unchanged: bool = False  # nothing of stepper's happened since the last run that could change how it ends

    def of(self, key: Key) -> Progress:
        """Return the standing of a step or a cell in no step; made where it is new."""
        return self.progress.setdefault(key, Progress())

    def attempts_after(self, key: Key, verdict: Verdict, repeat: bool) -> int:
        """Return how many retries will have been made when a run with that verdict is applied."""
        progress = self.of(key)
        if verdict is Verdict.CANCELLED:
            return progress.attempts
        fresh = progress.status is StepStatus.DONE
        return 0 if fresh else progress.attempts + (progress.failing and not repeat)

    def open_step(self) -> int | None:
        """Return the id of the first step that is neither done nor skipped, or None."""
        for step in self.plan.steps:
            if self.of(step.id).status not in (StepStatus.DONE, StepStatus.SKIPPED):
                return step.id
        return None

    @property
    def complete(self) -> bool:
        """Whether every step is done or skipped and the validation step, if any, passed; without a plan never."""
        passed = all(
            self.of(step.id).status is StepStatus.DONE for step in self.plan.steps if step.kind is Kind.VALIDATION
        )
        return bool(self.plan.steps) and self.open_step() is None and passed

    @property
    def name(self) -> str:
        """The notebook's state for people and `--json`: `stopped`, `complete` or `ready`."""
        return "stopped" if self.stop else "complete" if self.complete else "ready"

    @property
    def under_way(self) -> bool:
        """Whether there is work to go on with: a step that waits, a stop, or a notebook without a plan that ran."""
        return bool(self.stop or self.open_step() is not None or (not self.plan.steps and self.ran))


# What stands in an event, each of its own kind: a journal may be a stranger's, or edited.
NUMBER, MAYBE = (int, float), type(None)
KINDS: dict[str, Any] = {
    "run": int, "key": (int, str, MAYBE), "cell_id": str, "number": int, "index": int, "source_hash": str,
    "source": str, "tags": (list, tuple), "request": str, "timeout": NUMBER, "duration_s": NUMBER,
    "tool_use_id": (str, MAYBE), "fault": (dict, MAYBE), "repeat": int, "execution_count": (int, MAYBE),
    "step": (int, MAYBE), "text": str, "block": str, "reason": str, "why": str, "what": str, "kernel": str,
    "outputs": list, "timings": dict, "displays": dict, "left_out": (list, tuple), "characters": int, "shows": int,
    "updates": int, "there": bool,
}  # fmt: skip
IN_FAULT: dict[str, Any] = {
    "ename": str, "evalue": str, "mro": (list, tuple), "attributes": dict, "frames": (list, tuple),
}  # fmt: skip
IN_FRAME: dict[str, Any] = {"cell": int, "line": int, "function": str, "file": str, "context": (list, tuple)}
# Where more is asked of an event later than is when it is taken in.
NEEDED = {
    "start": ("run", "key", "at", "cell_id"),
    "run": (*SLIM[:-1], "index"),
    "late": ("cell_id", "source_hash", "characters", "shows", "updates", "left_out", "displays", "there"),
    "unwritten": ("run", "cell_id", "number", "source", "step", "outputs", "execution_count", "timings"),
}


def check(event: dict[str, Any]) -> None:
    """Raise KeyError, TypeError or ValueError where an event is not as stepper writes it."""
    kind = event.get("event")
    if not isinstance(kind, str) or kind not in HANDLERS:
        return
    for name in NEEDED.get(kind, ()):
        event[name]
    _of_kinds(event, KINDS)
    for name in ("at", "started_at"):
        if name in event and datetime.fromisoformat(event[name].replace("Z", "+00:00")).tzinfo is None:
            raise ValueError(name)
    if "outcome" in event:
        Outcome(event["outcome"])
    if event.get("fault"):
        _of_kinds({**dict.fromkeys(IN_FAULT), **event["fault"]}, IN_FAULT)
        for frame in event["fault"]["frames"]:
            _of_kinds({**dict.fromkeys(IN_FRAME), **frame}, IN_FRAME)
            dict(frame["context"])  # pairs


def _of_kinds(told: dict[str, Any], kinds: dict[str, Any]) -> None:
    wrong = [name for name, kind in kinds.items() if name in told and not isinstance(told[name], kind)]
    if wrong:
        raise TypeError(wrong[0])


def replay(events: Iterable[dict[str, Any]]) -> State:
    """Return the state that the journal's events add up to."""
    state = State()
    for event in events:
        try:
            check(event)
            apply(state, event)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):  # a line that somebody else wrote
            state.unread += 1
    return state


def showing(state: State, display_id: str) -> list[str]:
    """Return the cells that show a display id."""
    return [cell_id for cell_id, shown in state.shown.items() if display_id in shown.displays]


def apply(state: State, event: dict[str, Any]) -> None:
    """Change `state` by one event; an event of an unknown kind (a newer stepper's) changes nothing."""
    handler = HANDLERS.get(str(event.get("event")))
    if handler:
        handler(state, event)


def _created(state: State, event: dict[str, Any]) -> None:
    """A new notebook under a name that another one had before: nothing of that one counts."""
    fresh = State(next_run=state.next_run, tool_use_ids=state.tool_use_ids, unread=state.unread)
    state.__dict__.update(fresh.__dict__)


def _plan(state: State, event: dict[str, Any]) -> None:
    state.plan = plans.from_json(event["plan"]) or state.plan


def _held(state: State, event: dict[str, Any]) -> None:
    """A fault was found before the cell ran: no run; the third in a row counts as an attempt."""
    if event.get("tool_use_id"):
        state.tool_use_ids.add(event["tool_use_id"])
    progress = state.of(event["key"])
    progress.held, progress.held_count = event["source_hash"], progress.held_count + 1
    if progress.status is StepStatus.DONE:  # a fresh count begins, as with a run
        progress.attempts, progress.failing = 0, False
    progress.status, progress.cell_id, progress.index = StepStatus.FAILED, event["cell_id"], event["index"]
    state.ran.pop(event["cell_id"], None)
    if progress.held_count == HELD_IN_A_ROW:
        progress.held_count = 0
        progress.attempts += 1


def _start(state: State, event: dict[str, Any]) -> None:
    state.running = event
    state.next_run = max(state.next_run, event["run"] + 1)
    if event.get("tool_use_id"):
        state.tool_use_ids.add(event["tool_use_id"])


def _run(state: State, event: dict[str, Any]) -> None:
    cell_id, source, verdict = event["cell_id"], event["source_hash"], Verdict(event["verdict"])
    number, progress = event["run"], state.of(event["key"])
    state.seconds += event["duration_s"]
    state.running = None
    state.runs.append(event)
    if state.unwritten.get(cell_id, event)["run"] != number:
        del state.unwritten[cell_id]  # an older run's
    if len(state.runs) > KEPT:
        old = state.runs[-KEPT - 1]
        state.reports.pop(old["run"], None)
        state.runs[-KEPT - 1] = {name: old.get(name) for name in SLIM}
    state.next_run = max(state.next_run, number + 1)
    if event.get("execution_count") is not None:
        state.counts[event["execution_count"]] = cell_id
    state.ran_ever[cell_id] = source
    if event.get("request"):
        state.requests[event["request"]] = cell_id, source
    state.shown[cell_id] = Shown(source, event.get("displays") or {}, _left_out(event))
    if verdict is Verdict.FINE:
        state.ran[cell_id] = source
    else:
        state.ran.pop(cell_id, None)
    state.unchanged = True
    progress.held, progress.held_count = "", 0
    progress.runs += 1
    if verdict is Verdict.CANCELLED:
        return
    # A done step that runs again starts a fresh count; stepper's own repetitions are nobody's attempt.
    progress.attempts = state.attempts_after(event["key"], verdict, bool(event.get("repeat")))
    progress.status = AFTER_RUN[verdict]
    progress.failing = verdict is not Verdict.FINE
    progress.cell_id, progress.index = cell_id, event["index"]


def _late(state: State, event: dict[str, Any]) -> None:
    """Something came for a cell besides its run."""
    cell_id, left_out = event["cell_id"], _left_out(event)
    came = state.came.setdefault(cell_id, Came())
    came.characters += event["characters"]
    came.outputs += event["shows"]
    came.updates += event["updates"]
    came.left_out, came.lost = left_out, not event["there"]
    shown = state.shown.get(cell_id)
    if shown is not None and event["there"]:
        shown.displays, shown.left_out = event["displays"], left_out
        shown.late_characters += event["characters"]
        shown.late_others += event["shows"] + event["updates"]


def _left_out(event: dict[str, Any]) -> tuple[int, int, int]:
    characters, outputs, size = map(int, event.get("left_out") or (0, 0, 0))
    return characters, outputs, size


def _void(state: State, event: dict[str, Any]) -> None:
    """A run that was to begin and never did: the call may yet run it."""
    state.running = None
    state.tool_use_ids.discard(event.get("tool_use_id") or "")


def _unwritten(state: State, event: dict[str, Any]) -> None:
    state.unwritten[event["cell_id"]] = event


def _written(state: State, event: dict[str, Any]) -> None:
    state.unwritten.pop(event["cell_id"], None)


def outcome_of(state: State, run: int) -> Outcome:
    """Return how a run ended, as far as it is known."""
    return next((Outcome(one["outcome"]) for one in reversed(state.runs) if one["run"] == run), Outcome.OK)


def _report(state: State, event: dict[str, Any]) -> None:
    state.reports[event["run"]], state.last_report = event["text"], event["run"]
    state.came = {}  # it is told


def _stop(state: State, event: dict[str, Any]) -> None:
    state.stop = Stop(event["key"], event["cell_id"], event["block"])


def _scratch(state: State, event: dict[str, Any]) -> None:
    """`stepper eval` may have changed anything."""
    state.unchanged = False


def _kernel(state: State, event: dict[str, Any]) -> None:
    state.unchanged = False
    if event["what"] == "started":
        state.kernel, state.ran, state.counts, state.lost = event["kernel"], {}, {}, ""
        state.requests, state.shown = {}, {}
    else:  # died, restarted, shut down: told with the next run, and only if there was something to lose
        if state.ran:
            state.lost = event["why"]
        state.ran, state.kernel = {}, ""


def _lift(state: State, event: dict[str, Any]) -> None:
    state.stop, state.unchanged = None, False


def _fix(state: State, event: dict[str, Any]) -> None:
    state.stop, state.unchanged = None, False
    if event.get("key") is not None:
        state.of(event["key"]).attempts = 0


def _skip(state: State, event: dict[str, Any]) -> None:
    state.stop = None
    progress = state.of(event["key"])
    progress.status, progress.reason = StepStatus.SKIPPED, event.get("reason", "")


HANDLERS = {
    "created": _created,
    "plan": _plan,
    "held": _held,
    "start": _start,
    "run": _run,
    "scratch": _scratch,
    "kernel": _kernel,
    "stop": _stop,
    "report": _report,
    "late": _late,
    "void": _void,
    "unwritten": _unwritten,
    "written": _written,
    "continue": _lift,
    "restore": _lift,
    "fix": _fix,
    "skip": _skip,
}
