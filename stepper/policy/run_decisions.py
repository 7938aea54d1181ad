"""Decisions before and after a cell runs; the session carries them out.

1. `decide_on_written_cell`: whether a new or changed cell runs.
2. `make_run_parameters`: the deadline of the cell and notes for the report.
3. `judge_run`: the error and the verdict of the run.
4. `decide_after_run`, `decide_after_preflight`: continue, let the agent fix the cell,
   run it again, or stop the notebook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from stepper.common.text import one_line
from stepper.policy import (
    cell_directives,
    changed_cells,
    edit_gate,
    error_classification,
    plan,
    repeated_errors,
)
from stepper.policy.journal_events import PreflightFailed, RunEnded, RunStarted
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
from stepper.policy.namespace_model import Namespace
from stepper.policy.notebook_state import State

VARIABLES_KEPT = "the kernel keeps its variables"
# The end of a message about a dead kernel, which some texts cut off.
VARIABLES_LOST = ": all variables are lost"
# The maximum number of compared values in a message about a false criterion.
MAX_VALUES = 3


class CellAction(Enum):
    """An action for a cell that was written."""

    NOTHING = "the cell is not runnable"
    WAIT = "the user has not accepted the cell"
    REFUSE = "the cell may not run now"
    RUN = "the cell runs"


@dataclass(frozen=True)
class WriteDecision:
    """The action for a cell that was written.

    `reason` is the reason for WAIT or REFUSE, and empty for other actions.
    """

    action: CellAction
    reason: str = ""
    # The last run, if running the cell now would give the same error again. The policy
    # does not know whether a file of the project has changed since that run.
    repeats: Run | None = None
    needs_preflight: bool = False


def decide_on_written_cell(
    state: State,
    cells: Sequence[Cell],
    cell: Cell,
    consent: Consent,
    get_limits: Callable[[], Limits],
    *,
    is_new: bool,
    is_only_cell: bool = True,
) -> WriteDecision:
    """Decide whether a cell that an edit wrote into the notebook runs.

    `is_new` says that the edit added the cell, `is_only_cell` that the edit concerned
    no other cell. `repeats` of the result is set only if `is_only_cell` is true,
    because an edit of the whole notebook may repeat cells.
    """
    is_runnable = bool(changed_cells.select_runnable([cell]))
    if not is_runnable:
        return WriteDecision(CellAction.NOTHING)
    # Get the limits only if the cell may run: `get_limits` raises an error if the
    # configuration is invalid.
    limits = get_limits()
    reason = edit_gate.check_approval(consent, limits)
    if reason:
        return WriteDecision(CellAction.WAIT, reason)
    reason = edit_gate.check_stop(state)
    if not reason and is_new:
        reason = _check_new_cell(state, cells, cell, limits)
    if reason:
        return WriteDecision(CellAction.REFUSE, reason)
    key = plan.find_key(state, cells, cell)
    source_hash = changed_cells.hash_source(cell.source)
    repeated_run = None
    if is_only_cell:
        repeated_run = repeated_errors.find_repeated_run(state, key, source_hash)
    # If a source is written again after its preflight check failed, the cell runs.
    has_failed_preflight = state.get_progress(key).preflight_hash == source_hash
    expects_error = changed_cells.RAISES_TAG in cell.tags
    skips_preflight = has_failed_preflight or expects_error
    needs_preflight = limits.preflight and not skips_preflight
    return WriteDecision(CellAction.RUN, "", repeated_run, needs_preflight)


def _check_new_cell(
    state: State, cells: Sequence[Cell], cell: Cell, limits: Limits
) -> str | None:
    """Return why a new cell must not run, or None if it may.

    The cell is already in the notebook.
    """
    other_cells = [other for other in cells if other.id != cell.id]
    reason = edit_gate.check_failed_step(state, other_cells, cell.index)
    if reason:
        return reason
    return edit_gate.check_cell_count(cells, limits)


@dataclass(frozen=True)
class RunParameters:
    """The parameters of a cell's run.

    `key` is the step or cell that the run counts for, `timeout` the deadline in
    seconds. `notes` are shown in the report. `criterion` is the criterion of the step
    as a Python expression, or an empty string. A printed line that matches the pattern
    `wake` wakes the agent.
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
    call_timeout: float | None = None,
) -> RunParameters:
    """Return the parameters of a cell's run.

    `call_timeout` is the deadline in seconds from the request, or None if the request
    has none.
    """
    directive = cell_directives.parse(cell.source)
    key = plan.find_key(state, cells, cell)
    step = state.plan.find_step(key) if isinstance(key, int) else None
    maximum = limits.max_cell_timeout_seconds
    default = maximum if step and step.long else limits.cell_timeout_seconds
    timeout = cell_directives.select_deadline(directive, default, maximum, call_timeout)
    source_hash = changed_cells.hash_source(cell.source)
    notes = (
        *directive.problems,
        *_note_order(state, cells, cell),
        *repeated_errors.note_returning_source(state, key, source_hash),
    )
    criterion = plan.parse_criterion(step.criterion) if step else ""
    return RunParameters(key, timeout, notes, criterion, directive.wake)


