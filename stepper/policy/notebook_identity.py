"""Whether a notebook is the one that a journal describes.

Notebooks are compared by the ids and source hashes of their cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stepper.policy.cell_changes import INDEX_ID, hash_source
from stepper.policy.model import Cell, Plan
from stepper.policy.notebook_state import State


def hash_code_cells(cells: Iterable[Cell]) -> dict[str, str]:
    """Return the source hashes of the code cells that have an id, by that id."""
    return {
        cell.id: hash_source(cell.source)
        for cell in cells
        if cell.is_code and not INDEX_ID.fullmatch(cell.id)
    }


def list_run_hashes(state: State) -> dict[str, str]:
    """Return the source hash of the last run of each cell, by cell id.

    A run in progress counts.
    """
    hashes = dict(state.last_sources)
    if state.running is not None:
        hashes[state.running.cell_id] = hash_source(state.running.source)
    return hashes


def count_unchanged(cells: Mapping[str, str], runs: Mapping[str, str]) -> int:
    """Return the number of cells that are unchanged since their last run.

    Both arguments map cell ids to source hashes. The result is 0 unless at least half
    of the cells that ran still exist.
    """
    shared = cells.keys() & runs.keys()
    if 2 * len(shared) < len(runs):
        return 0
    return sum(cells[cell_id] == runs[cell_id] for cell_id in shared)


def list_marks(cells: Iterable[Cell], plan: Plan | None) -> set[str]:
    """Return the marks that distinguish a notebook from another one.

    These are the ids and source hashes of its code cells, and its plan.
    """
    marks = set[str]()
    for cell in cells:
        if not cell.is_code or not cell.source.strip():
            continue
        marks.add(hash_source(cell.source))
        if not INDEX_ID.fullmatch(cell.id):
            marks.add(cell.id)
    if plan is not None and plan.steps:
        marks.add(_hash_plan(plan))
    return marks


def list_known_marks(state: State) -> set[str]:
    """Return the marks of a stopped notebook.

    These are the cells that ran or failed the preflight check, and what the agent wrote
    since the stop.
    """
    hashes = list_run_hashes(state)
    preflight_failures = {
        progress.preflight_hash for progress in state.progress.values()
    }
    stopped_ids = {state.stop.cell_id} if state.stop else set()
    marks = {
        *hashes,
        *hashes.values(),
        *preflight_failures,
        *stopped_ids,
        *state.agent_marks,
    }
    return {mark for mark in marks if mark and not INDEX_ID.fullmatch(mark)}


def is_replaced(state: State, cells: Iterable[Cell], plan: Plan | None) -> bool:
    """Return whether the file of a stopped notebook contains another notebook.

    The other notebook has code cells of which none is known, or a plan of its own, and
    the agent did not write it. If no cell of the stopped notebook is known, the
    notebook counts as the same.
    """
    cell_marks = list_marks(cells, None)
    known_marks = list_known_marks(state)
    if not cell_marks or not known_marks:
        return False
    if cell_marks.isdisjoint(known_marks):
        return True
    if plan is None or _hash_plan(plan) in known_marks:
        return False
    return _is_different_plan(plan, state.plan)


def _hash_plan(plan: Plan) -> str:
    titles = [step.title for step in plan.steps]
    return f"plan {hash_source(repr((plan.problem, titles)))}"


def _is_different_plan(plan: Plan, former: Plan) -> bool:
    """Return whether two plans share neither a step nor the problem."""
    titles = {step.title for step in plan.steps}
    former_titles = {step.title for step in former.steps}
    if not titles or not former_titles:
        return False
    return plan.problem != former.problem and titles.isdisjoint(former_titles)


def is_different_notebook(cells: Mapping[str, str], runs: Mapping[str, str]) -> bool:
    """Return whether none of the cells that ran exists in the notebook."""
    return bool(runs) and cells.keys().isdisjoint(runs)
