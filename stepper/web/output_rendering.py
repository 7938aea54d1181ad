"""A cell's outputs for the page: texts within bounds, tables as rows, pictures by their address, all else in words.

Nothing here is markup when it reaches the page: what a cell made as HTML is either read as a table or shown in a frame
that runs nothing (`whole`).
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stepper.common.text import apply_carriage_returns
from stepper.notebooks.widget_state import REFERENCE, STATE, VIEW
from stepper.web.html_tables import tables
from stepper.web.plotly_svg import PLOTLY, drawn

# characters of a text that the page gets; all of it is one click away
HEAD, TAIL = 4_000, 12_000
ROOM = 300_000  # … of all texts of a cell: of what comes after them little is shown
MOST = 400  # outputs of a cell that the page gets
LARGEST = 200_000  # characters of HTML that is read for tables
RASTER = ("image/png", "image/jpeg", "image/gif", "image/webp")
SVG, HTML, PLAIN = "image/svg+xml", "text/html", "text/plain"
TEXTS = ("text/markdown", "text/latex", "application/json", PLAIN)
Shown = dict[str, Any]


class Raw(NamedTuple):
    """What an address of an output gives."""

    mime: str
    data: bytes


def shown(outputs: Sequence[Any], widgets: Mapping[str, Any]) -> list[Shown]:
    """Return what the page shows of outputs; `widgets` is the state of the notebook's models."""
    found, room = list[Shown](), ROOM
    for place, output in enumerate(outputs[:MOST]):
        if isinstance(output, dict):
            found.append(_shown(output, place, widgets, 1.0 if room > 0 else 0.05))
            room -= len(found[-1].get("text", "")) + len(found[-1].get("tail", ""))
    left = len(outputs) - MOST
    return [
        *found,
        *(
            [{"kind": "words", "text": f"… {left:,} more outputs are in the notebook"}]
            if left > 0
            else []
        ),
    ]


def _shown(
    output: Mapping[str, Any], place: int, widgets: Mapping[str, Any], share: float
) -> Shown:
    kind = output.get("output_type")
    if kind == "stream":
        return _text(
            _joined(output.get("text")),
            place,
            "stderr" if output.get("name") == "stderr" else "stdout",
            share,
        )
    if kind == "error":
        return _text(_traceback(output), place, "error", share)
    data = output.get("data")
    return _rich(data if isinstance(data, dict) else {}, place, widgets, share)


