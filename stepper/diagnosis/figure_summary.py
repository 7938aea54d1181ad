"""A run's pictures and other rich outputs in words: where the agent's copy lies, what matplotlib's figure holds.

Titles, labels and names come from the user's figure: they stand in double quotes, on one line, cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepper.common.json_decode import decode_valid_items
from stepper.common.text import clean, one_line
from stepper.diagnosis import plotly_summary
from stepper.kernels.output_images import RASTER, content_text, key

LIMIT = 1800  # characters of all lines
FIGURE_LIMIT = 420  # … and of one figure's
REST = 120  # … and of what is said of those that are left out
TITLE, LABEL, NAMED = 80, 40, 8
MANY = "one of too many"  # why a picture was not even looked at
SAFE_PATH = re.compile(r"[\w./~+@%=,-]+")
SCALE = re.compile(r"log|symlog|logit|asinh|function")
# in the order of a line
ARTISTS = (
    "line",
    "scatter",
    "bar",
    "patch",
    "other collection",
    "other artist",
    "text",
)
POINTED = ("line", "scatter")
UNSEEN = {"blank": "blank: the axes hold no data", "nan": "all values are NaN"}
MIME = re.compile(r"[\w.+-]{1,40}/[\w.+-]{1,60}")
PLACEHOLDER = re.compile(
    r"<[^\n]*>|(Figure|FigureWidget|Map|alt\.\w*Chart)\(.*\)", re.DOTALL
)
# The first that fits names an output.
KINDS = {
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
class Saved:
    """One picture of a run's outputs: the agent's copy, or why there is none. Sizes are the notebook's own."""

    path: str = ""
    width: int = 0
    height: int = 0
    single_colour: bool = False
    why: str = ""
    key: int = 0  # `kernel.pictures.key` of its text


@dataclass(frozen=True)
class Image:
    """An image on axes: its shape, the range of its values where there are some."""

    shape: tuple[int, ...] = ()
    min: float | None = None
    max: float | None = None


@dataclass(frozen=True)
class Axes:
    """What axes show."""

    title: str = ""
    kind: str = ""  # where they are not rectilinear
    xlabel: str = ""
    ylabel: str = ""
    xlim: tuple[str | float | None, ...] = ()
    ylim: tuple[str | float | None, ...] = ()
    xscale: str = ""  # where it is not linear
    yscale: str = ""
    legend: tuple[str, ...] = ()
    # (kind, how many, with how many points)
    artists: tuple[tuple[str, int, int], ...] = ()
    images: tuple[Image, ...] = ()
    invisible: str = ""  # one of UNSEEN where nothing can be seen


@dataclass(frozen=True)
class Figure:
    """What the helper tells of a figure; `key` is that of its picture."""

    key: int
    title: str = ""
    colour_bars: tuple[str, ...] = ()
    legend: tuple[str, ...] = ()
    axes: tuple[Axes, ...] = ()
    left_out: int = 0  # axes


