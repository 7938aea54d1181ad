"""Functions that return a changed copy of a cell's JSON.

The copies have the form in which nbformat writes cells (`normalize_cell`). Two other
functions change a notebook's widget state and language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from stepper.notebooks import widget_state
from stepper.notebooks.notebook_json import Changes, normalize_cell
from stepper.policy.execution_result import Execution, WidgetState

RawCell = dict[str, Any]
NOT_RUN: RawCell = {"execution_count": None, "outputs": []}


def apply_execution(
    raw: RawCell,
    execution: Execution,
    step: int | None,
) -> RawCell:
    """Return the cell with the outputs, execution count and timings of an execution.

    If the execution has no timings, remove the old timings, as JupyterLab does. `step`
    is the ID of the plan step that the cell belongs to.
    """
    metadata = _copy_without_timings(raw)
    if execution.timings:
        metadata["execution"] = execution.timings
    if step is not None:
        metadata["stepper"] = {"step": step}
    new_cell = {
        **raw,
        "metadata": metadata,
        "execution_count": execution.execution_count,
        "outputs": execution.outputs,
    }
    return normalize_cell(new_cell)


def _copy_without_timings(raw: RawCell) -> dict[str, Any]:
    """Return a copy of a cell's metadata without the timings of its execution."""
    metadata = dict(raw.get("metadata", {}))
    metadata.pop("execution", None)
    return metadata


def replace_outputs(raw: RawCell, outputs: Sequence[dict[str, Any]]) -> RawCell:
    """Return the cell with its outputs replaced."""
    return normalize_cell({**raw, "outputs": [*outputs]})


def add_widget_change(
    cells: Sequence[RawCell],
    changes: Changes,
    models: WidgetState | None,
) -> Changes:
    """Return `changes` with an additional change that updates the widget state.

    `cells` are all cells before the changes. If `models` is None, return `changes`.
    """
    if models is None:
        return changes
    changed_cells = []
    for index, raw in enumerate(cells):
        new_cell = changes[index](raw) if index in changes else raw
        changed_cells.append(new_cell)
    change = partial(
        widget_state.update_metadata,
        cells=changed_cells,
        models=models,
    )
    return {**changes, "metadata": change}


def add_language_info_change(
    raw: Mapping[str, Any],
    changes: Changes,
    language_info: Mapping[str, Any],
) -> Changes:
    """Return `changes` with an additional change that sets `language_info`.

    `raw` is the notebook. If it already has this `language_info`, or if `language_info`
    is empty, return `changes`. Tools that open the notebook without a kernel need the
    entry. nbclient also writes it.
    """
    metadata = raw.get("metadata") or {}
    if not language_info or metadata.get("language_info") == language_info:
        return changes
    change = changes.get("metadata", dict)

    def add_language_info(metadata: dict[str, Any]) -> dict[str, Any]:
        return {**change(metadata), "language_info": dict(language_info)}

    return {**changes, "metadata": add_language_info}


def replace_id(raw: RawCell, cell_id: str) -> RawCell:
    """Return the cell with another id."""
    return normalize_cell({**raw, "id": cell_id})


def make_cell(
    cell_type: str,
    source: str,
    cell_id: str,
) -> RawCell:
    """Return the JSON of a new cell.

    If `cell_id` is empty, the cell has no id, as in formats before nbformat 4.5.
    """
    raw: RawCell = {"cell_type": cell_type, "metadata": {}, "source": source}
    if cell_type == "code":
        raw.update(NOT_RUN)
    if cell_id:
        raw["id"] = cell_id
    return normalize_cell(raw)


def replace_source(
    raw: RawCell,
    cell_type: str,
    source: str,
) -> RawCell:
    """Return the cell with another source and type, without outputs.

    Outputs and the execution count are removed because they belong to the old source.
    NotebookEdit also removes them. Attachments of a code cell are removed because only
    other cells can have attachments.
    """
    new_cell = {**raw, "cell_type": cell_type, "source": source}
    new_cell.pop("execution_count", None)
    new_cell.pop("outputs", None)
    if cell_type == "code":
        new_cell.pop("attachments", None)
        new_cell.update(NOT_RUN)
    return normalize_cell(new_cell)


def clear_outputs(raw: RawCell) -> RawCell:
    """Return a code cell without outputs, execution count and timings.

    Jupyter also removes these when it clears the outputs.
    """
    metadata = _copy_without_timings(raw)
    return normalize_cell({**raw, "metadata": metadata, **NOT_RUN})


def add_tag(raw: RawCell, tag: str) -> RawCell:
    """Return the cell with a tag, or the unchanged cell if it has the tag."""
    metadata = raw.get("metadata", {})
    tags = get_tags(metadata)
    if tag in tags:
        return raw
    metadata = {**metadata, "tags": [*tags, tag]}
    return normalize_cell({**raw, "metadata": metadata})


def remove_tag(raw: RawCell, tag: str) -> RawCell:
    """Return the cell without a tag, or the unchanged cell if it lacks the tag."""
    metadata = raw.get("metadata", {})
    tags = get_tags(metadata)
    if tag not in tags:
        return raw
    other_tags = [other for other in tags if other != tag]
    metadata = {**metadata, "tags": other_tags}
    return normalize_cell({**raw, "metadata": metadata})


def get_tags(metadata: dict[str, Any]) -> tuple[str, ...]:
    """Return the tags in a cell's metadata.

    Some tools store a single tag as a string instead of a list.
    """
    tags = metadata.get("tags")
    if isinstance(tags, str):
        return (tags,)
    if isinstance(tags, list):
        return tuple(map(str, tags))
    return ()


def get_run_signature(raw: RawCell) -> tuple[Any, ...]:
    """Return values that differ between two runs of a cell.

    The values do not include the outputs, because the user may clear them.
    """
    metadata = raw.get("metadata", {})
    execution_count = raw.get("execution_count")
    return execution_count, metadata.get("execution"), metadata.get("stepper")
