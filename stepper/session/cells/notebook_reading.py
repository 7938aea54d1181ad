"""Builds the digest of a notebook: the cells with their states, and the head."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

from stepper.common.errors import UsageError
from stepper.common.text import TRUNCATED, format_count
from stepper.messages import command_messages
from stepper.messages.digest import notebook_digest
from stepper.messages.digest.notebook_digest import Digest, DigestCell
from stepper.messages.digest.output_digest import OutputItem, list_items
from stepper.messages.quoted_output import Completeness, get_output_text
from stepper.notebooks.notebook_document import Document
from stepper.policy import changed_cells
from stepper.policy.changed_cells import hash_source
from stepper.policy.journal_events import RunEnded
from stepper.policy.model import Cell, Outcome
from stepper.session import responses, status_queries
from stepper.session.diagnosis_protocol import FigureRequest
from stepper.session.session import Session
from stepper.session.session_state.agent_reads import ReadCell

RECENT_RUNS = 3  # the cells of the last runs get more room for their outputs
NUMBERS = re.compile(r"(\d+)?(-)?(\d+)?")


class NotebookDigest(NamedTuple):
    """A digest, with the status and the cells that it was made from."""

    digest: Digest
    status: responses.StatusResponse
    cells: Sequence[DigestCell]


async def read_document(session: Session) -> Document:
    """Return the contents of a notebook; raise NotebookError if this fails.

    The contents are not cached, because an idle daemon must not keep notebooks in
    memory.
    """
    return await asyncio.to_thread(session.file.read_uncached)


async def read_notebook(
    session: Session,
    owner: str,
    document: Document,
    selected: Sequence[Cell] | None = None,
    max_size: int | None = None,
    is_partial: bool = False,
    has_pages: bool = False,
    figure_seconds: float = math.inf,
) -> NotebookDigest:
    """Return the digest of a notebook for the agent session `owner`.

    `document` is the contents of the notebook, and `selected` its cells in the digest,
    or None for all cells. A digest of all cells is recorded as a read of the session,
    unless `is_partial` is true. `max_size` limits the digest, in bytes. `is_partial`
    means that the agent reads another part of its last digest, so the line numbers must
    not change. `has_pages` means that the digest is returned in pages: only the first
    page has the head, so the cells must not refer to the head. After `figure_seconds`,
    no more recorded images are saved as files. The function does not wait for a running
    cell.
    """
    status = await status_queries.get_status(session, document)
    changes = ""
    cells = document.cells
    if selected is None:
        changes = _record_read(session, cells, owner, is_partial=is_partial)
    else:
        cells = selected
    name_count = _count_names(session)
    next_step = ""
    if session.state.open_steps:
        next_step = command_messages.format_next(session.state)
    limit = session.limits().read_limit
    commands = session.state.commands
    deadline = time.monotonic() + figure_seconds
    figures = FigureRequest(deadline, uses_names=not has_pages)
    create_cell = make_cell_factory(session, document, figures)

    def create_digest() -> NotebookDigest:
        """Return the digest; this may save figures, so it runs in a thread."""
        digest_cells = [create_cell(cell) for cell in cells]
        shown_status = asdict(replace(status, cells=(), off_plan=()))
        head = notebook_digest.format_head(
            shown_status,
            document.cells,
            name_count,
            changes,
            commands,
            selected,
            next_step,
        )
        if figures.folder:
            head.append(notebook_digest.format_figure_folder(figures.folder))
        digest = notebook_digest.format_digest(
            head, digest_cells, limit, commands, max_size, not has_pages
        )
        return NotebookDigest(digest, status, digest_cells)

    return await asyncio.to_thread(create_digest)


async def show_notebook(
    session: Session, owner: str, cells: str
) -> responses.ShowResponse:
    """Return the digest of a notebook, or of the cells that `cells` selects.

    `owner` is the ID of the agent session that reads the digest, or an empty string.
    Raise NotebookError if the notebook cannot be read, and UsageError if `cells` is not
    valid: see `select_cells`.
    """
    document = await read_document(session)
    selected = None
    if cells:
        selected = select_cells(session.name, document.cells, cells)
    digest, status, _ = await read_notebook(session, owner, document, selected)
    shown_cells = []
    line = len(digest.head) + 1
    for block in digest.blocks:
        cell = block.cell
        shown_cells.append(
            responses.ShownCell(
                cell=cell.number,
                cell_id=cell.cell_id,
                index=cell.index,
                type=cell.type,
                tags=cell.tags,
                step=cell.step,
                state=cell.state,
                execution_count=cell.execution_count,
                duration_s=cell.duration_s,
                source=cell.source,
                outputs="\n".join(block.outputs),
                line=line,
            )
        )
        line += len(block.lines)
    return responses.ShowResponse(
        notebook=session.name,
        state=status.state,
        head="\n".join(digest.head),
        cells=shown_cells,
        text="\n".join(digest.lines),
    )


def _count_names(session: Session) -> int | None:
    """Return the number of names in the kernel, or None if it is unknown."""
    namespace = session.namespace_tracker.current
    if session.kernel_manager.kernel is None or not namespace:
        return None
    return len(namespace.modules) + len(namespace.functions) + len(namespace.variables)


def is_range(reference: object) -> bool:
    """Return whether a reference to cells is a range of numbers, such as 3-5 or 3-.

    `-5` is not a range here, but an index from the end of the notebook.
    """
    if not isinstance(reference, str):
        return False
    match = NUMBERS.fullmatch(reference)
    return match is not None and bool(match[1] and match[2])


def select_cells(name: str, cells: Sequence[Cell], selection: str) -> Sequence[Cell]:
    """Return the cells that `selection` names.

    `selection` is the ID of a cell, the number of a code cell (`3`), or a range of
    numbers (`3-5`, `3-`, `-5`). The other cells directly above a selected code cell are
    also selected, and the cells below the last code cell if it is selected. `name` is
    the name of the notebook, for messages. Raise UsageError if there is no such cell.
    """
    by_id = [cell for cell in cells if cell.id == selection]
    if by_id:
        return by_id
    count = max((cell.number for cell in cells), default=0)
    match = NUMBERS.fullmatch(selection)
    if match is None or selection == "-":
        raise UsageError(
            f"{name} has no cell {selection[:100]!r}; --cells takes an id, a number or"
            " a range of numbers, such as 3-5"
        )
    first_text, dash, last_text = match.groups()
    first = int(first_text or 1)
    last = first
    if dash:
        last = int(last_text or count)
    if not 1 <= first <= last or first > count:
        code_cells = format_count(count, "code cell")
        raise UsageError(f"{name} has {code_cells}, but not {selection[:100]}")
    selected: list[Cell] = []
    text_cells: list[Cell] = []
    for cell in cells:
        if not cell.is_code:
            text_cells.append(cell)
            continue
        if first <= cell.number <= last:
            selected += [*text_cells, cell]
        text_cells = []
    if last >= count:
        selected += text_cells
    return selected


def make_cell_factory(
    session: Session, document: Document, figures: FigureRequest
) -> Callable[[Cell], DigestCell]:
    """Return a function that describes a cell of the document for a digest."""
    state = session.state
    last_runs = {run.cell_id: run for run in state.runs}
    # The last execution count of a cell replaces earlier ones.
    execution_counts = {
        cell_id: count for count, cell_id in state.cells_by_execution_count.items()
    }
    recent_ids = {run.cell_id for run in state.runs[-RECENT_RUNS:]}

    def create_cell(cell: Cell) -> DigestCell:
        """Return the description of a cell."""
        if not cell.is_code:
            return DigestCell(
                cell_id=cell.id,
                index=cell.index,
                number=cell.number,
                type=cell.type,
                source=cell.source,
                tags=cell.tags,
            )
        run = last_runs.get(cell.id)
        if run is not None and run.source_hash != hash_source(cell.source):
            run = None
        cell_state = get_cell_state(session, cell, run)
        step = state.find_cell_key(cell.id)
        count = document.get_execution_count(cell)
        is_recent = cell.id in recent_ids or cell_state == notebook_digest.FAILED
        return DigestCell(
            cell_id=cell.id,
            index=cell.index,
            number=cell.number,
            type=cell.type,
            source=cell.source,
            tags=cell.tags,
            execution_count=count or execution_counts.get(cell.id),
            step=step if isinstance(step, int) else None,
            run=run.run if run is not None else None,
            state=cell_state,
            duration_s=run.duration_s if run is not None else None,
            outputs=list_cell_items(session, document, cell, run, figures),
            is_recent=is_recent,
        )

    return create_cell


def get_cell_state(session: Session, cell: Cell, run: RunEnded | None) -> str:
    """Return the state of a code cell in a digest.

    `run` is the last run of the cell with its current source, or None.
    """
    state = session.state
    if state.running is not None and state.running.cell_id == cell.id:
        if state.runs_in_background:
            return notebook_digest.BACKGROUND
        return notebook_digest.RUNNING
    if changed_cells.SKIP_TAG in cell.tags:
        return notebook_digest.SKIPPED
    if run is None:
        has_run = cell.id in state.last_sources
        if has_run:
            return notebook_digest.CHANGED
        return notebook_digest.NOT_RUN
    if run.outcome is not Outcome.OK:
        return notebook_digest.FAILED
    if state.succeeded_sources.get(cell.id) != run.source_hash:
        # The run was in an earlier kernel, or a later preflight check failed.
        return notebook_digest.NOT_RUN
    if cell.id in state.stale_ids:
        return notebook_digest.STALE
    return notebook_digest.OK


def list_cell_items(
    session: Session,
    document: Document,
    cell: Cell,
    run: RunEnded | None,
    request: FigureRequest,
) -> list[OutputItem]:
    """Return the items of a cell's outputs.

    `run` is the last run of the cell with its current source, or None.
    """
    outputs = document.get_recorded_outputs(cell)
    if not outputs:
        return []
    figures: Sequence[str] = ()
    if any("data" in output for output in outputs):
        figures = session.language.diagnosis.list_figure_lines(
            outputs,
            run.run if run is not None else None,
            run.figures if run is not None else {},
            request,
        )
    return list_items(outputs, figures, get_completeness(session, cell, outputs))


def get_completeness(
    session: Session, cell: Cell, outputs: Sequence[Mapping[str, object]]
) -> Completeness:
    """Return whether the notebook contains all outputs of a cell."""
    if not any(TRUNCATED in get_output_text(output) for output in outputs):
        return Completeness.WHOLE
    displayed = session.state.displayed_outputs.get(cell.id)
    if displayed and displayed.left_out:
        return Completeness.PART
    # The cell itself printed TRUNCATED, or another checkout wrote the outputs.
    return Completeness.UNKNOWN


def _record_read(
    session: Session, cells: Sequence[Cell], owner: str, *, is_partial: bool
) -> str:
    """Record a read of an agent session; return a line on the changes since the last.

    `cells` are all cells of the notebook, and `owner` is the ID of the session. A
    partial read is not recorded, and the line is that of the read that it continues.
    The line is empty if the session reads the notebook for the first time, or if
    `owner` is empty.
    """
    if not owner:
        return ""
    last_runs = {run.cell_id: run.run for run in session.state.runs}
    current = {
        cell.id: ReadCell(hash_source(cell.source), last_runs.get(cell.id, 0))
        for cell in cells
    }
    if not is_partial:
        session.agent_reads.record(owner, current)
    previous_read = session.agent_reads.get_previous_read(owner)
    if previous_read is None:
        return ""
    added: list[Cell] = []
    edited: list[Cell] = []
    ran: list[Cell] = []
    for cell in cells:
        before = previous_read.get(cell.id)
        if before is None:
            added.append(cell)
        elif before.source_hash != current[cell.id].source_hash:
            edited.append(cell)
        elif before.run != current[cell.id].run:
            ran.append(cell)
    deleted_count = len(previous_read.keys() - current.keys())
    return notebook_digest.format_changes(edited, ran, added, deleted_count)
