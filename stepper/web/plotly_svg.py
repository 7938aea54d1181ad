"""Rendering of Plotly figures as static SVG: lines, points and bars on plain axes.

The SVG contains no scripts. Figures with other traces (maps, surfaces, heatmaps and so
on) are not supported.
"""

from __future__ import annotations

import array
import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from stepper.common.text import clean

PLOTLY = "application/vnd.plotly.v1+json"
SUPPORTED_TYPES = ("scatter", "scattergl", "bar", "histogram")
WIDTH = 720
HEIGHT = 400
# Margins around the axes.
LEFT = 70
RIGHT = 20
TOP = 44
BOTTOM = 52
PLOT_WIDTH = WIDTH - LEFT - RIGHT
PLOT_HEIGHT = HEIGHT - TOP - BOTTOM
AXIS_Y = HEIGHT - BOTTOM
MAX_TRACES = 40
MAX_POINTS = 20_000  # a trace with more points is not drawn
MAX_CATEGORIES = 200  # a figure with more categories is not drawn
MAX_CATEGORY_LABELS = 10
MAX_LEGEND_ENTRIES = 8
LEGEND_CHARACTERS = 24
CATEGORY_CHARACTERS = 14
TITLE_CHARACTERS = 80
AXIS_TITLE_CHARACTERS = 60
MARKER_LIMIT = 20  # traces with more points have no markers by default
MIN_BINS = 5
MAX_BINS = 40
BAR_SHARE = 0.8  # the share of the space between two categories that bars use
RANGE_MARGIN = 0.04
EQUAL_VALUES_MARGIN = 1e-9  # a share of the value, if all values are equal and large
TICK_COUNT = 5
SECONDS_PER_MINUTE = 60
SECONDS_PER_DAY = 86_400
TICK_LABEL_GAP = 8
TICK_LABEL_SHIFT = 4  # centres the text at the line of the grid
LINE_HEIGHT = 18
# The size of a legend entry: a colored square, a gap, and about 7 pixels per character.
LEGEND_Y = TOP - 17
LEGEND_TEXT_Y = TOP - 8  # of the base line
LEGEND_SQUARE = 10
LEGEND_TEXT_SHIFT = 14
LEGEND_PADDING = 26
CHARACTER_WIDTH = 7
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
ISO_CHARACTERS = len("2026-01-31T12:00:00.000000")
COLORS = (
    "#636efa",
    "#ef553b",
    "#00a67d",
    "#ab63fa",
    "#e07b00",
    "#0e9bb5",
    "#d6336c",
    "#5c940d",
)
GRID_COLOR = "#e3e6ee"
AXIS_COLOR = "#8a90a0"
TITLE_FONT = 'font-size="15" font-weight="600"'
# The type codes of Python's array module by Plotly's type codes for base64 data.
ARRAY_TYPES = {
    "i1": "b",
    "u1": "B",
    "i2": "h",
    "u2": "H",
    "i4": "i",
    "u4": "I",
    "f4": "f",
    "f8": "d",
}


class Trace(NamedTuple):
    """The points of a trace, with numbers, times or category names as x values."""

    name: str
    kind: str  # "bar" or "scatter"
    mode: str  # "lines", "markers" or both
    x: list[Any]
    y: list[float]


