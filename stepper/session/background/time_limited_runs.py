"""Runs cells for MCP clients, which wait for the result for a limited time.

After that time, the cells continue as a background run. MCP agents cannot be notified:
they wait for the result with `status`, or get it as an undelivered report.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepper.common.errors import StepperError
from stepper.messages import mcp_cells
from stepper.messages.background_runs import format_queue_state
from stepper.messages.quoted_output import format_outputs
from stepper.messages.run_report import Report, limit_report
from stepper.policy import cell_list_edits, changed_cells, journal_events
from stepper.policy.model import Cell, Outcome, Run, Verdict
from stepper.session import status_queries, undelivered_reports
from stepper.session.background import background_runs
from stepper.session.caller import Caller
from stepper.session.mcp_responses import CellRunResponse
from stepper.session.responses import RunningCell
from stepper.session.session import Session
from stepper.session.session_state.background_call_states import BackgroundCall
from stepper.session.session_state.notebook_journal import format_now

# The minimum wait: a cell that must not run is refused within this time.
MIN_WAIT_SECONDS = 0.3


@dataclass(frozen=True)
class CellRunReport(Report):
    """A report on the cells of a call, with the fields of its `CellRunResponse`."""

    cell_id: str = ""
    state: str = ""
    figures: Sequence[str] = ()
    cells: Sequence[str] = ()


Work = Coroutine[Any, Any, Report | None]  # runs the cells of a call


async def run_with_limit(
    session: Session,
    owner: str,
    caller: Caller,
    seconds: float,
    work: Callable[[], Work],
) -> CellRunResponse:
    """Run cells; return the result, or an interim response after `seconds`.

    `work` creates the coroutine that runs the cells. `owner` is the ID of the agent
    session that may wait for the background run. If the client disconnects, wait for
    the result and record it as an undelivered report. Otherwise, the text of the result
    begins with the undelivered reports, which then count as delivered.
    """
    call_id = caller.call_id or uuid.uuid4().hex
    caller.call_id = call_id
    call = session.background_calls.find(call_id)
    if call is None:
        call = background_runs.start_call(session, call_id, caller, work())
    await asyncio.wait([call.task], timeout=max(seconds, MIN_WAIT_SECONDS))
    if not call.task.done() and not caller.disconnected.is_set():
        background_runs.continue_in_background(session, call, owner)
        return format_interim(session, call)
    await asyncio.wait([call.task])
    response = create_response(session, call)
    if call.in_background:
        background_runs.mark_reported(session, call)
    if caller.disconnected.is_set():
        _record_undelivered(session, response)
        return response
    earlier_reports = undelivered_reports.pop_text(session)
    if not earlier_reports:
        return response
    text = limit_report(f"{earlier_reports}\n{response.text}")
    return replace(response, text=text)


def _record_undelivered(session: Session, response: CellRunResponse) -> None:
    """Record the response to a disconnected client as an undelivered report."""
    text = mcp_cells.format_undelivered(session.name, response.text)
    session.journal.log(journal_events.Undelivered(at=format_now(), text=text))


async def wait_for_background(
    session: Session, owner: str, caller: Caller, seconds: float
) -> CellRunResponse | None:
    """Wait for a background run of the agent session `owner`; return its result.

    The result then counts as reported. If the client has disconnected, the result
    becomes an undelivered report. Return an interim response after `seconds`, or if a
    line matches the wake pattern. Return None if there is no background run, or if
    another client got the result.
    """
    # The clients of calls of an earlier daemon may still request the results.
    background_runs.process_background_calls(session, math.inf)
    calls = [
        call
        for call in session.background_calls
        if call.in_background and background_runs.get_owner(session, call) == owner
    ]
    if not calls:
        return None
    sessions = dict.fromkeys(calls, session)
    call, _ = await background_runs.wait_for_report(
        sessions, caller, seconds, first=True
    )
    if call is None:
        # Another client may have got the result of one of the calls.
        for other_call in calls:
            is_current = session.background_calls.is_current(other_call)
            if is_current and not other_call.task.done():
                return format_interim(session, other_call)
        return None
    if not call.task.done():
        background_runs.accept_line(session, call)
        return format_interim(session, call)
    response = create_response(session, call)
    background_runs.mark_reported(session, call)
    if caller.disconnected.is_set():
        _record_undelivered(session, response)
    return response


def format_interim(session: Session, call: BackgroundCall) -> CellRunResponse:
    """Return the interim response on a background run."""
    progress = status_queries.get_running(session)
    run = session.state.running
    if progress is None or run is None or run.tool_use_id != call.id:
        cell_id = ""
        report = _format_waiting(session, progress)
    else:
        cell_id = run.cell_id
        report = _format_still_running(session, cell_id, progress)
    return CellRunResponse(
        notebook=session.name,
        cell_id=cell_id,
        state="running",
        text=report.text,
        line=report.line,
        call=call.id,
    )


def _format_waiting(session: Session, progress: RunningCell | None) -> Report:
    """Return the interim report on a call that waits for a kernel or another cell.

    `progress` is the progress of the other cell.
    """
    queue_status = session.kernel_manager.queue_status
    queue_state = ""
    if queue_status:
        queue_state = format_queue_state(queue_status.text, queue_status.until)
    running_name = progress.name if progress else ""
    return mcp_cells.format_waiting(running_name, queue_state)


def _format_still_running(
    session: Session, cell_id: str, progress: RunningCell
) -> Report:
    """Return the interim report on the running cell."""
    kernel = session.kernel_manager.kernel
    outputs = []
    if kernel and kernel.partial_output:
        outputs = kernel.partial_output.get_outputs()
    output_lines = format_outputs(outputs, mcp_cells.OUTPUT_LIMIT, "Last lines")
    return mcp_cells.format_still_running(
        progress.name,
        cell_id,
        progress.seconds,
        progress.timeout,
        output_lines or ["The cell has printed nothing yet."],
        progress.line,
    )


def _list_pending_below(session: Session, cell_id: str) -> list[Cell]:
    """Return the code cells below a cell whose current source has not run.

    A cell that is running is left out. Return an empty list if the notebook cannot be
    read or the cell was deleted.
    """
    running = session.state.running
    running_id = running.cell_id if running else ""
    with contextlib.suppress(StepperError, cell_list_edits.CellReferenceError):
        cells = session.read().cells
        index = cell_list_edits.get_referenced_cell(cells, cell_id).index
        pending = changed_cells.select_not_run(cells, session.state.last_sources)
        return [
            cell for cell in pending if cell.index > index and cell.id != running_id
        ]
    return []


def create_response(session: Session, call: BackgroundCall) -> CellRunResponse:
    """Return the response on a finished call.

    If the task of a foreground call raised an error, raise the error again.
    """
    if call.in_background and call.task.exception() is not None:
        failure = background_runs.get_report(call)
        return CellRunResponse(
            notebook=session.name,
            cell_id="",
            state="unknown" if failure.is_unknown else "not run",
            text=failure.text,
            line=failure.line,
        )
    report = call.task.result() or background_runs.get_report(call)
    if not isinstance(report, CellRunReport):
        report = _complete_report(session, call, report)
    text = "\n".join(filter(None, [report.text, report.stop]))
    return CellRunResponse(
        notebook=session.name,
        cell_id=report.cell_id,
        state=report.state,
        text=text,
        line=report.line,
        figures=report.figures,
        cells=report.cells,
    )


def get_run_state(run: Run | None, *, is_stopped: bool) -> str:
    """Return the value of `CellRunResponse.state` for the last run of a call.

    `run` is None if no cell ran. `is_stopped` means that the notebook is stopped.
    """
    if is_stopped:
        return "stopped"
    if run is None:
        return "not run"
    if run.verdict is Verdict.FINE:
        return "ok"
    return "cancelled" if run.outcome is Outcome.CANCELLED else "failed"


def _complete_report(
    session: Session, call: BackgroundCall, report: Report
) -> CellRunReport:
    """Return the report on a recovered call, with the cell, the state and the figures.

    The report of a call that an earlier daemon started has only a text. The journal
    contains the other values. The cells below that have not run are added to the text.
    """
    runs = [run for run in session.state.runs if run.tool_use_id == call.id]
    run = runs[-1] if runs else None
    state = get_run_state(run, is_stopped=session.state.stop is not None)
    if report.is_unknown:
        state = "unknown"
    if run is None:
        return CellRunReport(
            report.text, report.line, report.stop, ok=False, state=state
        )
    figures = session.language.diagnosis.list_saved_figures(run.run)
    pending = mcp_cells.format_not_run(_list_pending_below(session, run.cell_id))
    text = "\n".join(filter(None, [report.text, pending]))
    return CellRunReport(
        text,
        report.line,
        report.stop,
        ok=run.verdict is Verdict.FINE and not report.is_unknown,
        cell_id=run.cell_id,
        state=state,
        figures=figures,
        cells=[run.cell_id],
    )
