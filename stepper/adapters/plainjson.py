"""Notebooks as plain JSON: read with orjson, written as Jupyter writes them.

A step must not pay for validating a hundred cells, nor turn over the whole file in git.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import orjson

LONG_INTEGER = re.compile(rb"[:,\[]\s*-?\d{19}")


def parse(data: bytes) -> tuple[Any, bool]:
    """Parse JSON; return it and whether orjson could. Raise ValueError.

    Python's own parser takes what orjson refuses: NaN, lone surrogates. orjson makes floats of integers of more than 64
    bits: whoever writes again what was parsed asks `has_long_integers`, which takes three times as long as parsing.
    """
    with contextlib.suppress(orjson.JSONDecodeError):
        return orjson.loads(data), True
    return parse_exactly(data), False


def has_long_integers(data: bytes) -> bool:
    """Whether JSON may hold integers of more than 64 bits."""
    return LONG_INTEGER.search(data) is not None


def parse_exactly(data: bytes) -> Any:
    """Parse JSON with Python's own parser; raise ValueError."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def load_json(data: bytes) -> Any:
    """Parse JSON; raise ValueError."""
    return parse(data)[0]


def dump_json(document: Any, fast: bool = True) -> bytes:
    """Serialise as Jupyter does: one space of indent, UTF-8, a final newline.

    orjson indents by two; a raw newline in JSON stands only between values, so each line's indent can be halved.
    It writes NaN as null: with `fast=False` Python's own writer keeps it.
    """
    if fast:
        with contextlib.suppress(TypeError):  # integers of more than 64 bits, lone surrogates
            return _halved(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    try:
        return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # a lone surrogate
        return (json.dumps(document, indent=1) + "\n").encode()


def _halved(data: bytes) -> bytes:
    lines = data.split(b"\n")
    return b"\n".join([line[(len(line) - len(line.lstrip(b" "))) // 2 :] for line in lines]) + b"\n"


def split(output: dict[str, Any]) -> dict[str, Any]:
    """Return an output with its texts as lists of lines, as nbformat writes them."""
    if output["output_type"] == "stream":
        return {**output, "text": _lines(output["text"])}
    if "data" not in output:
        return output
    return {**output, "data": {mime: _lines(data) if _is_text(mime) else data for mime, data in output["data"].items()}}


def _lines(text: Any) -> Any:
    return text.splitlines(True) if isinstance(text, str) else text


def _is_text(mime: str) -> bool:
    return mime.startswith("text/") or mime in ("application/javascript", "image/svg+xml")


def splice(data: bytes, old: dict[str, Any], new: dict[str, Any]) -> bytes | None:
    """Return the notebook's bytes with one cell replaced and all others as they stand; None where that can't be done.

    Jupyter and Claude Code indent by one, so a cell stands between two lines `  {` and `  }`. A raw newline or a bare
    quote never stands inside a JSON string; what was found must parse to the very cell.
    """
    try:
        named = data.find(b'\n   "id": ' + orjson.dumps(old.get("id")))
        start, end = data.rfind(b"\n  {\n", 0, named + 1) + 3, data.find(b"\n  }", named) + 4
        if named < 0 or not 3 <= start < end or orjson.loads(data[start:end]) != old:
            return None
        if has_long_integers(data[start:end]) and repr(parse_exactly(data[start:end])) != repr(old):
            return None  # a number of the cell's is more than 64 bits long: not merely digits in its source
    except (TypeError, ValueError):  # what orjson refuses: NaN, lone surrogates
        return None
    cell = b"\n  ".join(dump_json(new)[:-1].split(b"\n"))
    return b"".join((memoryview(data)[:start], cell, memoryview(data)[end:]))
