"""Decide which runs `stepper undo` undoes, and how far back it reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepper.policy.journal_events import RunEnded
from stepper.policy.model import Cell
from stepper.policy.notebook_state import State
from stepper.policy.undo.undone_runs import (
    CellPositions,
    KernelRuns,
    select_later_runs,
)


@dataclass(frozen=True)
class UndoReach:
    """How far back `stepper undo` reaches (a JSON response).

    `cell` is the number of the topmost cell whose first run can be undone. `runs` is
    the number of runs that are undone then, and `complete_runs` the number of the
    newest of these runs whose changes can all be undone. `has_other_code` says that
    code outside the cells was executed after the first of these runs began. The
    before-images keep `bytes` alive, and may use `memory` bytes.
    """

    cell: int
    cell_id: str
    runs: int
    complete_runs: int
    has_other_code: bool
    bytes: int
    memory: int


def select_last_run(runs: KernelRuns) -> list[RunEnded]:
    """Return a list with the last run that is not undone, or an empty list."""
    return runs.active[-1:]


def select_runs_since(
    cells: Sequence[Cell], cell: Cell, runs: KernelRuns
) -> list[RunEnded]:
    """Return the runs to undo to restore the state before a cell's first run.

    These are the runs of the cell, and the later runs of deleted cells and of the cells
    below it. The list is empty if the cell has not run in this kernel, or if all its
    runs are undone already.
    """
    positions = CellPositions(cells)
    all_own_runs = [run for run in runs.all if positions.find_index(run) == cell.index]
    active_numbers = {run.run for run in runs.active}
    own_runs = [run for run in all_own_runs if run.run in active_numbers]
    if not own_runs:
        return []
    first_run = all_own_runs[0].run
    return select_later_runs(positions, runs.active, own_runs, first_run, cell.index)


def list_unreachable_runs(
    selected_runs: Sequence[RunEnded], state: State
) -> list[RunEnded]:
    """Return the selected runs that cannot be undone.

    The kernel has no before-image of these runs, or it is not known whether a later
    `stepper undo` has undone them.
    """
    if not state.undo_images:
        return [*selected_runs]
    oldest = state.undo_images.oldest
    return [
        run
        for run in selected_runs
        if run.run < oldest or not run.undo_images or follows_lost_undo(run, state)
    ]


def follows_lost_undo(run: RunEnded, state: State) -> bool:
    """Return whether a run is older than a `stepper undo` whose result is unknown.

    Such a run cannot be undone; newer runs can.
    """
    return run.run <= state.last_run_before_lost_undo


def has_other_code_since(run: int, state: State) -> bool:
    """Return whether code outside the cells was executed after a run began."""
    return state.last_run_before_other_code >= run


def find_reach(
    cells: Sequence[Cell], runs: KernelRuns, state: State
) -> UndoReach | None:
    """Return how far back `stepper undo` reaches, or None if it can undo no run."""
    for cell in cells:
        if not cell.is_code:
            continue
        selected_runs = select_runs_since(cells, cell, runs)
        if selected_runs and not list_unreachable_runs(selected_runs, state):
            return _make_reach(cell, selected_runs, state)
    return None


def _make_reach(
    cell: Cell, selected_runs: Sequence[RunEnded], state: State
) -> UndoReach:
    """Return the reach for the topmost cell whose first run can be undone.

    `selected_runs` are the runs that are undone for this, in chronological order.
    """
    complete_count = 0
    if state.undo_reach:
        complete_count = sum(run.run >= state.undo_reach for run in selected_runs)
    images = state.undo_images
    return UndoReach(
        cell=cell.number,
        cell_id=cell.id,
        runs=len(selected_runs),
        complete_runs=complete_count,
        has_other_code=has_other_code_since(selected_runs[0].run, state),
        bytes=images.bytes,
        memory=images.memory,
    )
