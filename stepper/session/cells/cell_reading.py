"""Reads a notebook's cells and their outputs in pages, for MCP clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stepper.common.errors import NotebookError, UsageError
from stepper.common.text import format_count
from stepper.messages import mcp_cells
from stepper.messages.quoted_output import (
    format_outputs,
    split_pages,
)
from stepper.notebooks.notebook_document import Document
from stepper.policy import cell_list_edits
from stepper.policy.changed_cells import hash_source
from stepper.policy.commands import mcp_commands
from stepper.policy.execution_result import CellVersion
from stepper.policy.model import Cell
from stepper.session import status_queries, undelivered_reports
from stepper.session.cells.notebook_reading import get_completeness
from stepper.session.mcp_responses import CellReadResponse
from stepper.session.session import Session

BRIEF_CHARACTERS = 1000  # of a cell's outputs
EXTRA_PAGES = 20  # how many pages after the requested pages are counted


async def read_cells(
    session: Session, arguments: mcp_commands.CellRead
) -> CellReadResponse:
    """Return pages of the requested cells with their outputs.

    This does not wait for a running cell, and reads files in a thread. Outputs are read
    only for the counted pages. Raise UsageError if a cell or the page does not exist.
    """
    document = await asyncio.to_thread(session.file.read)
    undelivered_reports.update_changed_cells(session, document)
    cells = _select_cells(session, document, arguments.cells or ())
    descriptions = list(_describe_cells(session, cells, document, arguments.outputs))
    last_page = max(1, arguments.page + arguments.many - 1)
    page_limit = last_page + EXTRA_PAGES

    def split_cells() -> Iterator[mcp_cells.CellRead]:
        for cell, description in zip(cells, descriptions, strict=True):
            outputs = _format_outputs(session, cell, arguments.outputs)
            yield from mcp_cells.split_cell(replace(description, outputs=outputs))

    def create_pages() -> list[list[mcp_cells.CellRead]]:
        try:
            return mcp_cells.split_pages(split_cells(), page_limit)
        finally:
            # Do not keep the notebook with its outputs in memory.
            with contextlib.suppress(NotebookError):
                session.file.read_uncached()

    pages = await asyncio.to_thread(create_pages)
    page_count = len(pages)
    if not 1 <= arguments.page <= page_count:
        count = format_count(page_count, "page")
        raise UsageError(
            f"there is no page {arguments.page}: the requested cells of {session.name}"
            f" have {count}"
        )
    or_more = " or more" if page_count == page_limit else ""
    requested_pages = pages[arguments.page - 1 : last_page]
    texts = [
        mcp_cells.format_page(session.name, page, number, page_count, or_more)
        for number, page in enumerate(requested_pages, arguments.page)
    ]
    return CellReadResponse(
        session.name,
        [cell for page in requested_pages for cell in page],
        arguments.page,
        page_count,
        "\n".join(texts),
    )


def _select_cells(
    session: Session, document: Document, references: Sequence[object]
) -> Sequence[Cell]:
    """Return the referenced cells, or all cells if there are no references.

    Raise UsageError if a referenced cell does not exist.
    """
    if not references:
        return document.cells
    try:
        return [
            cell_list_edits.get_referenced_cell(document.cells, reference)
            for reference in references
        ]
    except cell_list_edits.CellReferenceError as error:
        raise UsageError(
            f"{session.name}: {error}", cell_list_edits.REFERENCE_HINT
        ) from None


def _describe_cells(
    session: Session, cells: Sequence[Cell], document: Document, output_amount: str
) -> Iterator[mcp_cells.CellRead]:
    """Yield a description of each cell, without its outputs."""
    state = session.state
    last_runs = {(run.cell_id, run.source_hash): run for run in state.runs}
    # The lowest execution count of a cell takes precedence.
    execution_counts = {
        cell_id: count
        for count, cell_id in reversed(state.cells_by_execution_count.items())
    }
    for cell in cells:
        source_hash = hash_source(cell.source)
        description = mcp_cells.CellRead(
            cell.id,
            cell.index,
            cell.number,
            cell.type,
            cell.source,
            source_hash=source_hash,
        )
        if not cell.is_code:
            yield description
            continue
        execution_count = document.get_displayed_execution_count(cell)
        run = last_runs.get((cell.id, source_hash))
        figures: Sequence[str] = ()
        if run and output_amount != "none":
            figures = session.language.diagnosis.list_saved_figures(run.run)
        step = state.find_cell_key(cell.id)
        yield replace(
            description,
            execution_count=execution_count or execution_counts.get(cell.id),
            step=step if isinstance(step, int) else None,
            status=status_queries.get_cell_status(session, cell).status,
            pictures=figures,
        )


def _format_outputs(session: Session, cell: Cell, output_amount: str) -> str:
    """Return the outputs of a cell as text, or an empty string if there are none."""
    if output_amount == "none" or not cell.is_code:
        return ""
    outputs = session.file.read_outputs(CellVersion.from_cell(cell))
    if output_amount == "brief":
        lines = format_outputs(
            outputs,
            BRIEF_CHARACTERS,
            "",
            errors=True,
            completeness=get_completeness(session, cell, outputs),
        )
    else:
        lines = split_pages(outputs) if outputs else []
    return "\n".join(lines)
