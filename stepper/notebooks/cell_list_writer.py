"""Replaces the list of cells in the bytes of a notebook.

The bytes of unchanged cells do not change.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from stepper.notebooks.cell_updates import make_cell, replace_source
from stepper.notebooks.notebook_document import Document
from stepper.notebooks.notebook_json import Change, apply_changes, replace_cells
from stepper.policy.model import Cell

MINOR_WITH_IDS = 5  # cells have ids since nbformat 4.5
ID_LENGTH = 8  # hexadecimal digits


def rewrite_cells(document: Document, cells: Sequence[Cell]) -> bytes | None:
    """Return the bytes of a notebook with another list of cells.

    A cell with an index is the document's cell at this index, possibly with another
    source or type. A cell with index -1 is new. Return None if nothing changes.
    """
    old_cells = document.cells
    indices = [cell.index for cell in cells]
    has_same_order = indices == [cell.index for cell in old_cells]
    if has_same_order:
        changes: dict[int | str, Change] = {}
        for cell, old_cell in zip(cells, old_cells, strict=True):
            if cell != old_cell:
                changes[cell.index] = partial(
                    replace_source,
                    cell_type=cell.type,
                    source=cell.source,
                )
        if not changes:
            return None
        return apply_changes(document.data, document.raw, changes)
    used_ids: set[str] | None = None
    if _has_cell_ids(document):
        used_ids = {cell.id for cell in old_cells}
    items = [_create_item(document, cell, used_ids) for cell in cells]
    return replace_cells(document.data, items)


def _has_cell_ids(document: Document) -> bool:
    """Return whether the notebook's format has cell ids."""
    minor = document.raw.get("nbformat_minor", 0)
    return isinstance(minor, int) and minor >= MINOR_WITH_IDS


def _create_item(
    document: Document,
    cell: Cell,
    used_ids: set[str] | None,
) -> int | dict[str, Any]:
    """Return an item for `replace_cells`.

    This is the index of an unchanged cell, or the JSON of a new or changed cell. The id
    of a new cell is added to `used_ids`. `used_ids` is None if the notebook's format
    has no cell ids.
    """
    if cell in document.cells:
        return cell.index
    if cell.index >= 0:
        raw = document.raw["cells"][cell.index]
        return replace_source(raw, cell.type, cell.source)
    cell_id = ""
    if used_ids is not None:
        cell_id = _make_cell_id(used_ids)
        used_ids.add(cell_id)
    return make_cell(cell.type, cell.source, cell_id)


def _make_cell_id(used_ids: set[str]) -> str:
    """Return a random id that is not in `used_ids`."""
    while True:
        cell_id = uuid.uuid4().hex[:ID_LENGTH]
        if cell_id not in used_ids:
            return cell_id
