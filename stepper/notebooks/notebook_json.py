"""Notebooks as plain JSON: read with orjson, changed in place, everything else kept byte for byte.

What is written has the layout of the file (`jsonstyle`), which is that of `nbformat.write` for most. A step must not
pay for validating a hundred cells, nor change the whole file in git.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from stepper.notebooks.json_style import BOM, NBFORMAT, JsonStyle, detect_style

LONG_INTEGER = re.compile(rb"[:,\[]\s*-?\d{19}")
# two values, or a name and its value
BETWEEN = re.compile(r"[ \t\n\r]*[,:]?[ \t\n\r]*")
# besides text/*: kept as lists of lines
TEXTUAL = ("application/javascript", "image/svg+xml")
CELLS = "cells"
DECODER = json.JSONDecoder()


def load_json(data: bytes) -> Any:
    """Parse JSON; raise ValueError.

    Python's own parser takes what orjson refuses: NaN, lone surrogates. orjson makes floats of integers of more than 64
    bits: whoever writes again what was parsed goes by `load_exactly`, which takes several times as long.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _by_python(data)


def load_json_exact(data: bytes) -> Any:
    """Parse JSON, its integers as long as they stand; raise ValueError."""
    return _by_python(data) if LONG_INTEGER.search(data) else load_json(data)


