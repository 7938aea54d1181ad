"""Which cells are new or changed since they last ran: by id and source hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

from stepper.policy.model import Cell

SKIP_TAG = "skip-execution"  # as nbclient, nbconvert and JupyterLab know it
RAISES_TAG = "raises-exception"
BY_PLACE = re.compile(r"cell-\d+")  # the name of a cell without an id


def source_hash(source: str) -> str:
    """Return the fingerprint of a cell's source; white space at its end does not count."""
    return hashlib.sha256(source.rstrip().encode("utf-8", "surrogatepass")).hexdigest()[
        :16
    ]


def runnable(cells: Iterable[Cell]) -> list[Cell]:
    """Return the code cells that are meant to run: not empty, not tagged `skip-execution`."""
    return [
        cell
        for cell in cells
        if cell.is_code and cell.source.strip() and SKIP_TAG not in cell.tags
    ]


def not_run_yet(cells: Iterable[Cell], ran: Mapping[str, str]) -> list[Cell]:
    """Return the runnable cells whose present source is not what `ran` (cell id → source hash) holds."""
    return [
        cell for cell in runnable(cells) if ran.get(cell.id) != source_hash(cell.source)
    ]


def changed(cells: Iterable[Cell], ran: Mapping[str, str]) -> list[Cell]:
    """Return the cells of `not_run_yet`, without those that are named by their place and have moved."""
    sources = set(ran.values())
    return [
        cell
        for cell in not_run_yet(cells, ran)
        if not (BY_PLACE.fullmatch(cell.id) and source_hash(cell.source) in sources)
    ]


def since(cells: Sequence[Cell], ran: Mapping[str, str]) -> tuple[list[Cell], set[str]]:
    """Return the cells of `changed`, and the ids under which another source stands than ran there, or none."""
    fresh = changed(cells, ran)
    gone = {cell.id for cell in fresh if cell.id in ran}
    if fresh:  # a script that writes a notebook anew gives its cells other ids
        there = {cell.id for cell in cells} | {
            source_hash(cell.source) for cell in cells
        }
        gone |= {name for name, source in ran.items() if not {name, source} & there}
    return fresh, gone


def halved(source: str) -> str | None:
    """Return why a source can't be sent to a kernel: half of a character stands in it; None where none does."""
    try:
        source.encode()
    except UnicodeEncodeError as error:
        line = source.count("\n", 0, error.start) + 1
        return f"line {line} of the source holds half of a character (U+{ord(source[error.start]):04X})"
    return None
