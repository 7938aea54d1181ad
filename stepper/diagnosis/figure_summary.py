"""The figure summary: text lines on a run's images and other rich outputs.

A line on an image contains the path of the agent's copy and the contents of the figure.
Titles, labels and names come from the user's figure, so they are quoted and cut to one
line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from stepper.common.dataclass_decode import decode_valid_items
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
MAX_COLOR_BARS = 3
MAX_AXES_IMAGES = 2
MAX_REASON = 120
SEPARATOR_CHARACTERS = 4  # of a separator and the end of a line
KILOBYTE = 1024
NOT_SAVED = "too many images"  # the reason for an image beyond the limit of a run
SAFE_PATH = re.compile(r"[\w./~+@%=,-]+")
SCALE = re.compile(r"log|symlog|logit|asinh|function")
# The kinds of artists, in the order in which a line lists them.
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
# Start of a MIME type → the name of the output. The first matching entry is used.
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
    """An image of a run.

    `path` is the path of the agent's copy. It is empty if the image was not saved, and
    `reason` says why. `width` and `height` are the size of the original in pixels, or 0
    if it is unknown. `key` is the result of `get_image_key`.
    """

    path: str = ""
    width: int = 0
    height: int = 0
    single_color: bool = False
    reason: str = ""
    key: int = 0


@dataclass(frozen=True)
class Image:
    """An image on axes: its shape, and the range of its values if there are any."""

    shape: tuple[int, ...] = ()
    min: float | None = None
    max: float | None = None


class ArtistGroup(NamedTuple):
    """The artists of one kind on axes, and the number of all their points."""

    kind: str
    artist_count: int
    point_count: int


@dataclass(frozen=True)
class Axes:
    """The contents of axes. The field names are JSON keys of the kernel's helper."""

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
    artists: tuple[ArtistGroup, ...] = ()
    images: tuple[Image, ...] = ()
    # A key of INVISIBLE if nothing is visible.
    invisible: str = ""


@dataclass(frozen=True)
class Figure:
    """A matplotlib figure as reported by the helper. `key` identifies its image."""

    key: int
    title: str = ""
    color_bars: tuple[str, ...] = ()
    legend: tuple[str, ...] = ()
    axes: tuple[Axes, ...] = ()
    # The number of axes that the helper left out.
    left_out: int = 0


def format_images(images: Sequence[SavedImage], facts: list[Any]) -> list[str]:
    """Return one line for each distinct image, and lines on the number of other images.

    All lines together have at most MAX_SUMMARY characters. `facts` are the helper's
    facts on matplotlib figures.
    """
    figures = _decode_figures(facts)
    handled_images = [image for image in images if image.reason != NOT_SAVED]
    distinct = list(dict.fromkeys(handled_images))
    image_count = max(1, len(distinct))
    fair_share = (MAX_SUMMARY - MAX_REST) // image_count
    max_length = min(MAX_FIGURE, fair_share)
    lines: list[str] = []
    length = 0
    for number, image in enumerate(distinct, 1):
        line = _format_image(
            number=number,
            image=image,
            figure=figures.get(image.key),
            times=handled_images.count(image),
            max_length=max_length,
        )
        length += len(line)
        if length + MAX_REST > MAX_SUMMARY:
            rest_count = len(distinct) - len(lines)
            rest = _format_count(rest_count, "image")
            lines.append(f"… and {rest} in the same folder")
            break
        lines.append(line)
    skipped_count = len(images) - len(handled_images)
    if skipped_count:
        skipped = _format_count(skipped_count, "more image")
        lines.append(f"… and {skipped}, not saved")
    return lines


def format_rich_outputs(
    outputs: Iterable[Mapping[str, Any]],
    facts: Any = (),
) -> list[str]:
    """Return the names and sizes of outputs that are visible only in the notebook.

    For plotly figures and matplotlib's SVG images, the contents are added. `facts` are
    the helper's facts on matplotlib figures.
    """
    figures = _decode_figures(facts)
    names = []
    for output in outputs:
        data = output.get("data")
        name = _format_rich_output(data, figures)
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
    for key, figure in _decode_figures(facts).items():
        contents = "; ".join(_list_contents(figure))
        descriptions[str(key)] = contents[:MAX_FIGURE]
    return descriptions


