"""The layout of a notebook's JSON: indentation, line ends, separators, escapes; and values written in that layout.

`nbformat.write` uses one space of indentation; other tools use two, four, a tab or a single line. What stepper writes
into a file follows the file, so that a run changes only the cells that ran.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

SURROGATE = re.compile("[\ud800-\udfff]")
# A number at the end of a line, where no text ends: those that orjson writes otherwise
# than Python.
SMALL = re.compile(rb"(?m)(?:^|(?<= ))-?(?:0\.0000\d+|\d[\d.]*e[-+]?\d+)(?=,?$)")
OPENING = re.compile(rb"\s*\{(\r?\n)([ \t]+)\"")
SPACED_COLON = re.compile(rb"\s*\{\s*\"[^\"\\]*\": ")
NOT_ASCII = re.compile("[^\x00-\x7f]")
ESCAPE = re.compile(rb"\\u(?!00[01])")  # control characters are escaped in every layout
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class JsonStyle:
    """The layout of a JSON document. The default is that of `nbformat.write`."""

    indent: bytes | None = b" "  # of one level; None: the document is a single line
    newline: bytes = b"\n"
    space_after_colon: bool = True  # in a single line, after commas too
    document: bytes = b""

    @cached_property
    def ascii_only(self) -> bool:
        """Whether the document escapes all characters outside ASCII. This reads the whole document."""
        return self.document.isascii() and _has_escapes(self.document)

    def dumps(self, value: Any, depth: int = 0) -> bytes:
        """Serialise a value with sorted keys, as it stands `depth` levels inside the document."""
        dump = self._dumps_by_python if self.indent is None else self._dumps_by_orjson
        data = dump(value, depth)
        # outside of texts there are no such characters
        if not data.isascii() and self.ascii_only:
            data = NOT_ASCII.sub(_escaped, data.decode()).encode()
        return data

    def line_start(self, depth: int) -> bytes:
        """Return a newline and the indentation of a level."""
        assert self.indent is not None
        return self.newline + self.indent * depth

    def _dumps_by_orjson(self, value: Any, depth: int) -> bytes:
        """Serialise with orjson, which indents by two; a raw newline in JSON only stands between values."""
        try:
            data = orjson.dumps(
                value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
            )
        except TypeError:  # integers of more than 64 bits, lone surrogates
            return self._dumps_by_python(value, depth)
        if b"null" in data and not _is_plain(value):  # orjson writes NaN as null
            return self._dumps_by_python(value, depth)
        lines = [self._with_indent(line) for line in data.split(b"\n")]
        return self.line_start(depth).join(lines)

    def _with_indent(self, line: bytes) -> bytes:
        """Return a line of orjson's with this layout's indentation, and a number that ends it as Python writes it."""
        assert self.indent is not None
        text = line.lstrip(b" ")
        level = (len(line) - len(text)) // 2
        if text.rstrip(b",")[-1:].isdigit():
            text = SMALL.sub(lambda found: repr(float(found[0])).encode(), text)
        return self.indent * level + text

    def _dumps_by_python(self, value: Any, depth: int) -> bytes:
        separators = None
        if self.indent is None and not self.space_after_colon:
            separators = (",", ":")
        indent = None if self.indent is None else self.indent.decode()
        text = json.dumps(
            value,
            indent=indent,
            separators=separators,
            sort_keys=True,
            ensure_ascii=False,
        )
        data = SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()
        return (
            data if self.indent is None else data.replace(b"\n", self.line_start(depth))
        )


NBFORMAT = JsonStyle()


def detect_style(data: bytes) -> JsonStyle:
    """Return the layout of a document, judged by its first lines."""
    start = data.removeprefix(BOM)[:1000]
    if opening := OPENING.match(start):
        return JsonStyle(indent=opening[2], newline=opening[1], document=data)
    if b"\n" in start.rstrip():  # laid out by hand
        return JsonStyle(document=data)
    spaced = SPACED_COLON.match(start) is not None
    return JsonStyle(indent=None, space_after_colon=spaced, document=data)


def _escaped(match: re.Match[str]) -> str:
    """Return a character as JSON escapes it: two escapes for one outside the basic plane."""
    return json.dumps(match[0])[1:-1]


def _has_escapes(data: bytes) -> bool:
    """Whether characters other than control characters are escaped."""
    return any(_is_escape(data, match.start()) for match in ESCAPE.finditer(data))


def _is_escape(data: bytes, at: int) -> bool:
    """Whether the backslash begins an escape: it is not itself escaped by the one before."""
    first = at
    while data[first - 1 : first] == b"\\":
        first -= 1
    return (at - first) % 2 == 0


def _is_plain(value: Any) -> bool:
    """Whether orjson writes the value as Python's own encoder does."""
    if isinstance(value, dict):
        return all(_is_plain(name) and _is_plain(part) for name, part in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return SURROGATE.search(value) is None
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 64
    return not isinstance(value, float) or math.isfinite(value)
