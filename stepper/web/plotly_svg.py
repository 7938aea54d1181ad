"""A Plotly figure as it stands still: its lines, points and bars on plain axes, as SVG without a script.

What it does not draw (maps, surfaces, heatmaps …) is named; JupyterLab draws that.
"""

from __future__ import annotations

import array
import base64
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from stepper.common.text import clean

PLOTLY = "application/vnd.plotly.v1+json"
DRAWN = ("scatter", "scattergl", "bar", "histogram")
WIDE, HIGH = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 44, 52
MOST = 5_000  # points of a trace
COLOURS = (
    "#636efa",
    "#ef553b",
    "#00a67d",
    "#ab63fa",
    "#e07b00",
    "#0e9bb5",
    "#d6336c",
    "#5c940d",
)
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


class Trace(NamedTuple):
    """Points that belong together; `x` is None where they have names."""

    name: str
    kind: str
    mode: str
    x: list[Any]
    y: list[float]


def drawn(figure: Mapping[str, Any]) -> str:
    """Return the figure as SVG, '' where it holds what this does not draw."""
    try:
        return _drawn(figure)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # no figure of Plotly's own making
        return ""


def _drawn(figure: Mapping[str, Any]) -> str:
    data = figure.get("data")
    traces = (
        [_trace(each) for each in data if isinstance(each, dict)]
        if isinstance(data, list)
        else []
    )
    some = [trace for trace in traces if trace is not None and trace.y]
    if not some or len(some) != len(traces) or len(some) > 40:
        return ""
    layout = _object(figure.get("layout"))
    names = _names(some)
    ends = _ends(
        [_number(x) for trace in some for x in trace.x]
        if not names
        else [-0.5, len(names) - 0.5],
        not names,
    )
    bars = any(trace.kind == "bar" for trace in some)
    low, high = _ends([y for trace in some for y in trace.y] + [0.0] * bars, True)

    def across(x: Any) -> float:
        at = names.index(str(x)) if names else _number(x)
        return LEFT + (WIDE - LEFT - RIGHT) * (at - ends[0]) / (ends[1] - ends[0])

    def up(y: float) -> float:
        return TOP + (HIGH - TOP - BOTTOM) * (1 - (y - low) / (high - low))

    parts = [*_axes(layout, names, some, ends, (low, high), across, up)]
    groups = [trace for trace in some if trace.kind == "bar"]
    for place, trace in enumerate(some):
        colour = COLOURS[place % len(COLOURS)]
        points = [
            (across(x), up(y))
            for x, y in zip(trace.x, trace.y, strict=False)
            if _finite(y)
        ]
        if trace.kind == "bar":
            step = (WIDE - LEFT - RIGHT) / max(
                1, len(names) or len({*map(str, trace.x)}) + 1
            )
            wide = max(1.0, 0.8 * step / len(groups))
            shift = (groups.index(trace) - len(groups) / 2) * wide
            parts += [
                f'<rect x="{x + shift:.1f}" y="{min(y, up(0)):.1f}" width="{wide:.1f}" '
                f'height="{abs(up(0) - y):.1f}" fill="{colour}"/>'
                for x, y in points
            ]
            continue
        if "lines" in trace.mode:
            told = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(
                f'<polyline points="{told}" fill="none" stroke="{colour}" stroke-width="2"/>'
            )
        if "markers" in trace.mode:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}"/>'
                for x, y in points
            ]
    if len(some) > 1:
        x = LEFT
        for place, trace in enumerate(some[:8]):
            parts.append(
                f'<rect x="{x}" y="{TOP - 17}" width="10" height="10" fill="{COLOURS[place % len(COLOURS)]}"/>'
            )
            parts.append(_text(x + 14, TOP - 8, trace.name[:24]))
            x += 26 + 7 * min(24, len(trace.name))
    inner = "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{HIGH}" viewBox="0 0 {WIDE} {HIGH}"'
        f' font-family="system-ui,sans-serif" font-size="12" fill="#333"><rect width="100%" height="100%" fill="#fff"/>'
        f"{inner}</svg>"
    )


def _trace(told: Mapping[str, Any]) -> Trace | None:
    kind = str(told.get("type") or "scatter")
    if kind not in DRAWN or told.get("orientation") == "h":
        return None
    x, y = _values(told.get("x")), _values(told.get("y"))
    name = str(told.get("name") or "")
    if kind == "histogram":
        return _histogram(name, [_number(each) for each in x])
    x = x or [*range(len(y))]
    numbers = [_number(each) for each in y]
    usual = "lines+markers" if len(y) <= 20 else "lines"
    return Trace(
        name,
        "bar" if kind == "bar" else "scatter",
        str(told.get("mode") or usual),
        x,
        numbers,
    )