def _by_python(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def dump_json(value: Any, depth: int = 0) -> bytes:
    """Serialise as `nbformat.write` does, as the value stands `depth` levels inside the document."""
    return NBFORMAT.dumps(value, depth)


def normalize_cell(cell: dict[str, Any]) -> dict[str, Any]:
    """Return a cell as nbformat writes it: its texts as lists of lines, without what belongs to one front end."""
    made = {**cell, "source": _lines(cell.get("source", ""))}
    if isinstance(cell.get("metadata"), dict):
        made["metadata"] = {
            name: value for name, value in cell["metadata"].items() if name != "trusted"
        }
    if isinstance(cell.get("attachments"), dict):
        made["attachments"] = {
            name: _bundle(part) for name, part in cell["attachments"].items()
        }
    if isinstance(cell.get("outputs"), list):
        made["outputs"] = [_output(output) for output in cell["outputs"]]
    return made


def _output(output: Any) -> Any:
    if isinstance(output, dict) and output.get("output_type") == "stream":
        return {**output, "text": _lines(output.get("text", ""))}
    if isinstance(output, dict) and output.get("output_type") in (
        "execute_result",
        "display_data",
    ):
        return {**output, "data": _bundle(output.get("data"))}
    return output


def _bundle(data: Any) -> Any:
    return (
        {mime: _part(mime, part) for mime, part in data.items()}
        if isinstance(data, dict)
        else data
    )


def _part(mime: str, part: Any) -> Any:
    """Return texts as lines, other data in one piece, JSON as it is."""
    if mime.startswith("text/") or mime in TEXTUAL:
        return _lines(part)
    return (
        part
        if mime.startswith("application/") and mime.endswith(("/json", "+json"))
        else _joined(part)
    )


def _lines(text: Any) -> Any:
    text = _joined(text)
    return text.splitlines(True) if isinstance(text, str) else text


def _joined(text: Any) -> Any:
    is_lines = isinstance(text, list) and all(isinstance(line, str) for line in text)
    return "".join(text) if is_lines else text


Change = Callable[[Any], Any]
# by a cell's index, or the name of what stands at the top
Changes = Mapping[int | str, Change]


def apply_changes(data: bytes, raw: dict[str, Any], changes: Changes) -> bytes:
    """Return a notebook's bytes with some parts changed and all others as they stand.

    `raw` is what they say; a change is called with its part, exactly as it was written.
    """
    made = None
    style = detect_style(data)
    if len(changes) == 1:
        ((where, change),) = changes.items()
        if isinstance(where, int):
            made = _spliced(data, style, raw["cells"][where], change)
    if made is None:
        try:
            made = _pieced(data, style, changes)
        except (ValueError, KeyError):
            # another encoding than UTF-8; a name that is not there yet
            whole = {"metadata": {}, **_by_python(data)}
            for where, change in changes.items():
                holder = whole["cells"] if isinstance(where, int) else whole
                holder[where] = change(holder[where])
            made = style.dumps(whole)
    return made if made.endswith(b"\n") else made + style.newline


def replace_cells(data: bytes, cells: Sequence[int | dict[str, Any]]) -> bytes:
    """Return a notebook's bytes with other cells: those of the indices given as they stand, and new ones."""
    style = detect_style(data)
    try:
        text = data.removeprefix(BOM).decode()
        places = _places(text)
        stood = [places[index] for index in range(len(places)) if index in places]
        begin, end = places[CELLS]
    except (ValueError, KeyError):  # another encoding than UTF-8
        whole = _by_python(data)
        whole["cells"] = [
            whole["cells"][cell] if isinstance(cell, int) else cell for cell in cells
        ]
        return style.dumps(whole) + style.newline
    if stood:
        lead = text[begin + 1 : stood[0][0]]
        separator = text[stood[0][1] : stood[1][0]] if len(stood) > 1 else f",{lead}"
        tail = text[stood[-1][1] : end - 1]
    elif style.indent is None:
        lead, tail = "", ""
        separator = ", " if style.space_after_colon else ","
    else:
        lead, tail = style.line_start(2).decode(), style.line_start(1).decode()
        separator = f",{lead}"
    parts = [
        text[slice(*stood[cell])]
        if isinstance(cell, int)
        else style.dumps(cell, 2).decode()
        for cell in cells
    ]
    made = separator.join(parts)
    done = (
        text[: begin + 1] + (f"{lead}{made}{tail}" if cells else "") + text[end - 1 :]
    )
    if not done.endswith("\n"):
        done += style.newline.decode()
    return (BOM if data.startswith(BOM) else b"") + done.encode()


def _spliced(
    data: bytes, style: JsonStyle, old: dict[str, Any], change: Change
) -> bytes | None:
    """Return the bytes with one cell changed; None where it is not found at a glance.

    In an indented document a cell stands between two lines that hold its braces alone. A raw newline or a bare quote
    never stands inside a JSON string; what was found must parse to the very cell.
    """
    if style.indent is None:
        return None
    opening = style.line_start(2) + b"{" + style.newline
    closing = style.line_start(2) + b"}"
    name_line = style.line_start(3) + b'"id": '
    try:
        named = data.find(name_line + orjson.dumps(old.get("id")))
        start = data.rfind(opening, 0, named + 1)
        end = data.find(closing, named)
        if named < 0 or start < 0 or end < 0:
            return None
        start += len(style.line_start(2))
        end += len(closing)
        if orjson.loads(data[start:end]) != old:
            return None
    except (TypeError, ValueError):  # what orjson refuses: NaN, lone surrogates
        return None
    cell = style.dumps(change(load_json_exact(data[start:end])), 2)
    return b"".join((memoryview(data)[:start], cell, memoryview(data)[end:]))


def _pieced(data: bytes, style: JsonStyle, changes: Changes) -> bytes:
    """Return the bytes with parts changed, however they are laid out; raise ValueError or KeyError."""
    text = data.removeprefix(BOM).decode()
    places = _places(text)
    pieces, last = [BOM] if data.startswith(BOM) else [], 0
    for where in sorted(changes, key=places.__getitem__):
        start, end = places[where]
        value = DECODER.raw_decode(text, start)[0]
        depth = 2 if isinstance(where, int) else 1
        pieces += [text[last:start].encode(), style.dumps(changes[where](value), depth)]
        last = end
    return b"".join((*pieces, text[last:].encode()))


def _places(text: str) -> dict[int | str, tuple[int, int]]:
    """Return where what stands at the top of a notebook begins and ends, by name, and each cell, by index."""
    places: dict[int | str, tuple[int, int]] = {}
    at = _next(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = DECODER.raw_decode(text, at)
        begin = at = _next(text, at)
        if name == CELLS:
            at, index = _next(text, at + 1), 0
            while text[at] != "]":
                places[index] = at, DECODER.raw_decode(text, at)[1]
                at, index = _next(text, places[index][1]), index + 1
            at += 1
        else:
            at = DECODER.raw_decode(text, at)[1]
        places[name] = begin, at
        at = _next(text, at)
    return places


def _next(text: str, at: int) -> int:
    """Return where the next name or value begins, or the bracket that ends them."""
    found = BETWEEN.match(text, at)
    assert found is not None
    return found.end()