class Range(NamedTuple):
    """The limits of an axis."""

    low: float
    high: float

    def get_position(self, value: float) -> float:
        """Return the position of a value within the limits, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Axes:
    """Converts values to positions in the image.

    `categories` contains the names on the x axis. It is empty if the x values are
    numbers or times.
    """

    categories: list[str]
    x_range: Range
    y_range: Range

    def get_x(self, value: Any) -> float:
        """Return the horizontal position of an x value in the image."""
        if self.categories:
            number: float = self.categories.index(str(value))
        else:
            number = _to_number(value)
        position = self.x_range.get_position(number)
        return LEFT + PLOT_WIDTH * position

    def get_y(self, value: float) -> float:
        """Return the vertical position of a y value in the image."""
        position = self.y_range.get_position(value)
        return TOP + PLOT_HEIGHT * (1 - position)


def render_svg(figure: Mapping[str, Any]) -> str:
    """Return a figure as SVG, or an empty string if the figure is not supported."""
    try:
        return _render_figure(figure)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # Something else than Plotly wrote the figure, or it has too many categories.
        return ""


def _render_figure(figure: Mapping[str, Any]) -> str:
    """Return a figure as SVG, or an empty string if a trace is not supported."""
    traces = _parse_traces(figure.get("data"))
    if not traces:
        return ""
    layout = _ensure_object(figure.get("layout"))
    axes = _make_axes(traces)
    parts = _draw_axes(layout, traces, axes)
    bar_trace_count = sum(trace.kind == "bar" for trace in traces)
    bar_position = 0
    for index, trace in enumerate(traces):
        color = COLORS[index % len(COLORS)]
        if trace.kind == "bar":
            parts += _draw_bars(trace, color, axes, bar_position, bar_trace_count)
            bar_position += 1
        else:
            parts += _draw_line(trace, color, axes)
    if len(traces) > 1:
        parts += _draw_legend(traces)
    content = "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"'
        f' viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui,sans-serif"'
        ' font-size="12" fill="#333">'
        f'<rect width="100%" height="100%" fill="#fff"/>{content}</svg>'
    )


def _parse_traces(data: Any) -> list[Trace]:
    """Return the traces, or an empty list if a trace is not supported."""
    if not isinstance(data, list):
        return []
    items = [item for item in data if isinstance(item, dict)]
    traces = list[Trace]()
    for item in items:
        trace = _parse_trace(item)
        if trace is None or not trace.y:
            return []
        traces.append(trace)
    if len(traces) <= MAX_TRACES:
        return traces
    return []


def _parse_trace(item: Mapping[str, Any]) -> Trace | None:
    """Return a trace, or None if the trace is not supported."""
    trace_type = str(item.get("type") or "scatter")
    if trace_type not in SUPPORTED_TYPES or item.get("orientation") == "h":
        return None
    name = str(item.get("name") or "")
    x = _parse_values(item.get("x"))
    if trace_type == "histogram":
        return _make_histogram(name, list(map(_to_number, x)))
    y_values = _parse_values(item.get("y"))
    y = list(map(_to_number, y_values))
    is_unreadable = not x and item.get("x") is not None
    if is_unreadable or len(y) > MAX_POINTS:
        return None
    if not x:
        x = [*range(len(y))]
    default_mode = "lines+markers" if len(y) <= MARKER_LIMIT else "lines"
    mode = str(item.get("mode") or default_mode)
    kind = "bar" if trace_type == "bar" else "scatter"
    return Trace(name, kind, mode, x, y)


def _make_histogram(name: str, values: Sequence[float]) -> Trace | None:
    """Return a histogram as a bar trace, or None if no value is finite."""
    finite_values = list(filter(math.isfinite, values))
    if not finite_values:
        return None
    low = min(finite_values)
    high = max(finite_values)
    bin_count = round(math.sqrt(len(finite_values)))
    bin_count = min(MAX_BINS, max(MIN_BINS, bin_count))
    bin_width = (high - low) / bin_count or 1.0
    counts = [0.0] * bin_count
    for value in finite_values:
        index = int((value - low) / bin_width)
        counts[min(bin_count - 1, index)] += 1
    first_centre = low + bin_width / 2
    centres = [first_centre + index * bin_width for index in range(bin_count)]
    return Trace(name, "bar", "", centres, counts)


def _parse_values(values: Any) -> list[Any]:
    """Return the values of a list or of Plotly's base64 data.

    Return an empty list if the values are not valid.
    """
    if isinstance(values, list):
        return values
    column = _ensure_object(values)
    array_type = ARRAY_TYPES.get(str(column.get("dtype")))
    data = column.get("bdata")
    if array_type is None or not isinstance(data, str):
        return []
    numbers = array.array(array_type)
    try:
        numbers.frombytes(base64.b64decode(data))
    except ValueError:
        return []
    return numbers.tolist()


def _to_number(value: Any) -> float:
    """Return a value as a number: a timestamp for a time, NaN for other values."""
    if isinstance(value, int | float):
        return float(value)
    try:
        # Plotly's times may have nanoseconds, which datetime does not support.
        time = datetime.fromisoformat(str(value)[:ISO_CHARACTERS])
    except ValueError:
        return math.nan
    if time.tzinfo is None:
        time = time.replace(tzinfo=timezone.utc)
    return time.timestamp()


def _make_axes(traces: Sequence[Trace]) -> Axes:
    """Return axes that include all points, and zero if there are bars.

    Raise ValueError if there are more than MAX_CATEGORIES categories.
    """
    x_values = [x for trace in traces for x in trace.x]
    y_values = [y for trace in traces for y in trace.y]
    if any(trace.kind == "bar" for trace in traces):
        y_values.append(0.0)
    y_range = _get_range(y_values, RANGE_MARGIN)
    numbers = list(map(_to_number, x_values))
    if not x_values or any(map(math.isfinite, numbers)):
        return Axes([], _get_range(numbers, RANGE_MARGIN), y_range)
    categories = [*dict.fromkeys(map(str, x_values))]
    if len(categories) > MAX_CATEGORIES:
        raise ValueError("too many categories")
    # Category n is at the position n, with half a unit of space on both sides.
    x_range = Range(-0.5, len(categories) - 0.5)
    return Axes(categories, x_range, y_range)


def _get_range(values: Sequence[float], margin: float) -> Range:
    """Return the range of the finite values, which is never empty.

    `margin` is the margin on both sides, as a share of the range. Without finite
    values, the range is that of 0 and 1.
    """
    finite_values = list(filter(math.isfinite, values))
    if not finite_values:
        finite_values = [0.0, 1.0]
    low = min(finite_values)
    high = max(finite_values)
    if low == high:
        # Adding 1 to a large number would not change it.
        padding = max(1.0, EQUAL_VALUES_MARGIN * abs(low))
        return Range(low - padding, high + padding)
    padding = (high - low) * margin
    return Range(low - padding, high + padding)


def _draw_bars(
    trace: Trace,
    color: str,
    axes: Axes,
    position: int,
    trace_count: int,
) -> list[str]:
    """Return the SVG elements for the bars of a trace.

    `position` is the index of the trace among the `trace_count` bar traces.
    """
    slot_count = len(axes.categories)
    if not axes.categories:
        distinct_values = set(map(str, trace.x))
        slot_count = len(distinct_values) + 1
    slot_width = PLOT_WIDTH / slot_count
    bar_width = max(1.0, BAR_SHARE * slot_width / trace_count)
    # The bars of all traces at an x value are side by side, and centred at this value.
    shift = (position - trace_count / 2) * bar_width
    zero_y = axes.get_y(0)
    bars = []
    for x, y in _get_points(trace, axes):
        left = x + shift
        top = min(y, zero_y)
        height = abs(zero_y - y)
        bars.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{bar_width:.1f}"'
            f' height="{height:.1f}" fill="{color}"/>'
        )
    return bars


def _draw_line(
    trace: Trace,
    color: str,
    axes: Axes,
) -> list[str]:
    """Return the SVG elements for the line and the markers of a trace."""
    points = _get_points(trace, axes)
    parts = []
    if "lines" in trace.mode:
        coordinates = [f"{x:.1f},{y:.1f}" for x, y in points]
        path = " ".join(coordinates)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
        )
    if "markers" in trace.mode:
        for x, y in points:
            marker = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{color}"/>'
            parts.append(marker)
    return parts


def _get_points(trace: Trace, axes: Axes) -> list[tuple[float, float]]:
    """Return the positions of a trace's points, without points with missing values."""
    points = []
    for x_value, y_value in zip(trace.x, trace.y, strict=False):
        x = axes.get_x(x_value)
        y = axes.get_y(y_value)
        if math.isfinite(x) and math.isfinite(y):
            points.append((x, y))
    return points


