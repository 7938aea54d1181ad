"""Whether a notebook is the one that a journal describes: by cell ids and the sources that ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stepper.policy.cell_changes import BY_PLACE, source_hash
from stepper.policy.model import Cell, Plan
from stepper.policy.notebook_state import State


def code_hashes(cells: Iterable[Cell]) -> dict[str, str]:
    """Return the source hash of each code cell by its id; cells without an id are left out."""
    return {
        cell.id: source_hash(cell.source)
        for cell in cells
        if cell.is_code and not BY_PLACE.fullmatch(cell.id)
    }


def ran_hashes(state: State) -> dict[str, str]:
    """Return the source hash with which each cell ran last, or runs now, by its id."""
    hashes = dict(state.ran_ever)
    if state.running is not None:
        hashes[state.running.cell_id] = source_hash(state.running.source)
    return hashes


def count_unchanged(cells: Mapping[str, str], ran: Mapping[str, str]) -> int:
    """Return how many cells are as they ran; 0 unless half of the cells that ran are there."""
    shared = cells.keys() & ran.keys()
    if 2 * len(shared) < len(ran):
        return 0
    return sum(cells[cell_id] == ran[cell_id] for cell_id in shared)


def marks(cells: Iterable[Cell], plan: Plan | None) -> set[str]:
    """Return what tells a notebook from another one: ids and source hashes of its code cells, and its plan."""
    found = set[str]()
    for cell in cells:
        if not cell.is_code or not cell.source.strip():
            continue
        found.add(source_hash(cell.source))
        if not BY_PLACE.fullmatch(cell.id):
            found.add(cell.id)
    if plan is not None and plan.steps:
        found.add(_plan_mark(plan))
    return found


def known_marks(state: State) -> set[str]:
    """Return the marks of a stopped notebook: of what ran or was held back, and of what the agent wrote since."""
    ran = ran_hashes(state)
    held = {progress.held for progress in state.progress.values()}
    stopped = {state.stop.cell_id} if state.stop else set()
    known = {*ran, *ran.values(), *held, *stopped, *state.agent_marks}
    return {mark for mark in known if mark and not BY_PLACE.fullmatch(mark)}


def is_replaced(state: State, cells: Iterable[Cell], plan: Plan | None) -> bool:
    """Return whether a stopped notebook's file holds another notebook, which the agent did not write.

    That is one with code cells of which none is known, or one with a plan of its own. Where no cell is known to have
    been in the stopped notebook, the stop holds.
    """
    code = marks(cells, None)
    known = known_marks(state)
    if not code or not known:
        return False
    if code.isdisjoint(known):
        return True
    if plan is None or _plan_mark(plan) in known:
        return False
    return _is_other_plan(plan, state.plan)


def _plan_mark(plan: Plan) -> str:
    titles = [step.title for step in plan.steps]
    return f"plan {source_hash(repr((plan.problem, titles)))}"


def _is_other_plan(plan: Plan, former: Plan) -> bool:
    """Whether two plans have no step and not the problem in common."""
    titles = {step.title for step in plan.steps}
    former_titles = {step.title for step in former.steps}
    if not titles or not former_titles:
        return False
    return plan.problem != former.problem and titles.isdisjoint(former_titles)


def is_another(cells: Mapping[str, str], ran: Mapping[str, str]) -> bool:
    """Return whether none of the cells that ran is in the notebook."""
    return bool(ran) and cells.keys().isdisjoint(ran)
