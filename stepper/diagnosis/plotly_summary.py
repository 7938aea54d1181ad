"""Facts about a plotly figure from the JSON of its output: traces, titles, axis ranges.

All texts come from the figure: the caller must quote and truncate them. The range of an
axis is taken from the layout or, if the layout has none, from the values of the traces.
"""

from __future__ import annotations

import array
import base64
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

MIME = "application/vnd.plotly.v1+json"
MAX_VALUES = 1_000_000
MAX_TRACES = 200
MAX_AXES = 6
MAX_TEXT = 400  # characters of a title or a name
MAX_EXPONENT = 300  # of a logarithmic range
MAX_INTEGER = 1e300
# Data types of plotly → type codes of `array`.
TYPE_CODES = {
    "i1": "b",
    "u1": "B",
    "i2": "h",
    "u2": "H",
    "i4": "i",
    "u4": "I",
    "f4": "f",
    "f8": "d",
}
TRACE_TYPE = re.compile(r"[a-z][a-z0-9]{1,30}")
AXIS = re.compile(r"([xy])([0-9]{0,3})")
DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ][\d:.+Z-]{0,40})?")
# Attributes of a trace that have one value for each point.
POINT_ATTRIBUTES = (
    "x",
    "y",
    "z",
    "values",
    "lat",
    "lon",
    "locations",
    "r",
    "theta",
    "a",
    "close",
    "open",
)


# Two numbers or two texts (dates), or an empty tuple if the range is unknown.
Range = tuple[float, float] | tuple[str, str] | tuple[()]


@dataclass(frozen=True)
class Traces:
    """The traces of one type: their number, and the total number of their points.

    `points` is None if the number is unknown.
    """

    kind: str
    count: int
    points: int | None


@dataclass(frozen=True)
class Axis:
    """An axis: its title, and its range or its number of categories.

    `empty` means that the axis has values, but no finite numbers, dates or texts.
    """

    name: str
    title: str = ""
    ends: Range = ()
    categories: int = 0
    scale: str = ""
    empty: bool = False


class BinaryData(NamedTuple):
    """An array in plotly 6's format: its type code, and its values in base64."""

    type_code: str
    content: str


@dataclass(frozen=True)
class PlotlyFigure:
    """The contents of a figure.

    `names` are the names of the traces, `frames` is the number of animation frames.
    """

    title: str = ""
    traces: tuple[Traces, ...] = ()
    names: tuple[str, ...] = ()
    axes: tuple[Axis, ...] = ()
    frames: int = 0


def parse_figure(content: Any) -> PlotlyFigure | None:
    """Return the contents of a figure, or None if the JSON contains no figure."""
    data = _ensure_object(content).get("data")
    if not isinstance(data, list):
        return None
    traces = [trace for trace in data if isinstance(trace, dict)]
    first_traces = traces[:MAX_TRACES]
    layout = _ensure_object(content.get("layout"))
    names = [_get_text(trace.get("name")) for trace in first_traces]
    distinct_names = dict.fromkeys(names)
    frame_count = 0
    frames = content.get("frames")
    if isinstance(frames, list):
        frame_count = len(frames)
    return PlotlyFigure(
        title=_get_title(layout),
        traces=tuple(_group_traces(traces)),
        names=tuple(filter(None, distinct_names)),
        axes=tuple(_parse_axes(first_traces, layout)),
        frames=frame_count,
    )


def _group_traces(traces: list[dict[str, Any]]) -> Iterable[Traces]:
    """Yield the traces of each type, with the sum of their points if it is known."""
    groups: dict[str, list[int | None]] = {}
    for trace in traces:
        kind = _get_type(trace)
        point_counts = groups.setdefault(kind, [])
        points = _count_points(trace)
        point_counts.append(points)
    for kind, point_counts in groups.items():
        known_counts = [count for count in point_counts if count is not None]
        total = None
        if len(known_counts) == len(point_counts):
            total = sum(known_counts)
        yield Traces(kind, len(point_counts), total)


def _get_type(trace: Mapping[str, Any]) -> str:
    """Return the type of a trace, or "other" if it is not a possible type."""
    kind = trace.get("type", "scatter")
    if not isinstance(kind, str):
        return "other"
    if not TRACE_TYPE.fullmatch(kind):
        return "other"
    return kind


def _count_points(trace: Mapping[str, Any]) -> int | None:
    """Return the number of points of a trace, or None if it is unknown."""
    counts = []
    for name in POINT_ATTRIBUTES:
        if name in trace:
            count = _count_values(trace[name])
            counts.append(count)
    return max(counts, default=None)


def _get_binary_data(values: Any) -> BinaryData | None:
    """Return an array in plotly 6's format, or None for other values."""
    specification = _ensure_object(values)
    dtype = str(specification.get("dtype"))
    type_code = TYPE_CODES.get(dtype)
    content = specification.get("bdata")
    if type_code is None or not isinstance(content, str):
        return None
    return BinaryData(type_code, content)