def _draw_legend(traces: Sequence[Trace]) -> list[str]:
    """Return the SVG elements for the names and colors of the traces."""
    parts = []
    x = LEFT
    for index, trace in enumerate(traces[:MAX_LEGEND_ENTRIES]):
        color = COLORS[index % len(COLORS)]
        name = trace.name[:LEGEND_CHARACTERS]
        parts.append(
            f'<rect x="{x}" y="{LEGEND_Y}" width="{LEGEND_SQUARE}"'
            f' height="{LEGEND_SQUARE}" fill="{color}"/>'
        )
        parts.append(_draw_text(x + LEGEND_TEXT_SHIFT, LEGEND_TEXT_Y, name))
        x += LEGEND_PADDING + CHARACTER_WIDTH * len(name)
    return parts


def _draw_axes(
    layout: Mapping[str, Any],
    traces: Sequence[Trace],
    axes: Axes,
) -> list[str]:
    """Return the SVG elements for the grid, the axis labels and the titles."""
    parts = []
    for value in _get_ticks(axes.y_range):
        y = axes.get_y(value)
        parts.append(_draw_horizontal_line(y, GRID_COLOR))
        label_x = LEFT - TICK_LABEL_GAP
        label_y = y + TICK_LABEL_SHIFT
        parts.append(_draw_text(label_x, label_y, f"{value:g}", "end"))
    for x, label in _list_x_labels(traces, axes):
        parts.append(_draw_text(x, AXIS_Y + LINE_HEIGHT, label, "middle"))
    parts.append(_draw_horizontal_line(AXIS_Y, AXIS_COLOR))
    return parts + _draw_titles(layout)


