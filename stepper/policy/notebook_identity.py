"""Check whether a notebook is the one that a journal describes.

Notebooks are compared by the ids and source hashes of their cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stepper.policy.changed_cells import INDEX_ID, hash_source
from stepper.policy.model import Cell, Plan
from stepper.policy.notebook_state import State

# Source hashes by cell id.
Hashes = Mapping[str, str]


def hash_code_cells(cells: Iterable[Cell]) -> dict[str, str]:
    """Return the source hashes by cell id of the code cells that have an id."""
    return {
        cell.id: hash_source(cell.source)
        for cell in cells
        if cell.is_code and not INDEX_ID.fullmatch(cell.id)
    }


def list_run_hashes(state: State) -> dict[str, str]:
    """Return the source hash of the last run of each cell, by cell id.

    The running cell is included.
    """
    hashes = dict(state.last_sources)
    current_run = state.running
    if current_run is not None:
        hashes[current_run.cell_id] = hash_source(current_run.source)
    return hashes


def count_unchanged(cells: Hashes, runs: Hashes) -> int:
    """Return the number of cells that have not changed since their last run.

    `cells` maps the ids of the notebook's cells to the current hashes, and `runs` the
    ids of the cells that ran to the hashes of the sources that ran last. Return 0 if
    fewer than half of the cells that ran still exist.
    """
    shared_ids = cells.keys() & runs.keys()
    if 2 * len(shared_ids) < len(runs):
        return 0
    count = 0
    for cell_id in shared_ids:
        if cells[cell_id] == runs[cell_id]:
            count += 1
    return count


def list_marks(cells: Iterable[Cell], plan: Plan | None) -> set[str]:
    """Return the marks of a notebook, which distinguish it from other notebooks.

    The marks are the ids and source hashes of its code cells, and a hash of its plan.
    Empty cells have no marks.
    """
    marks = set[str]()
    for cell in cells:
        is_empty = not cell.source.strip()
        if is_empty or not cell.is_code:
            continue
        marks.add(hash_source(cell.source))
        if not INDEX_ID.fullmatch(cell.id):
            marks.add(cell.id)
    if plan is not None and plan.steps:
        marks.add(_hash_plan(plan))
    return marks


def list_known_marks(state: State) -> set[str]:
    """Return the marks in the journal of a stopped notebook.

    These are the marks of cells that ran, failed the preflight check or caused the
    stop, and of the content that the agent has written since the notebook stopped.
    """
    hashes = list_run_hashes(state)
    preflight_failures = {
        progress.preflight_hash for progress in state.progress.values()
    }
    marks = {
        *hashes,
        *hashes.values(),
        *preflight_failures,
        *state.agent_marks,
    }
    if state.stop:
        marks.add(state.stop.cell_id)
    marks.discard("")
    return {mark for mark in marks if not INDEX_ID.fullmatch(mark)}


def is_replaced(state: State, cells: Iterable[Cell], plan: Plan | None) -> bool:
    """Return whether the file of a stopped notebook contains another notebook.

    This is the case if the journal contains none of the file's code cells, or if the
    file has a different plan that the agent did not write. Return False if the file has
    no code cells, or if the journal has no marks.
    """
    cell_marks = list_marks(cells, None)
    known_marks = list_known_marks(state)
    if not cell_marks or not known_marks:
        return False
    if cell_marks.isdisjoint(known_marks):
        return True
    if plan is None:
        return False
    if _hash_plan(plan) in known_marks:
        return False
    return _is_different_plan(plan, state.plan)


def _hash_plan(plan: Plan) -> str:
    """Return a mark for the problem and the titles of a plan."""
    titles = [step.title for step in plan.steps]
    content = repr((plan.problem, titles))
    return f"plan {hash_source(content)}"


def _is_different_plan(plan: Plan, former: Plan) -> bool:
    """Return whether two plans share neither a step title nor the problem.

    Return False if one of the plans has no steps.
    """
    if not plan.steps or not former.steps:
        return False
    if plan.problem == former.problem:
        return False
    titles = {step.title for step in plan.steps}
    former_titles = {step.title for step in former.steps}
    return titles.isdisjoint(former_titles)


def is_different_notebook(cells: Hashes, runs: Hashes) -> bool:
    """Return whether the notebook contains none of the cells that ran.

    `cells` maps the ids of the notebook's cells to the hashes of their sources. `runs`
    maps the ids of the cells that ran to the hashes of the sources that ran last. Only
    the ids are compared. Return False if no cell ran.
    """
    if not runs:
        return False
    return cells.keys().isdisjoint(runs)