def _note_order(state: State, cells: Sequence[Cell], cell: Cell) -> list[str]:
    """Return a note if a cell below succeeded earlier in this kernel.

    Otherwise, return an empty list.
    """
    cells_below = [
        other
        for other in cells
        if other.index > cell.index and other.id in state.succeeded_sources
    ]
    if not cells_below:
        return []
    number = cells_below[-1].number
    return [f"out of order: this cell ran after cell {number}, which is below it"]


class Judgement(NamedTuple):
    """The error of a run (None if it has no error), and the verdict on the run."""

    fault: Fault | None
    verdict: Verdict


def judge_run(
    outcome: Outcome,
    fault: Fault | None,
    tags: tuple[str, ...],
    death: Death | None = None,
    memory: str = "",
    lost_variables: str = "",
) -> Judgement:
    """Return the error and the verdict of a run.

    `fault` is the error that the cell raised, if any. If `raises-exception` is one of
    the cell's `tags`, this error is expected, and the verdict is FINE. If the run
    exceeded the memory limit, the kernel died or the cell timed out, the class of the
    returned error is "MemoryLimit", "KernelDied" or "Timeout". `memory` is a text about
    the exceeded limit. `lost_variables` is a text about the lost variables, which the
    message adds if the kernel died.
    """
    if outcome is Outcome.MEMORY:
        memory_fault = _make_memory_fault(memory, death, lost_variables)
        return Judgement(memory_fault, Verdict.UNRECOVERABLE)
    if death and outcome is not Outcome.CANCELLED:
        death_fault = _make_death_fault(death, fault, lost_variables)
        return Judgement(death_fault, Verdict.UNRECOVERABLE)
    if outcome is Outcome.TIMEOUT:
        fault = _make_timeout_fault(fault)
    if outcome is Outcome.ERROR and changed_cells.RAISES_TAG in tags:
        return Judgement(fault, Verdict.FINE)
    verdict = error_classification.classify_run(outcome, fault)
    return Judgement(fault, verdict)


def _make_timeout_fault(fault: Fault | None) -> Fault:
    """Return the error of a run that timed out.

    `fault` is the KeyboardInterrupt that the cell raised, or None.
    """
    interrupt = fault or Fault("", "")
    return replace(interrupt, ename="Timeout", evalue=VARIABLES_KEPT, mro=("Timeout",))


def _make_memory_fault(memory: str, death: Death | None, lost_variables: str) -> Fault:
    """Return the error of a run that exceeded the memory limit.

    `death` is None if the kernel is still alive.
    """
    consequence = VARIABLES_KEPT
    if death:
        consequence = _describe_death(death, lost_variables)
    return Fault("MemoryLimit", f"{memory}; {consequence}", ("MemoryLimit",))


def _describe_death(death: Death, lost_variables: str) -> str:
    """Return a text about a dead kernel and its variables, without its stderr."""
    description = f"kernel died ({death.reason}){VARIABLES_LOST}"
    return f"{description}; {lost_variables}" if lost_variables else description


def _make_death_fault(death: Death, fault: Fault | None, lost_variables: str) -> Fault:
    """Return the error of a run during which the kernel died.

    `fault` is the error that the cell raised before, or None.
    """
    message = _describe_death(death, lost_variables)
    if death.stderr:
        message += f"\n{death.stderr}"
    classes = ("KernelDied", death.cause) if death.cause else ("KernelDied",)
    if fault is None:
        return Fault("KernelDied", message, classes)
    return Fault("KernelDied", message, classes, fault.line, fault.frames)


