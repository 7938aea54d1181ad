"""Find the cells that are new or have changed since they last ran.

Cells are compared by id and source hash. The argument `sources` of these functions
contains the hashes of the sources that ran, by cell id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stepper.policy.model import Cell

# Tags that nbclient and other Jupyter tools define.
SKIP_TAG = "skip-execution"
RAISES_TAG = "raises-exception"
# The id of a cell in a notebook without cell ids.
INDEX_ID = re.compile(r"cell-\d+")
HASH_LENGTH = 16


class CellChanges(NamedTuple):
    """The changes to a notebook since its cells ran."""

    # Runnable cells that are new or changed.
    cells: list[Cell]
    # Ids of cells that were changed or deleted after they ran. Deleted cells are
    # omitted if no cell is new or changed.
    outdated_ids: set[str]


def hash_source(source: str) -> str:
    """Return a hash of a cell's source; white space at the end is ignored."""
    data = source.rstrip().encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:HASH_LENGTH]


def select_runnable(cells: Iterable[Cell]) -> list[Cell]:
    """Return the code cells that are neither empty nor tagged `skip-execution`."""
    return [
        cell
        for cell in cells
        if cell.is_code and cell.source.strip() and SKIP_TAG not in cell.tags
    ]


def select_not_run(cells: Iterable[Cell], sources: Mapping[str, str]) -> list[Cell]:
    """Return the runnable cells that did not run with their current source."""
    return [
        cell
        for cell in select_runnable(cells)
        if sources.get(cell.id) != hash_source(cell.source)
    ]


def select_changed(cells: Iterable[Cell], sources: Mapping[str, str]) -> list[Cell]:
    """Return the runnable cells that are new, or changed since they ran.

    Without stored ids, a cell is not included if any cell ran with the same source,
    because the cell may only have moved.
    """
    hashes = set(sources.values())
    changed_cells = []
    for cell in select_not_run(cells, sources):
        has_id = INDEX_ID.fullmatch(cell.id) is None
        if has_id or hash_source(cell.source) not in hashes:
            changed_cells.append(cell)
    return changed_cells


def find_changes(cells: Sequence[Cell], sources: Mapping[str, str]) -> CellChanges:
    """Return the changes of a notebook since its cells ran."""
    changed_cells = select_changed(cells, sources)
    outdated_ids = {cell.id for cell in changed_cells if cell.id in sources}
    if changed_cells:
        ids = {cell.id for cell in cells}
        # If a script has rewritten the notebook, cells may have new ids. They are not
        # deleted if a cell has the same source.
        hashes = {hash_source(cell.source) for cell in cells}
        outdated_ids |= {
            cell_id
            for cell_id, source_hash in sources.items()
            if cell_id not in ids and source_hash not in hashes
        }
    return CellChanges(changed_cells, outdated_ids)


def find_encoding_problem(source: str) -> str | None:
    """Return why a source cannot be encoded as UTF-8, or None if it can.

    Kernels receive sources as UTF-8. The reason, an unpaired surrogate with its line,
    is a part of a message.
    """
    try:
        source.encode()
    except UnicodeEncodeError as error:
        line = source.count("\n", 0, error.start) + 1
        code_point = f"U+{ord(source[error.start]):04X}"
        return f"line {line} of the source has an unpaired surrogate ({code_point})"
    return None