def format_recorded_images(
    images: Sequence[SavedImage],
    descriptions: Mapping[str, str],
    folder: str = "",
) -> list[str]:
    """Return a line on each image among the recorded outputs of a cell.

    If successive images were not saved for the same reason, the line on the first one
    stands for all, and the other lines are empty. `descriptions` are the results of
    `describe_figures`, by image key. Files in `folder` are named without the folder.
    """
    lines = []
    previous_reason = ""
    for number, image in enumerate(images, 1):
        is_repeated = bool(image.reason) and image.reason == previous_reason
        previous_reason = image.reason
        if is_repeated:
            lines.append("")
            continue
        if not image.path:
            line = _format_unsaved(number, images)
            lines.append(line)
            continue
        path = image.path
        if folder and os.path.dirname(path) == folder:
            path = os.path.basename(path)
        line = f"Figure {number}: {_format_path(path)}"
        if image.width:
            line += f" ({image.width:,} × {image.height:,})"
        description = one_line(descriptions.get(str(image.key), ""), MAX_FIGURE)
        if description:
            line += f": {description}"
        lines.append(line)
    return lines


def _format_unsaved(number: int, images: Sequence[SavedImage]) -> str:
    """Return the line on the image with this number, which has no file.

    The line includes the following images that have no file for the same reason.
    """
    reason = images[number - 1].reason
    last_number = number
    for image in images[number:]:
        if image.path or image.reason != reason:
            break
        last_number += 1
    name = f"Figure {number}"
    if last_number > number:
        name = f"Figures {number}–{last_number}"
    short_reason = one_line(reason, MAX_REASON)
    return f"{name}: no file: {short_reason}"


def _format_path(path: str) -> str:
    """Return a path for a line of the summary, quoted unless it is a plain path."""
    line = clean(path).replace("\n", "")
    if SAFE_PATH.fullmatch(line):
        return line
    # `_quote` would join several spaces, and the path would be another one.
    text = line.replace("\t", " ").replace('"', "'")
    return f'"{text}"'


def _decode_figures(facts: Any) -> dict[int, Figure]:
    """Return the valid figures by the keys of their images."""
    figures = {}
    for figure in decode_valid_items(Figure, facts):
        figures[figure.key] = figure
    return figures


def _format_image(
    number: int,
    image: SavedImage,
    figure: Figure | None,
    times: int,
    max_length: int,
) -> str:
    """Return the line on an image, with at most about `max_length` characters.

    `times` is the number of times that the run showed the image.
    """
    if not image.path:
        reason = one_line(image.reason, MAX_REASON)
        return f"Figure {number}: not saved: {reason}."
    path = _format_path(image.path)
    size = f"{image.width:,} × {image.height:,}"
    head = f"Figure {number}: {path} ({size})"
    if times > 1:
        head += f", shown {times:,} times"
    problems = []
    if image.single_color:
        problems.append("a single color: nothing is visible")
    contents = []
    if figure:
        problems += _list_invisible_axes(figure)
        contents = _list_contents(figure)
    return _join_parts(head, problems, contents, max_length)


def _format_rich_output(data: Any, figures: Mapping[int, Figure]) -> str:
    """Return the description of an output that the agent cannot see or read.

    Return an empty string if the agent gets the output as an image or as text.
    """
    if not isinstance(data, dict):
        return ""
    if not data.keys().isdisjoint(RASTER_TYPES):
        return ""
    types = _list_unreadable_types(data)
    if not types:
        return ""
    name, mime = _choose_output_type(types)
    text = join_content(data[mime])
    encoded = text.encode("utf-8", "replace")
    size = _format_size(len(encoded))
    description = f"{name}, {size}"
    if mime == plotly_summary.MIME:
        parts = _list_plotly_contents(data[mime])
        if not parts:
            return description
        return _join_parts(description, [], parts, MAX_FIGURE)
    figure = None
    if name == "SVG":
        key = get_image_key(text)
        figure = figures.get(key)
    if figure is None:
        return description
    problems = _list_invisible_axes(figure)
    contents = _list_contents(figure)
    return _join_parts(description, problems, contents, MAX_FIGURE)


def _list_unreadable_types(data: Mapping[str, Any]) -> list[str]:
    """Return the MIME types of an output that the report does not show as text."""
    plain = join_content(data.get("text/plain", "")).strip()
    is_readable = bool(plain) and not PLACEHOLDER.fullmatch(plain)
    types = []
    for mime in data:
        if mime == "text/plain":
            continue
        if is_readable and mime.startswith("text/"):
            continue
        types.append(mime)
    return types


class OutputType(NamedTuple):
    """The name of an output, and the MIME type of its content."""

    name: str
    mime: str


def _choose_output_type(types: Sequence[str]) -> OutputType:
    """Return the name of an output, and the MIME type that determines the name."""
    for start, name in OUTPUT_KINDS.items():
        for mime in types:
            if mime.startswith(start):
                return OutputType(name, mime)
    mime = types[0]
    if MIME.fullmatch(mime):
        return OutputType(mime, mime)
    quoted = _quote(mime, MAX_LABEL)
    return OutputType(f"output of type {quoted}", mime)


