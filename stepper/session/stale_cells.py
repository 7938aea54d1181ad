"""The stale cells and the hidden state of one notebook.

`policy/dataflow/cell_dependencies` finds the cells. Each cause of a stale cell is
reported once, and again after the cell that provides the value has run again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from stepper.common.errors import NotebookError
from stepper.messages import stale_cells as messages
from stepper.policy import changed_cells
from stepper.policy.dataflow import (
    cell_dependencies,
    rerun_selection,
    unresolved_names,
)
from stepper.policy.dataflow.causes import PENDING, Cause, MarkedCell
from stepper.policy.dataflow.cell_flow import Dependencies
from stepper.policy.model import Cell
from stepper.session.session import Session

# How often `run --stale` may run the same cell. The cell runs again if a cell above,
# which was selected later, changed a value that the cell reads.
MAX_RUNS = 3


def update_dependencies(session: Session, cells: Sequence[Cell]) -> Dependencies:
    """Record the stale cells of a notebook; return the dependencies of its cells.

    The result is empty if the notebook's language is not Python, because stepper
    analyzes only Python sources.
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
    session: Session, cells: Sequence[Cell], run_cells: Sequence[Cell] = ()
) -> str:
    """Return report lines on stale cells and hidden state that are not reported yet.

    The returned lines count as reported. Return an empty string if there is nothing
    new. `run_cells` are the cells that have just run. If all cells ran in the order of
    the notebook, and `run_cells` last, no cell can have become stale.
    """
    if not session.language.is_python:
        return ""
    session.journal.update_run_history()
    history = session.journal.run_history
    if run_cells and cell_dependencies.ran_in_order(cells, run_cells, history):
        return ""
    dependencies = update_dependencies(session, cells)
    last_runs = {run.cell_id: run.run for run in session.state.runs}
    stale = _select_unreported(session, dependencies.stale, last_runs)
    hidden = _select_unreported(session, dependencies.hidden, last_runs)
    causes = {
        _identify_cause(entry.cell, cause, last_runs)
        for entry in (*dependencies.stale, *dependencies.hidden)
        for cause in entry.causes
    }
    session.reported_changes.replace_causes(causes)
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
    session: Session, marked: Sequence[MarkedCell], last_runs: Mapping[str, int]
) -> list[MarkedCell]:
    """Return the cells with causes that are not reported yet.

    The returned cells contain only these causes. `last_runs` are the numbers of the
    last runs, by cell ID.
    """
    unreported = []
    for entry in marked:
        new_causes = []
        for cause in entry.causes:
            identity = _identify_cause(entry.cell, cause, last_runs)
            if not session.reported_changes.has_cause(identity):
                new_causes.append(cause)
        if new_causes:
            unreported.append(entry._replace(causes=new_causes))
    return unreported


def _identify_cause(cell: Cell, cause: Cause, last_runs: Mapping[str, int]) -> Hashable:
    """Return a key for a cause of a marked cell.

    The key changes when the cause must be reported again: after a run of the cell that
    provides the value or, if that cell is pending, of the cell that reads the value.
    `last_runs` are the numbers of the last runs, by cell ID.
    """
    runner_id = cause.provider_id
    if cause.where == PENDING:
        # A value of a changed cell is reported after each run that reads the value.
        runner_id = cell.id
    last_run = last_runs.get(runner_id, 0)
    return (cell.id, cause.name, cause.provider_id, cause.where, last_run)


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
    """Record the stale cells; return the marks for a status response.

    The lists are empty if the notebook's language is not Python.
    """
    dependencies = update_dependencies(session, cells)
    stale = messages.format_marks(dependencies.stale, "stale")
    hidden = messages.format_marks(dependencies.hidden, "hidden state")
    indirect = messages.format_marks(dependencies.indirect, "indirectly stale")
    return CellMarks(stale, hidden, indirect)


def select_cells_to_run(
    session: Session, cells: Sequence[Cell], done: Sequence[str] = ()
) -> list[Cell]:
    """Return the cells that `run --stale` must still run, in order.

    `done` are the IDs of the cells that the command has run, once for each run. A cell
    that it has run MAX_RUNS times is not returned. `rerun_selection` selects the cells.
    """
    dependencies = update_dependencies(session, cells)
    state = session.state
    changed_ids = {
        cell.id for cell in changed_cells.select_changed(cells, state.last_sources)
    }
    # Cells that ran in the current kernel, including cells that failed. The execution
    # counts may be of a kernel that was lost: then no cell has succeeded.
    kernel_ids = {*state.succeeded_sources}
    if state.succeeded_sources:
        kernel_ids.update(state.cells_by_execution_count.values())
    last_run = state.runs[-1] if state.runs else None
    can_undo = last_run is not None and last_run.undo_reach > 0
    selected_ids = rerun_selection.select_cells(
        dependencies,
        session.journal.run_history,
        kernel_ids - changed_ids,
        undoes_runs=session.limits().undo and can_undo,
        done=done,
    )
    return [
        cell
        for cell in cells
        if cell.id in selected_ids and done.count(cell.id) < MAX_RUNS
    ]


def format_order(session: Session, cells: Sequence[Cell]) -> str:
    """Return sentences on whether a run from top to bottom gives the same results.

    Also record the stale cells. Return an empty string if the notebook's language is
    not Python.
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
