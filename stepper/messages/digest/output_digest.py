"""Outputs of a cell in a few lines: text, tables, figures, errors and other content.

An `OutputItem` is a part of the outputs. `format_items` shortens items to a number of
characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepper.common.text import clean, format_count, one_line
from stepper.messages.quoted_output import (
    Completeness,
    get_output_text,
    quote_ends,
)

# Sizes in characters.
MIN_TEXT = 60  # a text is not shortened to less, but replaced by a count
# A text has at most MIN_LINES lines, and a line more for CHARACTERS_PER_LINE characters
# of its limit: a client numbers each line.
MIN_LINES = 5
CHARACTERS_PER_LINE = 40
LINE_OVERHEAD = 3  # the quotation mark and the line break
NOTE_LIMIT = 300
LINE_LIMIT = 200
TABLE_ROWS = 7  # lines of a table with more than MAX_TABLE_LINES lines
MAX_TABLE_LINES = 12

UNSAVED = "Figure: an image that is not saved as a file"
TEXT = "text"
TABLE = "table"
NOTE = "note"
ERROR = "error"
COMPLETE_KINDS = (NOTE, ERROR)

SHAPE = re.compile(r"\[\d+ rows x \d+ columns\]")
# In a traceback of IPython, without colors: the frame of a cell, an arrow at a line,
# and a frame of another file.
CELL_FRAME = re.compile(r"^ *Cell In ?\[\d+\], line (\d+)[^\n]*\n(.*)", re.MULTILINE)
FAILING_LINE = re.compile(r"^-+> *(\d+) (.*)$", re.MULTILINE)
# Above the traceback of an error, after that of its cause.
CAUSE_LINE = re.compile(
    r"^(?:The above exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:)$",
    re.MULTILINE,
)
FILE_FRAME = re.compile(r"^(?:File )?[~/]", re.MULTILINE)
WIDGET = "application/vnd.jupyter.widget-view+json"
PLOTLY = "application/vnd.plotly.v1+json"
HTML = "text/html"
# The names of the formats that a digest describes with their size.
FORMAT_NAMES = {
    WIDGET: "widget",
    PLOTLY: "Plotly figure",
    HTML: "HTML",
    "image/svg+xml": "SVG image",
    "application/javascript": "JavaScript",
    "text/latex": "LaTeX",
    "text/markdown": "Markdown",
    "application/json": "JSON",
}


@dataclass(frozen=True)
class OutputItem:
    """A part of a cell's outputs.

    `kind` is TEXT (text that is shortened), TABLE (a table whose first rows are shown),
    or NOTE or ERROR (complete lines on other content or on an error). `completeness`
    says how much of a text the notebook contains.
    """

    kind: str
    text: str
    completeness: Completeness = Completeness.UNKNOWN


def list_items(
    outputs: Sequence[Mapping[str, Any]],
    figures: Sequence[str] = (),
    completeness: Completeness = Completeness.UNKNOWN,
) -> list[OutputItem]:
    """Return the items of a cell's outputs.

    `figures` are the lines on the images among the outputs, in order. A line is empty
    if an earlier one describes the image, too.
    """
    items: list[OutputItem] = []
    images = iter(figures)
    for output in outputs:
        if output.get("output_type") == "error":
            error = _format_error(output)
            items.append(OutputItem(ERROR, error))
            continue
        if has_image(output):
            note = next(images, UNSAVED)
        else:
            data = _get_data(output)
            kind = TABLE if _is_table(data) else TEXT
            text = get_output_text(output)
            is_stream = output.get("output_type") == "stream"
            _add_text(items, OutputItem(kind, text, completeness), is_stream)
            note = _describe_formats(data)
        if note:
            item = OutputItem(NOTE, note)
            items.append(item)
    return items


def has_image(output: Mapping[str, Any]) -> bool:
    """Return whether an output is a bitmap image."""
    mimes = map(str, _get_data(output))
    return any(mime.startswith("image/") and mime != "image/svg+xml" for mime in mimes)


def _get_data(output: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the data of an output by MIME type; a stream has no data."""
    data = output.get("data")
    return data if isinstance(data, dict) else {}


def _add_text(items: list[OutputItem], item: OutputItem, is_stream: bool) -> None:
    """Append the text of an output; combine it with a text directly before it.

    `is_stream` says whether the output is a stream, which continues the last line.
    """
    if not item.text.strip():
        return
    last = items[-1] if items else None
    if last is None or last.kind != TEXT or item.kind != TEXT:
        items.append(item)
        return
    text = last.text
    if not is_stream and not text.endswith("\n"):
        text += "\n"
    items[-1] = replace(last, text=text + item.text)


def _is_table(data: Mapping[str, Any]) -> bool:
    """Return whether an output is an HTML table that also has a text."""
    html = _join(data.get(HTML, ""))
    return "text/plain" in data and "<table" in html


def _join(value: Any) -> str:
    """Return the data of a MIME type, which nbformat may store as a list of lines."""
    if isinstance(value, list):
        return "".join(map(str, value))
    if isinstance(value, str):
        return value
    return str(value)