def _draw_horizontal_line(y: float, color: str) -> str:
    """Return an SVG line across the plot."""
    return f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{color}"/>'


def _list_x_labels(
    traces: Sequence[Trace],
    axes: Axes,
) -> list[tuple[float, str]]:
    """Return the horizontal positions and the texts of the x axis labels."""
    categories = axes.categories
    if categories:
        step = math.ceil(len(categories) / MAX_CATEGORY_LABELS)
        return [
            (axes.get_x(name), name[:CATEGORY_CHARACTERS])
            for name in categories[::step]
        ]
    has_times = any(map(_has_times, traces))
    labels = []
    for value in _get_ticks(axes.x_range):
        label = f"{value:g}"
        if has_times:
            label = _format_time(value, axes.x_range)
        labels.append((axes.get_x(value), label))
    return labels


def _format_time(timestamp: float, limits: Range) -> str:
    """Return the label of a time on an axis with these limits.

    This is the date, the day and the time of day, or only the time of day, depending on
    the length of the axis.
    """
    # Unlike `datetime.fromtimestamp`, this raises only OverflowError.
    time = EPOCH + timedelta(seconds=timestamp)
    seconds = limits.high - limits.low
    if seconds < TICK_COUNT * SECONDS_PER_MINUTE:
        return f"{time:%H:%M:%S}"
    if seconds < TICK_COUNT * SECONDS_PER_DAY:
        return f"{time:%m-%d %H:%M}"
    return f"{time:%Y-%m-%d}"


def _has_times(trace: Trace) -> bool:
    """Return whether x values of a trace are times, which are strings."""
    return any(isinstance(x, str) for x in trace.x)


def _draw_titles(layout: Mapping[str, Any]) -> list[str]:
    """Return the SVG elements for the titles of the figure and its axes."""
    parts = []
    title = _get_title(layout)[:TITLE_CHARACTERS]
    if title:
        parts.append(_draw_text(WIDTH / 2, 20, title, "middle", TITLE_FONT))
    x_title = _get_title(layout.get("xaxis"))[:AXIS_TITLE_CHARACTERS]
    if x_title:
        parts.append(_draw_text(WIDTH / 2, HEIGHT - 10, x_title, "middle"))
    y_title = _get_title(layout.get("yaxis"))[:AXIS_TITLE_CHARACTERS]
    if y_title:
        rotation = f'transform="rotate(-90 16 {HEIGHT / 2})"'
        parts.append(_draw_text(16, HEIGHT / 2, y_title, "middle", rotation))
    return parts


def _get_ticks(limits: Range) -> list[float]:
    """Return the ticks of an axis: the multiples of a round step within its limits.

    The step is a power of ten, or 2 or 5 times a power of ten.
    """
    min_step = (limits.high - limits.low) / TICK_COUNT
    power = 10 ** math.floor(math.log10(min_step))
    steps = [power * factor for factor in (1, 2, 5, 10)]
    step = next(step for step in steps if step >= min_step)
    first_multiple = math.ceil(limits.low / step)
    # The small number compensates for rounding errors.
    last_multiple = math.floor(limits.high / step + 1e-9)
    multiples = range(first_multiple, last_multiple + 1)
    # Relative to the step: the ticks of large values may differ in their last digits.
    digits = 1 - math.floor(math.log10(step))
    return [float(round(multiple * step, digits)) for multiple in multiples]


def _get_title(item: Any) -> str:
    """Return the title of a layout or an axis, or an empty string.

    A title is a string, or an object with the key `text`.
    """
    title = _ensure_object(item).get("title")
    if isinstance(title, dict):
        title = title.get("text")
    return str(title or "")


def _draw_text(
    x: float,
    y: float,
    text: str,
    anchor: str = "start",
    attributes: str = "",
) -> str:
    """Return an SVG text.

    `anchor` says which point of the text is at `x`, and `attributes` are further SVG
    attributes.
    """
    content = escape(clean(text))
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {attributes}>'
        f"{content}</text>"
    )


def _ensure_object(value: Any) -> dict[str, Any]:
    """Return a value if it is a JSON object, otherwise an empty object."""
    if isinstance(value, dict):
        return value
    return {}
