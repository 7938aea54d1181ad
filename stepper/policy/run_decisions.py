"""What is to happen before a cell and after it: policy decides here, the session carries out.

`before`: a cell that was written → whether it runs. `judged`: how an execution ended → fault and verdict. `after` (a
run that was judged) and `held` (a cell that did not run) → go on, let the agent fix it, run it again, or stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from stepper.common.text import one_line
from stepper.policy import (
    cell_changes,
    cell_directives,
    edit_gate,
    error_classification,
    plan,
    repeated_errors,
)
from stepper.policy.journal_events import PreflightFailed, RunEnded, RunStarted
from stepper.policy.kernel_namespace import Namespace
from stepper.policy.model import (
    Cell,
    Consent,
    CriterionResult,
    Death,
    Fault,
    Key,
    Limits,
    Outcome,
    Run,
    StepStatus,
    Verdict,
)
from stepper.policy.notebook_state import Progress, State

VARIABLES_KEPT, VARIABLES_LOST = (
    "the kernel's state is kept",
    ": all variables are lost",
)


class CellAction(Enum):
    """What is to be done about a cell that was written."""

    NOTHING = "it is not meant to run"
    WAIT = "the person has not accepted it"
    REFUSE = "it may not run now"
    RUN = "it runs"


@dataclass(frozen=True)
class WriteDecision:
    """What is to be done about a cell, and why not where it does not run."""

    action: CellAction
    reason: str = ""
    # the run that it would only repeat, unless a file of the project changed since
    repeats: Run | None = None
    needs_preflight: bool = False  # whether it is not to run where a fault is certain


def decide_on_written_cell(
    state: State,
    cells: Sequence[Cell],
    cell: Cell,
    consent: Consent,
    asked: Callable[[], Limits],
    new: bool,
    alone: bool = True,
) -> WriteDecision:
    """Decide on a cell that stands in the notebook now; `new` where it did not before the edit.

    Where its edit is of it `alone`, the agent may repeat itself with it; a Write brings a whole notebook.
    """
    if cell not in cell_changes.select_runnable([cell]):
        return WriteDecision(CellAction.NOTHING)
    # a wrong configuration is no matter of a cell that is not meant to run
    limits = asked()
    if why := edit_gate.check_approval(consent, limits):
        return WriteDecision(CellAction.WAIT, why)
    others = [other for other in cells if other.id != cell.id]
    crowded = (
        (
            edit_gate.check_failed_step(state, others, cell.index)
            or edit_gate.check_cell_count(cells, limits)
        )
        if new
        else None
    )
    if why := edit_gate.check_stop(state) or crowded:
        return WriteDecision(CellAction.REFUSE, why)
    key, source = (
        plan.find_key(state, cells, cell),
        cell_changes.hash_source(cell.source),
    )
    # written once more, it runs
    as_held = state.progress.get(key, Progress()).preflight_hash == source
    look_ahead = (
        limits.preflight and not as_held and cell_changes.RAISES_TAG not in cell.tags
    )
    repeats = repeated_errors.find_repeated_run(state, key, source) if alone else None
    return WriteDecision(CellAction.RUN, "", repeats, look_ahead)


@dataclass(frozen=True)
class RunParameters:
    """A cell that is to run: what it counts for, its deadline in seconds, what is to be noted before it runs.

    Its step's criterion where that is an expression, which may be looked at then. A printed line that matches `wake`
    wakes the agent while it runs.
    """

    key: Key
    timeout: float
    notes: tuple[str, ...]
    criterion: str = ""
    wake: str = ""


def make_run_parameters(
    state: State,
    cells: Sequence[Cell],
    cell: Cell,
    limits: Limits,
    timeout_of_call: float | None = None,
) -> RunParameters:
    """Return how a cell is to run."""
    asked, key = cell_directives.parse(cell.source), plan.find_key(state, cells, cell)
    step = state.plan.find_step(key) if isinstance(key, int) else None
    most = limits.max_cell_timeout_seconds
    default = most if step and step.long else limits.cell_timeout_seconds
    timeout = cell_directives.select_deadline(asked, default, most, timeout_of_call)
    below = [
        other
        for other in cells
        if other.index > cell.index and other.id in state.succeeded_sources
    ]
    order = (
        [f"out of order: it ran after cell {below[-1].number}, which stands below it"]
        if below
        else []
    )
    returned = repeated_errors.note_returning_source(
        state, key, cell_changes.hash_source(cell.source)
    )
    criterion = plan.parse_criterion(step.criterion) if step else ""
    return RunParameters(
        key, timeout, (*asked.problems, *order, *returned), criterion, asked.wake
    )


def judge_run(
    outcome: Outcome,
    fault: Fault | None,
    tags: tuple[str, ...],
    death: Death | None = None,
    memory: str = "",
    built: str = "",
) -> tuple[Fault | None, Verdict]:
    """Return the fault, with classes of its own for what is no exception, and the verdict.

    `memory` tells what the guard saw, `built` what had built the variables that are lost where the kernel died.
    """
    lost = (
        f"kernel died ({death.reason}){VARIABLES_LOST}"
        + (f"; {built}" if built else "")
        if death
        else ""
    )
    if outcome is Outcome.MEMORY:
        return Fault(
            "MemoryLimit",
            f"{memory}; {lost if death else VARIABLES_KEPT}",
            ("MemoryLimit",),
        ), Verdict.UNRECOVERABLE
    if death and outcome is not Outcome.CANCELLED:
        said = lost + (f"\n{death.stderr}" if death.stderr else "")
        classes = ("KernelDied", death.cause) if death.cause else ("KernelDied",)
        frames, line = (fault.frames, fault.line) if fault else ((), None)
        return Fault("KernelDied", said, classes, line, frames), Verdict.UNRECOVERABLE
    if outcome is Outcome.TIMEOUT:
        fault = replace(
            fault or Fault("", ""),
            ename="Timeout",
            evalue=VARIABLES_KEPT,
            mro=("Timeout",),
        )
    if outcome is Outcome.ERROR and cell_changes.RAISES_TAG in tags:
        return fault, Verdict.FINE
    return fault, error_classification.classify_run(outcome, fault)


def explain_false_criterion(
    state: State, begun: RunStarted, criterion: str, checked: CriterionResult | None
) -> str:
    """Return in what a step's criterion is false after its cell; '' where it is not, or that source was confirmed."""
    progress = state.progress_of(begun.key)
    confirmed = progress.status is StepStatus.DONE and progress.reason
    same = confirmed and state.last_sources.get(
        begun.cell_id
    ) == cell_changes.hash_source(begun.source)
    if checked is None or checked.holds or same:
        return ""
    values = ", ".join(
        f"{one_line(written, 80)} is {one_line(value, 80)}"
        for written, value in checked.values[:3]
    )
    return f"`{one_line(criterion, 200)}` is false" + (f": {values}" if values else "")


