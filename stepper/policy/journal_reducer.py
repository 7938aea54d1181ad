"""What the journal's events add up to, so that a daemon that starts anew knows what the last one knew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from stepper.policy import error_classification, journal_events, plan
from stepper.policy.journal_events import Event
from stepper.policy.model import Outcome, Plan, StepStatus, Verdict
from stepper.policy.notebook_state import DisplayedOutput, LateOutputSummary, State

KEPT = 50  # runs of which fault and report are in memory; the journal has all of them


def replay(lines: Iterable[Mapping[str, Any]]) -> State:
    """Return the state that the journal's lines add up to."""
    state = State()
    for line in lines:
        try:
            event = journal_events.parse_event(line)
        except (KeyError, TypeError, ValueError, RecursionError):
            # a line that somebody else wrote
            state.unreadable_events += 1
            continue
        if event is not None:
            apply(event, state)
    return state


def apply(event: Event, state: State) -> None:
    """Change `state` by one event."""
    match event:
        case journal_events.Created():
            # under a name that another notebook had before: nothing of that one counts
            fresh = State(
                commands=state.commands,
                next_run=state.next_run,
                tool_use_ids=state.tool_use_ids,
                unreadable_events=state.unreadable_events,
            )
            state.__dict__.update(fresh.__dict__)
        case journal_events.Renamed() | journal_events.PlanChanged():
            _notebook_changed(event, state)
        case journal_events.RunStarted():
            state.running = event
            state.next_run = max(state.next_run, event.run + 1)
            if event.tool_use_id:
                state.tool_use_ids.add(event.tool_use_id)
        case journal_events.RunVoided():
            state.running = None
            state.tool_use_ids.discard(event.tool_use_id or "")
        case journal_events.RunEnded():
            _ran(event, state)
        case journal_events.PreflightFailed():
            _held(event, state)
        case (
            journal_events.Backgrounded()
            | journal_events.BackgroundReported()
            | journal_events.Undelivered()
            | journal_events.Delivered()
        ):
            _told(event, state)
        case journal_events.LateOutput() | journal_events.ExternalExecution():
            _besides(event, state)
        case journal_events.OutputsPending():
            state.pending_outputs[event.cell_id] = event
        case journal_events.OutputsWritten():
            state.pending_outputs.pop(event.cell_id, None)
        case journal_events.RunReported():
            state.reports[event.run], state.last_report = event.text, event.run
            state.late_outputs, state.reported_external_count = (
                {},
                len(state.external_executions),
            )  # it is told
        case journal_events.ScratchExecuted():
            state.unchanged = False
        case journal_events.KernelChanged():
            _kernel(event, state)
        case (
            journal_events.Stopped()
            | journal_events.AgentWrote()
            | journal_events.Replaced()
        ):
            _stopped(event, state)
        case journal_events.Verified():
            state.verified = event
        case journal_events.Continued() | journal_events.Restored():
            _resumed(event, state)
        case journal_events.Fixed():
            state.stop, state.unchanged = None, False
            if event.key is not None:
                state.progress_of(event.key).attempts = 0
        case journal_events.Skipped():
            state.stop, progress = None, state.progress_of(event.key)
            progress.status, progress.reason, progress.interrupted = (
                StepStatus.SKIPPED,
                event.reason,
                False,
            )
        case journal_events.Reopened() | journal_events.Confirmed():
            _decided(event, state)


def _notebook_changed(
    event: journal_events.Renamed | journal_events.PlanChanged, state: State
) -> None:
    """The notebook has another name, or its plan was changed."""
    if isinstance(event, journal_events.Renamed):
        state.renamed_from = event.former
    else:
        state.plan = plan.from_json(event.plan) or state.plan


def _decided(
    event: journal_events.Reopened | journal_events.Confirmed, state: State
) -> None:
    """A step is open again, or done although its criterion is false."""
    progress = state.progress_of(event.key)
    if isinstance(event, journal_events.Reopened):
        progress.status = StepStatus.PENDING
        progress.reason = ""
    else:
        progress.status = StepStatus.DONE
        progress.reason = event.reason


def _stopped(
    event: journal_events.Stopped | journal_events.AgentWrote | journal_events.Replaced,
    state: State,
) -> None:
    """The notebook is stopped, the agent changed it since, or another notebook has its place."""
    match event:
        case journal_events.Stopped():
            error = event.error or _named_in(event.block)
            state.stop = replace(event, error=error)
            state.agent_marks = set()
        case journal_events.AgentWrote():
            state.agent_marks.update(event.marks)
        case journal_events.Replaced():
            _replaced(state)


def _replaced(state: State) -> None:
    """Forget the stop, the plan and how far it is: they were another notebook's. The kernel is the same."""
    state.stop = None
    state.plan = Plan()
    state.progress = {}
    state.last_key = None
    state.open_cells = []
    state.agent_marks = set()
    state.verified = None
    state.unchanged = False


def _resumed(
    event: journal_events.Continued | journal_events.Restored, state: State
) -> None:
    """Lift the stop, unless a restore keeps it."""
    state.unchanged = False
    if isinstance(event, journal_events.Continued) or not event.keeps_stop:
        state.stop = None


