"""A run's pictures in words: where the agent's copy lies, what matplotlib's figure holds, what has no picture at all.

Titles, labels and names come from the user's figure: they stand in double quotes, on one line, cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepper.ground.text import clean, one_line
from stepper.kernel.pictures import RASTER, content_text, key

LIMIT = 1800  # characters of all lines
FIGURE_LIMIT = 420  # … and of one figure's
TITLE, LABEL, NAMED = 80, 40, 8
MANY = "one of too many"  # why a picture was not even looked at
SAFE_PATH = re.compile(r"[\w./~+@%=,-]+")
SCALE = re.compile(r"log|symlog|logit|asinh|function")
MIME = re.compile(r"[\w.+-]{1,40}/[\w.+-]{1,60}")
PLACEHOLDER = re.compile(r"<[^\n]*>|(Figure|FigureWidget|Map|alt\.\w*Chart)\(.*\)", re.DOTALL)
KINDS = (  # the first that fits names an output
    ("application/vnd.plotly.", "plotly figure"),
    ("application/vnd.vega", "Altair/Vega-Lite chart"),
    ("application/vnd.bokeh", "Bokeh figure"),
    ("application/vnd.jupyter.widget-view", "widget"),
    ("image/svg+xml", "SVG"),
    ("application/pdf", "PDF"),
    ("video/", "video"),
    ("audio/", "audio"),
    ("application/javascript", "JavaScript"),
    ("text/html", "HTML"),
    ("text/markdown", "Markdown"),
    ("text/latex", "LaTeX"),
)
UNSEEN = {
    "blank": "blank: the axes hold no data",
    "nan": "all values are NaN",
    "outside": "all data lie outside the limits",
    "zero": "all bars are 0 high",
}
COUNTED = (  # (its name in the facts, that of its points, one, many)
    ("lines", "line_points", "line", "lines"),
    ("scatters", "scatter_points", "scatter", "scatters"),
    ("bars", "", "bar", "bars"),
    ("patches", "", "patch", "patches"),
    ("collections", "", "other collection", "other collections"),
    ("others", "", "other artist", "other artists"),
    ("texts", "", "text", "texts"),
    ("empty", "", "artist without data", "artists without data"),
)


@dataclass(frozen=True)
class Saved:
    """One picture of a run's outputs: the agent's copy, or why there is none. Sizes are the notebook's own."""

    path: str = ""
    width: int = 0
    height: int = 0
    single_colour: bool = False
    why: str = ""
    key: int = 0  # `key` of its text