def _rich(
    data: Mapping[str, Any], place: int, widgets: Mapping[str, Any], share: float
) -> Shown:
    plain = _joined(data.get(PLAIN))
    mark = {"n": place, "v": f"{zlib.crc32(repr(data).encode('utf-8', 'replace')):08x}"}
    if picture := next((mime for mime in RASTER if data.get(mime)), None):
        width, height = (
            _size(_bytes(data[picture])) if picture == "image/png" else (0, 0)
        )
        return {
            "kind": "picture",
            **mark,
            "width": width,
            "height": height,
            "alt": plain[:200],
        }
    if data.get(SVG):
        return {"kind": "picture", **mark, "width": 0, "height": 0, "alt": plain[:200]}
    if isinstance(data.get(PLOTLY), dict):
        if drawn(data[PLOTLY]):
            return {
                "kind": "picture",
                **mark,
                "width": 0,
                "height": 0,
                "alt": "Plotly figure, drawn without scripts",
            }
        return {"kind": "words", "text": "Plotly figure: JupyterLab draws it"}
    if isinstance(data.get(VIEW), dict):
        rows = _widget(str(data[VIEW].get("model_id")), widgets, set())
        return (
            {"kind": "widget", "rows": rows}
            if rows
            else {"kind": "words", "text": plain[:300] or "a widget"}
        )
    html = _joined(data.get(HTML))
    if html.strip():
        found = tables(html) if len(html) <= LARGEST else None
        if found:
            return {"kind": "table", **mark, "tables": found}
        return {
            "kind": "html",
            **mark,
            "lines": min(40, max(6, html.count("<tr") or html.count("\n") // 2)),
        }
    mime = next((mime for mime in TEXTS if mime in data), None)
    if mime is None:
        return {
            "kind": "words",
            "text": f"an output of the type {', '.join(map(str, data))[:200] or 'none'}",
        }
    if mime == "text/markdown":
        return {"kind": "markdown", "text": _joined(data[mime])[: HEAD + TAIL]}
    told = plain or (
        _joined(data[mime])
        if mime != "application/json"
        else json.dumps(data[mime], indent=1)
    )
    return _text(told, place, "result", share)


def _text(text: str, place: int, name: str, share: float) -> Shown:
    if "\r" in text:
        text = "\n".join(
            map(apply_carriage_returns, text.replace("\r\n", "\n").split("\n"))
        )
    first, rest = round(HEAD * share), round(TAIL * share)
    if len(text) <= first + rest:
        return {"kind": "text", "name": name, "text": text}
    head, tail = text[:first].rpartition("\n")[0] or text[:first], text[-rest:]
    tail = tail.partition("\n")[2] or tail
    left = len(text) - len(head) - len(tail)
    return {
        "kind": "text",
        "name": name,
        "n": place,
        "text": head,
        "left": left,
        "tail": tail,
    }


def _traceback(output: Mapping[str, Any]) -> str:
    lines = output.get("traceback")
    told = "\n".join(map(str, lines)) if isinstance(lines, list) else ""
    return told or f"{output.get('ename')}: {output.get('evalue')}"


def whole(outputs: Sequence[Any], place: int) -> Raw | None:
    """Return all of an output that the page names by its place: a picture, HTML, a text; None where there is none."""
    output = outputs[place] if 0 <= place < len(outputs) else None
    if not isinstance(output, dict):
        return None
    if output.get("output_type") in ("stream", "error"):
        text = (
            _traceback(output)
            if output["output_type"] == "error"
            else _joined(output.get("text"))
        )
        return Raw("text/plain; charset=utf-8", text.encode("utf-8", "replace"))
    data = output.get("data")
    data = data if isinstance(data, dict) else {}
    for mime in RASTER:
        if data.get(mime):
            return Raw(mime, _bytes(data[mime]))
    if data.get(SVG):
        return Raw(SVG, _joined(data[SVG]).encode("utf-8", "replace"))
    if isinstance(data.get(PLOTLY), dict):
        return Raw(SVG, drawn(data[PLOTLY]).encode())
    if data.get(HTML):
        return Raw(
            "text/html; charset=utf-8",
            (FRAME + _joined(data[HTML])).encode("utf-8", "replace"),
        )
    return Raw(
        "text/plain; charset=utf-8", _joined(data.get(PLAIN)).encode("utf-8", "replace")
    )


# What a frame's own style sheet says before the cell's does: as readable as the page,
# in its colours.
FRAME = """<!doctype html><meta name="color-scheme" content="light dark"><style>
body{margin:0;font:14px/1.5 system-ui,sans-serif}table{border-collapse:collapse}td,th{padding:2px 8px;text-align:right}
</style>"""


def _widget(name: str, models: Mapping[str, Any], seen: set[str]) -> list[Shown]:
    """Return a widget's static form: a row for each that holds a value, bars as bars; of boxes their children."""
    model = models.get(name)
    if name in seen or len(seen) > 200 or not isinstance(model, dict):
        return []
    seen.add(name)
    state, kind = model.get("state"), str(model.get("model_name"))
    state = state if isinstance(state, dict) else {}
    children = state.get("children")
    if isinstance(children, list):
        inner = [str(child).removeprefix(REFERENCE) for child in children]
        return [row for child in inner for row in _widget(child, models, seen)]
    label, value = str(state.get("description") or "")[:200], state.get("value")
    if kind.endswith("ProgressModel") and isinstance(value, int | float):
        low, high = (state.get(key, usual) for key, usual in (("min", 0), ("max", 100)))
        if (
            isinstance(low, int | float)
            and isinstance(high, int | float)
            and high > low
        ):
            return [
                {
                    "label": label,
                    "part": (value - low) / (high - low),
                    "text": f"{value:g} of {high:g}",
                }
            ]
    if isinstance(children := state.get("outputs"), list):
        return [
            {"label": label, "text": _joined(each.get("text"))[-2000:]}
            for each in children
            if isinstance(each, dict)
        ]
    if "index" in state and isinstance(options := state.get("_options_labels"), list):
        at = state["index"]
        value = options[at] if isinstance(at, int) and 0 <= at < len(options) else value
    if value is None or kind == "LayoutModel":
        return [{"label": label, "text": ""}] if label else []
    return [
        {"label": label, "text": str(value)[:2000], "html": kind.startswith("HTML")}
    ]


def widgets_of(metadata: Any) -> Mapping[str, Any]:
    """Return the state of a notebook's widgets, by model."""
    for key in ("widgets", STATE, "state"):
        metadata = metadata.get(key) if isinstance(metadata, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _joined(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else "".join(map(str, value))
        if isinstance(value, list)
        else ""
    )


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_joined(value))
    except (binascii.Error, ValueError):
        return b""


def _size(png: bytes) -> tuple[int, int]:
    """Return a PNG's width and height, so that the page does not jump when it comes."""
    return (
        struct.unpack(">II", png[16:24])
        if png[:8] == b"\x89PNG\r\n\x1a\n" and len(png) > 24
        else (0, 0)
    )
