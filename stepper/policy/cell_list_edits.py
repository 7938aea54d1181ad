"""Edits of a notebook's list of cells: find, insert, replace, move and remove cells.

Functions that edit return a new list, whose cells still have the `index` from before
the edit. The index of a new cell is `NEW_INDEX`. Functions that find cells need a list
that was read from the notebook, in which all indexes are right.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from stepper.common.text import format_count
from stepper.policy.model import Cell
from stepper.policy.plan import find_cell

Cells = Sequence[Cell]
# An id, `cell-N`, a number among the code cells, or a negative index.
Reference = str | int

NEW_INDEX = -1
# A reference to the position above all cells.
TOP = "top"
REFERENCE_HINT = (
    "To refer to a cell, use its id, its number among the code cells, `cell-N`"
    " (its index from 0) or a negative index"
)


class CellReferenceError(ValueError):
    """A cell reference, or a text to replace, does not identify exactly one cell."""


def find_referenced_cell(cells: Cells, reference: Reference) -> Cell | None:
    """Return the cell that a reference identifies, or None if there is none.

    A reference is a cell id, `cell-N`, a number among the code cells, or a negative
    index.
    """
    text = str(reference).strip()
    cell = find_cell(cells, text)
    if cell is not None:
        return cell
    if re.fullmatch(r"-[0-9]{1,9}", text):
        index = int(text)
        exists = -len(cells) <= index < 0
        return cells[index] if exists else None
    code_cells = [cell for cell in cells if cell.is_code]
    for cell in code_cells:
        if str(cell.number) == text:
            return cell
    return None


def get_referenced_cell(cells: Cells, reference: object) -> Cell:
    """Return the cell that a reference identifies.

    Raise CellReferenceError if the cell does not exist, or if the reference is neither
    a string nor an integer.
    """
    cell = None
    is_bool = isinstance(reference, bool)  # `true` in JSON is not a number
    if isinstance(reference, Reference) and not is_bool:
        cell = find_referenced_cell(cells, reference)
    if cell is None:
        raise CellReferenceError(
            f"there is no cell {str(reference)[:100]!r};"
            f" the notebook has {_format_cell_count(cells)}"
        )
    return cell


def _format_cell_count(cells: Cells) -> str:
    """Return the number of cells, such as "3 cells, 2 of them code cells"."""
    count = format_count(len(cells), "cell")
    code_count = sum(cell.is_code for cell in cells)
    if code_count == len(cells):
        return count
    return f"{count}, {code_count} of them code cells"


def find_current_cell(cells: Cells, cell: Cell) -> Cell:
    """Return the current version of a cell that was read earlier.

    A cell without an id is found by its source, because its index may have changed. If
    several cells have this source, the cell that has kept its index is returned. Raise
    CellReferenceError if the cell does not exist or is ambiguous.
    """
    has_id = cell.id != f"cell-{cell.index}"
    if has_id:
        matches = [match for match in cells if match.id == cell.id]
    else:
        same_source = [match for match in cells if match.source == cell.source]
        unmoved_cells = [match for match in same_source if match.index == cell.index]
        matches = unmoved_cells or same_source
    if len(matches) != 1:
        raise CellReferenceError(
            f"cell {cell.id[:100]!r} has been moved, changed or deleted in the meantime"
        )
    return matches[0]


class SourceEdit(NamedTuple):
    """A cell of a notebook, and its new source."""

    cell: Cell
    source: str


class CellReferences:
    """Resolves the cell references of a request, each always to the same cell.

    Without this, a number could refer to another cell after another program has edited
    the notebook.
    """

    def __init__(self) -> None:
        self.resolved: dict[str, Cell] = {}

    def resolve(self, cells: Cells, reference: object) -> Cell:
        """Return the cell that a reference identifies, in its current version.

        The first call with a reference determines the cell. Later calls return the same
        cell, even if its index has changed. Raise CellReferenceError if the cell does
        not exist or can no longer be identified.
        """
        key = repr(reference)
        if key in self.resolved:
            return find_current_cell(cells, self.resolved[key])
        self.resolved[key] = get_referenced_cell(cells, reference)
        return self.resolved[key]

    def resolve_id(self, cells: Cells, reference: Reference | None) -> Reference | None:
        """Return the id of the cell that a reference identifies.

        None and `TOP` are returned as they are. Raise CellReferenceError if the cell
        does not exist or can no longer be identified.
        """
        if reference in (None, TOP):
            return reference
        return self.resolve(cells, reference).id


def find_insertion_index(cells: Cells, after: Reference | None) -> int:
    """Return the index at which to insert cells below the cell `after`.

    `after` is a reference to a cell, `TOP` for the start of the notebook, or None for
    its end. Raise CellReferenceError if the cell does not exist.
    """
    if after is None:
        return len(cells)
    if after == TOP:
        return 0
    return get_referenced_cell(cells, after).index + 1


def insert_cells(cells: Cells, index: int, new: Cells) -> list[Cell]:
    """Return the cells, with the cells `new` inserted at an index."""
    above = cells[:index]
    below = cells[index:]
    return [*above, *new, *below]


def replace_cell(
    cells: Cells, replaced: Cell, source: str, cell_type: str | None
) -> list[Cell]:
    """Return the cells with a new source for the cell `replaced`.

    `cell_type` is the new type of this cell; None keeps its type.
    """
    return [
        replace(cell, source=source, type=cell_type or cell.type)
        if cell is replaced
        else cell
        for cell in cells
    ]


def remove_cells(cells: Cells, removed: Collection[Cell]) -> list[Cell]:
    """Return the cells except the removed cells."""
    return [cell for cell in cells if cell not in removed]


def move_cells(cells: Cells, moved: Cells, after: Reference | None) -> list[Cell]:
    """Return the cells with `moved` below the cell `after`, in the order of `moved`.

    See `find_insertion_index` for `after`. Raise CellReferenceError if the cell does
    not exist.
    """
    index = find_insertion_index(cells, after)
    above = remove_cells(cells[:index], moved)
    below = remove_cells(cells[index:], moved)
    return [*above, *moved, *below]


def edit_source(
    cells: Cells, reference: Reference | None, old: str, new: str
) -> SourceEdit:
    """Return the edit that replaces the text `old` with `new`.

    `reference` identifies the cell; None means the only cell that contains the text.
    Raise CellReferenceError if the cell does not exist, or if `old` is empty or does
    not occur exactly once.
    """
    if not old:
        raise CellReferenceError("`old_string` is empty")
    candidates = cells
    if reference is not None:
        candidates = [get_referenced_cell(cells, reference)]
    matches = [cell for cell in candidates if old in cell.source]
    if not matches:
        scope = "in any cell" if reference is None else "in that cell"
        raise CellReferenceError(f"`old_string` does not occur {scope}")
    counts = {cell.index: cell.source.count(old) for cell in matches}
    total = sum(counts.values())
    if total > 1:
        occurrences = [f"{count} in cell-{index}" for index, count in counts.items()]
        raise CellReferenceError(
            f"`old_string` occurs {total} times ({', '.join(occurrences)}),"
            " but must occur exactly once"
        )
    cell = matches[0]
    return SourceEdit(cell, cell.source.replace(old, new))
