"""Decides when a call continues in the background, and what is reported then."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepper.messages import background_runs, command_messages
from stepper.messages.quoted_output import format_location
from stepper.messages.run_report import Report
from stepper.policy import cell_changes, cell_directives
from stepper.policy.model import Cell
from stepper.session import responses, status_queries
from stepper.session.clients import BackgroundCall
from stepper.session.protocols import KernelDescription
from stepper.session.session import Session


def compute_wait_seconds(session: Session, call: BackgroundCall) -> float:
    """Return how long to wait for a call before it is backgrounded."""
    running, usual = (
        session.state.running,
        session.outputs.get_limits().report_after_seconds,
    )
    if running is None and (queued := session.kernel_manager.queue_status):
        held = (
            session.outputs.get_limits().queue_seconds
            if queued.wait_seconds is None
            else queued.wait_seconds
        )
        return queued.since + held - call.started_at
    if running is None:
        return math.inf  # its kernel starts
    if running.tool_use_id != call.id:
        return (
            0.0 if session.runs_in_background else usual
        )  # it waits in line for hours, maybe
    # the first of its cells: how long its kernel took to start is not the cell's
    if not call.has_started:
        call.has_started, call.started_at = (
            True,
            max(call.started_at, session.run_started_at),
        )
    asked = cell_directives.parse(running.source).wait
    return 0.0 if get_matched_line(session, call) else usual if asked is None else asked


def format_backgrounded(session: Session, call: BackgroundCall) -> Report:
    """Return the interim report on a call that was backgrounded."""
    limits = session.outputs.get_limits()
    if queued := session.kernel_manager.queue_status:
        return background_runs.format_queued(
            session.name,
            session.state.commands,
            queued.text,
            queued.until,
            queued.request,
            limits.queue,
        )
    running, state, kernel = (
        session.state.running,
        session.state,
        session.kernel_manager.kernel,
    )
    now_runs = status_queries.get_running(session)
    if running is None or now_runs is None or running.tool_use_id != call.id:
        return background_runs.format_in_line(
            session.name, format_running_name(session)
        )
    cell = Cell(running.cell_id, running.index, running.number, "code", running.source)
    outputs = None
    # of a run that was taken over nobody has heard all
    if session.running_caller is not None:
        outputs = (
            kernel.partial_output.outputs() if kernel and kernel.partial_output else []
        )
    how_far = (
        now_runs.seconds,
        _format_deadline(now_runs),
        state.plan,
        state.plan.find_step(now_runs.step),
        now_runs.line,
    )
    about = kernel.describe() if kernel else KernelDescription("")
    began = (
        None if about.walltime_left is None else about.walltime_left + now_runs.seconds
    )
    at = (
        format_location(about.location, about.walltime_left, about.problem),
        command_messages.warn_walltime(running.timeout, about.location, began),
    )
    return background_runs.format_still_running(
        session.name,
        state.commands,
        cell,
        *how_far,
        outputs,
        limits.queue,
        get_matched_line(session, call),
        *at,
    )


def format_still_running(session: Session, owner: str) -> str:
    """Return what a new agent session is told on background runs, or ''."""
    if (queued := session.kernel_manager.queue_status) and session.runs_in_background:
        return background_runs.format_still_queued(
            session.name, queued.text, queued.until, _notifies_agent(session, owner)
        )
    now_runs = status_queries.get_running(session)
    if now_runs is None or not session.runs_in_background:
        return ""
    return background_runs.format_session_start(
        session.name,
        session.state.commands,
        now_runs.name,
        now_runs.seconds,
        _format_deadline(now_runs),
        now_runs.line,
        _notifies_agent(session, owner),
    )


def explain_refusal(session: Session, owner: str = "") -> str | None:
    """Return why no code cell can be written during a background run.

    Return None if a cell can be written.
    """
    if session.outputs.get_limits().queue or not session.runs_in_background:
        return None
    if queued := session.kernel_manager.queue_status:
        return background_runs.format_refused_queued(
            session.name,
            session.state.commands,
            queued.text,
            _notifies_agent(session, owner),
        )
    now_runs = status_queries.get_running(session)
    if now_runs is None:
        return None
    return background_runs.format_refused(
        session.name,
        session.state.commands,
        format_running_name(session),
        now_runs.seconds,
        _format_deadline(now_runs),
        _notifies_agent(session, owner),
    )


def list_other_pending_cells(session: Session, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that have not run, without the running one."""
    running, fresh = (
        session.state.running,
        cell_changes.select_not_run(cells, session.state.last_sources),
    )
    return [
        cell
        for cell in fresh
        if not (running and (cell.id, cell.source) == (running.cell_id, running.source))
    ]


def _notifies_agent(session: Session, owner: str) -> bool:
    """Whether that agent is notified when the background run finishes."""
    running = session.state.running
    of = (
        [running.tool_use_id or ""]
        if running
        else [
            call.id for call in session.background_calls.values() if call.in_background
        ]
    )
    return any(
        owed.session == owner
        for each in of
        if (owed := session.state.background_calls.get(each))
    )


def _format_deadline(runs: responses.RunningCell) -> str:
    return background_runs.format_deadline(runs.timeout, runs.left_seconds)


def format_running_name(session: Session) -> str:
    """Return the name of the running cell for a message."""
    now_runs = status_queries.get_running(session)
    return now_runs.name if now_runs else "another cell"


def get_matched_line(session: Session, call: BackgroundCall) -> str:
    """Return the line that matches the wake pattern of a cell, or ''."""
    running, kernel = session.state.running, session.kernel_manager.kernel
    mine = running is not None and running.tool_use_id == call.id
    return (
        kernel.partial_output.matched_line
        if mine and kernel and kernel.partial_output
        else ""
    )
