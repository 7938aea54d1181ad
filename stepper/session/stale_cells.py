"""The stale cells and the hidden state of one notebook.

`policy/dataflow/cell_dependencies` finds the cells. Each cause of a stale cell is
reported once, and again after the cell that provides the value has run again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from stepper.common.errors import NotebookError
from stepper.messages import stale_cells as messages
from stepper.policy import changed_cells
from stepper.policy.dataflow import (
    cell_dependencies,
    rerun_selection,
    unresolved_names,
)
from stepper.policy.dataflow.causes import PENDING, MarkedCell
from stepper.policy.dataflow.cell_flow import Dependencies
from stepper.policy.model import Cell
from stepper.session.session import Session

# How often `run --stale` runs one cell: a cell above may turn out to be needed when
# cells below have already run.
MAX_RUNS = 3


def update_dependencies(session: Session, cells: Sequence[Cell]) -> Dependencies:
    """Record which cells of a notebook are stale; return the dependencies of its cells.

    The result is empty if the notebook's language is not Python, because its sources
    are not analyzed.
    """
    if not session.language.is_python:
        return Dependencies()
    dependencies = session.journal.find_dependencies(cells)
    session.journal.set_cell_marks(
        {entry.cell.id for entry in dependencies.stale},
        {entry.cell.id for entry in dependencies.hidden},
    )
    return dependencies


def report_new(
    session: Session, cells: Sequence[Cell], ran: Sequence[Cell] = ()
) -> str:
    """Return report lines on stale cells and hidden state that are not reported yet.

    The returned lines count as reported. Return an empty string if there is nothing
    new. `ran` are the cells that have just run. If all other cells that ran are above
    them, no cell can have become stale, so this does not search for stale cells.
    """
    if not session.language.is_python:
        return ""
    session.journal.update_run_history()
    if ran and cell_dependencies.ran_in_order(cells, ran, session.journal.run_history):
        return ""
    dependencies = update_dependencies(session, cells)
    reported = set[Hashable]()
    stale = _select_unreported(session, dependencies.stale, reported)
    hidden = _select_unreported(session, dependencies.hidden, reported)
    session.reported_changes.replace_causes(reported)
    commands = session.state.commands
    repairable_ids = {
        flow.cell.id for flow in dependencies.flows if flow.repairable_names
    }
    lines = [
        messages.format_stale(stale, commands, dependencies.indirect),
        messages.format_hidden(hidden, commands, repairable_ids),
    ]
    return "\n".join(filter(None, lines))


def _select_unreported(
    session: Session, marked: Sequence[MarkedCell], reported: set[Hashable]
) -> list[MarkedCell]:
    """Return the cells with causes that are not reported yet.

    The returned cells contain only these causes. Add all causes to `reported`.
    """
    selected = []
    for entry in marked:
        new_causes = []
        for cause in entry.causes:
            # A value of a changed cell is reported after each run that reads it.
            cell_id = entry.cell.id if cause.where == PENDING else cause.provider_id
            record = session.journal.run_history.last_runs.get(cell_id)
            last_run = record.run if record else 0
            key = (
                entry.cell.id,
                cause.name,
                cause.provider_id,
                cause.where,
                last_run,
            )
            reported.add(key)
            if not session.reported_changes.has_cause(key):
                new_causes.append(cause)
        if new_causes:
            selected.append(entry._replace(causes=new_causes))
    return selected


def report_new_after_edit(session: Session) -> str:
    """Return the lines of `report_new` after an edit that did not run a cell.

    Return an empty string if the notebook cannot be read.
    """
    with contextlib.suppress(NotebookError):  # the caller reports that error
        return report_new(session, session.read().cells)
    return ""


class CellMarks(NamedTuple):
    """The marks of stale cells and of cells that used hidden state."""

    stale: list[messages.Mark]
    hidden: list[messages.Mark]
    # Cells that read from a stale cell and are not stale themselves.
    indirect: list[messages.Mark]


def collect_marks(session: Session, cells: Sequence[Cell]) -> CellMarks:
    """Record which cells are stale; return the marks for a status response."""
    dependencies = update_dependencies(session, cells)
    stale = messages.format_marks(dependencies.stale, "stale")
    hidden = messages.format_marks(dependencies.hidden, "hidden state")
    indirect = messages.format_marks(dependencies.indirect, "indirectly stale")
    return CellMarks(stale, hidden, indirect)


def select_cells_to_run(
    session: Session, cells: Sequence[Cell], done: Sequence[str] = ()
) -> list[Cell]:
    """Return the cells that `run --stale` runs, in order.

    `done` are the ids of cells that it has already run. It runs no cell more than
    MAX_RUNS times. See `rerun_selection` for the rule.
    """
    dependencies = update_dependencies(session, cells)
    state = session.state
    changed = {
        cell.id for cell in changed_cells.select_changed(cells, state.last_sources)
    }
    # Cells that ran in the current kernel, including cells that failed.
    in_kernel = {*state.succeeded_sources}
    if state.succeeded_sources:
        in_kernel.update(state.cells_by_execution_count.values())
    last_run = state.runs[-1] if state.runs else None
    kernel_undoes = last_run is not None and last_run.undo_reach > 0
    undoes_runs = session.limits().undo and kernel_undoes
    selected = rerun_selection.select_cells(
        dependencies,
        session.journal.run_history,
        in_kernel - changed,
        undoes_runs,
        done,
    )
    return [
        cell for cell in cells if cell.id in selected and done.count(cell.id) < MAX_RUNS
    ]


def format_order(session: Session, cells: Sequence[Cell]) -> str:
    """Return a sentence on whether a run from top to bottom gives the same results.

    Also record which cells are stale. Return an empty string if the notebook's language
    is not Python.
    """
    if not session.language.is_python:
        return ""
    dependencies = update_dependencies(session, cells)
    history = session.journal.run_history
    unresolved = unresolved_names.find_unresolved_names(cells, history)
    unbound = unresolved_names.find_unbound_names(cells, history)
    commands = session.state.commands
    return messages.format_order(
        unresolved,
        len(dependencies.stale),
        unbound,
        commands,
        has_hidden_state=bool(dependencies.hidden),
    )
