"""Facts of matplotlib's figures, taken where they are displayed: when a cell has ended the backend has closed them.

Everything is read from what the draw left behind: no draw call, no formatter, no code of the user's. matplotlib is only
looked at where a figure of its own was shown, hence no import of it.
"""

from __future__ import annotations

import base64
import functools
import math
import re
import sys
import zlib
from collections.abc import Callable
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import (
    class_names,
    clock,
    name_of,
    shell,
    shorten,
)

CUT, AXES, LEGEND, KEPT = 80, 12, 8, 16
VALUES, SECONDS = 100_000, 0.03
# in the order in which a report takes one
PICTURES = ("image/png", "image/jpeg", "image/svg+xml")
# their ticks say more than numbers
TEXTUAL = re.compile("Date|FixedFormatter|FuncFormatter|StrCategory")
# What an artist is called: the first of its classes that stands here.
KINDS = {
    "Line2D": "line",
    "PathCollection": "scatter",
    "QuadMesh": "image",
    "_ImageBase": "image",
    "Patch": "patch",
    "Collection": "other collection",
    "Text": "text",
}
# what axes keep artists in
HELD = ("lines", "collections", "patches", "images", "tables", "artists", "texts")
NUMBER = re.compile(r"[-−]?[\d,]*\.?\d*")
POINTS: dict[str, Callable[[Any], Any]] = {  # of what can be without data
    "line": lambda line: line.get_xydata(),
    "scatter": lambda scatter: scatter.get_offsets(),
    "other collection": lambda held: held.get_paths(),
}
Fact = dict[str, Any]
entries: list[Fact] = []


def begin() -> None:
    formatter = shell.display_formatter
    original = formatter.format

    @functools.wraps(original)
    def format(*args: Any, **kwargs: Any) -> Any:  # noqa: A001  # as IPython calls it
        result = original(*args, **kwargs)
        quietly(note, args[0] if args else kwargs.get("obj"), result)
        return result

    formatter.format = format


def end() -> None:
    """For a helper of another version; a wrapper around ours stays, and calls it."""
    ours = vars(shell.display_formatter).get("format")
    if getattr(ours, "__globals__", None) is globals():
        shell.display_formatter.format = vars(ours)["__wrapped__"]


def reset() -> None:
    entries.clear()


def collected() -> list[Fact]:
    return list(entries)


def quietly(make: Callable[..., Any], *given: Any) -> Any:
    """Unlike `guarded` it lets an interrupt through: this runs in the midst of a cell."""
    try:
        return make(*given)
    except KeyboardInterrupt:
        raise
    except BaseException:  # SystemExit too: whatever the user's figures do
        return None


