"""The contents of a notebook file: its cells, plan, language and outputs.

A `Document` never changes. Every write starts from a newly read document and finds the
cells by id and source, because their positions may have changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from stepper.common.errors import NotebookError
from stepper.common.text import one_line, shell_quote
from stepper.notebooks.cell_updates import get_tags
from stepper.notebooks.file_state import FileSignature, FileState, get_file_signature
from stepper.policy.changed_cells import hash_source
from stepper.policy.configuration import kernelspec_languages
from stepper.policy.execution_result import CellVersion
from stepper.policy.model import Cell, parse_moment

# The form of the ids that stepper gives to cells of notebooks without cell ids.
GENERATED_ID = re.compile(r"cell-(\d+)")
NBFORMAT = 4
OLD_NBFORMATS = (1, 2, 3)  # which nbconvert converts
KERNELSPEC_CHARACTERS = 100  # the maximum length of a kernelspec's name


class Document:
    """The contents of a notebook file at one time.

    `data` are the bytes of the file, and `raw` is the parsed JSON. `status` is the
    result of `os.fstat`. If the contents do not come from a file, `data` is empty,
    `status` and `signature` are None, and `mtime_ns` is 0.
    """

    def __init__(
        self,
        data: bytes,
        raw: dict[str, Any],
        status: os.stat_result | None = None,
    ) -> None:
        self.data = data
        self.raw = raw
        self.signature: FileSignature | None = None
        self.mtime_ns = 0
        if status is not None:
            self.signature = get_file_signature(status)
            self.mtime_ns = status.st_mtime_ns
        metadata = _as_object(raw.get("metadata"))
        self.metadata = metadata
        self.language = _get_language(metadata)
        kernelspec_name = _as_object(metadata.get("kernelspec")).get("name") or ""
        self.kernelspec_name = one_line(str(kernelspec_name), KERNELSPEC_CHARACTERS)
        self.plan: Any = metadata.get("stepper")

    @property
    def file_state(self) -> FileState | None:
        """The state of the file when it was read, or None if there is no file."""
        if self.signature:
            return self.signature.state
        return None

    @property
    def figure_count(self) -> int:
        """The number of outputs that are images."""
        return sum(map(_is_figure, self._iterate_outputs()))

    def _iterate_outputs(self) -> Iterator[dict[str, Any]]:
        """Yield all outputs of the notebook; an invalid one as an empty object."""
        for cell in self.raw["cells"]:
            outputs = cell.get("outputs")
            if isinstance(outputs, list):
                yield from map(_as_object, outputs)

    @cached_property
    def cells(self) -> Sequence[Cell]:
        """All cells, in order."""
        cells = []
        code_count = 0
        for index, raw in enumerate(self.raw["cells"]):
            number = 0
            if raw.get("cell_type") == "code":
                code_count += 1
                number = code_count
            cells.append(_parse_cell(raw, index, number))
        return cells

    def get_execution_count(self, cell: Cell) -> int | None:
        """Return a cell's execution count, or None if it has none."""
        count = self.raw["cells"][cell.index].get("execution_count")
        if isinstance(count, int):
            return count
        return None

    def get_displayed_execution_count(self, cell: Cell) -> int | None:
        """Return a cell's execution count, or None if it has no count or no outputs."""
        if not self.raw["cells"][cell.index].get("outputs"):
            return None
        return self.get_execution_count(cell)

    def get_recorded_outputs(self, cell: Cell) -> list[dict[str, Any]] | None:
        """Return the outputs of a code cell, or None if the file records no run."""
        raw = self.raw["cells"][cell.index]
        outputs: list[dict[str, Any]] = []
        if isinstance(raw.get("outputs"), list):
            outputs = list(map(_as_object, raw["outputs"]))
        has_count = isinstance(raw.get("execution_count"), int)
        if not outputs and not has_count:
            return None
        return outputs

    def get_recorded_seconds(self, cell: Cell) -> float | None:
        """Return the duration of a code cell's recorded run, or None if unknown.

        JupyterLab records the times of the execution in the metadata of the cell.
        """
        metadata = _as_object(self.raw["cells"][cell.index].get("metadata"))
        times = _as_object(metadata.get("execution"))
        try:
            start_time = parse_moment(times["iopub.execute_input"])
            end_time = parse_moment(times["shell.execute_reply"])
            return (end_time - start_time).total_seconds()
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    def find_index(self, target: CellVersion) -> int | None:
        """Return the index of the cell with the target's id and source, or None.

        If the notebook has no cell ids, return the index of the only code cell with the
        target's source.
        """
        for cell in self.cells:
            if cell.id == target.cell_id and _has_source(cell, target):
                return cell.index
        if not GENERATED_ID.fullmatch(target.cell_id):
            return None
        matches = []
        for cell in self.cells:
            if cell.is_code and _has_source(cell, target):
                matches.append(cell.index)
        if len(matches) != 1:
            return None
        return matches[0]

    def get_raw_cell(self, target: CellVersion) -> dict[str, Any] | None:
        """Return the JSON of the cell that `find_index` finds, or None."""
        index = self.find_index(target)
        if index is None:
            return None
        cells: list[dict[str, Any]] = self.raw["cells"]
        return cells[index]


