"""Reports the output of a running cell until the cell finishes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepper.common.text import one_line, shell_quote
from stepper.messages.quoted_output import get_output_text, take_new_lines
from stepper.messages.run_report import format_seconds
from stepper.policy.execution_result import CellVersion
from stepper.policy.journal_events import RunStarted
from stepper.policy.model import Cell
from stepper.session import progress_events, responses, status_queries
from stepper.session.caller import Caller
from stepper.session.session import Session

POLL_SECONDS = 0.5  # how often to check for new output
# If the output has more characters, only its last line is reported.
MAX_CHARACTERS = 100_000


async def follow_output(
    session: Session,
    name: str,
    caller: Caller,
    report_progress: progress_events.ProgressCallback,
) -> responses.OutputPage:
    """Report new output of a running cell until the run finishes.

    Return the first page of the cell's output. If the cell is not running, return the
    page immediately. `name` is the ID or the number of the cell. Raise UsageError if
    there is no such cell.
    """
    cell = status_queries.find_code_cell(session, name)
    run = session.state.running
    if run is None or run.cell_id != cell.id:
        return status_queries.get_output(session, name, 1)
    # Positions in the outputs up to which `take_new_lines` returned the text.
    positions: dict[int, int] = {}
    await _report_until_finished(session, run, caller, report_progress, positions)
    # The number of the cell may have changed during the run.
    page = status_queries.get_output(session, cell.id, 1)
    outputs = session.file.read_outputs(CellVersion.from_cell(cell))
    is_long = _is_long(outputs)
    lines: list[str] = []
    if not is_long:
        lines = take_new_lines(outputs, positions, has_finished=True)
    report_progress(progress_events.OutputPrinted(lines=lines, last=""))
    text = _format_result(session, cell, run)
    if is_long:
        command = session.state.commands.shell("output", shell_quote(cell.id))
        text += f". The output is long; to read the output, run: {command}"
    return replace(page, ended=text)


async def _report_until_finished(
    session: Session,
    run: RunStarted,
    caller: Caller,
    report_progress: progress_events.ProgressCallback,
    positions: dict[int, int],
) -> None:
    """Report new output of a run until the run finishes or the caller disconnects.

    `positions` are updated to the end of the reported text.
    """
    change_count = -1  # no output was reported yet
    while session.state.running is run and not caller.disconnected.is_set():
        kernel = session.kernel_manager.kernel
        partial_output = None
        if kernel:
            partial_output = kernel.partial_output
        if partial_output is not None and partial_output.change_count != change_count:
            change_count = partial_output.change_count
            outputs = partial_output.get_outputs()
            lines: list[str] = []
            if not _is_long(outputs):
                lines = take_new_lines(outputs, positions, has_finished=False)
            last_line = one_line(
                partial_output.get_last_line(), status_queries.LINE_LIMIT
            )
            report_progress(progress_events.OutputPrinted(lines=lines, last=last_line))
        await asyncio.sleep(POLL_SECONDS)


def _format_result(session: Session, cell: Cell, run: RunStarted) -> str:
    """Return a text on the outcome and the duration of a run."""
    finished_run = session.state.find_run(run.run)
    if finished_run is None:
        return f"{cell.label} did not run"
    duration = format_seconds(finished_run.duration_s)
    return f"{cell.label}: {finished_run.outcome.value} after {duration}"


def _is_long(outputs: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the outputs have too much text to report each line."""
    # In a notebook file, a text may be a list of lines.
    character_count = sum(len(get_output_text(output)) for output in outputs)
    return character_count > MAX_CHARACTERS