def _count_values(values: Any) -> int:
    """Return the number of values in a list, a list of lists or an encoded array.

    Return 0 for other values.
    """
    if isinstance(values, list):
        count = 0
        for row in values:
            count += len(row) if isinstance(row, list) else 1
        return count
    binary = _get_binary_data(values)
    if binary is None:
        return 0
    # Four characters of base64 are three bytes. Up to two characters at the end are
    # padding.
    content = binary.content
    padding = content[-2:].count("=")
    byte_count = len(content) * 3 // 4 - padding
    item = array.array(binary.type_code)
    return byte_count // item.itemsize


def _parse_axes(
    traces: list[dict[str, Any]],
    layout: Mapping[str, Any],
) -> Iterable[Axis]:
    """Yield the first MAX_AXES axes.

    As soon as the axes have more than MAX_VALUES values in total, only their layout is
    used.
    """
    columns = _group_columns(traces)
    names = sorted(columns, key=_get_axis_order)
    remaining_count = MAX_VALUES
    for name in names[:MAX_AXES]:
        read_columns = columns[name]
        remaining_count -= sum(map(_count_values, read_columns))
        if remaining_count < 0:
            read_columns = []
        # The layout of the axis "x2" has the key "xaxis2".
        letter = name[0]
        number = name[1:]
        axis_layout = _ensure_object(layout.get(f"{letter}axis{number}"))
        yield _parse_axis(name, read_columns, axis_layout)


def _group_columns(traces: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of the traces, by the name of the axis such as "x2"."""
    columns: dict[str, list[Any]] = {}
    for trace in traces:
        for letter in ("x", "y"):
            if letter not in trace:
                continue
            axis = trace.get(f"{letter}axis", letter)
            if not isinstance(axis, str) or not AXIS.fullmatch(axis):
                continue
            column = columns.setdefault(axis, [])
            column.append(trace[letter])
    return columns


def _get_axis_order(axis: str) -> tuple[int, str, str]:
    """Return the sort key for x, y, x2, y2 and so on."""
    return len(axis), axis[1:], axis


def _parse_axis(name: str, columns: list[Any], layout: Mapping[str, Any]) -> Axis:
    """Return an axis with the range of its layout, or else of the traces' values.

    `columns` are the values of the traces, and `layout` is the layout of the axis.
    """
    title = _get_title(layout)
    scale = "log" if layout.get("type") == "log" else ""
    ends = _parse_range(layout.get("range"), scale)
    axis = Axis(name, title, ends, scale=scale)
    if ends:
        return axis
    values: list[Any] = []
    for column in columns:
        values += _decode_values(column)
    numbers = [value for value in values if _is_finite_number(value)]
    texts = {value for value in values if isinstance(value, str)}
    if texts and numbers:
        return axis
    if texts and all(map(DATE.fullmatch, texts)):
        dates = (min(texts), max(texts))
        return replace(axis, ends=dates)
    if texts:
        return replace(axis, categories=len(texts))
    if numbers:
        limits = (min(numbers), max(numbers))
        return replace(axis, ends=limits)
    is_empty = bool(values) and all(map(_is_missing, values))
    return replace(axis, empty=is_empty)


def _parse_range(layout_range: Any, scale: str) -> Range:
    """Return the range that a layout sets, or an empty tuple if there is none.

    For a logarithmic range, the layout contains the exponents.
    """
    if not isinstance(layout_range, list):
        return ()
    if len(layout_range) != 2:
        return ()
    first, last = layout_range
    if isinstance(first, str) and isinstance(last, str):
        return first[:MAX_TEXT], last[:MAX_TEXT]
    if not _is_finite_number(first):
        return ()
    if not _is_finite_number(last):
        return ()
    if scale != "log":
        return first, last
    if max(abs(first), abs(last)) >= MAX_EXPONENT:
        return ()
    return 10.0**first, 10.0**last


def _decode_values(column: Any) -> list[Any]:
    """Return the values of a list, or of an array that plotly encoded in base64.

    Return an empty list for other values.
    """
    if isinstance(column, list):
        return column
    binary = _get_binary_data(column)
    if binary is None:
        return []
    numbers = array.array(binary.type_code)
    try:
        decoded = base64.b64decode(binary.content)
        numbers.frombytes(decoded)
    except ValueError:
        return []
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def _is_finite_number(value: Any) -> bool:
    """Return whether a value is a finite number, and not too large for a float."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return abs(value) < MAX_INTEGER
    if isinstance(value, float):
        return math.isfinite(value)
    return False


def _is_missing(value: Any) -> bool:
    """Return whether a value is null, or a number that is not finite."""
    if isinstance(value, float):
        return not math.isfinite(value)
    return value is None


def _get_title(layout: Mapping[str, Any]) -> str:
    """Return the title in the layout of a figure or axis, or an empty string."""
    title = layout.get("title")
    if isinstance(title, dict):
        title = title.get("text")
    return _get_text(title)


def _get_text(value: Any) -> str:
    """Return the beginning of a text, or an empty string for other values."""
    if isinstance(value, str):
        return value[:MAX_TEXT]
    return ""


def _ensure_object(value: Any) -> dict[str, Any]:
    """Return a JSON object, or an empty dict for other values."""
    if isinstance(value, dict):
        return value
    return {}