def _describe_formats(data: Mapping[str, Any]) -> str:
    """Return a line on the formats of an output that the digest does not show.

    If the output also has a text, the line names only interactive formats. The line is
    empty if there is nothing to name.
    """
    text = _join(data.get("text/plain", ""))
    has_text = bool(text.strip())
    parts = []
    for mime, content in data.items():
        is_interactive = mime in (WIDGET, PLOTLY)
        if mime == "text/plain" or (has_text and not is_interactive):
            continue
        other_name = one_line(str(mime), 60)
        name = FORMAT_NAMES.get(mime, other_name)
        if mime != WIDGET:
            character_count = len(_join(content))
            size = format_count(character_count, "character")
            name += f" ({size})"
        parts.append(name)
    if not parts:
        return ""
    names = ", ".join(parts)
    return f"Not shown: {names}"


def _format_error(output: Mapping[str, Any]) -> str:
    """Return the class and the message of an error, and the failing line."""
    name = str(output.get("ename") or "")
    message = str(output.get("evalue") or "")
    error = one_line(name, LINE_LIMIT)
    if message.strip():
        error += ": " + one_line(message, NOTE_LIMIT)
    lines = ["Error:", f"| {error}"]
    traceback = clean(get_output_text(output))
    failing_line = _find_failing_line(traceback)
    if failing_line:
        lines.append(f"| → {failing_line}")
    return "\n".join(lines)


def _find_failing_line(traceback: str) -> str:
    """Return the number and the text of the line of the cell that failed.

    Return an empty string if the traceback of IPython does not contain the line.
    """
    # The tracebacks of the causes come first.
    causes = [*CAUSE_LINE.finditer(traceback)]
    if causes:
        traceback = traceback[causes[-1].end() :]
    frame = CELL_FRAME.search(traceback)
    start = frame.start() if frame else 0
    arrow = FAILING_LINE.search(traceback, start)
    if arrow and (frame is None or frame[1] == arrow[1]):
        if FILE_FRAME.search(traceback, start, arrow.start()):
            return ""  # the arrow is in the frame of another file
        return f"{arrow[1]} {one_line(arrow[2], LINE_LIMIT)}"
    if frame:
        # A syntax error: its line follows the frame without an arrow.
        return f"{frame[1]} {one_line(frame[2], LINE_LIMIT)}"
    return ""


def measure_items(items: Sequence[OutputItem]) -> int:
    """Return the number of characters of items that are shown in full."""
    size = 0
    for item in items:
        line_count = item.text.count("\n") + 1
        size += len(item.text) + line_count * LINE_OVERHEAD
    return size


def format_items(items: Sequence[OutputItem], limit: int) -> list[str]:
    """Return the lines of items with about `limit` characters.

    Notes and errors are always complete.
    """
    lines: list[str] = []
    notes = [item for item in items if item.kind in COMPLETE_KINDS]
    text_count = len(items) - len(notes)
    room = limit - measure_items(notes)
    for item in items:
        if item.kind in COMPLETE_KINDS:
            lines += item.text.split("\n")
            continue
        share = room // text_count
        text_count -= 1
        item_lines = _format_text(item, share)
        room -= sum(map(len, item_lines))
        lines += item_lines
    return lines


def list_notes(items: Sequence[OutputItem]) -> list[str]:
    """Return the lines on figures and other content that is not text."""
    lines: list[str] = []
    for item in items:
        if item.kind == NOTE:
            lines += item.text.split("\n")
    return lines


def _format_text(item: OutputItem, limit: int) -> list[str]:
    """Return the quoted lines of a text or table below a title."""
    text = item.text.strip("\n")
    if len(text) <= MIN_TEXT:
        limit = max(limit, MIN_TEXT)
    if len(text) > limit and limit < MIN_TEXT:
        line_count = text.count("\n") + 1
        lines = format_count(line_count, "line")
        characters = format_count(len(text), "character")
        return [f"Output: {lines} ({characters}) left out"]
    if item.kind == TABLE:
        return ["Output:", *_format_table(text, limit)]
    max_lines = MIN_LINES + limit // CHARACTERS_PER_LINE
    completeness = item.completeness
    if completeness is Completeness.WHOLE:
        completeness = Completeness.UNKNOWN  # as for most outputs
    quoted = quote_ends(text, limit, completeness, max_lines)
    return ["Output:", *quoted.split("\n")]


def _format_table(text: str, limit: int) -> list[str]:
    """Return the first rows of a table, and its shape if its last line contains it."""
    rows = text.split("\n")
    shown = rows
    if len(rows) > MAX_TABLE_LINES:
        shown = rows[:TABLE_ROWS]
    while len(shown) > 1 and sum(map(len, shown)) > limit:
        shown = shown[:-1]
    lines = []
    for row in shown:
        short_row = clean(row[: 2 * LINE_LIMIT])[:LINE_LIMIT]
        lines.append(f"| {short_row}")
    hidden_count = len(rows) - len(shown)
    if not hidden_count:
        return lines
    shape = SHAPE.search(rows[-1])
    suffix = ""
    if shape:
        suffix = f" {shape[0]}"
    hidden = format_count(hidden_count, "more line")
    gap = f"… {hidden} left out{suffix}"
    return [*lines, gap]
