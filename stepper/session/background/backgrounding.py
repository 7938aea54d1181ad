"""Decides when a call continues in the background; formats its interim reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stepper.messages import background_runs, command_messages
from stepper.messages.quoted_output import format_location
from stepper.messages.run_report import Report
from stepper.policy import cell_directives, changed_cells
from stepper.policy.model import Cell
from stepper.session import responses, status_queries
from stepper.session.protocols import KernelDescription
from stepper.session.session import Session
from stepper.session.session_state.background_call_states import BackgroundCall


def record_first_cell(session: Session, call: BackgroundCall) -> None:
    """Record the start of a call's first cell, if a cell of the call is running."""
    running = session.state.running
    if running is not None and running.tool_use_id == call.id:
        call.record_cell_start(session.requests.run_started_at)


def compute_wait_seconds(session: Session, call: BackgroundCall) -> float:
    """Return the seconds that a client waits before a call moves to the background.

    The seconds count from `call.started_at`. The result is infinite while the kernel is
    starting and not queued.
    """
    running = session.state.running
    limits = session.outputs.load_limits()
    queue_status = session.kernel_manager.queue_status
    if running is None and queue_status:
        queue_seconds = queue_status.wait_seconds
        if queue_seconds is None:
            queue_seconds = limits.queue_seconds
        return queue_status.since + queue_seconds - call.started_at
    if running is None and session.requests.scratch_run is not None:
        return limits.report_after_seconds  # the call waits for a scratch execution
    if running is None:
        return math.inf  # the kernel is starting
    if running.tool_use_id != call.id:
        # The call waits behind a background run, which may take hours.
        if session.runs_in_background:
            return 0.0
        return limits.report_after_seconds
    if get_matched_line(session, call):
        return 0.0
    requested_seconds = cell_directives.parse(running.source).wait
    if requested_seconds is None:
        return limits.report_after_seconds
    return requested_seconds


def format_backgrounded(session: Session, call: BackgroundCall) -> Report:
    """Return the interim report on a call that continues in the background."""
    state = session.state
    may_queue = session.outputs.load_limits().queue
    queue_status = session.kernel_manager.queue_status
    if queue_status:
        return background_runs.format_queued(
            session.name,
            state.commands,
            reason=queue_status.text,
            until=queue_status.until,
            request=queue_status.request,
            queue=may_queue,
        )
    running = state.running
    progress = status_queries.get_running(session)
    if running is None or progress is None or running.tool_use_id != call.id:
        return background_runs.format_queued_behind(
            session.name, format_running_name(session)
        )
    cell = Cell(running.cell_id, running.index, running.number, "code", running.source)
    kernel = session.kernel_manager.kernel
    description = kernel.describe() if kernel else KernelDescription("")
    location = format_location(
        description.location, description.walltime_left, description.problem
    )
    walltime_at_start = None
    if description.walltime_left is not None:
        walltime_at_start = description.walltime_left + progress.seconds
    notes = command_messages.format_walltime_note(
        running.timeout, description.location, walltime_at_start
    )
    background_cell = background_runs.BackgroundCell(
        cell=cell,
        plan=state.plan,
        step=state.plan.find_step(progress.step),
        seconds=progress.seconds,
        deadline=_format_deadline(progress),
        last_line=progress.line,
        outputs=_get_partial_outputs(session),
        matched_line=get_matched_line(session, call),
        kernel=location,
        notes=notes,
    )
    return background_runs.format_still_running(
        session.name, state.commands, background_cell, queue=may_queue
    )


def _get_partial_outputs(session: Session) -> Sequence[dict[str, Any]] | None:
    """Return the outputs of the running cell so far, or None if they are incomplete.

    The outputs of a run that an earlier daemon started are incomplete.
    """
    if session.requests.running_caller is None:
        return None  # an earlier daemon started the run
    kernel = session.kernel_manager.kernel
    if kernel is None or not kernel.partial_output:
        return []
    return kernel.partial_output.get_outputs()


def format_still_running(session: Session, owner: str) -> str:
    """Return a text on the background run for a new agent session.

    `owner` is the ID of the agent session. Return an empty string if there is no
    background run.
    """
    if not session.runs_in_background:
        return ""
    is_notified = _notifies_agent(session, owner)
    queue_status = session.kernel_manager.queue_status
    if queue_status:
        return background_runs.format_still_queued(
            session.name,
            queue_status.text,
            queue_status.until,
            is_notified=is_notified,
        )
    progress = status_queries.get_running(session)
    if progress is None:
        return ""
    return background_runs.format_session_start(
        session.name,
        session.state.commands,
        running=progress.name,
        seconds=progress.seconds,
        deadline=_format_deadline(progress),
        last_line=progress.line,
        is_notified=is_notified,
    )


def explain_refusal(session: Session, owner: str = "") -> str | None:
    """Return the reason why code cells cannot be written now, or None if they can.

    Code cells cannot be written during a background run unless they may be queued
    (`queue: true`). `owner` is the ID of the agent session.
    """
    if session.outputs.load_limits().queue or not session.runs_in_background:
        return None
    is_notified = _notifies_agent(session, owner)
    queue_status = session.kernel_manager.queue_status
    if queue_status:
        return background_runs.format_refused_queued(
            session.name,
            session.state.commands,
            queue_status.text,
            is_notified=is_notified,
        )
    progress = status_queries.get_running(session)
    if progress is None:
        return None
    return background_runs.format_refused(
        session.name,
        session.state.commands,
        running=progress.name,
        seconds=progress.seconds,
        deadline=_format_deadline(progress),
        is_notified=is_notified,
    )


def list_other_pending_cells(session: Session, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells whose current source has not run.

    The running cell is left out if its source was not changed.
    """
    pending = changed_cells.select_not_run(cells, session.state.last_sources)
    running = session.state.running
    if running is None:
        return pending
    running_version = (running.cell_id, running.source)
    return [cell for cell in pending if (cell.id, cell.source) != running_version]


def _notifies_agent(session: Session, owner: str) -> bool:
    """Return whether the agent session `owner` is notified of the background run."""
    running = session.state.running
    if running:
        call_ids = [running.tool_use_id or ""]
    else:
        calls = session.background_calls
        call_ids = [call.id for call in calls if call.in_background]
    entries = [session.state.background_calls.get(call_id) for call_id in call_ids]
    return any(entry.session == owner for entry in entries if entry)


def _format_deadline(progress: responses.RunningCell) -> str:
    """Return a text on the deadline and the estimated remaining time of a cell."""
    return background_runs.format_deadline(progress.timeout, progress.left_seconds)


def format_running_name(session: Session) -> str:
    """Return the name of the running cell for a message, such as "step 3"."""
    progress = status_queries.get_running(session)
    if progress:
        return progress.name
    return "another cell"


def get_matched_line(session: Session, call: BackgroundCall) -> str:
    """Return the output line that matches the wake pattern of a call's running cell.

    Return an empty string if no line has matched.
    """
    running = session.state.running
    kernel = session.kernel_manager.kernel
    if running is None or running.tool_use_id != call.id:
        return ""
    if kernel is None or not kernel.partial_output:
        return ""
    return kernel.partial_output.matched_line
