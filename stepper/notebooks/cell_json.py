"""What is put into a cell as the notebook holds it: outputs, a name, a tag; and the widgets' state beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from stepper.notebooks import widget_state
from stepper.notebooks.notebook_json import Changes, normalize_cell
from stepper.session.protocols import Execution, Models

NOT_RUN: dict[str, Any] = {"execution_count": None, "outputs": []}


def apply_execution(
    raw: dict[str, Any], execution: Execution, step: int | None
) -> dict[str, Any]:
    """Return the raw cell with what came of its run; without timings it has none, as in JupyterLab."""
    metadata = {
        name: value
        for name, value in raw.get("metadata", {}).items()
        if name != "execution"
    }
    metadata |= {"execution": execution.timings} if execution.timings else {}
    metadata |= {"stepper": {"step": step}} if step is not None else {}
    ran = {
        "metadata": metadata,
        "execution_count": execution.execution_count,
        "outputs": execution.outputs,
    }
    return normalize_cell({**raw, **ran})


def replace_outputs(
    raw: dict[str, Any], outputs: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the raw cell with what it shows now."""
    return normalize_cell({**raw, "outputs": [*outputs]})


def add_widget_change(
    cells: Sequence[dict[str, Any]], changes: Changes, models: Models | None
) -> Changes:
    """Return the changes with that of the widgets' state: models that no cell shows any more are not kept."""
    if models is None:
        return changes
    after = [
        changes[index](raw) if index in changes else raw
        for index, raw in enumerate(cells)
    ]
    return {
        **changes,
        "metadata": partial(widget_state.update_metadata, cells=after, models=models),
    }


def add_language_info_change(
    raw: Mapping[str, Any], changes: Changes, info: Mapping[str, Any]
) -> Changes:
    """Return the changes with the kernel's `language_info` in the metadata, where the notebook has another one.

    nbclient writes it before each run, for tools that open the notebook without a kernel.
    """
    metadata = raw.get("metadata") or {}
    if not info or metadata.get("language_info") == info:
        return changes
    change = changes.get("metadata", dict)
    return {
        **changes,
        "metadata": lambda metadata: {**change(metadata), "language_info": dict(info)},
    }


def replace_id(raw: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the raw cell under another id."""
    return normalize_cell({**raw, "id": name})


def make_cell(kind: str, source: str, name: str) -> dict[str, Any]:
    """Return a raw cell as nbformat makes them; one without a name has no id, as before nbformat 4.5."""
    ran: dict[str, Any] = dict(NOT_RUN) if kind == "code" else {}
    return normalize_cell(
        {
            "cell_type": kind,
            "metadata": {},
            "source": source,
            **ran,
            **({"id": name} if name else {}),
        }
    )


def replace_source(raw: dict[str, Any], kind: str, source: str) -> dict[str, Any]:
    """Return the raw cell with another source: what came of the former one is no longer its own, as in NotebookEdit."""
    kept = {
        name: value
        for name, value in raw.items()
        if name not in ("execution_count", "outputs")
    }
    kept = {
        name: value
        for name, value in kept.items()
        if name != "attachments" or kind != "code"
    }
    ran: dict[str, Any] = dict(NOT_RUN) if kind == "code" else {}
    return normalize_cell({**kept, "cell_type": kind, "source": source, **ran})


def clear_outputs(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the raw cell without outputs, as Jupyter clears them."""
    metadata = {
        name: value
        for name, value in raw.get("metadata", {}).items()
        if name != "execution"
    }
    return normalize_cell({**raw, "metadata": metadata, **NOT_RUN})


def add_tag(raw: dict[str, Any], tag: str) -> dict[str, Any]:
    """Return the raw cell with a tag, as it was where it has it."""
    metadata = raw.get("metadata", {})
    tags = get_tags(metadata)
    return (
        raw
        if tag in tags
        else normalize_cell({**raw, "metadata": {**metadata, "tags": [*tags, tag]}})
    )


def remove_tag(raw: dict[str, Any], tag: str) -> dict[str, Any]:
    """Return the raw cell without a tag."""
    metadata = raw.get("metadata", {})
    tags = get_tags(metadata)
    if tag not in tags:
        return raw
    kept = [each for each in tags if each != tag]
    return normalize_cell({**raw, "metadata": {**metadata, "tags": kept}})


def get_tags(metadata: dict[str, Any]) -> tuple[str, ...]:
    """Return a cell's tags; a single one may stand without a list."""
    tags = metadata.get("tags")
    return (
        (tags,)
        if isinstance(tags, str)
        else tuple(map(str, tags))
        if isinstance(tags, list)
        else ()
    )


def get_run_signature(raw: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells one run's outputs from another's: a person may have cleared them, which is no loss."""
    metadata = raw.get("metadata", {})
    return (
        raw.get("execution_count"),
        metadata.get("execution"),
        metadata.get("stepper"),
    )
