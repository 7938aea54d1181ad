"""Reads a notebook's digest in pages, for MCP clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stepper.common.errors import NotebookError, UsageError
from stepper.common.text import format_count
from stepper.messages import mcp_cells
from stepper.messages.digest.notebook_digest import DigestBlock, DigestCell
from stepper.messages.digest.output_digest import list_notes
from stepper.messages.quoted_output import get_output_text, split_pages
from stepper.policy import cell_list_edits
from stepper.policy.changed_cells import hash_source
from stepper.policy.commands import mcp_cell_commands
from stepper.policy.execution_result import CellVersion
from stepper.policy.model import Cell
from stepper.session import status_queries
from stepper.session.cells import notebook_reading
from stepper.session.mcp_responses import CellReadResponse
from stepper.session.session import Session

EXTRA_PAGES = 20  # how many pages after the requested pages are counted
# The first line of outputs in a digest. A response has a separate field for outputs.
TITLE = "Output:\n"


async def read_cells(
    session: Session, arguments: mcp_cell_commands.CellRead, owner: str
) -> CellReadResponse:
    """Return pages of the digest of the requested cells.

    `owner` is the ID of the agent session. This does not wait for a running cell, and
    reads files in a thread. If complete outputs are requested, only the outputs on the
    counted pages are read. Raise UsageError if a cell or the page does not exist.
    """
    document = await notebook_reading.read_document(session)
    selected = None
    if arguments.cells:
        selected = _select_cells(session.name, document.cells, arguments.cells)
    digest, _, _ = await notebook_reading.read_notebook(
        session,
        owner,
        document,
        selected,
        is_partial=arguments.page > 1,
        has_pages=True,
    )
    head = mcp_cells.shorten_head(digest.head)
    last_page = max(1, arguments.page + arguments.many - 1)
    page_limit = last_page + EXTRA_PAGES

    def split_cells() -> Iterator[mcp_cells.CellRead]:
        """Yield the cells, split into parts that fit on a page."""
        for block in digest.blocks:
            cell = document.cells[block.cell.index]
            description = _describe_cell(session, cell, block.cell, arguments.outputs)
            outputs = _format_outputs(session, cell, block, arguments.outputs)
            yield from mcp_cells.split_cell(replace(description, outputs=outputs))

    def create_pages() -> list[list[mcp_cells.CellRead]]:
        """Return at most `page_limit` pages of cells."""
        try:
            return mcp_cells.split_pages(split_cells(), page_limit, head)
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
        mcp_cells.format_page(session.name, page, number, page_count, or_more, head)
        for number, page in enumerate(requested_pages, arguments.page)
    ]
    return CellReadResponse(
        notebook=session.name,
        cells=[cell for page in requested_pages for cell in page],
        page=arguments.page,
        pages=page_count,
        text="\n".join(texts),
        head=head if arguments.page == 1 else "",
    )


def _select_cells(
    name: str, cells: Sequence[Cell], references: Sequence[object]
) -> Sequence[Cell]:
    """Return the referenced cells, each once, in the order of the references.

    A reference may also be a range of numbers. `name` is the name of the notebook, for
    messages. Raise UsageError if a referenced cell does not exist.
    """
    selected: dict[int, Cell] = {}
    for reference in references:
        matches: Sequence[Cell]
        if notebook_reading.is_range(reference):
            matches = notebook_reading.select_cells(name, cells, str(reference))
        else:
            matches = [_get_cell(name, cells, reference)]
        for cell in matches:
            selected.setdefault(cell.index, cell)
    return list(selected.values())


def _get_cell(name: str, cells: Sequence[Cell], reference: object) -> Cell:
    """Return the referenced cell; raise UsageError if it does not exist.

    `name` is the name of the notebook, for the message.
    """
    try:
        return cell_list_edits.get_referenced_cell(cells, reference)
    except cell_list_edits.CellReferenceError as error:
        raise UsageError(f"{name}: {error}", cell_list_edits.REFERENCE_HINT) from None


def _describe_cell(
    session: Session, cell: Cell, digest_cell: DigestCell, output_amount: str
) -> mcp_cells.CellRead:
    """Return the description of a cell, without its outputs."""
    source_hash = hash_source(cell.source)
    description = mcp_cells.CellRead(
        cell.id,
        cell.index,
        cell.number,
        cell.type,
        cell.source,
        source_hash=source_hash,
        tags=digest_cell.tags,
    )
    if not cell.is_code:
        return description
    figures: Sequence[str] = ()
    if digest_cell.run is not None and output_amount != "none":
        figures = session.language.diagnosis.list_saved_figures(digest_cell.run)
    return replace(
        description,
        execution_count=digest_cell.execution_count,
        step=digest_cell.step,
        status=status_queries.get_cell_status(session, cell).status,
        state=digest_cell.state,
        duration_s=digest_cell.duration_s,
        pictures=figures,
    )


def _format_outputs(
    session: Session, cell: Cell, block: DigestBlock, output_amount: str
) -> str:
    """Return the outputs of a cell as text, or an empty string if there are none.

    `output_amount` is "none", "brief" or "full".
    """
    if output_amount == "none" or not cell.is_code:
        return ""
    lines = list(block.outputs)
    if output_amount == "full":
        outputs = session.file.read_outputs(CellVersion.from_cell(cell))
        lines = list_notes(block.cell.outputs)
        if any(map(get_output_text, outputs)):
            lines = [*split_pages(outputs), *lines]
    return "\n".join(lines).removeprefix(TITLE)
