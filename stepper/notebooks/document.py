"""One state of a notebook, as read: its cells, its plan, which cell is which."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from stepper.common.errors import NotebookError
from stepper.notebooks.cell_json import get_tags
from stepper.policy.cell_changes import source_hash
from stepper.policy.model import Cell
from stepper.session.protocols import Target

CELL_NUMBER = re.compile(r"cell-(\d+)")


class Document:
    """One state of a notebook file, as read."""

    def __init__(
        self, data: bytes, raw: dict[str, Any], about: os.stat_result | None = None
    ) -> None:
        self.data, self.raw = data, raw
        self.signature, self.mtime_ns = (
            (get_file_signature(about), about.st_mtime_ns) if about else ((), 0)
        )
        metadata = raw.get("metadata") or {}
        info, spec = (
            _object(metadata.get("language_info")),
            _object(metadata.get("kernelspec")),
        )
        self.language: str = str(
            info.get("name") or spec.get("language") or "python"
        ).lower()
        self.plan: Any = metadata.get("stepper")

    @property
    def figure_count(self) -> int:
        """How many outputs are pictures."""
        found = [cell.get("outputs") for cell in self.raw["cells"]]
        outputs = [
            _object(output)
            for group in found
            if isinstance(group, list)
            for output in group
        ]
        return sum(
            any(mime.startswith("image/") for mime in _object(output.get("data")))
            for output in outputs
        )

    @cached_property
    def cells(self) -> Sequence[Cell]:
        """All cells, in order."""
        found, number = [], 0
        for index, cell in enumerate(self.raw["cells"]):
            source, metadata = cell.get("source", ""), cell.get("metadata") or {}
            number += cell.get("cell_type") == "code"
            found.append(
                Cell(
                    id=str(cell.get("id") or f"cell-{index}"),
                    index=index,
                    number=number if cell.get("cell_type") == "code" else 0,
                    type=str(cell.get("cell_type")),
                    source=source if isinstance(source, str) else "".join(source),
                    tags=get_tags(metadata),
                )
            )
        return found

    def get_displayed_execution_count(self, cell: Cell) -> int | None:
        """Return the execution count of a cell with outputs; None where it has none."""
        raw = self.raw["cells"][cell.index]
        count = raw.get("execution_count") if raw.get("outputs") else None
        return count if isinstance(count, int) else None

    def get_recorded_outputs(self, cell: Cell) -> list[dict[str, Any]] | None:
        """Return a code cell's outputs; None where no run of it is recorded."""
        raw = self.raw["cells"][cell.index]
        outputs = [_object(output) for output in raw.get("outputs") or ()]
        return (
            outputs if outputs or isinstance(raw.get("execution_count"), int) else None
        )

    def find_index(self, target: Target) -> int | None:
        """Return the index of the cell with that id and source; without ids, of the only code cell with that source."""
        for cell in self.cells:
            if (
                cell.id == target.cell_id
                and source_hash(cell.source) == target.source_hash
            ):
                return cell.index
        if CELL_NUMBER.fullmatch(target.cell_id):
            same = [
                each.index
                for each in self.cells
                if each.is_code and source_hash(each.source) == target.source_hash
            ]
            return same[0] if len(same) == 1 else None
        return None

    def get_raw_cell(self, target: Target) -> dict[str, Any] | None:
        """Return the cell that `find` finds as it stands in the file."""
        index = self.find_index(target)
        found: dict[str, Any] | None = (
            None if index is None else self.raw["cells"][index]
        )
        return found


def _object(value: Any) -> dict[str, Any]:
    """Return a JSON object, an empty one for anything else: metadata may be a stranger's."""
    return value if isinstance(value, dict) else {}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(line, str) for line in value)
    )


def get_file_signature(about: os.stat_result) -> tuple[int, ...]:
    """Return what tells one state of a file from another; its last number, the change time, a rename changes too."""
    return (about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)


def validate_notebook(raw: Any, name: str) -> None:
    """Raise NotebookError unless `raw` has the bones of a notebook of nbformat 4."""
    if not isinstance(raw, dict) or "nbformat" not in raw:
        raise NotebookError(
            f"{name} is JSON but not a notebook (no nbformat)",
            "jupyter nbconvert --to notebook …",
        )
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
        raise NotebookError(
            f"{name} is not a valid notebook (its cells)",
            f"jupyter nbconvert --validate {name}",
        )
    if not isinstance(raw.get("metadata", {}), dict):
        raise NotebookError(f"{name} is not a valid notebook (its metadata)")