def _list_plotly_contents(content: Any) -> list[str]:
    """Return phrases on the contents of a plotly figure.

    Return an empty list if the JSON of the figure is not valid.
    """
    figure = plotly_summary.parse_figure(content)
    if figure is None:
        return []
    parts = []
    if figure.title:
        title = _quote(figure.title, MAX_TITLE)
        parts.append(f"title {title}")
    traces = _format_traces(figure.traces)
    parts.append(traces)
    if figure.names:
        names = _join_quoted(figure.names)
        text = f"named {names}"
        left_out = len(figure.names) - MAX_NAMES
        if left_out > 0:
            text += f" and {left_out:,} more"
        parts.append(text)
    parts += map(_format_plotly_axis, figure.axes)
    if figure.frames:
        frames = _format_count(figure.frames, "animation frame")
        parts.append(frames)
    return [part for part in parts if part]


def _format_traces(groups: Sequence[plotly_summary.Traces]) -> str:
    """Return the numbers of traces and points of each type."""
    if not groups:
        return "no traces"
    texts = []
    for group in groups[:MAX_NAMES]:
        text = _format_count(group.count, f"{group.kind} trace")
        if group.points is not None:
            points = _format_count(group.points, "point")
            text += f" ({points})"
        texts.append(text)
    other_count = len(groups) - MAX_NAMES
    if other_count > 0:
        other_types = _format_count(other_count, "other type")
        texts.append(f"traces of {other_types}")
    return ", ".join(texts)


def _format_plotly_axis(axis: plotly_summary.Axis) -> str:
    """Return the description of an axis, or an empty string if nothing is known."""
    description = _format_axis(axis.name, axis.title, axis.ends, axis.scale)
    subject = description or axis.name
    if axis.categories:
        count = _format_count(axis.categories, "category", "categories")
        return f"{subject} {count}"
    if axis.empty:
        return f"{subject} has no finite values"
    return description


def _join_parts(
    head: str,
    problems: Sequence[str],
    parts: Sequence[str],
    max_length: int,
) -> str:
    """Return a line with the head, all problems, and the first parts that fit.

    No part is added that would make the line longer than `max_length`.
    """
    line = head
    if problems:
        joined_problems = "; ".join(problems)
        line += f": {joined_problems}"
    for part in parts:
        if len(line) + len(part) + SEPARATOR_CHARACTERS > max_length:
            return line + " …"
        if line == head:
            separator = ": "
        elif part.startswith("Axes "):
            separator = ". "
        else:
            separator = "; "
        line += separator + part
    return line + "."


def _list_invisible_axes(figure: Figure) -> list[str]:
    """Return a phrase for each reason why axes show nothing, with their numbers."""
    problems = []
    for reason, text in INVISIBLE.items():
        numbers = []
        for number, axes in enumerate(figure.axes, 1):
            if axes.invisible == reason:
                numbers.append(str(number))
        if not numbers:
            continue
        problem = text
        if len(figure.axes) > 1:
            joined_numbers = ", ".join(numbers)
            problem += f" (axes {joined_numbers})"
        problems.append(problem)
    return problems


def _list_contents(figure: Figure) -> list[str]:
    """Return the descriptions of a figure's title, color bars, legend and axes."""
    parts = []
    if figure.title:
        title = _quote(figure.title, MAX_TITLE)
        parts.append(f"title {title}")
    total = len(figure.axes) + figure.left_out
    if total > 1:
        parts.append(f"{total:,} axes")
    color_bars = _format_color_bars(figure.color_bars)
    parts.append(color_bars)
    legend = _format_legend(figure.legend)
    parts.append(legend)
    for number, axes in enumerate(figure.axes, 1):
        # Blank axes are already listed as a problem.
        has_text = axes.title or axes.xlabel or axes.ylabel
        if axes.invisible == "blank" and not has_text:
            continue
        name = f"Axes {number}" if total > 1 else ""
        parts += _list_axes_contents(axes, name)
    return [part for part in parts if part]


def _format_color_bars(labels: Sequence[str]) -> str:
    """Return the number of color bars and their first labels.

    Return an empty string if there are no color bars.
    """
    if not labels:
        return ""
    text = _format_count(len(labels), "color bar")
    for label in labels[:MAX_COLOR_BARS]:
        if label:
            quoted = _quote(label, MAX_LABEL)
            text += f" {quoted}"
    return text


