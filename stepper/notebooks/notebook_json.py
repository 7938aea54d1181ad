"""Parses notebooks as plain JSON, and changes parts of them.

All bytes outside the changed parts are kept, and changed parts are written in the
layout of the file (`json_style`). This is fast in large notebooks, and git shows only
the changed cells.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from stepper.notebooks.json_style import BOM, NBFORMAT, JsonStyle, detect_style

LONG_INTEGER = re.compile(rb"[:,\[]\s*-?\d{19}")
# The text between two values, or between a name and its value.
SEPARATOR = re.compile(r"[ \t\n\r]*[,:]?[ \t\n\r]*")
# MIME types other than text/* that nbformat stores as lists of lines.
TEXT_TYPES = ("application/javascript", "image/svg+xml")
RICH_OUTPUTS = ("execute_result", "display_data")
CELLS = "cells"
# The depth of a cell, and of a value at the top of the notebook.
CELL_DEPTH = 2
TOP_DEPTH = 1
DECODER = json.JSONDecoder()

Change = Callable[[Any], Any]
# A part of a notebook: the index of a cell, or a name at the top.
Key = int | str
Changes = Mapping[Key, Change]


class Span(NamedTuple):
    """The position of a value in a document."""

    start: int
    end: int


def load_json(data: bytes) -> Any:
    """Parse JSON; raise ValueError if the data is invalid.

    Python's json module parses data that orjson refuses (NaN, lone surrogates). orjson
    turns integers of more than 64 bits into floats: use `load_json_exact`, which is
    slower, if the value is written again.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _load_with_json(data)


def load_json_exact(data: bytes) -> Any:
    """Parse JSON and keep integers of any size.

    Raise ValueError if the data is invalid.
    """
    if LONG_INTEGER.search(data):
        return _load_with_json(data)
    return load_json(data)


def _load_with_json(data: bytes) -> Any:
    """Parse JSON with Python's json module; raise ValueError if it is invalid."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def dump_json(value: Any, depth: int = 0) -> bytes:
    """Serialize a value like `nbformat.write`; `depth` is the indentation level."""
    return NBFORMAT.dumps(value, depth)


def normalize_cell(cell: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a cell in the form in which nbformat writes cells.

    Texts become lists of lines, and the `trusted` flag of the frontend is removed.
    """
    new_cell = dict(cell)
    new_cell["source"] = _split_lines(cell.get("source", ""))
    metadata = cell.get("metadata")
    if isinstance(metadata, dict):
        new_metadata = dict(metadata)
        new_metadata.pop("trusted", None)
        new_cell["metadata"] = new_metadata
    attachments = cell.get("attachments")
    if isinstance(attachments, dict):
        new_attachments = {}
        for name, bundle in attachments.items():
            new_attachments[name] = _normalize_bundle(bundle)
        new_cell["attachments"] = new_attachments
    outputs = cell.get("outputs")
    if isinstance(outputs, list):
        new_cell["outputs"] = list(map(_normalize_output, outputs))
    return new_cell


def _normalize_output(output: Any) -> Any:
    """Return an output in the form in which nbformat writes outputs."""
    if not isinstance(output, dict):
        return output
    output_type = output.get("output_type")
    if output_type == "stream":
        lines = _split_lines(output.get("text", ""))
        return {**output, "text": lines}
    if output_type in RICH_OUTPUTS:
        bundle = _normalize_bundle(output.get("data"))
        return {**output, "data": bundle}
    return output


def _normalize_bundle(bundle: Any) -> Any:
    """Return a MIME bundle with its texts as lists of lines."""
    if not isinstance(bundle, dict):
        return bundle
    new_bundle = {}
    for mime_type, data in bundle.items():
        new_bundle[mime_type] = _normalize_data(mime_type, data)
    return new_bundle


def _normalize_data(mime_type: str, data: Any) -> Any:
    """Return text as a list of lines, JSON unchanged and other data as one string."""
    if mime_type.startswith("text/") or mime_type in TEXT_TYPES:
        return _split_lines(data)
    if is_json_type(mime_type):
        return data
    return _join_lines(data)


def is_json_type(mime_type: str) -> bool:
    """Return whether nbformat stores the data of a MIME type as JSON, not as a text."""
    if not mime_type.startswith("application/"):
        return False
    return mime_type.endswith(("/json", "+json"))


def _split_lines(text: Any) -> Any:
    """Return a text as a list of lines; return other values unchanged."""
    joined_text = _join_lines(text)
    if isinstance(joined_text, str):
        return joined_text.splitlines(keepends=True)
    return text


