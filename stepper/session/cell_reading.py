"""Pages of a notebook's cells with their outputs, for MCP clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stepper.common.errors import NotebookError, UsageError
from stepper.common.text import TRUNCATED, format_count
from stepper.messages import mcp_cells as words
from stepper.messages.quoted_output import (
    Completeness,
    format_outputs,
    get_output_text,
    split_pages,
)
from stepper.policy import cell_list_edits
from stepper.policy.cell_changes import hash_source
from stepper.policy.commands import mcp_commands
from stepper.policy.model import Cell
from stepper.session import status_queries, undelivered_reports
from stepper.session.cell_responses import CellReadResponse
from stepper.session.protocols import CellVersion, Notebook
from stepper.session.session import Session

BRIEF = 1000  # characters of a cell's outputs
AHEAD = 20  # pages that are counted beyond those that are asked for


async def read_cells(session: Session, told: mcp_commands.CellRead) -> CellReadResponse:
    """Return pages of the requested cells; raise UsageError. Takes no lock.

    Files are read in a thread, and outputs only as far as the pages need them.
    """
    # kept while its outputs are read
    document, _ = undelivered_reports.compare_with_runs(
        session, await asyncio.to_thread(session.file.read)
    )
    try:
        some = [
            cell_list_edits.get_referenced_cell(document.cells, name)
            for name in told.cells or ()
        ]
    except cell_list_edits.CellReferenceError as error:
        raise UsageError(
            f"{session.name}: {error}", cell_list_edits.REFERENCE_HINT
        ) from None
    about = [
        *zip(
            some or document.cells,
            _list_cells(session, some or document.cells, document, told.outputs),
            strict=True,
        )
    ]
    last = max(1, told.page + told.many - 1)

    def parts() -> Iterator[words.CellRead]:
        for cell, found in about:
            yield from words.split_cell(
                replace(found, outputs=_format_outputs(session, cell, told.outputs))
            )

    def work() -> list[list[words.CellRead]]:
        try:
            return words.split_pages(parts(), last + AHEAD)
        finally:
            with contextlib.suppress(NotebookError):
                session.file.read_uncached()  # not kept

    pages = await asyncio.to_thread(work)
    of = format_count(len(pages), "page")
    if not 1 <= told.page <= len(pages):
        raise UsageError(f"{session.name} has {of} of these cells")
    some_more = " or more" if len(pages) == last + AHEAD else ""
    texts = [
        words.format_page(session.name, page, number, len(pages), some_more)
        for number, page in enumerate(pages[:last], 1)
        if number >= told.page
    ]
    shown = [cell for page in pages[told.page - 1 : last] for cell in page]
    return CellReadResponse(
        session.name, shown, told.page, len(pages), "\n".join(texts)
    )


def _list_cells(
    session: Session, cells: Sequence[Cell], document: Notebook, how: str
) -> Iterator[words.CellRead]:
    """Yield the cells without their outputs."""
    state, last = (
        session.state,
        {(run.cell_id, run.source_hash): run for run in session.state.runs},
    )
    counts = {
        name: count for count, name in reversed(state.cells_by_execution_count.items())
    }
    steps = {
        progress.cell_id: key for key, progress in reversed(state.progress.items())
    }
    for cell in cells:
        present = hash_source(cell.source)
        about = words.CellRead(
            cell.id,
            cell.index,
            cell.number,
            cell.type,
            cell.source,
            source_hash=present,
        )
        if not cell.is_code:
            yield about
            continue
        run, step = last.get((cell.id, hash_source(cell.source))), steps.get(cell.id)
        yield replace(
            about,
            execution_count=document.get_displayed_execution_count(cell)
            or counts.get(cell.id),
            step=step if isinstance(step, int) else None,
            status=status_queries.get_cell_status(session, cell).status,
            pictures=session.diagnosis.list_saved_figures(run.run)
            if run and how != "none"
            else (),
        )


def _format_outputs(session: Session, cell: Cell, how: str) -> str:
    """Return the outputs of a cell as text."""
    outputs = (
        []
        if how == "none" or not cell.is_code
        else session.file.read_outputs(CellVersion.from_cell(cell))
    )
    kept = Completeness.WHOLE
    if any(TRUNCATED in get_output_text(output) for output in outputs):
        # a cell may print that line, and another checkout may have written it
        shown = session.state.displayed_outputs.get(cell.id)
        kept = Completeness.PART if shown and shown.left_out else Completeness.UNKNOWN
    text = (
        format_outputs(outputs, BRIEF, "", errors=True, completeness=kept)
        if how == "brief"
        else split_pages(outputs)
        if outputs
        else []
    )
    return "\n".join(text).removeprefix(":\n")
