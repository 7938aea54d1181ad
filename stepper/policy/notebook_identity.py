"""Whether a notebook is the one that a journal describes: by cell ids and the sources that ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stepper.policy.cell_changes import BY_PLACE, source_hash
from stepper.policy.model import Cell
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


def is_another(cells: Mapping[str, str], ran: Mapping[str, str]) -> bool:
    """Return whether none of the cells that ran is in the notebook."""
    return bool(ran) and cells.keys().isdisjoint(ran)