def lines(saved: Sequence[Saved], facts: list[Any]) -> list[str]:
    """Return a line for each picture that was looked at, and one for the others, all within `LIMIT` characters."""
    figures = {figure.key: figure for figure in decode_valid_items(Figure, facts)}
    looked = [picture for picture in saved if picture.why != MANY]
    distinct = list(dict.fromkeys(looked))
    room = min(FIGURE_LIMIT, (LIMIT - REST) // max(1, len(distinct)))
    texts: list[str] = []
    for number, picture in enumerate(distinct, 1):
        text = _line(
            number, picture, figures.get(picture.key), looked.count(picture), room
        )
        if sum(map(len, texts)) + len(text) + REST > LIMIT:
            texts.append(
                f"… and {_many(len(distinct) - len(texts), 'picture')} in the same folder"
            )
            break
        texts.append(text)
    past = len(saved) - len(looked)
    return texts + (
        [f"… and {past:,} more {'picture' if past == 1 else 'pictures'}, not saved"]
        if past
        else []
    )


def rich(outputs: Iterable[Mapping[str, Any]], facts: Any = ()) -> list[str]:
    """Return the names and sizes of what can be seen in the notebook only; facts where an SVG is matplotlib's."""
    figures = {figure.key: figure for figure in decode_valid_items(Figure, facts)}
    names = [name for output in outputs if (name := _rich(output.get("data"), figures))]
    return names[:NAMED] + (
        [f"… and {len(names) - NAMED:,} more"] if len(names) > NAMED else []
    )


def facts(told: list[Any]) -> dict[str, str]:
    """Return what figures hold in a few words, by the keys of their pictures."""
    return {
        str(figure.key): "; ".join(_held(figure))[:FIGURE_LIMIT]
        for figure in decode_valid_items(Figure, told)
    }


def _line(
    number: int, picture: Saved, figure: Figure | None, times: int, room: int
) -> str:
    if not picture.path:
        return f"Figure {number}: not saved: {one_line(picture.why, 120)}."
    path = clean(picture.path).replace("\n", "")
    head = f"Figure {number}: {path if SAFE_PATH.fullmatch(path) else _quoted(path, len(path))}"
    head += f" ({picture.width:,} × {picture.height:,})" + (
        f", shown {times:,} times" if times > 1 else ""
    )
    wrong = ["single-coloured: nothing is visible"] if picture.single_colour else []
    return _joined(head, wrong, _held(figure) if figure else [], room, figure)


def _rich(data: Any, figures: Mapping[int, Figure]) -> str:
    """Return how an output is named that has neither a picture nor a text that says it all; else ''."""
    if not isinstance(data, dict) or any(kind in data for kind in RASTER):
        return ""
    plain = content_text(data.get("text/plain", "")).strip()
    readable = bool(plain) and not PLACEHOLDER.fullmatch(plain)
    kinds = [
        mime
        for mime in data
        if mime != "text/plain" and not (readable and mime.startswith("text/"))
    ]
    known = [
        (name, mime)
        for start, name in KINDS.items()
        for mime in kinds
        if mime.startswith(start)
    ]
    others = [
        (
            mime
            if MIME.fullmatch(mime)
            else f"output of the type {_quoted(mime, LABEL)}",
            mime,
        )
        for mime in kinds
    ]
    for name, mime in (known + others)[:1]:
        text = content_text(data[mime])
        figure = figures.get(key(text)) if name == "SVG" else None
        words = f"{name}, {_size(len(text.encode('utf-8', 'replace')))}"
        parts = _plotly(data[mime]) if mime == plotly_summary.MIME else []
        if figure is None and not parts:
            return words
        return _joined(
            words, [], _held(figure) if figure else parts, FIGURE_LIMIT, figure
        )
    return ""


def _plotly(content: Any) -> list[str]:
    """Return what a plotly figure holds, [] where its JSON does not tell."""
    figure = plotly_summary.figure_of(content)
    if figure is None:
        return []
    parts = [f"title {_quoted(figure.title, TITLE)}"] if figure.title else []
    held = []
    for one in figure.traces[:NAMED]:
        points = f" ({_many(one.points, 'point')})" if one.points is not None else ""
        held.append(_many(one.count, f"{one.kind} trace") + points)
    if len(figure.traces) > NAMED:
        held.append(f"traces of {_many(len(figure.traces) - NAMED, 'other type')}")
    parts.append(", ".join(held) or "no traces")
    if figure.names:
        left_out = len(figure.names) - NAMED
        names = ", ".join(_quoted(name, LABEL) for name in figure.names[:NAMED])
        parts.append(
            f"named {names}" + (f" and {left_out:,} more" if left_out > 0 else "")
        )
    parts += [_plotly_axis(axis) for axis in figure.axes]
    if figure.frames:
        parts.append(_many(figure.frames, "animation frame"))
    return [part for part in parts if part]


def _plotly_axis(axis: plotly_summary.Axis) -> str:
    side = _side(axis.name, axis.title, axis.ends, axis.scale)
    if axis.categories:
        return f"{side or axis.name} {_many(axis.categories, 'category', 'categories')}"
    if axis.empty:
        return f"{side or axis.name} has no finite values"
    return side


def _joined(
    head: str, wrong: list[str], parts: Sequence[str], room: int, figure: Figure | None
) -> str:
    """Return the head, all that is wrong and as much of what a figure holds as there is room for."""
    axes = figure.axes if figure else ()
    for why, text in UNSEEN.items():
        which = ", ".join(
            str(number) for number, each in enumerate(axes, 1) if each.invisible == why
        )
        wrong += [f"{text} (axes {which})" if len(axes) > 1 else text] if which else []
    line = f"{head}: {'; '.join(wrong)}" if wrong else head
    for part in parts:
        if len(line) + len(part) + 4 > room:
            return line + " …"
        line += (
            ": " if line == head else ". " if part.startswith("Axes ") else "; "
        ) + part
    return line + "."


def _held(figure: Figure) -> list[str]:
    total, bars = len(figure.axes) + figure.left_out, figure.colour_bars
    parts = [
        f"title {_quoted(figure.title, TITLE)}" if figure.title else "",
        f"{total:,} axes" if total > 1 else "",
        " ".join(
            [
                _many(len(bars), "colour bar"),
                *(_quoted(bar, LABEL) for bar in bars[:3] if bar),
            ]
        )
        if bars
        else "",
        _legend(figure.legend),
    ]
    for number, axes in enumerate(figure.axes, 1):
        # else it is said that it is blank
        if axes.invisible != "blank" or axes.title or axes.xlabel or axes.ylabel:
            parts += _shown(axes, f"Axes {number}" if total > 1 else "")
    return [part for part in parts if part]


def _shown(axes: Axes, name: str) -> list[str]:
    names = [name, *(_quoted(text, TITLE) for text in (axes.title, axes.kind) if text)]
    sides = [
        _side("x", axes.xlabel, axes.xlim, axes.xscale),
        _side("y", axes.ylabel, axes.ylim, axes.yscale),
    ]
    held = []
    for kind, count, points in sorted(
        axes.artists, key=lambda artist: [*ARTISTS, artist[0]].index(artist[0])
    ):
        words = (
            _many(count, kind, "patches" if kind == "patch" else "")
            if kind in ARTISTS
            else ""
        )
        held.append(words + (f" ({_many(points, 'point')})" if kind in POINTED else ""))
    for image in axes.images[:2]:
        ends = dict.fromkeys(
            _end(end) for end in (image.min, image.max) if end is not None
        )
        shape = "image " + " × ".join(f"{side:,}" for side in image.shape)
        held.append(
            f"{shape}, {'all ' if len(ends) == 1 else ''}{' to '.join(ends)}"
            if ends
            else shape
        )
    return [
        " ".join(filter(None, names)),
        *(", ".join(filter(None, one)) for one in (sides, held)),
        _legend(axes.legend),
    ]


def _side(
    letter: str, label: str, ends: Sequence[str | float | None], scale: str
) -> str:
    words = [_quoted(label, LABEL)] if label else []
    words += [f"{_end(ends[0])} to {_end(ends[1])}"] if len(ends) == 2 else []
    words += (
        [f"({scale if SCALE.fullmatch(scale) else _quoted(scale, LABEL)})"]
        if scale
        else []
    )
    return " ".join([letter, *words]) if words else ""


def _end(end: str | float | None) -> str:
    return (
        "?"
        if end is None
        else _quoted(end, LABEL)
        if isinstance(end, str)
        else f"{end:.10g}"
    )


def _legend(names: Sequence[str]) -> str:
    return (
        f"legend {', '.join(_quoted(name, LABEL) for name in names[:NAMED])}"
        if names
        else ""
    )


def _many(count: int, word: str, plural: str = "") -> str:
    return f"{count:,} {word if count == 1 else plural or word + 's'}"


def _size(size: int) -> str:
    if size < 1024:
        return f"{size} bytes"
    return f"{size / 1024:.0f} kB" if size < 1 << 20 else f"{size / (1 << 20):.1f} MB"


def _quoted(value: Any, limit: int) -> str:
    """Return the user's words as one quoted piece, in which nothing ends the quotes or the line."""
    return (
        '"'
        + one_line(" ".join(clean(str(value)).split()), limit).replace('"', "'")
        + '"'
    )