def _list_axes_contents(axes: Axes, name: str) -> list[str]:
    """Return the descriptions of axes. A description can be an empty string.

    `name` is a name such as "Axes 2", or empty for the only axes of a figure.
    """
    names = [name]
    for text in (axes.title, axes.kind):
        if text:
            quoted = _quote(text, MAX_TITLE)
            names.append(quoted)
    sides = [
        _format_axis("x", axes.xlabel, axes.xlim, axes.xscale),
        _format_axis("y", axes.ylabel, axes.ylim, axes.yscale),
    ]
    contents = []
    for group in sorted(axes.artists, key=_get_artist_order):
        text = _format_artists(group)
        contents.append(text)
    contents += map(_format_axes_image, axes.images[:MAX_AXES_IMAGES])
    return [
        " ".join(filter(None, names)),
        ", ".join(filter(None, sides)),
        ", ".join(filter(None, contents)),
        _format_legend(axes.legend),
    ]


def _get_artist_order(group: ArtistGroup) -> int:
    """Return the sort key of an entry of `Axes.artists`: its position in ARTISTS."""
    if group.kind not in ARTISTS:
        return len(ARTISTS)
    return ARTISTS.index(group.kind)


def _format_artists(group: ArtistGroup) -> str:
    """Return the number of artists and points, or an empty string for other kinds."""
    if group.kind not in ARTISTS:
        return ""
    plural = "patches" if group.kind == "patch" else ""
    text = _format_count(group.artist_count, group.kind, plural)
    if group.kind in POINT_ARTISTS:
        points = _format_count(group.point_count, "point")
        text += f" ({points})"
    return text


def _format_axes_image(image: Image) -> str:
    """Return the shape of an image on axes and the range of its values, if known."""
    sides = [f"{side:,}" for side in image.shape]
    shape = " × ".join(sides)
    text = f"image {shape}".rstrip()
    limits = []
    for end in (image.min, image.max):
        limit = _format_end(end)
        if end is not None and limit not in limits:
            limits.append(limit)
    if not limits:
        return text
    if len(limits) == 1:
        return f"{text}, all {limits[0]}"
    value_range = " to ".join(limits)
    return f"{text}, {value_range}"


def _format_axis(
    name: str,
    label: str,
    ends: Sequence[str | float | None],
    scale: str,
) -> str:
    """Return the name of an axis with its label, range and scale.

    Return an empty string if the axis has no label, range or scale.
    """
    parts = []
    if label:
        quoted = _quote(label, MAX_LABEL)
        parts.append(quoted)
    if len(ends) == 2:
        first = _format_end(ends[0])
        last = _format_end(ends[1])
        parts.append(f"{first} to {last}")
    if scale:
        is_known_scale = SCALE.fullmatch(scale) is not None
        scale_text = scale if is_known_scale else _quote(scale, MAX_LABEL)
        parts.append(f"({scale_text})")
    if not parts:
        return ""
    return " ".join([name, *parts])


def _format_end(end: str | float | None) -> str:
    """Return an end of a range: a number, a quoted text, or "?" if it is unknown."""
    if end is None:
        return "?"
    if isinstance(end, str):
        return _quote(end, MAX_LABEL)
    return f"{end:.10g}"


def _format_legend(names: Sequence[str]) -> str:
    """Return a phrase with the texts of a legend, or an empty string without texts."""
    if not names:
        return ""
    quoted = _join_quoted(names)
    return f"legend {quoted}"


def _join_quoted(names: Sequence[str]) -> str:
    """Return up to MAX_NAMES names, quoted and separated by commas."""
    quoted = [_quote(name, MAX_LABEL) for name in names[:MAX_NAMES]]
    return ", ".join(quoted)


def _format_count(count: int, noun: str, plural: str = "") -> str:
    """Return a number with a noun; `plural` defaults to the noun with an "s"."""
    if count != 1:
        noun = plural or f"{noun}s"
    return f"{count:,} {noun}"


def _format_size(size: int) -> str:
    """Return a number of bytes in bytes, kB or MB."""
    if size < KILOBYTE:
        return _format_count(size, "byte")
    kilobytes = size / KILOBYTE
    if kilobytes < KILOBYTE:
        return f"{kilobytes:.0f} kB"
    megabytes = kilobytes / KILOBYTE
    return f"{megabytes:.1f} MB"


def _quote(value: Any, limit: int) -> str:
    """Return a text from the user's figure on one line, in double quotes.

    Double quotes in the text are replaced by single quotes.
    """
    words = clean(str(value)).split()
    text = one_line(" ".join(words), limit)
    text = text.replace('"', "'")
    return f'"{text}"'
