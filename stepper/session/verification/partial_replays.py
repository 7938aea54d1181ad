"""Which cells `verify --from CELL` skips."""

from __future__ import annotations

from stepper.common.errors import UsageError
from stepper.common.text import one_line
from stepper.notebooks.notebook_document import Document
from stepper.policy.changed_cells import hash_source, select_runnable
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.dataflow import partial_replay
from stepper.session import stale_cells
from stepper.session.session import Session


def find_skipped(
    session: Session, document: Document, from_cell: str
) -> frozenset[int]:
    """Return the indexes of the cells that a partial replay from a cell skips.

    `from_cell` is the id or the number of a code cell. Raise UsageError if there is no
    such cell, or if the notebook is not in Python.
    """
    cells = document.cells
    first = partial_replay.find_cell(cells, from_cell)
    if first is None:
        show = CommandLines(session.name).shell("show")
        raise UsageError(
            f"--from: there is no code cell {one_line(from_cell, 100)!r}",
            f"{show}  # shows the numbers and ids",
        )
    if document.language != "python" or not session.language.is_python:
        raise UsageError(
            "--from needs a notebook in Python: stepper does not know which cells need"
            " which in other languages"
        )
    dependencies = stale_cells.update_dependencies(session, cells)
    skipped = partial_replay.select_skipped(
        cells, first, dependencies.providers, _collect_durations(session, document)
    )
    return frozenset(cell.index for cell in skipped)


def _collect_durations(session: Session, document: Document) -> dict[str, float]:
    """Return the seconds that cells took, by cell id.

    They are those of the last run of the current source here, or else the ones that the
    file records.
    """
    durations: dict[str, float] = {}
    hashes: dict[str, str] = {}
    for cell in select_runnable(document.cells):
        hashes[cell.id] = hash_source(cell.source)
        recorded_seconds = document.get_recorded_seconds(cell)
        if recorded_seconds is not None:
            durations[cell.id] = recorded_seconds
    for run in session.state.runs:
        if hashes.get(run.cell_id) == run.source_hash:
            durations[run.cell_id] = run.duration_s
    return durations
