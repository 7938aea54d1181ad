"""How long MCP clients wait for their cells before these run in the background.

These agents cannot be notified. A result that nobody waits for becomes an undelivered
report; `status` waits for the end.
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
from stepper.messages import mcp_cells as words
from stepper.messages.background_runs import format_queue_state
from stepper.messages.quoted_output import format_outputs
from stepper.messages.run_report import Report, limit_report
from stepper.policy import cell_changes, cell_list_edits, journal_events
from stepper.policy.model import Cell, Verdict
from stepper.session import background_runs, status_queries, undelivered_reports
from stepper.session.cell_responses import CellRunResponse
from stepper.session.clients import BackgroundCall, Caller, Waker
from stepper.session.kernel_manager import format_now
from stepper.session.session import Session

LEAST_SECONDS = 0.3  # in which it is known whether a cell may run at all


@dataclass(frozen=True)
class CellRunReport(Report):
    """The report on cells that ran, with their state."""

    cell_id: str = ""
    state: str = ""
    figures: Sequence[str] = ()
    cells: Sequence[str] = ()


Work = Coroutine[Any, Any, Report | None]


async def run_with_limit(
    session: Session,
    owner: str,
    caller: Caller,
    seconds: float,
    work: Callable[[], Work],
) -> CellRunResponse:
    """Run cells; return the result, or an interim response after the limit."""
    caller.call_id = caller.call_id or uuid.uuid4().hex
    call = session.background_calls.get(caller.call_id) or background_runs.start_call(
        session, caller.call_id, caller, work()
    )
    await asyncio.wait([call.task], timeout=max(seconds, LEAST_SECONDS))
    if not call.task.done() and not caller.disconnected.is_set():
        session.log(
            journal_events.Backgrounded(at=format_now(), call=call.id, session=owner)
        )
        call.in_background = True
        return format_interim(session, call)
    await asyncio.wait([call.task])
    found = create_response(session, call)
    if call.in_background:
        background_runs.mark_reported(session, call)
    if caller.disconnected.is_set():
        session.log(
            journal_events.Undelivered(
                at=format_now(), text=words.format_undelivered(session.name, found.text)
            )
        )
        return found
    missed = undelivered_reports.take_text(session)
    return (
        replace(found, text=limit_report(f"{missed}\n{found.text}"))
        if missed
        else found
    )


async def wait_for_background(
    session: Session, owner: str, caller: Caller, seconds: float
) -> CellRunResponse | None:
    """Wait for an agent's background runs; return a result, or None.

    Return an interim response if the time is up or the wake pattern matched.
    """
    background_runs.check_background_calls(
        session, math.inf
    )  # what a former daemon had begun is taken up
    mine = [
        call
        for call in session.background_calls.values()
        if call.in_background and _get_owner(session, call) == owner
    ]
    if not mine:
        return None
    waker = Waker(caller)
    for call in mine:
        call.wakers.insert(0, waker)
    left = asyncio.ensure_future(caller.disconnected.wait())
    waits: list[asyncio.Future[Any]] = [waker.result, left]
    await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    left.cancel()
    for call in mine:
        if waker in call.wakers:
            call.wakers.remove(waker)
    told = waker.result.result()[0] if waker.result.done() else None
    waker.result.cancel()
    if told is not None:
        told.is_delivering = False
    if told is None:  # the end of one may have been told to another who waited
        going = [
            call
            for call in mine
            if session.background_calls.get(call.id) is call and not call.task.done()
        ]
        return format_interim(session, going[0]) if going else None
    if not told.task.done():
        return format_interim(session, told)
    found = create_response(session, told)
    background_runs.mark_reported(session, told)
    if caller.disconnected.is_set():
        session.log(
            journal_events.Undelivered(
                at=format_now(), text=words.format_undelivered(session.name, found.text)
            )
        )
    return found


def _get_owner(session: Session, call: BackgroundCall) -> str:
    handed = session.state.background_calls.get(call.id)
    return handed.session if handed else ""


def format_interim(session: Session, call: BackgroundCall) -> CellRunResponse:
    """Return the interim response on a background run."""
    running, kernel = status_queries.get_running(session), session.kernel_manager.kernel
    begun = session.state.running
    if running is None or begun is None or begun.tool_use_id != call.id:
        queued = session.kernel_manager.queue_status
        found = words.format_waiting(
            running.name if running else "",
            format_queue_state(queued.text, queued.until) if queued else "",
        )
        return CellRunResponse(
            session.name, "", "running", found.text, found.line, call=call.id
        )
    outputs = (
        kernel.partial_output.outputs() if kernel and kernel.partial_output else []
    )
    printed = format_outputs(outputs, words.OUTPUT_LIMIT, "Last lines") or [
        "It has printed nothing yet."
    ]
    found = words.format_still_running(
        running.name,
        begun.cell_id,
        running.seconds,
        running.timeout,
        printed,
        running.line,
    )
    return CellRunResponse(
        session.name, begun.cell_id, "running", found.text, found.line, call=call.id
    )


def _list_pending_below(session: Session, name: str) -> list[Cell]:
    """Return the code cells below a cell that have not run yet."""
    # what came of it matters more
    with contextlib.suppress(StepperError, cell_list_edits.CellReferenceError):
        cells = session.read().cells
        index = cell_list_edits.get_referenced_cell(cells, name).index
        return [
            cell
            for cell in cell_changes.select_not_run(cells, session.state.last_sources)
            if cell.index > index
        ]
    return []


def create_response(session: Session, call: BackgroundCall) -> CellRunResponse:
    """Return the response on a finished call.

    Raise the error of its task unless the call runs in the background.
    """
    if call.in_background and call.task.exception() is not None:
        failed = background_runs.get_report(call)
        return CellRunResponse(session.name, "", "not run", failed.text, failed.line)
    found = call.task.result() or background_runs.get_report(call)
    if not isinstance(found, CellRunReport):  # a former daemon knew more
        last = next(
            (run for run in reversed(session.state.runs) if run.tool_use_id == call.id),
            None,
        )
        fine = last is not None and last.verdict is Verdict.FINE
        state = (
            "ok"
            if fine
            else "stopped"
            if session.state.stop
            else "failed"
            if last
            else "not run"
        )
        cells, figures = (
            ([last.cell_id], session.diagnosis.list_saved_figures(last.run))
            if last
            else ([], [])
        )
        text = "\n".join(
            filter(
                None,
                [
                    found.text,
                    words.format_not_run(_list_pending_below(session, last.cell_id))
                    if last
                    else "",
                ],
            )
        )
        found = CellRunReport(
            text, found.line, found.stop, fine, "".join(cells), state, figures, cells
        )
    text = "\n".join(filter(None, [found.text, found.stop]))
    return CellRunResponse(
        session.name,
        found.cell_id,
        found.state,
        text,
        found.line,
        found.figures,
        cells=found.cells,
    )
