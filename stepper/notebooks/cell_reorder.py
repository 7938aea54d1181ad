"""The bytes of a notebook whose cells are arranged anew: those that stay do so byte for byte."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from stepper.notebooks.cell_json import make_cell, replace_source
from stepper.notebooks.document import Document
from stepper.notebooks.notebook_json import Changes, apply_changes, replace_cells
from stepper.policy.model import Cell

NAMED_SINCE = 5  # nbformat 4.5 gives cells ids; before they may have none


def rewrite_cells(document: Document, cells: Sequence[Cell]) -> bytes | None:
    """Return a notebook's bytes with these cells: its own, others in the place of its own, new ones (index -1).

    None where they are what it holds.
    """
    before = document.cells
    if [cell.index for cell in cells] == [*range(len(before))]:
        changed: Changes = {
            cell.index: partial(replace_source, kind=cell.type, source=cell.source)
            for cell, own in zip(cells, before, strict=True)
            if cell != own
        }
        return apply_changes(document.data, document.raw, changed) if changed else None
    minor = document.raw.get("nbformat_minor", 0)
    names = (
        {cell.id for cell in before}
        if isinstance(minor, int) and minor >= NAMED_SINCE
        else None
    )
    return replace_cells(
        document.data, [_made(document, cell, names) for cell in cells]
    )


def _made(
    document: Document, cell: Cell, names: set[str] | None
) -> int | dict[str, Any]:
    """Return the index of a cell that stays, or what is written; `names` are taken, None where cells have none."""
    if cell in document.cells:
        return cell.index
    if cell.index >= 0:
        return replace_source(document.raw["cells"][cell.index], cell.type, cell.source)
    name = ""
    while names is not None and (not name or name in names):
        name = uuid.uuid4().hex[:8]
    if names is not None:
        names.add(name)
    return make_cell(cell.type, cell.source, name)