def _told(
    event: journal_events.Backgrounded
    | journal_events.BackgroundReported
    | journal_events.Undelivered
    | journal_events.Delivered,
    state: State,
) -> None:
    """Take note of what the agent is owed, and of what it was told."""
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


def _held(event: journal_events.PreflightFailed, state: State) -> None:
    """A fault was found before the cell ran: no run; the third in a row counts as an attempt."""
    if event.tool_use_id:
        state.tool_use_ids.add(event.tool_use_id)
    progress = state.progress_of(event.key)
    progress.attempts, counts = state.count_attempts_after_preflight(event.key)
    progress.retries += counts
    progress.preflight_hash, progress.preflight_failures = (
        event.source_hash,
        0 if counts else progress.preflight_failures + 1,
    )
    progress.status, progress.cell_id, progress.index = (
        StepStatus.FAILED,
        event.cell_id,
        event.index,
    )
    progress.interrupted, state.last_key = False, event.key
    state.succeeded_sources.pop(event.cell_id, None)


def _ran(event: journal_events.RunEnded, state: State) -> None:
    cell_id, source, verdict, progress = (
        event.cell_id,
        event.source_hash,
        event.verdict,
        state.progress_of(event.key),
    )
    state.run_seconds += event.duration_s
    if state.running is not None and state.running.cell_id == cell_id:
        state.sources_by_hash[source] = state.running.source
    state.running = None
    state.renamed_from = ""  # it was told with this run
    state.runs.append(event)
    if (
        cell_id in state.pending_outputs
        and state.pending_outputs[cell_id].run != event.run
    ):
        del state.pending_outputs[cell_id]  # an older run's
    if len(state.runs) > KEPT:
        old = state.runs[-KEPT - 1]
        state.reports.pop(old.run, None)
        state.runs[-KEPT - 1] = replace(old, fault=None, displays={})
    state.next_run = max(state.next_run, event.run + 1)
    if event.execution_count is not None:
        state.cells_by_execution_count[event.execution_count] = cell_id
    as_confirmed = (
        progress.status is StepStatus.DONE and state.last_sources.get(cell_id) == source
    )
    state.last_sources[cell_id] = source
    state.changed_ids.discard(cell_id)
    state.packages |= event.packages
    state.imports |= event.imports
    if event.request:
        state.cells_by_request[event.request] = cell_id, source
    state.displayed_outputs[cell_id] = DisplayedOutput(
        source, event.displays, event.left_out
    )
    if verdict is Verdict.FINE:
        state.succeeded_sources[cell_id] = source
    else:
        state.succeeded_sources.pop(cell_id, None)
    state.unchanged = True
    progress.preflight_hash, progress.preflight_failures = "", 0
    progress.interrupted = verdict is Verdict.CANCELLED
    if progress.interrupted:  # the step stays where it was
        if progress.status is StepStatus.PENDING:
            progress.cell_id, progress.index = cell_id, event.index
        return
    state.last_key = event.key
    # A done step that runs again starts a fresh count; stepper's own repetitions are
    # nobody's attempt.
    progress.retries += state.is_retry(event.key, event.repeat > 0, event.outside_agent)
    progress.attempts = state.count_attempts_after(
        event.key, verdict, event.repeat > 0, event.outside_agent
    )
    progress.asked_user = event.outcome is Outcome.ERROR and bool(
        error_classification.extract_question(event.error)
    )
    progress.is_failing = verdict is not Verdict.FINE
    status = StepStatus.CRITERION_FALSE if event.unmet else StepStatus.DONE
    progress.status = StepStatus.FAILED if progress.is_failing else status
    progress.reason = event.unmet or (progress.reason if as_confirmed else "")
    progress.cell_id, progress.index = cell_id, event.index


def _besides(
    event: journal_events.LateOutput | journal_events.ExternalExecution, state: State
) -> None:
    """Something came besides the runs: for a cell, or another client had the kernel run code."""
    if isinstance(event, journal_events.ExternalExecution):
        state.external_executions.append(event)
        state.unchanged = False
        return
    came = state.late_outputs.setdefault(event.cell_id, LateOutputSummary())
    came.characters += event.characters
    came.outputs += event.shows
    came.updates += event.updates
    came.left_out, came.is_outdated = event.left_out, not event.there
    shown = state.displayed_outputs.get(event.cell_id)
    if shown is not None and event.there:
        shown.displays, shown.left_out = event.displays, event.left_out
        shown.late_characters += event.characters
        shown.late_others += event.shows + event.updates


def _kernel(event: journal_events.KernelChanged, state: State) -> None:
    state.unchanged = False
    if event.what == "started":
        (
            state.succeeded_sources,
            state.cells_by_execution_count,
            state.lost_reason,
            state.cells_by_request,
            state.displayed_outputs,
        ) = (
            {},
            {},
            "",
            {},
            {},
        )
        state.reported_external_count = len(
            state.external_executions
        )  # what they bound is gone
    else:
        # died, restarted, shut down: told with the next run, and only if there was
        # something to lose
        if state.succeeded_sources:
            state.lost_reason = event.why
        state.succeeded_sources = {}


def _named_in(block: str) -> str:
    """Return what a stop is about that an older stepper journaled: its block alone says so."""
    lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
    return f"{lines.get('Error Type', 'error')}: {lines.get('Error Message', '')}"