def explain_false_criterion(
    state: State, run: RunStarted, criterion: str, result: CriterionResult | None
) -> str:
    """Return a message if the criterion of a step is false after its cell ran.

    `result` is None if the criterion was not evaluated. Return an empty string in this
    case, if the criterion is true, or if the step was confirmed while its cell had the
    same source.
    """
    if result is None or result.holds:
        return ""
    progress = state.get_progress(run.key)
    is_confirmed = progress.status is StepStatus.DONE and progress.reason != ""
    last_source = state.last_sources.get(run.cell_id)
    if is_confirmed and last_source == changed_cells.hash_source(run.source):
        return ""
    explanation = f"`{one_line(criterion, 200)}` is false"
    values = [
        f"{one_line(expression, 80)} is {one_line(value, 80)}"
        for expression, value in result.values[:MAX_VALUES]
    ]
    return f"{explanation}: {', '.join(values)}" if values else explanation


def find_new_packages(state: State, namespace: Namespace) -> dict[str, str]:
    """Return the packages that are new, or have another version than in earlier runs.

    The result maps names to versions.
    """
    versions = namespace.lasting.versions if namespace.lasting else {}
    return {
        name: version
        for name, version in versions.items()
        if state.packages.get(name) != version
    }


def find_new_imports(state: State, namespace: Namespace) -> dict[str, tuple[str, ...]]:
    """Return the modules of the project with changed imports.

    The result maps the name of a module to the modules that it imports.
    """
    imports = namespace.lasting.local_imports if namespace.lasting else {}
    return {
        name: imported
        for name, imported in imports.items()
        if state.imports.get(name) != imported
    }


def should_verify(state: State, limits: Limits, cells: Sequence[Cell]) -> bool:
    """Return whether to verify a complete notebook automatically.

    This requires the setting `verify: auto`, that all cells have run, and that their
    last runs together took less than `verify_seconds`.
    """
    if limits.verify != "auto":
        return False
    # A replay must not be the first to run a cell.
    if changed_cells.select_not_run(cells, state.last_sources):
        return False
    durations = {run.cell_id: run.duration_s for run in state.runs}
    total = sum(durations.get(cell.id, 0.0) for cell in cells)
    return total < limits.verify_seconds


class NextAction(Enum):
    """An action after a run."""

    CONTINUE = "continue"
    FIX = "the agent fixes the cell"
    RETRY = "stepper runs the cell again"
    STOP = "stop the notebook"


@dataclass(frozen=True)
class RunDecision:
    """The action after a run or a failed preflight check.

    `attempts` is the number of the agent's retries, `notes` are for the report.
    """

    action: NextAction
    wait: float  # seconds until the cell runs again
    attempts: int
    notes: Sequence[str] = ()
    # Whether the run or check counts as an attempt; only some failed checks do.
    counts: bool = True


class Reaction(NamedTuple):
    """An action, and the seconds to wait before the cell runs again."""

    action: NextAction
    wait: float = 0.0


def decide_on_verdict(
    verdict: Verdict, attempts: int, repetitions: int, limits: Limits
) -> Reaction:
    """Return the action after a run with a verdict.

    `attempts` is the number of the agent's retries, `repetitions` the number of times
    that stepper has already repeated the run.
    """
    if verdict in (Verdict.FINE, Verdict.CANCELLED):
        return Reaction(NextAction.CONTINUE)
    if verdict is Verdict.TRANSIENT and repetitions < limits.network_retries:
        return Reaction(NextAction.RETRY, wait=2.0**repetitions)
    if verdict is Verdict.RECOVERABLE and attempts < limits.max_retries:
        return Reaction(NextAction.FIX)
    return Reaction(NextAction.STOP)


def decide_after_run(state: State, run: RunEnded, limits: Limits) -> RunDecision:
    """Return the action after a run; the run is not in the state yet."""
    attempts = state.count_attempts_after(
        run.key,
        run.verdict,
        is_repeated=run.repeat > 0,
        outside_agent=run.outside_agent,
    )
    reaction = decide_on_verdict(run.verdict, attempts, run.repeat, limits)
    notes = repeated_errors.note_same_error(state, run)
    return RunDecision(reaction.action, reaction.wait, attempts, notes)


def decide_after_preflight(
    state: State, event: PreflightFailed, limits: Limits
) -> RunDecision:
    """Return the action after a failed preflight check.

    `event` is the event of the check, which is not in the state yet.
    """
    count = state.count_attempts_after_preflight(event.key)
    reaction = Reaction(NextAction.FIX)
    if count.counts:
        reaction = decide_on_verdict(event.verdict, count.attempts, 0, limits)
    return RunDecision(
        reaction.action, reaction.wait, count.attempts, counts=count.counts
    )
