"""The state of Jupyter widgets in a notebook's metadata.

The metadata contains all models of the current kernel. Models of earlier kernels are
kept if a cell shows them, or if another model refers to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stepper.notebooks.notebook_json import dump_json
from stepper.policy.execution_result import WidgetState

STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"
REFERENCE = "IPY_MODEL_"
STATE_DEPTH = 5  # of a model in the notebook's JSON
Model = dict[str, Any]


def update_metadata(
    metadata: dict[str, Any],
    cells: Sequence[dict[str, Any]],
    models: WidgetState,
) -> dict[str, Any]:
    """Return a notebook's metadata with the states of a kernel's widget models.

    Models of earlier kernels are kept if a cell shows them, or if a kept model refers
    to them, and if they are within the size limit. Return the metadata unchanged if
    there are no models.
    """
    widgets = _as_object(metadata.get("widgets"))
    old_states = _as_object(_as_object(widgets.get(STATE)).get("state"))
    states = _merge_updates(models.states, old_states)
    used_bytes = sum(map(_get_size, states.values()))
    free_bytes = models.limit - used_bytes
    visited_ids = set[str]()
    pending_ids = list(_iterate_views(cells))
    while pending_ids:
        model_id = pending_ids.pop()
        if model_id in visited_ids:
            continue
        visited_ids.add(model_id)
        if model_id not in states and model_id in old_states:
            size = _get_size(old_states[model_id])
            if size <= free_bytes:
                free_bytes -= size
                states[model_id] = old_states[model_id]
        pending_ids += _iterate_references(states.get(model_id))
    if not states:
        return metadata
    state = {"state": states, "version_major": 2, "version_minor": 0}
    return {**metadata, "widgets": {**widgets, STATE: state}}


def _merge_updates(
    new_states: Mapping[str, Model],
    old_states: Mapping[str, Model],
) -> dict[str, Model]:
    """Return the models of a kernel, completed with the states in the notebook.

    A model without a name was created before the daemon started. The daemon has
    received only updates of its state, and takes the rest from the notebook. The model
    is left out if the notebook does not contain it.
    """
    states = dict(new_states)
    for model_id, model in new_states.items():
        if model["model_name"] is not None:
            continue
        del states[model_id]
        old_model = old_states.get(model_id)
        if isinstance(old_model, dict):
            state = {**_as_object(old_model.get("state")), **model["state"]}
            states[model_id] = {**old_model, "state": state}
    return states


def _iterate_views(cells: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the ids of the models that cells show."""
    for cell in cells:
        outputs = cell.get("outputs")
        if not isinstance(outputs, list):
            continue
        for output in outputs:
            data = _as_object(_as_object(output).get("data"))
            view = _as_object(data.get(VIEW))
            model_id = view.get("model_id")
            if isinstance(model_id, str):
                yield model_id


def _iterate_references(value: Any) -> Iterator[str]:
    """Yield the ids of the models that a model's state refers to."""
    if isinstance(value, str):
        if value.startswith(REFERENCE):
            yield value.removeprefix(REFERENCE)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _iterate_references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _iterate_references(item)


def _as_object(value: Any) -> dict[str, Any]:
    """Return a value if it is a JSON object, otherwise an empty object.

    An untrusted notebook may contain any value.
    """
    if isinstance(value, dict):
        return value
    return {}


def _get_size(model: Model) -> int:
    """Return the number of bytes of a model in the notebook."""
    return len(dump_json(model, STATE_DEPTH))
