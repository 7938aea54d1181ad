"""The figure summary: text lines on a run's images and other rich outputs.

They say where the agent's copy of an image is and what the figure contains. Titles,
labels and names come from the user's figure: they are quoted and cut to one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepper.common.json_decode import decode_valid_items
from stepper.common.text import clean, one_line
from stepper.diagnosis import plotly_summary
from stepper.kernels.outputs.output_images import (
    RASTER_TYPES,
    get_image_key,
    join_content,
)

MAX_SUMMARY = 1800  # characters of all lines
MAX_FIGURE = 420  # characters of one figure's line
MAX_REST = 120  # characters of the line on further images
MAX_TITLE = 80
MAX_LABEL = 40
MAX_NAMES = 8
NOT_SAVED = "one of too many"  # the reason for an image that was not read
SAFE_PATH = re.compile(r"[\w./~+@%=,-]+")
SCALE = re.compile(r"log|symlog|logit|asinh|function")
# In the order in which a line lists them.
ARTISTS = (
    "line",
    "scatter",
    "bar",
    "patch",
    "other collection",
    "other artist",
    "text",
)
POINT_ARTISTS = ("line", "scatter")
INVISIBLE = {"blank": "blank: the axes contain no data", "nan": "all values are NaN"}
MIME = re.compile(r"[\w.+-]{1,40}/[\w.+-]{1,60}")
PLACEHOLDER = re.compile(
    r"<[^\n]*>|(Figure|FigureWidget|Map|alt\.\w*Chart)\(.*\)", re.DOTALL
)
# Start of a MIME type → its name. The first that matches names an output.
OUTPUT_KINDS = {
    "application/vnd.plotly.": "plotly figure",
    "application/vnd.vega": "Altair/Vega-Lite chart",
    "application/vnd.bokeh": "Bokeh figure",
    "application/vnd.jupyter.widget-view": "widget",
    "image/svg+xml": "SVG",
    "application/pdf": "PDF",
    "video/": "video",
    "audio/": "audio",
    "application/javascript": "JavaScript",
    "text/html": "HTML",
    "text/markdown": "Markdown",
    "text/latex": "LaTeX",
}


@dataclass(frozen=True)
class SavedImage:
    """An image of a run: the agent's copy, or the reason why there is none.

    Width and height are those in the notebook; `key` is `get_image_key` of its text.
    """

    path: str = ""
    width: int = 0
    height: int = 0
    single_color: bool = False
    why: str = ""
    key: int = 0


@dataclass(frozen=True)
class Image:
    """An image on axes: its shape, and the range of its values if there are any."""

    shape: tuple[int, ...] = ()
    min: float | None = None
    max: float | None = None


@dataclass(frozen=True)
class Axes:
    """The contents of axes; the field names are JSON keys of the kernel helper."""

    title: str = ""
    # The projection if it is not rectilinear.
    kind: str = ""
    xlabel: str = ""
    ylabel: str = ""
    xlim: tuple[str | float | None, ...] = ()
    ylim: tuple[str | float | None, ...] = ()
    # The scale if it is not linear.
    xscale: str = ""
    yscale: str = ""
    legend: tuple[str, ...] = ()
    # (kind, number of artists, number of points)
    artists: tuple[tuple[str, int, int], ...] = ()
    images: tuple[Image, ...] = ()
    # A key of INVISIBLE if nothing is visible.
    invisible: str = ""


@dataclass(frozen=True)
class Figure:
    """A matplotlib figure as the helper reports it; `key` is that of its image."""

    key: int
    title: str = ""
    colour_bars: tuple[str, ...] = ()
    legend: tuple[str, ...] = ()
    axes: tuple[Axes, ...] = ()
    # The number of axes that the helper left out.
    left_out: int = 0


def format_images(images: Sequence[SavedImage], facts: list[Any]) -> list[str]:
    """Return one line for each image, and one for those that were not saved.

    All lines together have at most MAX_SUMMARY characters.
    """
    figures = _decode_figures(facts)
    read_images = [image for image in images if image.why != NOT_SAVED]
    distinct = list(dict.fromkeys(read_images))
    fair_share = (MAX_SUMMARY - MAX_REST) // max(1, len(distinct))
    room = min(MAX_FIGURE, fair_share)
    lines: list[str] = []
    for number, image in enumerate(distinct, 1):
        times = read_images.count(image)
        figure = figures.get(image.key)
        line = _format_image(number, image, figure, times, room)
        length = sum(map(len, lines)) + len(line)
        if length + MAX_REST > MAX_SUMMARY:
            rest = _format_count(len(distinct) - len(lines), "image")
            lines.append(f"… and {rest} in the same folder")
            break
        lines.append(line)
    skipped = len(images) - len(read_images)
    if skipped:
        noun = "image" if skipped == 1 else "images"
        lines.append(f"… and {skipped:,} more {noun}, not saved")
    return lines


def format_rich_outputs(
    outputs: Iterable[Mapping[str, Any]], facts: Any = ()
) -> list[str]:
    """Return names and sizes of the outputs that are visible only in the notebook.

    The contents are added for plotly figures and for matplotlib's SVG images.
    """
    figures = _decode_figures(facts)
    names = []
    for output in outputs:
        name = _format_rich_output(output.get("data"), figures)
        if name:
            names.append(name)
    left_out = len(names) - MAX_NAMES
    lines = names[:MAX_NAMES]
    if left_out > 0:
        lines.append(f"… and {left_out:,} more")
    return lines


def describe_figures(facts: list[Any]) -> dict[str, str]:
    """Return short descriptions of figures, by the keys of their images."""
    descriptions = {}
    for figure in _decode_figures(facts).values():
        contents = "; ".join(_list_contents(figure))
        descriptions[str(figure.key)] = contents[:MAX_FIGURE]
    return descriptions


def _decode_figures(facts: Any) -> dict[int, Figure]:
    return {figure.key: figure for figure in decode_valid_items(Figure, facts)}


def _format_image(
    number: int, image: SavedImage, figure: Figure | None, times: int, room: int
) -> str:
    if not image.path:
        return f"Figure {number}: not saved: {one_line(image.why, 120)}."
    path = clean(image.path).replace("\n", "")
    if not SAFE_PATH.fullmatch(path):
        path = _quote(path, len(path))
    size = f"{image.width:,} × {image.height:,}"
    head = f"Figure {number}: {path} ({size})"
    if times > 1:
        head += f", shown {times:,} times"
    problems = []
    if image.single_color:
        problems.append("a single color: nothing is visible")
    contents = _list_contents(figure) if figure else []
    return _join_parts(head, problems, contents, room, figure)


def _format_rich_output(data: Any, figures: Mapping[int, Figure]) -> str:
    """Return the description of an output, '' if its image or text says it all."""
    if not isinstance(data, dict) or any(kind in data for kind in RASTER_TYPES):
        return ""
    plain = join_content(data.get("text/plain", "")).strip()
    is_readable = bool(plain) and not PLACEHOLDER.fullmatch(plain)
    types = []
    for mime in data:
        is_text = is_readable and mime.startswith("text/")
        if mime != "text/plain" and not is_text:
            types.append(mime)
    if not types:
        return ""
    name, mime = _name_output(types)
    text = join_content(data[mime])
    size = _format_size(len(text.encode("utf-8", "replace")))
    description = f"{name}, {size}"
    if mime == plotly_summary.MIME:
        parts = _list_plotly_contents(data[mime])
        if not parts:
            return description
        return _join_parts(description, [], parts, MAX_FIGURE, None)
    figure = figures.get(get_image_key(text)) if name == "SVG" else None
    if figure is None:
        return description
    contents = _list_contents(figure)
    return _join_parts(description, [], contents, MAX_FIGURE, figure)


def _name_output(types: Sequence[str]) -> tuple[str, str]:
    """Return the name of an output and the MIME type that gives it."""
    for start, name in OUTPUT_KINDS.items():
        for mime in types:
            if mime.startswith(start):
                return name, mime
    mime = types[0]
    if MIME.fullmatch(mime):
        return mime, mime
    return f"output of type {_quote(mime, MAX_LABEL)}", mime


def _list_plotly_contents(content: Any) -> list[str]:
    """Return the contents of a plotly figure, [] if its JSON is not valid."""
    figure = plotly_summary.parse_figure(content)
    if figure is None:
        return []
    parts = []
    if figure.title:
        parts.append(f"title {_quote(figure.title, MAX_TITLE)}")
    traces = []
    for group in figure.traces[:MAX_NAMES]:
        text = _format_count(group.count, f"{group.kind} trace")
        if group.points is not None:
            text += f" ({_format_count(group.points, 'point')})"
        traces.append(text)
    other_types = len(figure.traces) - MAX_NAMES
    if other_types > 0:
        traces.append(f"traces of {_format_count(other_types, 'other type')}")
    parts.append(", ".join(traces) or "no traces")
    if figure.names:
        first_names = figure.names[:MAX_NAMES]
        quoted = ", ".join(_quote(name, MAX_LABEL) for name in first_names)
        text = f"named {quoted}"
        left_out = len(figure.names) - MAX_NAMES
        if left_out > 0:
            text += f" and {left_out:,} more"
        parts.append(text)
    parts += [_format_plotly_axis(axis) for axis in figure.axes]
    if figure.frames:
        parts.append(_format_count(figure.frames, "animation frame"))
    return [part for part in parts if part]


def _format_plotly_axis(axis: plotly_summary.Axis) -> str:
    text = _format_axis(axis.name, axis.title, axis.ends, axis.scale)
    if axis.categories:
        count = _format_count(axis.categories, "category", "categories")
        return f"{text or axis.name} {count}"
    if axis.empty:
        return f"{text or axis.name} has no finite values"
    return text


def _join_parts(
    head: str,
    problems: list[str],
    parts: Sequence[str],
    room: int,
    figure: Figure | None,
) -> str:
    """Return the head, all problems and as many of the parts as there is room for."""
    problems = [*problems, *_list_invisible_axes(figure)]
    line = head
    if problems:
        line += f": {'; '.join(problems)}"
    for part in parts:
        if len(line) + len(part) + 4 > room:
            return line + " …"
        if line == head:
            separator = ": "
        elif part.startswith("Axes "):
            separator = ". "
        else:
            separator = "; "
        line += separator + part
    return line + "."


def _list_invisible_axes(figure: Figure | None) -> list[str]:
    if figure is None:
        return []
    problems = []
    for reason, text in INVISIBLE.items():
        numbers = [
            str(number)
            for number, axes in enumerate(figure.axes, 1)
            if axes.invisible == reason
        ]
        if numbers and len(figure.axes) > 1:
            problems.append(f"{text} (axes {', '.join(numbers)})")
        elif numbers:
            problems.append(text)
    return problems


def _list_contents(figure: Figure) -> list[str]:
    parts = []
    if figure.title:
        parts.append(f"title {_quote(figure.title, MAX_TITLE)}")
    total = len(figure.axes) + figure.left_out
    if total > 1:
        parts.append(f"{total:,} axes")
    bars = figure.colour_bars
    if bars:
        text = _format_count(len(bars), "color bar")
        for bar in bars[:3]:
            if bar:
                text += f" {_quote(bar, MAX_LABEL)}"
        parts.append(text)
    parts.append(_format_legend(figure.legend))
    for number, axes in enumerate(figure.axes, 1):
        # Blank axes are already listed as a problem.
        has_text = axes.title or axes.xlabel or axes.ylabel
        if axes.invisible != "blank" or has_text:
            name = f"Axes {number}" if total > 1 else ""
            parts += _list_axes_contents(axes, name)
    return [part for part in parts if part]


def _list_axes_contents(axes: Axes, name: str) -> list[str]:
    names = [name]
    for text in (axes.title, axes.kind):
        if text:
            names.append(_quote(text, MAX_TITLE))
    sides = [
        _format_axis("x", axes.xlabel, axes.xlim, axes.xscale),
        _format_axis("y", axes.ylabel, axes.ylim, axes.yscale),
    ]
    contents = []
    for artist in sorted(axes.artists, key=_order):
        contents.append(_format_artists(*artist))
    for image in axes.images[:2]:
        contents.append(_format_axes_image(image))
    return [
        " ".join(filter(None, names)),
        ", ".join(filter(None, sides)),
        ", ".join(filter(None, contents)),
        _format_legend(axes.legend),
    ]


def _order(artist: tuple[str, int, int]) -> int:
    kind = artist[0]
    return ARTISTS.index(kind) if kind in ARTISTS else len(ARTISTS)


def _format_artists(kind: str, count: int, points: int) -> str:
    if kind not in ARTISTS:
        return ""
    plural = "patches" if kind == "patch" else ""
    text = _format_count(count, kind, plural)
    if kind in POINT_ARTISTS:
        text += f" ({_format_count(points, 'point')})"
    return text


def _format_axes_image(image: Image) -> str:
    shape = " × ".join(f"{side:,}" for side in image.shape)
    text = f"image {shape}"
    limits = []
    for end in (image.min, image.max):
        limit = _format_end(end)
        if end is not None and limit not in limits:
            limits.append(limit)
    if not limits:
        return text
    if len(limits) == 1:
        return f"{text}, all {limits[0]}"
    return f"{text}, {' to '.join(limits)}"


def _format_axis(
    name: str, label: str, ends: Sequence[str | float | None], scale: str
) -> str:
    """Return an axis with its label, range and scale, '' if there is none of these."""
    parts = []
    if label:
        parts.append(_quote(label, MAX_LABEL))
    if len(ends) == 2:
        first = _format_end(ends[0])
        last = _format_end(ends[1])
        parts.append(f"{first} to {last}")
    if scale:
        if not SCALE.fullmatch(scale):
            scale = _quote(scale, MAX_LABEL)
        parts.append(f"({scale})")
    return " ".join([name, *parts]) if parts else ""


def _format_end(end: str | float | None) -> str:
    if end is None:
        return "?"
    if isinstance(end, str):
        return _quote(end, MAX_LABEL)
    return f"{end:.10g}"


def _format_legend(names: Sequence[str]) -> str:
    if not names:
        return ""
    quoted = [_quote(name, MAX_LABEL) for name in names[:MAX_NAMES]]
    return f"legend {', '.join(quoted)}"


def _format_count(count: int, noun: str, plural: str = "") -> str:
    if count != 1:
        noun = plural or f"{noun}s"
    return f"{count:,} {noun}"


def _format_size(size: int) -> str:
    if size < 1024:
        return f"{size} bytes"
    if size < 1 << 20:
        return f"{size / 1024:.0f} kB"
    return f"{size / (1 << 20):.1f} MB"


def _quote(value: Any, limit: int) -> str:
    """Return a text of the user's in double quotes, without quotes or line breaks."""
    words = clean(str(value)).split()
    text = one_line(" ".join(words), limit)
    text = text.replace('"', "'")
    return f'"{text}"'