def _parse_cell(raw: dict[str, Any], index: int, number: int) -> Cell:
    """Return the cell at an index; `number` is 0 if it is not a code cell."""
    source = raw.get("source", "")
    if not isinstance(source, str):
        source = "".join(source)
    metadata = raw.get("metadata") or {}
    return Cell(
        id=str(raw.get("id") or f"cell-{index}"),
        index=index,
        number=number,
        type=str(raw.get("cell_type")),
        source=source,
        tags=get_tags(metadata),
    )


def _get_language(metadata: dict[str, Any]) -> str:
    """Return the language in a notebook's metadata, in lower case.

    If the metadata does not name a language, the name of the kernelspec may suggest
    one. The default is Python.
    """
    language_info = _as_object(metadata.get("language_info"))
    kernelspec = _as_object(metadata.get("kernelspec"))
    name = language_info.get("name") or kernelspec.get("language")
    if not name:
        name = kernelspec_languages.guess_language(str(kernelspec.get("name")))
    return str(name or "python").lower()


def _is_figure(output: dict[str, Any]) -> bool:
    """Return whether an output contains an image."""
    mime_types = _as_object(output.get("data"))
    return any(mime_type.startswith("image/") for mime_type in mime_types)


def _has_source(cell: Cell, target: CellVersion) -> bool:
    """Return whether a cell has the source of a version."""
    return hash_source(cell.source) == target.source_hash


def _as_object(value: Any) -> dict[str, Any]:
    """Return a value if it is a JSON object, otherwise an empty object.

    An untrusted notebook may contain any value.
    """
    if isinstance(value, dict):
        return value
    return {}


def validate_notebook(raw: Any, path: str) -> None:
    """Raise NotebookError unless parsed JSON is an nbformat 4 notebook.

    `path` is the path of the notebook, for messages. This checks only the parts that
    stepper uses, because full validation takes too long.
    """
    name = os.path.basename(path)
    if not isinstance(raw, dict) or "nbformat" not in raw:
        raise NotebookError(
            f"{name} is JSON, but not a notebook: it has no `nbformat`",
            "Restore the notebook, or create a new one",
        )
    version = raw["nbformat"]
    if version != NBFORMAT:
        hint = "Save the notebook in nbformat 4"
        if version in OLD_NBFORMATS:
            hint = f"jupyter nbconvert --to notebook --inplace {shell_quote(path)}"
        raise NotebookError(
            f"{name} has nbformat {version!r}; stepper requires nbformat 4", hint
        )
    cells = raw.get("cells")
    if not isinstance(cells, list) or not all(map(_is_valid_cell, cells)):
        raise NotebookError(
            f"{name} is not a valid notebook: its list of cells is invalid",
            "Each cell must be a JSON object with a `cell_type`. Its `source` must be a"
            " string or a list of strings, and its `metadata` an object",
        )
    if not isinstance(raw.get("metadata", {}), dict):
        raise NotebookError(
            f"{name} is not a valid notebook: its metadata is not a JSON object"
        )


def _is_valid_cell(cell: Any) -> bool:
    """Return whether the parts of a cell that stepper uses have the right types."""
    if not isinstance(cell, dict):
        return False
    has_metadata = isinstance(cell.get("metadata", {}), dict)
    has_type = isinstance(cell.get("cell_type"), str)
    return has_metadata and has_type and _is_text(cell.get("source", ""))


def _is_text(value: Any) -> bool:
    """Return whether a value is a string or a list of strings, as nbformat allows."""
    if isinstance(value, list):
        return all(isinstance(line, str) for line in value)
    return isinstance(value, str)
