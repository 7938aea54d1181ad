"""Rendering of a cell's outputs for the page.

Texts are truncated, tables become rows of texts, and images are replaced by their
addresses. HTML from a notebook is never part of the page: it is parsed as a table, or
shown in a sandboxed frame without scripts (`get_full_output`).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from html import unescape
from typing import Any, NamedTuple

from stepper.common.text import apply_carriage_returns, format_count
from stepper.notebooks.widget_state import REFERENCE, STATE, VIEW
from stepper.web.html_tables import parse_tables
from stepper.web.plotly_svg import PLOTLY, render_svg

# The page gets this many characters from the start and from the end of a text.
HEAD_CHARACTERS = 4_000
TAIL_CHARACTERS = 12_000
# If the texts of a cell are longer than this, the limits for the next texts of the cell
# are multiplied by SMALL_SHARE.
CELL_CHARACTERS = 300_000
SMALL_SHARE = 0.05
MAX_OUTPUTS = 400  # the maximum number of outputs of a cell
MAX_HTML_CHARACTERS = 200_000  # the maximum length of HTML that is parsed as tables
MAX_ALT_CHARACTERS = 200
MAX_LABEL_CHARACTERS = 200
MAX_VALUE_CHARACTERS = 2_000
MAX_TYPES_CHARACTERS = 200
MAX_WIDGET_CHARACTERS = 300  # the maximum length of the text of an unknown widget
MAX_WIDGETS = 200
MIN_FRAME_LINES = 6
MAX_FRAME_LINES = 40
RASTER_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
PNG = "image/png"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# The bytes of a PNG that contain its width and height: the start of the first chunk.
PNG_SIZE = slice(16, 24)
SVG = "image/svg+xml"
HTML = "text/html"
PLAIN = "text/plain"
MARKDOWN = "text/markdown"
JSON = "application/json"
TEXT_TYPES = (MARKDOWN, "text/latex", JSON, PLAIN)
TAG = re.compile(r"<[^<>]*>")
TEXT_RESPONSE = "text/plain; charset=utf-8"
HTML_RESPONSE = "text/html; charset=utf-8"
# The style sheet of a frame, which precedes the output's own style sheet.
FRAME_STYLE = """<!doctype html><meta name="color-scheme" content="light dark"><style>
body{margin:0;font:14px/1.5 system-ui,sans-serif}
table{border-collapse:collapse}
td,th{padding:2px 8px;text-align:right}
</style>"""

# The description of an output for the page. `kind` selects how the page shows it.
RenderedOutput = dict[str, Any]
Models = Mapping[str, Any]
Data = Mapping[str, Any]


class FullOutput(NamedTuple):
    """A complete output with its MIME type."""

    mime: str
    data: bytes


def render_outputs(outputs: Sequence[Any], widgets: Models) -> list[RenderedOutput]:
    """Return the descriptions of a cell's outputs for the page.

    `widgets` are the widget models in the notebook's metadata.
    """
    rendered_outputs = list[RenderedOutput]()
    characters = 0
    for index, output in enumerate(outputs[:MAX_OUTPUTS]):
        if isinstance(output, dict):
            share = 1.0 if characters < CELL_CHARACTERS else SMALL_SHARE
            rendered_output = _render_output(output, index, widgets, share)
            rendered_outputs.append(rendered_output)
            characters += len(rendered_output.get("text", ""))
            characters += len(rendered_output.get("tail", ""))
    omitted_count = len(outputs) - MAX_OUTPUTS
    if omitted_count > 0:
        verb = "is" if omitted_count == 1 else "are"
        note = f"… {format_count(omitted_count, 'more output')} {verb} in the notebook"
        rendered_outputs.append(_make_note(note))
    return rendered_outputs


def _make_note(text: str) -> RenderedOutput:
    """Return a note that is shown instead of an output."""
    return {"kind": "words", "text": text}


def _render_output(
    output: Mapping[str, Any],
    index: int,
    widgets: Models,
    share: float,
) -> RenderedOutput:
    """Return the description of an output. `share` is a factor for the text limits."""
    output_type = output.get("output_type")
    if output_type == "stream":
        name = "stderr" if output.get("name") == "stderr" else "stdout"
        return _render_text(_join(output.get("text")), index, name, share)
    if output_type == "error":
        return _render_text(_format_traceback(output), index, "error", share)
    data = output.get("data")
    if not isinstance(data, dict):
        data = {}
    return _render_data(data, index, widgets, share)


def _render_data(
    data: Data,
    index: int,
    widgets: Models,
    share: float,
) -> RenderedOutput:
    """Return the description of a MIME bundle, from its richest supported type."""
    image = _render_image(data, index)
    if image is not None:
        return image
    view = data.get(VIEW)
    if isinstance(view, dict):
        return _render_widget(view, data, widgets)
    if _join(data.get(HTML)).strip():
        return _render_html(data, index)
    return _render_plain(data, index, share)


def _render_image(data: Data, index: int) -> RenderedOutput | None:
    """Return the description of an image or a Plotly figure, or None if neither exists.

    A Plotly figure that can't be drawn as SVG is described by a note.
    """
    alt = _join(data.get(PLAIN))[:MAX_ALT_CHARACTERS]
    raster_type = _find_raster_type(data)
    if raster_type == PNG:
        width, height = _get_png_size(_decode_base64(data[PNG]))
        return _make_image(data, index, alt, width, height)
    if raster_type is not None or data.get(SVG):
        return _make_image(data, index, alt)
    figure = data.get(PLOTLY)
    if not isinstance(figure, dict):
        return None
    if render_svg(figure):
        alt = "Plotly figure, drawn without scripts"
        return _make_image(data, index, alt)
    return _make_note("Plotly figure: to see it, open the notebook in JupyterLab")


def _find_raster_type(data: Data) -> str | None:
    """Return the MIME type of the bitmap image in a bundle, or None."""
    for mime_type in RASTER_TYPES:
        if data.get(mime_type):
            return mime_type
    return None


def _make_image(
    data: Data,
    index: int,
    alt: str,
    width: int = 0,
    height: int = 0,
) -> RenderedOutput:
    """Return the description of an image. Its width and height are 0 if unknown."""
    return {
        "kind": "picture",
        **_make_address(data, index),
        "width": width,
        "height": height,
        "alt": alt,
    }


def _make_address(data: Data, index: int) -> RenderedOutput:
    """Return the parameters of an output's address: its index and a checksum.

    The checksum makes browsers load an output again after a change.
    """
    text = repr(data).encode("utf-8", "replace")
    return {"n": index, "v": f"{zlib.crc32(text):08x}"}


def _render_widget(
    view: Data,
    data: Data,
    widgets: Models,
) -> RenderedOutput:
    """Return the rows of a widget, or a note if the widget has no rows."""
    model_id = str(view.get("model_id"))
    rows = _list_widget_rows(model_id, widgets, set())
    if rows:
        return {"kind": "widget", "rows": rows}
    text = _join(data.get(PLAIN))[:MAX_WIDGET_CHARACTERS]
    return _make_note(text or "a widget that the page can't show")


def _render_html(data: Data, index: int) -> RenderedOutput:
    """Describe an HTML output: as tables if possible, otherwise as a frame.

    The `lines` of a frame are its estimated height.
    """
    html = _join(data[HTML])
    address = _make_address(data, index)
    if len(html) <= MAX_HTML_CHARACTERS:
        tables = parse_tables(html)
        if tables:
            return {"kind": "table", **address, "tables": tables}
    # A table has a line per row. About half of the lines of other HTML only have tags.
    estimate = html.count("<tr") or html.count("\n") // 2
    height = min(MAX_FRAME_LINES, max(MIN_FRAME_LINES, estimate))
    return {"kind": "html", **address, "lines": height}


def _render_plain(
    data: Data,
    index: int,
    share: float,
) -> RenderedOutput:
    """Return the description of the text in a MIME bundle, preferably Markdown.

    Long Markdown is described as a text. Return a note if the bundle contains none of
    TEXT_TYPES.
    """
    markdown = _join(data.get(MARKDOWN))
    if 0 < len(markdown) <= HEAD_CHARACTERS + TAIL_CHARACTERS:
        return {"kind": "markdown", "text": markdown}
    if any(mime_type in data for mime_type in TEXT_TYPES):
        return _render_text(_get_text(data), index, "result", share)
    mime_types = ", ".join(map(str, data))[:MAX_TYPES_CHARACTERS]
    if not mime_types:
        return _make_note("an output without data")
    return _make_note(f"an output of a type that the page can't show: {mime_types}")


def _get_text(data: Data) -> str:
    """Return the Markdown of a MIME bundle, or else its plain text.

    Without these, return the first of TEXT_TYPES, or an empty string if the bundle
    contains no text.
    """
    text = _join(data.get(MARKDOWN)) or _join(data.get(PLAIN))
    if text:
        return text
    for mime_type in TEXT_TYPES:
        if mime_type not in data:
            continue
        if mime_type == JSON:
            return json.dumps(data[JSON], indent=1)
        return _join(data[mime_type])
    return ""


def _render_text(
    text: str,
    index: int,
    name: str,
    share: float,
) -> RenderedOutput:
    """Return the description of a text. A long text is reduced to its start and end.

    `index` is the index of the output, and `name` is the kind of text, such as
    `stderr`. In the description, `left` is the number of omitted characters.
    """
    if "\r" in text:
        lines = text.replace("\r\n", "\n").split("\n")
        text = "\n".join(map(apply_carriage_returns, lines))
    head_limit = round(HEAD_CHARACTERS * share)
    tail_limit = round(TAIL_CHARACTERS * share)
    if len(text) <= head_limit + tail_limit:
        return {"kind": "text", "name": name, "text": text}
    head = text[:head_limit]
    tail = text[-tail_limit:]
    # Cut the text between lines, unless the line is longer than the limit.
    complete_lines, _, _ = head.rpartition("\n")
    head = complete_lines or head
    _, _, complete_lines = tail.partition("\n")
    tail = complete_lines or tail
    return {
        "kind": "text",
        "name": name,
        "n": index,
        "text": head,
        "left": len(text) - len(head) - len(tail),
        "tail": tail,
    }


def _format_traceback(output: Mapping[str, Any]) -> str:
    """Return the traceback of an error; if it has none, its class and message."""
    lines = output.get("traceback")
    if isinstance(lines, list) and lines:
        traceback = "\n".join(map(str, lines))
        if traceback:
            return traceback
    return f"{output.get('ename')}: {output.get('evalue')}"


def get_full_output(outputs: Sequence[Any], index: int) -> FullOutput | None:
    """Return the complete output at an index, or None if it does not exist.

    Of a MIME bundle, only one type is returned: an image, or else HTML, or else text.
    """
    if not 0 <= index < len(outputs):
        return None
    output = outputs[index]
    if not isinstance(output, dict):
        return None
    output_type = output.get("output_type")
    if output_type == "error":
        return _make_text_output(_format_traceback(output))
    if output_type == "stream":
        return _make_text_output(_join(output.get("text")))
    data = output.get("data")
    if not isinstance(data, dict):
        data = {}
    raster_type = _find_raster_type(data)
    if raster_type is not None:
        return FullOutput(raster_type, _decode_base64(data[raster_type]))
    if data.get(SVG):
        return FullOutput(SVG, _encode(_join(data[SVG])))
    figure = data.get(PLOTLY)
    if isinstance(figure, dict):
        return FullOutput(SVG, render_svg(figure).encode())
    html = _join(data.get(HTML))
    if html.strip():
        return FullOutput(HTML_RESPONSE, _encode(FRAME_STYLE + html))
    return _make_text_output(_get_text(data))


def _make_text_output(text: str) -> FullOutput:
    """Return a text as a complete output."""
    return FullOutput(TEXT_RESPONSE, _encode(text))


def _encode(text: str) -> bytes:
    """Return a text in UTF-8, with question marks for lone surrogates."""
    return text.encode("utf-8", "replace")


def _list_widget_rows(
    model_id: str,
    models: Models,
    visited_ids: set[str],
) -> list[RenderedOutput]:
    """Return a static description of a widget, with a row for each value.

    A progress bar becomes a row with a bar. A box is replaced by the rows of its
    children. `visited_ids` contains the ids of the models that already have rows.
    """
    model = models.get(model_id)
    if model_id in visited_ids or len(visited_ids) >= MAX_WIDGETS:
        return []
    if not isinstance(model, dict):
        return []
    visited_ids.add(model_id)
    state = model.get("state")
    if not isinstance(state, dict):
        state = {}
    children = state.get("children")
    if isinstance(children, list):
        rows = []
        for child in children:
            child_id = str(child).removeprefix(REFERENCE)
            rows += _list_widget_rows(child_id, models, visited_ids)
        return rows
    return _render_model(str(model.get("model_name")), state)


def _render_model(model_name: str, state: Data) -> list[RenderedOutput]:
    """Return the rows of a widget without children.

    The value of an HTML widget is shown without its tags.
    """
    label = str(state.get("description") or "")[:MAX_LABEL_CHARACTERS]
    if model_name.endswith("ProgressModel"):
        bar = _render_progress(label, state)
        if bar is not None:
            return [bar]
    outputs = state.get("outputs")
    if isinstance(outputs, list):
        rows = []
        for output in outputs:
            if isinstance(output, dict):
                text = _join(output.get("text"))
                rows.append({"label": label, "text": text[-MAX_VALUE_CHARACTERS:]})
        return rows
    value = _get_widget_value(state)
    if value is None or model_name == "LayoutModel":
        if label:
            return [{"label": label, "text": ""}]
        return []
    text = str(value)
    if model_name.startswith("HTML"):
        text = unescape(TAG.sub("", text))
    return [{"label": label, "text": text[:MAX_VALUE_CHARACTERS]}]


def _render_progress(label: str, state: Data) -> RenderedOutput | None:
    """Return the row of a progress bar, or None if its values are not valid."""
    value = state.get("value")
    low = state.get("min", 0)
    high = state.get("max", 100)
    for number in (value, low, high):
        if not isinstance(number, int | float):
            return None
    if high <= low:
        return None
    return {
        "label": label,
        "part": (value - low) / (high - low),
        "text": f"{value:g} of {high:g}",
    }


def _get_widget_value(state: Data) -> Any:
    """Return the value of a widget. For a selection, this is the option's label."""
    index = state.get("index")
    options = state.get("_options_labels")
    if not isinstance(index, int) or not isinstance(options, list):
        return state.get("value")
    if 0 <= index < len(options):
        return options[index]
    return state.get("value")


def get_widget_models(metadata: Any) -> Models:
    """Return the widget models in a notebook's metadata by their ids."""
    value = metadata
    for key in ("widgets", STATE, "state"):
        if not isinstance(value, dict):
            return {}
        value = value.get(key)
    if isinstance(value, dict):
        return value
    return {}


def _join(value: Any) -> str:
    """Return a text, which nbformat may store as a list of lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(str, value))
    return ""


def _decode_base64(value: Any) -> bytes:
    """Return base64 data as bytes, or no bytes if the data are not valid."""
    try:
        return base64.b64decode(_join(value))
    except (binascii.Error, ValueError):
        return b""


def _get_png_size(png: bytes) -> tuple[int, int]:
    """Return the width and height of a PNG in pixels, or (0, 0) for an invalid PNG.

    With the size, the page can reserve space for an image before it is loaded.
    """
    if not png.startswith(PNG_SIGNATURE) or len(png) <= PNG_SIZE.stop:
        return (0, 0)
    width, height = struct.unpack(">II", png[PNG_SIZE])
    return (width, height)
