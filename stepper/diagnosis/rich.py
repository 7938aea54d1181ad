"""Outputs that can be seen in the notebook only, by name and size: charts, widgets, HTML, SVG."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepper.diagnosis.pictures import LABEL, Figure, by_key, joined, quoted
from stepper.kernel.pictures import RASTER, content_text, key

NAMED = 8
MIME = re.compile(r"[\w.+-]{1,40}/[\w.+-]{1,60}")
PLACEHOLDER = re.compile(r"<[^\n]*>|(Figure|FigureWidget|Map|alt\.\w*Chart)\(.*\)", re.DOTALL)
# The first that fits names an output.
KINDS = {
    "application/vnd.plotly.": "plotly figure", "application/vnd.vega": "Altair/Vega-Lite chart",
    "application/vnd.bokeh": "Bokeh figure", "application/vnd.jupyter.widget-view": "widget", "image/svg+xml": "SVG",
    "application/pdf": "PDF", "video/": "video", "audio/": "audio", "application/javascript": "JavaScript",
    "text/html": "HTML", "text/markdown": "Markdown", "text/latex": "LaTeX",
}  # fmt: skip


def rich(outputs: Iterable[Mapping[str, Any]], facts: Sequence[Any] = ()) -> list[str]:
    """Return the names and sizes of what can be seen in the notebook only; facts where an SVG is matplotlib's."""
    figures = by_key([*facts])
    names = [name for output in outputs if (name := _rich(output.get("data"), figures))]
    return names[:NAMED] + ([f"… and {len(names) - NAMED:,} more"] if len(names) > NAMED else [])


def _rich(data: Any, figures: Mapping[int, Figure]) -> str:
    """Return how an output is named that has neither a picture nor a text that says it all; else ''."""
    if not isinstance(data, dict) or any(kind in data for kind in RASTER):
        return ""
    plain = content_text(data.get("text/plain", "")).strip()
    readable = bool(plain) and not PLACEHOLDER.fullmatch(plain)
    kinds = [mime for mime in data if mime != "text/plain" and not (readable and mime.startswith("text/"))]
    known = [(name, mime) for start, name in KINDS.items() for mime in kinds if mime.startswith(start)]
    others = [(mime if MIME.fullmatch(mime) else f"output of the type {quoted(mime, LABEL)}", mime) for mime in kinds]
    for name, mime in (known + others)[:1]:
        text = content_text(data[mime])
        words = f"{name}, {_size(len(text.encode('utf-8', 'replace')))}"
        figure = figures.get(key(text)) if name == "SVG" else None
        return joined(words, [], figure) if figure else words
    return ""


def _size(size: int) -> str:
    if size < 1024:
        return f"{size} bytes"
    return f"{size / 1024:.0f} kB" if size < 1 << 20 else f"{size / (1 << 20):.1f} MB"