def _join_lines(text: Any) -> Any:
    """Return a list of lines as one string; return other values unchanged."""
    if not isinstance(text, list):
        return text
    for line in text:
        if not isinstance(line, str):
            return text
    return "".join(text)


def apply_changes(
    data: bytes,
    raw: dict[str, Any],
    changes: Changes,
) -> bytes:
    """Return the bytes of a notebook after changing some parts of it.

    `raw` is the parsed notebook. Each change is a function that gets the parsed value
    of a part and returns the new value.
    """
    style = detect_style(data)
    new_data = _change_single_cell(data, style, raw, changes)
    if new_data is None:
        try:
            new_data = _change_parts(data, style, changes)
        except (ValueError, KeyError):
            # The encoding is not UTF-8, or a name at the top is missing.
            new_data = _change_whole(data, style, changes)
    if not new_data.endswith(b"\n"):
        new_data += style.newline
    return new_data


def _change_whole(
    data: bytes,
    style: JsonStyle,
    changes: Changes,
) -> bytes:
    """Return the bytes after changing parts of a document and serializing all of it."""
    notebook = _load_with_json(data)
    notebook.setdefault("metadata", {})  # may be one of the parts to change
    cells = notebook[CELLS]
    for key, change in changes.items():
        if isinstance(key, int):
            cells[key] = change(cells[key])
        else:
            notebook[key] = change(notebook[key])
    return style.dumps(notebook)


def replace_cells(data: bytes, cells: Sequence[int | dict[str, Any]]) -> bytes:
    """Return the bytes of a notebook with another list of cells.

    An item of `cells` is the index of a cell to keep unchanged, or a new cell.
    """
    style = detect_style(data)
    try:
        text = data.removeprefix(BOM).decode()
        spans = find_spans(text)
        list_start, list_end = spans[CELLS]
    except (ValueError, KeyError):  # not UTF-8
        return _replace_cells_whole(data, style, cells)
    cell_texts = []
    for cell in cells:
        if isinstance(cell, int):
            start, end = spans[cell]
            cell_texts.append(text[start:end])
        else:
            new_cell = style.dumps(cell, CELL_DEPTH)
            cell_texts.append(new_cell.decode())
    content = ""
    if cell_texts:
        layout = _get_list_layout(text, spans, style)
        joined_cells = layout.separator.join(cell_texts)
        content = layout.lead + joined_cells + layout.tail
    # The brackets of the list are kept.
    before = text[: list_start + 1]
    after = text[list_end - 1 :]
    new_text = before + content + after
    if not new_text.endswith("\n"):
        new_text += style.newline.decode()
    new_data = new_text.encode()
    if data.startswith(BOM):
        new_data = BOM + new_data
    return new_data


def _replace_cells_whole(
    data: bytes,
    style: JsonStyle,
    cells: Sequence[int | dict[str, Any]],
) -> bytes:
    """Replace the cells of a document by serializing the whole document."""
    notebook = _load_with_json(data)
    old_cells = notebook[CELLS]
    new_cells = []
    for cell in cells:
        if isinstance(cell, int):
            new_cells.append(old_cells[cell])
        else:
            new_cells.append(cell)
    notebook[CELLS] = new_cells
    return style.dumps(notebook) + style.newline


class ListLayout(NamedTuple):
    """The texts before, between and after the cells in the list of cells."""

    lead: str
    separator: str
    tail: str


def _get_list_layout(
    text: str,
    spans: Mapping[Key, Span],
    style: JsonStyle,
) -> ListLayout:
    """Return the layout of the list of cells.

    If the list is empty, derive the layout from the style of the document.
    """
    cell_count = sum(isinstance(key, int) for key in spans)
    if cell_count:
        list_start, list_end = spans[CELLS]
        first = spans[0]
        last = spans[cell_count - 1]
        lead = text[list_start + 1 : first.start]
        tail = text[last.end : list_end - 1]
        separator = f",{lead}"
        if cell_count > 1:
            second = spans[1]
            separator = text[first.end : second.start]
        return ListLayout(lead, separator, tail)
    if style.indent is None:
        separator = ", " if style.space_after_colon else ","
        return ListLayout("", separator, "")
    lead = style.format_line_start(CELL_DEPTH).decode()
    tail = style.format_line_start(TOP_DEPTH).decode()
    return ListLayout(lead, f",{lead}", tail)


