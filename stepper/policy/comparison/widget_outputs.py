"""Add the outputs inside widgets to the outputs of a cell.

A display of a widget contains only the id of its model. The models are in the metadata
of the notebook, if the program that recorded it saves the state of widgets.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepper.policy.comparison.ignored_differences import PROGRESS
from stepper.policy.comparison.output_items import CellOutputs

VIEW_TYPE = "application/vnd.jupyter.widget-view+json"
STATE_TYPE = "application/vnd.jupyter.widget-state+json"
# The space that tqdm uses in its widgets.
FIGURE_SPACE = "\u2007"
# The prefix of references to other models.
REFERENCE = "IPY_MODEL_"
JsonObject = Mapping[str, Any]
Output = JsonObject
# The models of a notebook by id.
Models = JsonObject


def get_models(metadata: JsonObject) -> Models:
    """Return the widget models in a notebook's metadata."""
    widgets = _get_object(metadata, "widgets")
    widget_state = _get_object(widgets, STATE_TYPE)
    return _get_object(widget_state, "state")


def shows_widgets(outputs: Sequence[Output]) -> bool:
    """Return whether outputs display widgets, which later cells may change."""
    return any(map(_get_view, outputs))


def has_models(outputs: Sequence[Output], models: Models) -> bool:
    """Return whether `models` contains the models of all displayed widgets."""
    for output in outputs:
        view = _get_view(output)
        if view and view not in models:
            return False
    return True


def add_widget_outputs(cell_outputs: CellOutputs, models: Models) -> CellOutputs:
    """Return the outputs of a cell, each followed by the outputs inside its widgets."""
    outputs = list[Output]()
    for output in cell_outputs.outputs:
        outputs.append(output)
        view = _get_view(output)
        if view:
            outputs += _iterate_nested(view, models, set())
    if len(outputs) == len(cell_outputs.outputs):
        return cell_outputs
    return replace(cell_outputs, outputs=outputs)


def _get_view(output: Output) -> str:
    """Return the id of the model that an output displays, or an empty string."""
    data = _get_object(output, "data")
    view = _get_object(data, VIEW_TYPE)
    return str(view.get("model_id", ""))


def _iterate_nested(model_id: str, models: Models, seen: set[str]) -> Iterator[Output]:
    """Yield the outputs inside a widget and its children.

    `seen` contains the ids of the models that were already visited.
    """
    if model_id in seen:
        return
    seen.add(model_id)
    model = _get_object(models, model_id)
    state = _get_object(model, "state")
    name = model.get("model_name")
    if name == "OutputModel":
        for output in _get_list(state, "outputs"):
            if isinstance(output, Mapping):
                yield output
    elif name == "HTMLModel":
        # The text of a progress bar of tqdm.
        text = html.unescape(str(state.get("value")))
        text = text.replace(FIGURE_SPACE, " ")
        if PROGRESS.search(text):
            data = {"text/plain": text}
            yield {"output_type": "display_data", "data": data}
    for child in _get_list(state, "children"):
        child_id = str(child).removeprefix(REFERENCE)
        yield from _iterate_nested(child_id, models, seen)


def _get_object(container: JsonObject, name: str) -> JsonObject:
    """Return a JSON object by its key, or an empty object for another value."""
    value = container.get(name)
    if isinstance(value, Mapping):
        return value
    return {}


def _get_list(container: JsonObject, name: str) -> list[Any]:
    """Return a JSON array by its key, or an empty list if the value is not an array."""
    value = container.get(name)
    if isinstance(value, list):
        return value
    return []
