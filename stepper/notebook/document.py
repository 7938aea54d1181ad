"""One state of a notebook, as read: its cells, its plan, which cell is which."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from stepper.ground.errors import NotebookError
from stepper.notebook.rawcells import tags_of
from stepper.policy.changes import source_hash
from stepper.policy.model import Cell

CELL_NUMBER = re.compile(r"cell-(\d+)")


def text_of(value: Any) -> str:
    """Return a multi-line string of a notebook: stored as one string or as a list of lines."""
    return value if isinstance(value, str) else "".join(value)


class Document:
    """One state of a notebook file, as read."""

    def __init__(self, data: bytes, raw: dict[str, Any], about: os.stat_result | None = None) -> None:
        self.data, self.raw = data, raw
        self.signature, self.mtime_ns = (signature(about), about.st_mtime_ns) if about else ((), 0)
        metadata = raw.get("metadata") or {}
        info, spec = _object(metadata.get("language_info")), _object(metadata.get("kernelspec"))
        self.language: str = str(info.get("name") or spec.get("language") or "python").lower()
        self.plan: Any = metadata.get("stepper")
        self._cells: list[Cell] | None = None

    @property
    def figures(self) -> int:
        """How many outputs are pictures."""
        found = [cell.get("outputs") for cell in self.raw["cells"]]
        outputs = [_object(output) for group in found if isinstance(group, list) for output in group]
        return sum(any(mime.startswith("image/") for mime in _object(output.get("data"))) for output in outputs)

    @property
    def cells(self) -> Sequence[Cell]:
        """All cells, in order."""
        if self._cells is None:
            found, number = [], 0
            for index, cell in enumerate(self.raw["cells"]):
                kind = str(cell.get("cell_type"))
                number += kind == "code"
                metadata = cell.get("metadata") or {}
                found.append(
                    Cell(
                        str(cell.get("id") or f"cell-{index}"),
                        index,
                        number if kind == "code" else 0,
                        kind,
                        text_of(cell.get("source", "")),
                        tags_of(metadata),
                    )
                )
            self._cells = found
        return self._cells


def _object(value: Any) -> dict[str, Any]:
    """Return a JSON object, an empty one for anything else: metadata may be a stranger's."""
    return value if isinstance(value, dict) else {}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(line, str) for line in value))


def signature(about: os.stat_result) -> tuple[int, ...]:
    """Return what tells one state of a file from another; its last number, the change time, a rename changes too."""
    return (about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)


def check(raw: Any, name: str) -> None:
    """Raise NotebookError unless `raw` has the bones of a notebook of nbformat 4."""
    if not isinstance(raw, dict) or "nbformat" not in raw:
        raise NotebookError(f"{name} is JSON but not a notebook (no nbformat)", "jupyter nbconvert --to notebook …")
    if raw["nbformat"] != 4:
        raise NotebookError(
            f"{name} has nbformat {raw['nbformat']!r}; stepper works on nbformat 4",
            f"jupyter nbconvert --to notebook --nbformat 4 {name}",
        )
    cells = raw.get("cells")
    if not isinstance(cells, list) or not all(
        isinstance(cell, dict)
        and isinstance(cell.get("metadata", {}), dict)
        and _is_text(cell.get("source", ""))
        and isinstance(cell.get("cell_type"), str)
        for cell in cells
    ):
        raise NotebookError(f"{name} is not a valid notebook (its cells)", f"jupyter nbconvert --validate {name}")
    if not isinstance(raw.get("metadata", {}), dict):
        raise NotebookError(f"{name} is not a valid notebook (its metadata)")


def find(document: Document, cell_id: str, wanted: str) -> int | None:
    """Return the index of the cell with that id and source hash; without ids, of the only code cell with that hash."""
    for candidate in document.cells:
        if candidate.id == cell_id and source_hash(candidate.source) == wanted:
            return candidate.index
    if CELL_NUMBER.fullmatch(cell_id):
        same = [c.index for c in document.cells if c.is_code and source_hash(c.source) == wanted]
        return same[0] if len(same) == 1 else None
    return None
