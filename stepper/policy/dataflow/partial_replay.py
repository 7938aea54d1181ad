"""Select the cells of a partial replay: a cell, the cells below, and what they need.

Cells above that took long and are not needed are skipped. Cells above that took less
than QUICK_SECONDS are replayed, because they may set options or seeds, which the
sources of other cells do not mention.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from stepper.policy.changed_cells import select_runnable
from stepper.policy.model import Cell

QUICK_SECONDS = 1.0
# Cell id → ids of the cells above that it reads from, as in `Dependencies`.
Providers = Mapping[str, Collection[str]]


def select_skipped(
    cells: Sequence[Cell],
    first: Cell,
    providers: Providers,
    durations: Mapping[str, float],
) -> list[Cell]:
    """Return the cells above `first` that a partial replay skips, in order.

    `durations` are the seconds of the last runs, by cell id, as far as they are known.
    """
    runnable = select_runnable(cells)
    needed = _find_needed(runnable, first, providers)
    replayed = set[str]()
    skipped = []
    for cell in runnable:
        if cell.index >= first.index:
            break
        is_quick = durations.get(cell.id, QUICK_SECONDS) < QUICK_SECONDS
        # A cell that reads from a skipped cell would fail.
        is_complete = replayed.issuperset(providers.get(cell.id, ()))
        if cell.id in needed or (is_quick and is_complete):
            replayed.add(cell.id)
        else:
            skipped.append(cell)
    return skipped


def _find_needed(cells: Sequence[Cell], first: Cell, providers: Providers) -> set[str]:
    """Return the ids of the cells from `first` on, and of those that they read from."""
    pending = [cell.id for cell in cells if cell.index >= first.index]
    needed = set(pending)
    while pending:
        new_ids = set(providers.get(pending.pop(), ())) - needed
        needed |= new_ids
        pending += new_ids
    return needed


def find_cell(cells: Sequence[Cell], selection: str) -> Cell | None:
    """Return the runnable cell with an id or a number among the code cells, or None."""
    for cell in select_runnable(cells):
        if selection in (cell.id, str(cell.number)):
            return cell
    return None