def _histogram(name: str, values: Sequence[float]) -> Trace | None:
    finite = [value for value in values if _finite(value)]
    if not finite:
        return None
    low, high, many = (
        min(finite),
        max(finite),
        min(40, max(5, round(math.sqrt(len(finite))))),
    )
    wide = (high - low) / many or 1.0
    counts = [0.0] * many
    for value in finite:
        counts[min(many - 1, int((value - low) / wide))] += 1
    return Trace(
        name, "bar", "", [low + (place + 0.5) * wide for place in range(many)], counts
    )


def _values(told: Any) -> list[Any]:
    """Return a column's values: a list, or bytes in base64 as Plotly 6 has them."""
    if isinstance(told, list):
        return told[:MOST]
    kind = TYPES.get(str(_object(told).get("dtype")))
    data = _object(told).get("bdata")
    if kind is None or not isinstance(data, str):
        return []
    try:
        found = array.array(kind)
        found.frombytes(base64.b64decode(data))
    except ValueError:
        return []
    return found.tolist()[:MOST]


def _number(value: Any) -> float:
    """Return a value on an axis, of a time its seconds; NaN where it is none."""
    if isinstance(value, int | float):
        return float(value)
    try:
        moment = datetime.fromisoformat(str(value)[:26])
    except ValueError:
        return math.nan
    return moment.replace(tzinfo=moment.tzinfo or timezone.utc).timestamp()


def _names(traces: Sequence[Trace]) -> list[str]:
    """Return the names that stand on the x axis, none where numbers or times do."""
    values = [x for trace in traces for x in trace.x]
    return (
        []
        if any(_finite(_number(x)) for x in values)
        else [*dict.fromkeys(map(str, values))][:200]
    )


def _ends(values: Sequence[float], room: bool) -> tuple[float, float]:
    finite = [value for value in values if _finite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if low == high:
        return low - 1, high + 1
    more = (high - low) * 0.04 * room
    return low - more, high + more


def _finite(value: float) -> bool:
    return math.isfinite(value)


def _axes(
    layout: Mapping[str, Any],
    names: Sequence[str],
    traces: Sequence[Trace],
    ends: tuple[float, float],
    range_y: tuple[float, float],
    across: Any,
    up: Any,
) -> list[str]:
    parts = []
    for y in _ticks(*range_y):
        parts.append(f'<path d="M{LEFT} {up(y):.1f}H{WIDE - RIGHT}" stroke="#e3e6ee"/>')
        parts.append(_text(LEFT - 8, up(y) + 4, f"{y:g}", "end"))
    times = not names and any(isinstance(x, str) for trace in traces for x in trace.x)
    if names:
        every = max(1, len(names) // 10)
        parts += [
            _text(across(name), HIGH - BOTTOM + 18, name[:14], "middle")
            for name in names[::every]
        ]
    for x in () if names else _ticks(*ends):
        told = (
            f"{datetime.fromtimestamp(x, timezone.utc):%Y-%m-%d}" if times else f"{x:g}"
        )
        parts.append(_text(across(x), HIGH - BOTTOM + 18, told, "middle"))
    parts.append(f'<path d="M{LEFT} {HIGH - BOTTOM}H{WIDE - RIGHT}" stroke="#8a90a0"/>')
    title, x_title, y_title = (
        _title(each) for each in (layout, layout.get("xaxis"), layout.get("yaxis"))
    )
    parts += (
        [_text(WIDE / 2, 20, title[:80], "middle", 'font-size="15" font-weight="600"')]
        if title
        else []
    )
    parts += [_text(WIDE / 2, HIGH - 10, x_title[:60], "middle")] if x_title else []
    turned = f'transform="rotate(-90 16 {HIGH / 2})"'
    parts += [_text(16, HIGH / 2, y_title[:60], "middle", turned)] if y_title else []
    return parts


def _ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 5
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * times for times in (1, 2, 5, 10) if size * times >= raw)
    first = math.ceil(low / step)
    return [
        round((first + place) * step, 12)
        for place in range(int((high - first * step) / step + 1e-9) + 1)
    ]


def _title(told: Any) -> str:
    title = _object(told).get("title")
    return (
        str(_object(title).get("text") or "")
        if isinstance(title, dict)
        else str(title or "")
    )


def _text(x: float, y: float, text: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(clean(text))}</text>'


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