def _change_single_cell(
    data: bytes,
    style: JsonStyle,
    raw: dict[str, Any],
    changes: Changes,
) -> bytes | None:
    """Return the bytes with one cell changed, without parsing the document.

    Return None if there are other changes, or if a quick search does not find the cell.

    In an indented document, the braces of a cell are on lines of their own. The search
    finds these lines, because JSON strings contain no newlines. The bytes between them
    must parse to exactly the value of the cell.
    """
    if len(changes) != 1 or style.indent is None:
        return None
    ((key, change),) = changes.items()
    if not isinstance(key, int):
        return None
    cells = raw[CELLS]
    cell = cells[key]
    if cells.index(cell) != key:
        return None  # the search would find the equal cell above
    try:
        span = _search_cell(data, style, cell)
        if span is None:
            return None
        cell_bytes = data[span.start : span.end]
        if orjson.loads(cell_bytes) != cell:
            return None
    except (TypeError, ValueError):  # orjson refuses NaN and lone surrogates
        return None
    exact_cell = load_json_exact(cell_bytes)
    changed_cell = style.dumps(change(exact_cell), CELL_DEPTH)
    view = memoryview(data)
    before = view[: span.start]
    after = view[span.end :]
    return b"".join((before, changed_cell, after))


def _search_cell(
    data: bytes,
    style: JsonStyle,
    cell: dict[str, Any],
) -> Span | None:
    """Return the likely position of a cell in an indented document, by its id."""
    line_start = style.format_line_start(CELL_DEPTH)
    cell_id = orjson.dumps(cell.get("id"))
    id_line = style.format_line_start(CELL_DEPTH + 1) + b'"id": ' + cell_id
    id_index = data.find(id_line)
    if id_index < 0:
        return None
    opening = line_start + b"{" + style.newline
    opening_index = data.rfind(opening, 0, id_index + len(style.newline))
    closing = line_start + b"}"
    closing_index = data.find(closing, id_index)
    if opening_index < 0 or closing_index < 0:
        return None
    start = opening_index + len(line_start)
    end = closing_index + len(closing)
    return Span(start, end)


def _change_parts(
    data: bytes,
    style: JsonStyle,
    changes: Changes,
) -> bytes:
    """Return the bytes after changing parts of a document with any layout.

    Raise ValueError if the encoding is not UTF-8, and KeyError if a part is missing.
    """
    text = data.removeprefix(BOM).decode()
    spans = find_spans(text)
    pieces = [BOM] if data.startswith(BOM) else []
    position = 0
    for key in sorted(changes, key=spans.__getitem__):
        start, end = spans[key]
        value, _ = DECODER.raw_decode(text, start)
        depth = CELL_DEPTH if isinstance(key, int) else TOP_DEPTH
        change = changes[key]
        unchanged = text[position:start]
        pieces.append(unchanged.encode())
        pieces.append(style.dumps(change(value), depth))
        position = end
    last_part = text[position:]
    pieces.append(last_part.encode())
    return b"".join(pieces)


def find_spans(text: str) -> dict[Key, Span]:
    """Return the spans of the top-level values by name, and of the cells by index.

    `text` is a notebook, or another object in valid JSON. If the text is not valid,
    the result is arbitrary, or ValueError, IndexError or RecursionError is raised.
    """
    spans: dict[Key, Span] = {}
    opening = text.index("{")
    position = _skip_separator(text, opening + 1)
    while text[position] != "}":
        name, position = DECODER.raw_decode(text, position)
        if not isinstance(name, str):
            raise ValueError("a name is not a string")
        start = _skip_separator(text, position)
        if name == CELLS:
            position = _find_cell_spans(text, start, spans)
        else:
            _, position = DECODER.raw_decode(text, start)
        spans[name] = Span(start, position)
        position = _skip_separator(text, position)
    return spans


def _find_cell_spans(
    text: str,
    start: int,
    spans: dict[Key, Span],
) -> int:
    """Add the spans of the cells in a list; return the position after the list."""
    position = _skip_separator(text, start + 1)
    index = 0
    while text[position] != "]":
        _, end = DECODER.raw_decode(text, position)
        spans[index] = Span(position, end)
        position = _skip_separator(text, end)
        index += 1
    return position + 1


def _skip_separator(text: str, position: int) -> int:
    """Return the position after the separator at `position`, if there is one."""
    match = SEPARATOR.match(text, position)
    assert match is not None
    return match.end()
