"""The state of Jupyter widgets in a notebook's metadata: of every model that a cell shows, none besides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stepper.notebooks.notebook_json import dump_json
from stepper.session.protocols import Models

STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"
REFERENCE = "IPY_MODEL_"


def update_metadata(
    metadata: dict[str, Any], cells: Sequence[dict[str, Any]], models: Models
) -> dict[str, Any]:
    """Return a notebook's metadata with the state of a kernel's models.

    Those of former kernels stay as long as a cell shows them; what a model of this kernel's was before its daemon
    ended is there, too.
    """
    widgets = metadata.get("widgets")
    before = (
        widgets.get(STATE, {}).get("state", {}) if isinstance(widgets, dict) else {}
    )
    states, shown = dict(models.states), list(_views(cells))
    for name, model in models.states.items():
        known = before.get(name)
        # an update of what a former daemon saw being made
        if model["model_name"] is None:
            del states[name]
            if known is not None:
                states[name] = {**known, "state": {**known["state"], **model["state"]}}
    room = models.limit - sum(map(_size, states.values()))
    seen = set[str]()
    while shown:
        name = shown.pop()
        if name in seen:
            continue
        seen.add(name)
        if (
            name not in states
            and name in before
            and (room := room - _size(before[name])) >= 0
        ):
            states[name] = before[name]
        shown += _references(states.get(name))
    if not states:
        return metadata
    told = {"state": states, "version_major": 2, "version_minor": 0}
    return {
        **metadata,
        "widgets": {**(widgets if isinstance(widgets, dict) else {}), STATE: told},
    }


def _views(cells: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for cell in cells:
        for output in cell.get("outputs") or ():
            view = (
                (output.get("data") or {}).get(VIEW)
                if isinstance(output, dict)
                else None
            )
            if isinstance(view, dict) and isinstance(view.get("model_id"), str):
                yield view["model_id"]


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.startswith(REFERENCE):
        yield value[len(REFERENCE) :]
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _references(part)


def _size(model: dict[str, Any]) -> int:
    return len(dump_json(model, 5))
