"""A notebook's cells as other agents read them: sources, outputs as text, pictures as paths, in pages."""

from __future__ import annotations

from dataclasses import replace

from stepper.ground.errors import UsageError
from stepper.ground.text import counted
from stepper.policy import arrange, cellcommands
from stepper.policy.changes import source_hash
from stepper.policy.model import Cell
from stepper.session import standing, unseen
from stepper.session.cellanswers import Read
from stepper.session.ports import Notebook, Target
from stepper.session.session import Session
from stepper.words import cells as words
from stepper.words.quotes import outputs_text, paged

BRIEF = 1000  # characters of a cell's outputs


def read(session: Session, told: cellcommands.CellRead) -> Read:
    """Return a page of the cells that are asked for, all by default; raise UsageError. Takes no lock."""
    session.file.read()  # kept while its outputs are read one by one
    document, _ = unseen.compare(session)
    try:
        some = [arrange.named(document.cells, name) for name in told.cells or ()]
    except arrange.NamingError as error:
        raise UsageError(f"{error} in {session.name}", arrange.HOW) from None
    parts = [
        part for cell in some or document.cells for part in words.parts(_read(session, cell, told.outputs, document))
    ]
    pages = words.paged(parts)
    if not 1 <= told.page <= len(pages):
        raise UsageError(f"{session.name} has {counted(len(pages), 'page')} of these cells")
    page = pages[told.page - 1]
    return Read(session.name, page, told.page, len(pages), words.read(session.name, page, told.page, len(pages)))


def _read(session: Session, cell: Cell, how: str, document: Notebook) -> words.CellRead:
    """Return a cell as it stands, with as much of its outputs as is asked for."""
    about = words.CellRead(cell.id, cell.index, cell.number, cell.type, cell.source)
    if not cell.is_code:
        return about
    state, same = session.state, source_hash(cell.source)
    runs = [run for run in state.runs if run.cell_id == cell.id and run.source_hash == same]
    count = document.outputs_count(cell) or next((n for n, name in state.counts.items() if name == cell.id), None)
    step = next((key for key, progress in state.progress.items() if progress.cell_id == cell.id), None)
    outputs = [] if how == "none" else session.file.outputs_of(Target.of(cell))
    text = outputs_text(outputs, BRIEF, "", errors=True) if how == "brief" else paged(outputs) if outputs else []
    return replace(
        about,
        execution_count=count,
        step=step if isinstance(step, int) else None,
        status=standing.cell_status(session, cell).status,
        outputs="\n".join(text).removeprefix(":\n"),
        pictures=session.adviser.saved(runs[-1].run) if runs and how != "none" else (),
    )