def lines(saved: Sequence[Saved], facts: Iterable[Any]) -> list[str]:
    """Return a line for each picture that was looked at, and one for the others, all within `LIMIT` characters."""
    known = _by_key(facts)
    looked = [one for one in saved if one.why != MANY]
    distinct = list(dict.fromkeys(looked))
    room = min(FIGURE_LIMIT, (LIMIT - 120) // max(1, len(distinct)))
    said: list[str] = []
    for number, one in enumerate(distinct, 1):
        line = _figure(number, one, known.get(one.key), looked.count(one), room)
        if sum(map(len, said)) + len(line) + 120 > LIMIT:
            left = len(distinct) - len(said)
            said.append(f"… and {_many(left, 'picture')} in the same folder")
            break
        said.append(line)
    past = len(saved) - len(looked)
    return said + ([f"… and {past:,} more {'picture' if past == 1 else 'pictures'}, not saved"] if past else [])


def rich(outputs: Iterable[Mapping[str, Any]], facts: Iterable[Any] = ()) -> list[str]:
    """Return the names and sizes of what can be seen in the notebook only; facts where an SVG is matplotlib's."""
    known = _by_key(facts)
    found = [name for output in outputs if (name := _rich(output.get("data"), known))]
    return found[:NAMED] + ([f"… and {len(found) - NAMED:,} more"] if len(found) > NAMED else [])


def _by_key(facts: Iterable[Any]) -> dict[Any, Mapping[str, Any]]:
    return {one["key"]: one for one in facts or () if isinstance(one, dict) and isinstance(one.get("key"), int)}


def _figure(number: int, one: Saved, fact: Mapping[str, Any] | None, times: int, room: int) -> str:
    if not one.path:
        return f"Figure {number}: not saved: {one_line(one.why, 120)}."
    path = clean(one.path).replace("\n", "")
    head = f"Figure {number}: {path if SAFE_PATH.fullmatch(path) else _quoted(path, len(path))}"
    head += f" ({one.width:,} × {one.height:,})" + (f", shown {times:,} times" if times > 1 else "")
    wrong = ["single-coloured: nothing is visible"] if one.single_colour else []
    return _joined(head, wrong + _wrong(fact or {}), _held(fact or {}), room)


def _joined(head: str, wrong: Sequence[str], held: Sequence[str], room: int) -> str:
    """Return the head, all that is wrong and as much of what a figure holds as there is room for."""
    text = ": ".join([head, *filter(None, ["; ".join(wrong)])])
    for part in held:
        if len(text) + len(part) + 4 > room:
            return text + " …"
        text += (": " if text == head else ". " if part.startswith("Axes ") else "; ") + part
    return text + "."


def _wrong(fact: Mapping[str, Any]) -> list[str]:
    axes, found = _axes_of(fact), []
    for why, said in UNSEEN.items():
        which = [str(n) for n, one in enumerate(axes, 1) if one.get("invisible") == why]
        if which:
            found.append(said if len(axes) == 1 else f"{said} (axes {', '.join(which)})")
    return found


def _held(fact: Mapping[str, Any]) -> list[str]:
    axes = _axes_of(fact)
    total = len(axes) + _count(fact, "left_out")
    title = fact.get("title")
    parts = [f"title {_quoted(title, TITLE)}"] if title else []
    parts += [f"{total:,} axes"] if total > 1 else []
    bars = _list(fact.get("colour_bars"))
    if bars:
        named = [_quoted(one, LABEL) for one in bars[:3] if one]
        parts.append(" ".join(["colour bar" if len(bars) == 1 else f"{len(bars)} colour bars", *named]))
    parts += _legend(fact)
    for n, one in enumerate(axes, 1):
        parts += _axes(one, f"Axes {n}" if total > 1 else "")
    return parts


def _axes(one: Mapping[str, Any], name: str) -> list[str]:
    if one.get("invisible") == "blank" and not any(one.get(what) for what in ("title", "xlabel", "ylabel", "empty")):
        return []  # that it is blank is said
    names = [name, *(_quoted(one[what], TITLE) for what in ("title", "kind") if one.get(what))]
    sides = []
    for side in "xy":
        label, ends, scale = one.get(f"{side}label"), _list(one.get(f"{side}lim")), one.get(f"{side}scale")
        words = [_quoted(label, LABEL)] if label else []
        words += [f"{_end(ends[0])} to {_end(ends[1])}"] if len(ends) == 2 else []
        words += [f"({scale if SCALE.fullmatch(str(scale)) else _quoted(scale, LABEL)})"] if scale else []
        sides += [" ".join([side, *words])] if words else []
    held = []
    for counted, points, word, plural in COUNTED:
        if counted == "empty" and one.get("invisible") != "blank":
            continue  # seaborn's legends have such
        if _count(one, counted):
            many = f" ({_many(_count(one, points), 'point')})" if points else ""
            held.append(_many(_count(one, counted), word, plural) + many)
    held += [_image(image) for image in _list(one.get("images"))[:2] if isinstance(image, dict)]
    parts = [" ".join(filter(None, names)), ", ".join(sides), ", ".join(held)]
    return [*filter(None, parts), *_legend(one)]


def _axes_of(fact: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in _list(fact.get("axes")) if isinstance(one, dict)]


def _image(fact: Mapping[str, Any]) -> str:
    shape = " × ".join(f"{side:,}" for side in _list(fact.get("shape")) if isinstance(side, int))
    low, high = fact.get("min"), fact.get("max")
    if not (_is_number(low) and _is_number(high)):
        return f"image {shape}"
    return f"image {shape}, " + (f"all {low:.10g}" if low == high else f"{low:.10g} to {high:.10g}")


def _legend(fact: Mapping[str, Any]) -> list[str]:
    names = _list(fact.get("legend"))[:NAMED]
    return [f"legend {', '.join(_quoted(name, LABEL) for name in names)}"] if names else []


def _end(value: Any) -> str:
    return _quoted(value, LABEL) if isinstance(value, str) else f"{value:.10g}" if _is_number(value) else "?"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(fact: Mapping[str, Any], name: str) -> int:
    value = fact.get(name)
    return value if isinstance(value, int) else 0


def _many(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _quoted(value: Any, limit: int) -> str:
    """Return the user's words as one quoted piece, in which nothing ends the quotes or the line."""
    return '"' + one_line(" ".join(clean(str(value)).split()), limit).replace('"', "'") + '"'


def _rich(data: Any, known: Mapping[Any, Mapping[str, Any]]) -> str:
    """Return how an output is named that has neither a picture nor a text that says it all; else ''."""
    if not isinstance(data, dict) or any(kind in data for kind in RASTER):
        return ""
    plain = content_text(data["text/plain"]).strip() if "text/plain" in data else ""
    readable = bool(plain) and not PLACEHOLDER.fullmatch(plain)
    kinds = [mime for mime in data if mime != "text/plain" and not (readable and mime.startswith("text/"))]
    for start, name in KINDS:
        for mime in kinds:
            if mime.startswith(start):
                return _named(name, mime, data[mime], known)
    return _named("", kinds[0], data[kinds[0]], known) if kinds else ""


def _named(name: str, mime: str, content: Any, known: Mapping[Any, Mapping[str, Any]]) -> str:
    text = content_text(content)
    name = name or (mime if MIME.fullmatch(mime) else f"output of the type {_quoted(mime, LABEL)}")
    said = f"{name}, {_size(len(text.encode('utf-8', 'replace')))}"
    if name == "SVG" and (fact := known.get(key(text))):
        return _joined(said, _wrong(fact), _held(fact), FIGURE_LIMIT)
    if isinstance(content, dict) and isinstance(content.get("data"), list) and "plotly" in name:
        return f"{said}, {_many(len(content['data']), 'trace')}"
    mark = content.get("mark") if isinstance(content, dict) and "chart" in name else None
    mark = mark.get("type") if isinstance(mark, dict) else mark
    return f"{said}, mark {_quoted(mark, LABEL)}" if mark else said


def _size(size: int) -> str:
    if size < 1024:
        return f"{size} bytes"
    return f"{size / 1024:.0f} kB" if size < 1 << 20 else f"{size / (1 << 20):.1f} MB"