def find_new_packages(state: State, known: Namespace) -> dict[str, str]:
    """Return the versions of packages that no earlier run had."""
    versions = known.lasting.versions if known.lasting else {}
    return {
        name: version
        for name, version in versions.items()
        if state.packages.get(name) != version
    }


def find_new_imports(state: State, known: Namespace) -> dict[str, tuple[str, ...]]:
    """Return the imports among the project's modules that no earlier run had."""
    imports = known.lasting.local_imports if known.lasting else {}
    return {
        name: others
        for name, others in imports.items()
        if state.imports.get(name) != others
    }


def should_verify(state: State, limits: Limits, cells: Iterable[Cell]) -> bool:
    """Whether a notebook that is complete now is replayed unasked: each cell ran here, and quickly enough."""
    last = {run.cell_id: run.duration_s for run in state.runs}
    # nobody had them run: a replay unasked is not the first to
    unseen = cell_changes.select_not_run(cells, state.last_sources)
    return (
        limits.verify == "auto"
        and not unseen
        and sum(last.values()) < limits.verify_seconds
    )


class NextAction(Enum):
    """What follows a run."""

    CONTINUE = "go on"
    FIX = "the agent fixes the cell"
    RETRY = "stepper runs the cell again"
    STOP = "stop and tell the person"


@dataclass(frozen=True)
class RunDecision:
    """What follows: what is to be done, the attempts by then, what is to be noted."""

    action: NextAction
    wait: float  # seconds, where it runs again
    attempts: int
    notes: Sequence[str] = ()
    # as an attempt: of cells that did not run each third in a row does
    counts: bool = True


def decide(
    verdict: Verdict, attempts: int, repeats: int, limits: Limits
) -> tuple[NextAction, float]:
    """Return what follows a verdict, and after how many seconds, where it runs again.

    `attempts` are the retries that the agent has made, this run's too, `repeats` those that stepper itself has made.
    """
    if verdict in (Verdict.FINE, Verdict.CANCELLED):
        return NextAction.CONTINUE, 0.0
    if verdict is Verdict.TRANSIENT and repeats < limits.network_retries:
        return NextAction.RETRY, 2.0**repeats
    return (
        NextAction.FIX
        if verdict is Verdict.RECOVERABLE and attempts < limits.max_retries
        else NextAction.STOP,
        0.0,
    )


def decide_after_run(state: State, run: RunEnded, limits: Limits) -> RunDecision:
    """Decide what follows a run that was judged; the state does not hold it yet."""
    attempts = state.count_attempts_after(
        run.key, run.verdict, run.repeat > 0, run.outside_agent
    )
    return RunDecision(
        *decide(run.verdict, attempts, run.repeat, limits),
        attempts,
        repeated_errors.note_same_error(state, run),
    )


def decide_after_preflight(
    state: State, found: PreflightFailed, limits: Limits
) -> RunDecision:
    """Decide what follows a fault that was found before the cell ran; the state does not hold it yet."""
    attempts, counts = state.count_attempts_after_preflight(found.key)
    act, wait = (
        decide(found.verdict, attempts, 0, limits) if counts else (NextAction.FIX, 0.0)
    )
    return RunDecision(act, wait, attempts, counts=counts)
