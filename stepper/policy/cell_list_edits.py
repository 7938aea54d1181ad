"""Cells put into order by those who name them: which one a name means, new ones, replaced ones, moved ones. Pure.

An arrangement is a list of cells: those of the notebook (one that is another now has its `index` still) and new ones,
whose index is NEW.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from stepper.common.text import format_count
from stepper.policy.model import Cell
from stepper.policy.plan import find_cell

NEW = -1
TOP = "top"
HOW = "give its id, its number among the code cells, `cell-N` (its index from 0) or a negative index"


class NamingError(ValueError):
    """A cell is named that is not there, or a text that is not there exactly once."""


def find(cells: Sequence[Cell], name: str | int) -> Cell | None:
    """Return the cell that a name means: an id, `cell-N`, a number among the code cells, a negative index; or None."""
    text = str(name).strip()
    if found := find_cell(cells, text):
        return found
    if re.fullmatch(r"-[0-9]{1,9}", text):
        return cells[int(text)] if -int(text) <= len(cells) and int(text) else None
    return next(
        (cell for cell in cells if cell.is_code and str(cell.number) == text), None
    )


def named(cells: Sequence[Cell], name: object) -> Cell:
    """Return the cell of that name; raise NamingError."""
    found = (
        find(cells, name)
        if isinstance(name, str | int) and not isinstance(name, bool)
        else None
    )
    if found is None:
        raise NamingError(
            f"there is no cell {str(name)[:100]!r}; the notebook has {counted(cells)}"
        )
    return found


def counted(cells: Sequence[Cell]) -> str:
    """Return how many cells there are, and how many of them have a number."""
    count = format_count(len(cells), "cell")
    code = sum(cell.is_code for cell in cells)
    return count if code == len(cells) else f"{count}, {code} of them with code"


def still(cells: Sequence[Cell], cell: Cell) -> Cell:
    """Return a cell that was named before, as it is now; raise NamingError where it is there no more.

    One without an id of its own, whose name is its place, is known by its source.
    """
    if cell.id != f"cell-{cell.index}":
        same = [each for each in cells if each.id == cell.id]
    else:
        same = [each for each in cells if each.source == cell.source]
        same = [each for each in same if each.index == cell.index] or same
    if len(same) != 1:
        raise NamingError(
            f"the cell {cell.id[:100]!r} was moved, changed or deleted meanwhile"
        )
    return same[0]


class Names:
    """What cells are named by, looked up once: after a wait, or beside another writer, a number may mean another."""

    def __init__(self) -> None:
        self.meant: dict[str, Cell] = {}

    def cell(self, cells: Sequence[Cell], name: object) -> Cell:
        """Return the cell that was meant when the name was looked up first; raise NamingError."""
        if meant := self.meant.get(repr(name)):
            return still(cells, meant)
        self.meant[repr(name)] = named(cells, name)
        return self.meant[repr(name)]

    def id(self, cells: Sequence[Cell], name: str | int | None) -> str | int | None:
        """Return that cell's id, and what names none (None, the top) as it is."""
        return name if name in (None, TOP) else self.cell(cells, name).id


def place(cells: Sequence[Cell], after: str | int | None) -> int:
    """Return the index that what comes below a cell has: the end without one, 0 at the `top`; raise NamingError."""
    return (
        len(cells)
        if after is None
        else 0
        if after == TOP
        else named(cells, after).index + 1
    )


def put_in(cells: Sequence[Cell], at: int, new: Sequence[Cell]) -> list[Cell]:
    """Return the cells with new ones at an index."""
    return [*cells[:at], *new, *cells[at:]]


def replaced(
    cells: Sequence[Cell], cell: Cell, source: str, kind: str | None
) -> list[Cell]:
    """Return the cells with one of them another."""
    return [
        replace(each, source=source, type=kind or each.type) if each is cell else each
        for each in cells
    ]


def without(cells: Sequence[Cell], gone: Collection[Cell]) -> list[Cell]:
    """Return the cells without some."""
    return [cell for cell in cells if cell not in gone]


def moved(
    cells: Sequence[Cell], some: Sequence[Cell], after: str | int | None
) -> list[Cell]:
    """Return the cells with some of them below another one, in the order given; raise NamingError."""
    at = place(cells, after)
    return [*without(cells[:at], some), *some, *without(cells[at:], some)]


def edited(
    cells: Sequence[Cell], name: str | int | None, old: str, new: str
) -> tuple[Cell, str]:
    """Return the cell (of all, where none is named) in which a text stands exactly once, and its source with another
    in its place; raise NamingError with the count.
    """
    among = [named(cells, name)] if name is not None else cells
    if not old:
        raise NamingError("`old_string` is empty")
    counts = {
        cell.index: cell.source.count(old) for cell in among if old in cell.source
    }
    if sum(counts.values()) != 1:
        where = ", ".join(f"{count} in cell-{index}" for index, count in counts.items())
        found = f"{sum(counts.values())} times ({where})" if counts else "nowhere"
        raise NamingError(f"`old_string` stands {found}: it must be there exactly once")
    (index,) = counts
    return cells[index], cells[index].source.replace(old, new)
