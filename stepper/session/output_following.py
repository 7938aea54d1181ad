"""Follow the output of a running cell until the cell finishes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from stepper.common.text import one_line
from stepper.messages.quoted_output import take_new_lines
from stepper.messages.run_report import format_seconds
from stepper.session import progress_events, responses, status_queries
from stepper.session.clients import Caller
from stepper.session.protocols import CellVersion
from stepper.session.session import Session

FOLLOW_SECONDS = 0.5  # how often it is looked for more
# characters of a cell's output, from which on only its last line is told
MOST = 100_000


async def follow_output(
    session: Session, name: str, caller: Caller, tell: progress_events.ProgressCallback
) -> responses.OutputPage:
    """Report new output of a cell while it runs; return its output at the end.

    Raise UsageError if there is no such cell.
    """
    cell, told, changes, last = (
        status_queries.find_code_cell(session, name),
        dict[int, int](),
        -1,
        "",
    )
    run = session.state.running
    if run is None or run.cell_id != cell.id:
        return status_queries.get_output(session, name, 1)
    while session.state.running is run and not caller.disconnected.is_set():
        coming = (
            session.kernel_manager.kernel.partial_output
            if session.kernel_manager.kernel
            else None
        )
        if coming is not None and coming.change_count != changes:
            changes, last = (
                coming.change_count,
                one_line(coming.last_line(), status_queries.LINE),
            )
            outputs = coming.outputs()
            much = sum(len(output.get("text", "")) for output in outputs) > MOST
            tell(
                progress_events.OutputPrinted(
                    lines=[]
                    if much
                    else take_new_lines(outputs, told, has_ended=False),
                    last=last,
                )
            )
        await asyncio.sleep(FOLLOW_SECONDS)
    page = status_queries.get_output(session, name, 1)
    outputs = session.file.read_outputs(CellVersion.from_cell(cell))
    much = sum(len(output.get("text", "")) for output in outputs) > MOST
    tell(
        progress_events.OutputPrinted(
            lines=[] if much else take_new_lines(outputs, told, has_ended=True), last=""
        )
    )
    ended = next(
        (known for known in reversed(session.state.runs) if known.run == run.run), None
    )
    how = (
        f"{ended.outcome.value} after {format_seconds(ended.duration_s)}"
        if ended
        else "it did not run"
    )
    output = session.state.commands.shell("output", name)
    more = f"; its output is long: {output}" if much else ""
    return replace(page, ended=f"{cell.label}: {how}{more}")
