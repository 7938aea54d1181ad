"""Facts about a plotly figure, from the JSON of its output: traces, titles, and the ranges of its axes.

Nothing here comes from stepper: texts of the figure are returned as they are, and the caller quotes and cuts them.
Ranges are those of the layout where it sets them, else those of the values, up to `MOST` values in all.
"""

from __future__ import annotations

import array
import base64
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MIME = "application/vnd.plotly.v1+json"
MOST = 1_000_000  # values of a figure that are read
TRACES, AXES = 200, 6
LENGTH = 400  # characters of a title or a name
TYPES = {
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
COUNTED = (
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


@dataclass(frozen=True)
class Traces:
    """The traces of one type: how many, with how many points, None where that is not known."""

    kind: str
    count: int
    points: int | None


@dataclass(frozen=True)
class Axis:
    """An axis: its title, and the ends of what it shows, or how many categories stand on it."""

    name: str
    title: str = ""
    ends: tuple[float, float] | tuple[str, str] | tuple[()] = ()
    categories: int = 0
    scale: str = ""
    # values are there, and none of them is a number, a date or a text
    empty: bool = False


@dataclass(frozen=True)
class PlotlyFigure:
    """What a figure holds."""

    title: str = ""
    traces: tuple[Traces, ...] = ()
    names: tuple[str, ...] = ()
    axes: tuple[Axis, ...] = ()
    frames: int = 0  # of an animation


def figure_of(content: Any) -> PlotlyFigure | None:
    """Return the facts about a figure, None where the JSON is not that of a figure."""
    if not isinstance(content, dict) or not isinstance(content.get("data"), list):
        return None
    traces = [trace for trace in content["data"] if isinstance(trace, dict)]
    layout = _object(content.get("layout"))
    counted: dict[str, list[int | None]] = {}
    for trace in traces:
        counted.setdefault(_kind(trace), []).append(_points(trace))
    names = dict.fromkeys(_text(trace.get("name")) for trace in traces[:TRACES])
    frames = content.get("frames")
    return PlotlyFigure(
        title=_title(layout),
        traces=tuple(
            Traces(kind, len(points), _sum(points)) for kind, points in counted.items()
        ),
        names=tuple(name for name in names if name),
        axes=tuple(_axes(traces[:TRACES], layout)),
        frames=len(frames) if isinstance(frames, list) else 0,
    )


def _kind(trace: Mapping[str, Any]) -> str:
    kind = trace.get("type", "scatter")
    return kind if isinstance(kind, str) and TRACE_TYPE.fullmatch(kind) else "other"


def _points(trace: Mapping[str, Any]) -> int | None:
    return max(
        (_length(trace[name]) for name in COUNTED if name in trace), default=None
    )


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _length(values: Any) -> int:
    if isinstance(values, list):
        return sum(len(row) if isinstance(row, list) else 1 for row in values)
    kind, data = (
        TYPES.get(str(_object(values).get("dtype"))),
        _object(values).get("bdata"),
    )
    if kind is None or not isinstance(data, str):
        return 0
    return (len(data) * 3 // 4 - data[-2:].count("=")) // array.array(kind).itemsize


def _axes(traces: list[dict[str, Any]], layout: Mapping[str, Any]) -> Iterable[Axis]:
    values: dict[str, list[Any]] = {}
    for trace in traces:
        for letter in ("x", "y"):
            axis = trace.get(letter + "axis", letter)
            if letter in trace and isinstance(axis, str) and AXIS.fullmatch(axis):
                values.setdefault(axis, []).append(trace[letter])
    room = MOST
    for name in sorted(values, key=lambda axis: (len(axis), axis[1:], axis))[:AXES]:
        count = sum(map(_length, values[name]))
        room -= count
        yield _axis(
            name,
            values[name] if room >= 0 else [],
            _object(layout.get(f"{name[0]}axis{name[1:]}")),
        )


def _axis(name: str, columns: list[Any], layout: Mapping[str, Any]) -> Axis:
    title, scale = _title(layout), "log" if layout.get("type") == "log" else ""
    ends = _range(layout.get("range"), scale)
    if ends:
        return Axis(name, title, ends, scale=scale)
    values = [value for column in columns for value in _values(column)]
    numbers = [value for value in values if _is_number(value)]
    texts = {value for value in values if isinstance(value, str)}
    if texts and not numbers and all(map(DATE.fullmatch, texts)):
        return Axis(name, title, (min(texts), max(texts)), scale=scale)
    if texts and numbers:
        return Axis(name, title, scale=scale)
    if texts:
        return Axis(name, title, categories=len(texts), scale=scale)
    if numbers:
        return Axis(name, title, (min(numbers), max(numbers)), scale=scale)
    return Axis(name, title, scale=scale, empty=bool(values))


def _range(ends: Any, scale: str) -> tuple[float, float] | tuple[str, str] | tuple[()]:
    """Return the range that a layout sets; plotly has the exponents of a logarithmic one."""
    if not isinstance(ends, list) or len(ends) != 2:
        return ()
    first, last = ends
    if isinstance(first, str) and isinstance(last, str):
        return first[:LENGTH], last[:LENGTH]
    if not _is_number(first) or not _is_number(last):
        return ()
    if scale != "log":
        return first, last
    return (10.0**first, 10.0**last) if max(abs(first), abs(last)) < 300 else ()


def _values(column: Any) -> list[Any]:
    """Return the values of a list, or of an array in base64, as plotly 6 and later write NumPy's."""
    if isinstance(column, list):
        return column
    kind, data = (
        TYPES.get(str(_object(column).get("dtype"))),
        _object(column).get("bdata"),
    )
    if kind is None or not isinstance(data, str):
        return []
    numbers = array.array(kind)
    try:
        numbers.frombytes(base64.b64decode(data))
    except ValueError:
        return []
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)


def _title(layout: Mapping[str, Any]) -> str:
    title = layout.get("title")
    return _text(title.get("text") if isinstance(title, dict) else title)


def _text(value: Any) -> str:
    return value[:LENGTH] if isinstance(value, str) else ""


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