def note(shown: Any, result: Any) -> None:
    if "matplotlib.figure" in sys.modules and "matplotlib.figure.Figure" in class_names(
        type(shown)
    ):
        key = quietly(print_of, result[0])
        if key is not None:
            entries.append({"key": key, **look(shown)})
            # an animation: its last pictures are those that stay
            if len(entries) > KEPT:
                del entries[KEPT // 2]


def print_of(data: dict[str, Any]) -> int | None:
    """What a picture is found again by in the outputs, which %%capture, clear_output and updates make others of."""
    content = next((data[kind] for kind in PICTURES if data.get(kind)), None)
    if content is None:
        return None
    text = content if type(content) is str else base64.b64encode(content).decode()
    return zlib.crc32("".join(text.split()).encode("utf-8", "replace"))


def look(figure: Any) -> Fact:
    until = clock() + SECONDS
    axes = [each for each in figure.axes if each.get_visible()]
    bars = [
        each
        for each in axes
        if getattr(each, "_colorbar", None) or each.get_label() == "<colorbar>"
    ]
    axes = [each for each in axes if not any(each is bar for bar in bars)]
    title, legends = getattr(figure, "_suptitle", None), figure.legends[:1]
    looks = [
        (each, quietly(look_at, each, until) or {})
        for each in axes[:AXES]
        if clock() < until
    ]
    held = [
        each.get_position().bounds
        for each, fact in looks
        if fact.get("invisible") != "blank"
    ]
    # Left out: a place that was left empty on purpose; the mere frame of others in its
    # very place, as twins have it.
    empty = [not each.axison or each.get_position().bounds in held for each, _ in looks]
    return {
        "title": cut(title.get_text()) if title is not None else "",
        "colour_bars": [
            cut(bar.get_ylabel() or bar.get_xlabel()) for bar in bars[:AXES]
        ],
        "legend": names_in(legends[0]) if legends else [],
        "axes": [
            fact
            for (_, fact), off in zip(looks, empty)
            if not (off and fact.get("invisible") == "blank")
        ],
        "left_out": len(axes) - len(looks),
    }


def look_at(axes: Any, until: float) -> Fact:
    titles = [axes.get_title(loc=where) for where in ("center", "left", "right")]
    texts = {
        "title": next(filter(None, titles), ""),
        "xlabel": axes.get_xlabel(),
        "ylabel": axes.get_ylabel(),
        "kind": axes.name,
        "xscale": axes.get_xscale(),
        "yscale": axes.get_yscale(),
    }
    fact: Fact = {
        name: cut(text)
        for name, text in texts.items()
        if text not in ("", "rectilinear", "linear")
    }
    for side, axis, ends in (
        ("xlim", axes.xaxis, axes.get_xlim()),
        ("ylim", axes.yaxis, axes.get_ylim()),
    ):
        fact[side] = quietly(limits, axis, *ends) or []
    legend = axes.get_legend()
    fact["legend"] = (
        names_in(legend) if legend is not None and legend.get_visible() else []
    )
    return {
        name: value for name, value in {**fact, **artists(axes, until)}.items() if value
    }


def artists(axes: Any, until: float) -> Fact:
    """How many artists there are of each kind and how many points they have, and why none of it can be seen."""
    bars = {
        id(each)
        for held in axes.containers
        if type(held).__name__ == "BarContainer"
        for each in held.patches
    }
    shown = [
        each for where in HELD for each in getattr(axes, where) if each.get_visible()
    ]
    own = [("bar" if id(each) in bars else kind_of(each, axes), each) for each in shown]
    images = [quietly(image, each) or {} for kind, each in own if kind == "image"][
        :AXES
    ]
    counts: dict[str, list[int]] = {}
    for kind, each in own:
        points = len(POINTS[kind](each)) if kind in POINTS else -1
        if points and kind != "image":
            count = counts.setdefault(kind, [0, 0])
            count[0], count[1] = count[0] + 1, count[1] + max(0, points)
    others, unseen = set(counts) - {"text"}, ""
    if not counts and not images:
        unseen = "blank"
    elif images and not others:
        unseen = (
            "nan"
            if all("shape" in each and "max" not in each for each in images)
            else ""
        )
    elif (
        others <= {"line", "scatter", "bar"}
        and not images
        and axes.name == "rectilinear"
    ):
        unseen = "nan" if quietly(all_nan, axes, own, until) else ""
    return {
        "artists": [[kind, *count] for kind, count in counts.items()],
        "images": images,
        "invisible": unseen,
    }


def kind_of(artist: Any, axes: Any) -> str:
    kind = next(
        (KINDS[name] for name in map(name_of, type(artist).__mro__) if name in KINDS),
        "other artist",
    )
    if kind == "scatter" and not in_data(artist.get_offset_transform(), axes):
        return "other collection"  # a contour
    return kind


def in_data(transform: Any, axes: Any) -> bool:
    # `==` compares what they do, and axhline's does the same where the limits are 0 and
    # 1
    return all(transform.contains_branch_seperately(axes.transData)) and bool(
        transform == axes.transData
    )


def all_nan(axes: Any, own: list[tuple[str, Any]], until: float) -> bool:
    """Whether no point of the lines, scatters and bars can be drawn; lines such as axhline's are no data."""
    numpy, room, seen = sys.modules["numpy"], VALUES, False
    for kind, each in own:
        spot: Any = []
        if kind == "bar":
            spot = [[each.get_width(), each.get_height()]]
        elif kind == "scatter" or (
            kind == "line" and in_data(each.get_transform(), axes)
        ):
            spot = POINTS[kind](each)
        values = numpy.ma.filled(numpy.ma.asarray(spot, dtype=float), math.nan).reshape(
            -1, 2
        )
        room -= values.size
        if room < 0 or clock() > until or numpy.isfinite(values).all(axis=1).any():
            return False
        seen = seen or len(values) > 0
    return seen


def image(artist: Any) -> Fact:
    """The shape of an image and the range of its values; no range where all are NaN or masked."""
    numpy, values = sys.modules["numpy"], artist.get_array()
    mesh = any(name_of(kind) == "QuadMesh" for kind in type(artist).__mro__)
    shape = (
        [side - 1 for side in artist.get_coordinates().shape[:2]]
        if mesh
        else values.shape[:3]
    )
    fact: Fact = {"shape": [int(side) for side in shape]}
    if values.size > 10 * VALUES:
        return {**fact, "max": None}
    plain, hidden = numpy.ma.getdata(values), numpy.ma.getmaskarray(values)
    if plain.dtype.kind == "f":
        hidden = hidden | numpy.isnan(plain)
    plain = plain[~hidden] if hidden.any() else plain
    return (
        {**fact, "min": number(plain.min()), "max": number(plain.max())}
        if plain.size
        else fact
    )


def limits(axis: Any, low: float, high: float) -> list[Any]:
    """Numbers; for dates, names and what else is written in words: what is written at the ends."""
    textual = TEXTUAL.search(name_of(type(axis.get_major_formatter())))
    texts = tick_texts(axis, *sorted((low, high))) if textual else []
    if texts and not (NUMBER.fullmatch(texts[0]) and NUMBER.fullmatch(texts[-1])):
        return [cut(texts[0]), cut(texts[-1])][:: 1 if low <= high else -1]
    return [number(low), number(high)]


def tick_texts(axis: Any, low: float, high: float) -> list[str]:
    """The labels as they were drawn: asking the axis for them would call the user's formatter again."""
    ticks = [
        tick
        for tick in axis.majorTicks[: len(axis.get_majorticklocs())]
        if low <= tick.get_loc() <= high
    ]
    texts = [
        tick.label1.get_text().strip()
        for tick in sorted(ticks, key=lambda tick: float(tick.get_loc()))
    ]
    return [" ".join(text.split()) for text in texts if text]


def names_in(legend: Any) -> list[str]:
    return [cut(text.get_text()) for text in legend.get_texts()[:LEGEND]]


def cut(text: Any) -> str:
    return str(shorten(str(text), CUT))


def number(value: Any) -> float | None:
    """Four significant digits; None for what JSON can't tell."""
    value = float(value)
    return float(f"{value:.4g}") if math.isfinite(value) else None
