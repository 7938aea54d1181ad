"""Compute the state of a notebook from the events of its journal.

A new daemon replays the journal to restore the state of the previous daemon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from stepper.policy import error_classification, journal_events, plan, undo_model
from stepper.policy.journal_events import Event
from stepper.policy.model import Outcome, Plan, StepStatus, Verdict
from stepper.policy.notebook_state import (
    DisplayedOutput,
    LateOutputSummary,
    Progress,
    State,
)

# Only this many runs keep their faults and reports in memory. For older runs, the
# journal contains them.
RUNS_IN_MEMORY = 50
# The value of KernelChanged.what for a new kernel.
STARTED = "started"


def replay(lines: Iterable[Mapping[str, Any]]) -> State:
    """Return the state after the events of a journal."""
    state = State()
    for line in lines:
        try:
            event = journal_events.parse_event(line)
        except (KeyError, TypeError, ValueError, RecursionError):
            # An invalid line, for example after a manual edit.
            state.unreadable_events += 1
            continue
        if event is not None:
            apply(event, state)
    return state


def apply(event: Event, state: State) -> None:
    """Update a state with one event."""
    match event:
        case journal_events.Created():
            _apply_creation(state)
        case journal_events.Renamed():
            state.renamed_from = event.former
        case journal_events.PlanChanged():
            state.plan = plan.from_json(event.plan) or state.plan
        case journal_events.RunStarted():
            state.running = event
            state.next_run = max(state.next_run, event.run + 1)
            if event.tool_use_id:
                state.tool_use_ids.add(event.tool_use_id)
        case journal_events.RunVoided():
            state.running = None
            state.tool_use_ids.discard(event.tool_use_id or "")
        case journal_events.RunEnded():
            _apply_run(event, state)
        case journal_events.PreflightFailed():
            _apply_preflight_failure(event, state)
        case (
            journal_events.Backgrounded()
            | journal_events.BackgroundReported()
            | journal_events.Undelivered()
            | journal_events.Delivered()
        ):
            _apply_delivery(event, state)
        case journal_events.LateOutput():
            _apply_late_output(event, state)
        case journal_events.ExternalExecution():
            state.external_executions.append(event)
            state.last_run_before_other_code = event.after
            state.last_run_before_unknown_code = event.after
            state.unchanged = False
        case journal_events.OutputsPending():
            state.pending_outputs[event.cell_id] = event
        case journal_events.OutputsWritten():
            state.pending_outputs.pop(event.cell_id, None)
        case journal_events.RunReported():
            state.reports[event.run] = event.text
            state.last_report = event.run
            # The report includes late outputs and external executions.
            state.late_outputs = {}
            state.reported_external_count = len(state.external_executions)
        case journal_events.ScratchExecuted():
            _apply_scratch_execution(event, state)
        case journal_events.RunsUndone():
            _apply_undo(event, state)
        case journal_events.KernelChanged():
            _apply_kernel_change(event, state)
        case journal_events.Verified():
            state.verified = event
        case (
            journal_events.Stopped()
            | journal_events.AgentWrote()
            | journal_events.Replaced()
        ):
            _apply_stop(event, state)
        case (
            journal_events.Continued()
            | journal_events.Restored()
            | journal_events.Fixed()
            | journal_events.Skipped()
            | journal_events.Reopened()
            | journal_events.Confirmed()
        ):
            _apply_decision(event, state)


def _apply_creation(state: State) -> None:
    """Discard the state of another notebook that had the same name."""
    new_state = State(
        commands=state.commands,
        next_run=state.next_run,
        tool_use_ids=state.tool_use_ids,
        unreadable_events=state.unreadable_events,
    )
    state.__dict__.update(new_state.__dict__)


def _apply_stop(
    event: journal_events.Stopped | journal_events.AgentWrote | journal_events.Replaced,
    state: State,
) -> None:
    """Record a stop, or that the agent wrote the file of a stopped notebook.

    If the notebook was replaced, discard its stop, its plan and its progress.
    """
    match event:
        case journal_events.Stopped():
            error = event.error or _extract_error(event.block)
            state.stop = replace(event, error=error)
            state.agent_marks = set()
        case journal_events.AgentWrote():
            state.agent_marks.update(event.marks)
        case journal_events.Replaced():
            _forget_notebook(state)


def _forget_notebook(state: State) -> None:
    """Discard the stop, the plan and the progress of a replaced notebook.

    The state of the kernel is kept.
    """
    state.stop = None
    state.plan = Plan()
    state.progress = {}
    state.last_key = None
    state.open_cells = []
    state.agent_marks = set()
    state.verified = None
    state.unchanged = False


def _apply_decision(
    event: journal_events.Continued
    | journal_events.Restored
    | journal_events.Fixed
    | journal_events.Skipped
    | journal_events.Reopened
    | journal_events.Confirmed,
    state: State,
) -> None:
    """Apply a decision of the user (or, for `Confirmed`, of the agent)."""
    match event:
        case journal_events.Continued():
            state.stop = None
            state.unchanged = False
        case journal_events.Restored():
            state.unchanged = False
            if not event.keeps_stop:
                state.stop = None
        case journal_events.Fixed():
            state.stop = None
            state.unchanged = False
            if event.key is not None:
                state.get_or_add_progress(event.key).attempts = 0
        case journal_events.Skipped():
            state.stop = None
            progress = state.get_or_add_progress(event.key)
            progress.status = StepStatus.SKIPPED
            progress.reason = event.reason
            progress.interrupted = False
        case journal_events.Reopened():
            progress = state.get_or_add_progress(event.key)
            progress.status = StepStatus.PENDING
            progress.reason = ""
        case journal_events.Confirmed():
            progress = state.get_or_add_progress(event.key)
            progress.status = StepStatus.DONE
            progress.reason = event.reason


def _apply_delivery(
    event: journal_events.Backgrounded
    | journal_events.BackgroundReported
    | journal_events.Undelivered
    | journal_events.Delivered,
    state: State,
) -> None:
    """Update the reports that are not delivered yet."""
    match event:
        case journal_events.Backgrounded():
            state.background_calls[event.call] = event
        case journal_events.BackgroundReported():
            state.background_calls.pop(event.call, None)
        case journal_events.Undelivered():
            state.undelivered.append(event)
            state.background_calls.pop(event.call, None)
        case journal_events.Delivered():
            state.undelivered = []


def _apply_preflight_failure(
    event: journal_events.PreflightFailed, state: State
) -> None:
    """Record a failed preflight check; every third in a row counts as an attempt."""
    if event.tool_use_id:
        state.tool_use_ids.add(event.tool_use_id)
    state.preflight_call_id = event.tool_use_id
    state.reports.pop(0, None)  # the report of an earlier check
    progress = state.get_or_add_progress(event.key)
    count = state.count_attempts_after_preflight(event.key)
    progress.attempts = count.attempts
    progress.retries += count.counts
    progress.preflight_hash = event.source_hash
    progress.preflight_failures += 1
    if count.counts:
        progress.preflight_failures = 0
    progress.status = StepStatus.FAILED
    progress.cell_id = event.cell_id
    progress.index = event.index
    progress.interrupted = False
    state.last_key = event.key
    state.succeeded_sources.pop(event.cell_id, None)


def _apply_run(event: journal_events.RunEnded, state: State) -> None:
    """Record a finished run and the progress of the step or cell."""
    progress = state.get_or_add_progress(event.key)
    last_source = state.last_sources.get(event.cell_id)
    has_same_source = last_source == event.source_hash
    keeps_reason = progress.status is StepStatus.DONE and has_same_source
    _record_run(event, state)
    _record_cell(event, state)
    _record_undo_facts(event, state)
    progress.preflight_hash = ""
    progress.preflight_failures = 0
    progress.interrupted = event.verdict is Verdict.CANCELLED
    if not progress.interrupted:
        state.last_key = event.key
        _update_progress(event, state, keeps_reason=keeps_reason)
    elif progress.status is StepStatus.PENDING:
        progress.cell_id = event.cell_id
        progress.index = event.index


def _apply_scratch_execution(
    event: journal_events.ScratchExecuted, state: State
) -> None:
    """Record which names a scratch execution may have changed.

    The kernel reports more than MAX_CHANGES names only as an incomplete list.
    """
    state.unchanged = False
    last_run = state.next_run - 1
    if event.rebound is None or event.ends_reach:
        state.last_run_before_other_code = last_run
    if event.rebound is None or len(event.rebound) > undo_model.MAX_CHANGES:
        state.last_run_before_unknown_code = last_run
        return
    for name in event.rebound:
        state.names_bound_by_other_code[name] = last_run


def _apply_undo(event: journal_events.RunsUndone, state: State) -> None:
    """Record which runs are undone, and which names could not be restored.

    After `stepper undo`, also record which runs the kernel can still undo.
    """
    state.undone.append(event)
    state.undone_runs.update(event.runs)
    for name in (*event.restored, *event.removed):
        state.unrestored.pop(name, None)
    state.unrestored |= event.not_restored
    state.unchanged = False
    if event.by_command:
        state.undo_reach = event.undo_reach
        state.undo_images = event.undo_images
    if event.lost:
        state.last_run_before_lost_undo = event.run - 1


def _record_run(event: journal_events.RunEnded, state: State) -> None:
    """Add a finished run to the runs, with the source and the modules that it used.

    The run is no longer the running one, and its number is not used again. If the state
    has more than RUNS_IN_MEMORY runs, the fault, the displays and the report of an
    older run are dropped.
    """
    if state.running is not None and state.running.cell_id == event.cell_id:
        state.sources_by_hash[event.source_hash] = state.running.source
    state.running = None
    state.unchanged = True
    state.renamed_from = ""  # the report of this run mentions the former name
    state.run_seconds += event.duration_s
    state.next_run = max(state.next_run, event.run + 1)
    state.packages |= event.packages
    state.imports |= event.imports
    state.runs.append(event)
    if len(state.runs) > RUNS_IN_MEMORY:
        old_run = state.runs[-RUNS_IN_MEMORY - 1]
        state.reports.pop(old_run.run, None)
        state.runs[-RUNS_IN_MEMORY - 1] = replace(old_run, fault=None, displays={})


def _record_cell(event: journal_events.RunEnded, state: State) -> None:
    """Record a finished run as the last run of its cell."""
    cell_id = event.cell_id
    source_hash = event.source_hash
    state.last_sources[cell_id] = source_hash
    state.changed_ids.discard(cell_id)
    if event.verdict is Verdict.FINE:
        state.succeeded_sources[cell_id] = source_hash
    else:
        state.succeeded_sources.pop(cell_id, None)
    if event.execution_count is not None:
        state.cells_by_execution_count[event.execution_count] = cell_id
    if event.request:
        state.cells_by_request[event.request] = (cell_id, source_hash)
    state.displayed_outputs[cell_id] = DisplayedOutput(
        source_hash, event.displays, event.left_out
    )
    pending_outputs = state.pending_outputs.get(cell_id)
    if pending_outputs is not None and pending_outputs.run != event.run:
        del state.pending_outputs[cell_id]  # outputs of an older run


def _record_undo_facts(event: journal_events.RunEnded, state: State) -> None:
    """Record which runs the kernel can undo.

    Names that the run bound or deleted no longer count as not restored.
    """
    for name, change in event.changes.items():
        if change != undo_model.CHANGED:
            state.unrestored.pop(name, None)
    state.undo_reach = event.undo_reach
    state.undo_images = event.undo_images


def _update_progress(
    event: journal_events.RunEnded, state: State, *, keeps_reason: bool
) -> None:
    """Update the progress of a step or cell after a run that was not interrupted.

    If `keeps_reason` is true, the reason why the step was confirmed remains.
    """
    progress = state.get_or_add_progress(event.key)
    is_repeated = event.repeat > 0
    progress.retries += state.is_retry(
        event.key, is_repeated=is_repeated, outside_agent=event.outside_agent
    )
    progress.attempts = state.count_attempts_after(
        event.key,
        event.verdict,
        is_repeated=is_repeated,
        outside_agent=event.outside_agent,
    )
    progress.asked_user = _asks_user(event)
    progress.is_failing = event.verdict is not Verdict.FINE
    progress.status = _find_status(event, progress)
    if event.unmet:
        progress.reason = event.unmet
    elif not keeps_reason:
        progress.reason = ""
    progress.cell_id = event.cell_id
    progress.index = event.index


def _asks_user(event: journal_events.RunEnded) -> bool:
    """Return whether a run raised an error that asks the user a question."""
    if event.outcome is not Outcome.ERROR:
        return False
    return error_classification.extract_question(event.error) != ""


def _find_status(event: journal_events.RunEnded, progress: Progress) -> StepStatus:
    """Return the status of a step or cell after a run that was not interrupted."""
    if progress.is_failing:
        return StepStatus.FAILED
    return StepStatus.CRITERION_FALSE if event.unmet else StepStatus.DONE


def _apply_late_output(event: journal_events.LateOutput, state: State) -> None:
    """Count output that arrived after its run.

    `late_outputs` counts until a report includes the output, `displayed_outputs` until
    the cell runs again.
    """
    summary = state.late_outputs.setdefault(event.cell_id, LateOutputSummary())
    summary.characters += event.characters
    summary.outputs += event.shows
    summary.updates += event.updates
    summary.left_out = event.left_out
    summary.is_dropped = not event.there
    summary.drop_reason = event.why
    displayed_output = state.displayed_outputs.get(event.cell_id)
    if displayed_output is not None and event.there:
        displayed_output.displays = event.displays
        displayed_output.left_out = event.left_out
        displayed_output.late_characters += event.characters
        displayed_output.late_others += event.shows + event.updates


def _apply_kernel_change(event: journal_events.KernelChanged, state: State) -> None:
    """Discard the parts of the state that belong to the former kernel."""
    state.unchanged = False
    if event.what == STARTED:
        state.cells_by_execution_count = {}
        state.cells_by_request = {}
        state.displayed_outputs = {}
        state.lost_reason = ""
        state.unrestored = {}
        # The variables that other clients assigned are lost.
        state.reported_external_count = len(state.external_executions)
    elif state.succeeded_sources:
        # The kernel died, or was restarted or shut down. The next run reports that, but
        # only if there were variables to lose.
        state.lost_reason = event.why
    state.succeeded_sources = {}
    state.undo_reach = 0
    state.undo_images = undo_model.NO_IMAGES


def _extract_error(block: str) -> str:
    """Return the error in the message about a stop, as "CLASS: MESSAGE".

    Old versions of stepper recorded only the message.
    """
    lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
    name = lines.get("Error Type", "error")
    message = lines.get("Error Message", "")
    return f"{name}: {message}"
