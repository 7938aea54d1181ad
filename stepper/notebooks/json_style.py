"""The layout of a notebook's JSON, and serialization of values in that layout.

`nbformat.write` indents by one space; other tools use two or four spaces, a tab or a
single line. stepper keeps the layout of the file, so that a git diff contains only the
cells that ran.
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
# A small or large number at the end of a line: orjson and Python format it
# differently. A string does not match, because it ends with a quote.
ORJSON_FLOAT = re.compile(rb"(?m)(?:^|(?<= ))-?(?:0\.0000\d+|\d[\d.]*e[-+]?\d+)(?=,?$)")
INDENTED_START = re.compile(rb"\s*\{(\r?\n)([ \t]+)\"")
SPACED_COLON = re.compile(rb"\s*\{\s*\"[^\"\\]*\": ")
NOT_ASCII = re.compile("[^\x00-\x7f]")
# Every layout escapes control characters, so they are excluded.
ESCAPE = re.compile(rb"\\u(?!00[01])")
BOM = b"\xef\xbb\xbf"
START_BYTES = 1000  # enough to detect the layout
ORJSON_OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
# orjson serializes integers in this range only.
MIN_INTEGER = -(1 << 63)
MAX_INTEGER = (1 << 64) - 1


@dataclass(frozen=True)
class JsonStyle:
    """The layout of a JSON document. The default is the layout of `nbformat.write`."""

    # The indentation of one level. None if the document is a single line.
    indent: bytes | None = b" "
    newline: bytes = b"\n"
    # Only for a single line: whether a space follows each colon and comma.
    space_after_colon: bool = True
    document: bytes = b""  # the document with this layout

    @cached_property
    def ascii_only(self) -> bool:
        """Whether the document escapes all characters that are not ASCII.

        This reads the whole document.
        """
        return self.document.isascii() and _has_escapes(self.document)

    def dumps(self, value: Any, depth: int = 0) -> bytes:
        """Serialize a value with sorted keys; `depth` is the indentation level."""
        if self.indent is None:
            data = self._dumps_with_json(value, depth)
        else:
            data = self._dumps_with_orjson(value, depth)
        # All characters that are not ASCII are in strings.
        if not data.isascii() and self.ascii_only:
            data = NOT_ASCII.sub(_escape_match, data.decode()).encode()
        return data

    def format_line_start(self, depth: int) -> bytes:
        """Return a newline and the indentation for the level `depth`."""
        assert self.indent is not None
        return self.newline + self.indent * depth

    def _dumps_with_orjson(self, value: Any, depth: int) -> bytes:
        """Serialize a value with orjson, which is fast but indents by two spaces.

        The result can be split into lines, because orjson escapes newlines in strings.
        """
        try:
            data = orjson.dumps(value, option=ORJSON_OPTIONS)
        except TypeError:  # integers of more than 64 bits, lone surrogates
            return self._dumps_with_json(value, depth)
        # orjson writes NaN as null.
        if b"null" in data and not _is_supported_by_orjson(value):
            return self._dumps_with_json(value, depth)
        lines = map(self._convert_line, data.split(b"\n"))
        return self.format_line_start(depth).join(lines)

    def _convert_line(self, line: bytes) -> bytes:
        """Convert a line from orjson to this indentation and Python's float format."""
        assert self.indent is not None
        text = line.lstrip(b" ")
        level = (len(line) - len(text)) // 2  # orjson indents by two spaces
        last_character = text.rstrip(b",")[-1:]
        if last_character.isdigit():
            text = ORJSON_FLOAT.sub(_format_float, text)
        return self.indent * level + text

    def _dumps_with_json(self, value: Any, depth: int) -> bytes:
        """Serialize a value with Python's json module, which accepts all values."""
        separators = None
        indent = None
        if self.indent is not None:
            indent = self.indent.decode()
        elif not self.space_after_colon:
            separators = (",", ":")
        text = json.dumps(
            value,
            indent=indent,
            separators=separators,
            sort_keys=True,
            ensure_ascii=False,
        )
        data = SURROGATE.sub(_escape_surrogate, text).encode()
        if self.indent is None:
            return data
        return data.replace(b"\n", self.format_line_start(depth))


NBFORMAT = JsonStyle()


def detect_style(data: bytes) -> JsonStyle:
    """Return the layout of a document, detected from its first lines.

    A document that was formatted by hand gets the default layout.
    """
    start = data.removeprefix(BOM)[:START_BYTES]
    match = INDENTED_START.match(start)
    if match:
        newline, indent = match.groups()
        return JsonStyle(indent=indent, newline=newline, document=data)
    if b"\n" in start.rstrip():  # several lines, but not indented by a tool
        return JsonStyle(document=data)
    has_space = SPACED_COLON.match(start) is not None
    return JsonStyle(indent=None, space_after_colon=has_space, document=data)


def _format_float(match: re.Match[bytes]) -> bytes:
    """Return a matched number as Python formats it."""
    number = float(match[0])
    return repr(number).encode()


def _escape_surrogate(match: re.Match[str]) -> str:
    """Return the JSON escape of a lone surrogate."""
    return f"\\u{ord(match[0]):04x}"


def _escape_match(match: re.Match[str]) -> str:
    """Return the JSON escape of a character, as a surrogate pair if required."""
    quoted = json.dumps(match[0])
    return quoted[1:-1]


def _has_escapes(data: bytes) -> bool:
    """Return whether JSON data escapes characters other than control characters."""
    return any(_is_escape(data, match.start()) for match in ESCAPE.finditer(data))


def _is_escape(data: bytes, index: int) -> bool:
    """Return whether the backslash at an index is not itself escaped."""
    first = index
    while data[first - 1 : first] == b"\\":
        first -= 1
    return (index - first) % 2 == 0


def _is_supported_by_orjson(value: Any) -> bool:
    """Return whether orjson serializes a value like Python's json module."""
    if isinstance(value, dict):
        names_and_values = [*value, *value.values()]
        return all(map(_is_supported_by_orjson, names_and_values))
    if isinstance(value, list):
        return all(map(_is_supported_by_orjson, value))
    if isinstance(value, str):
        return SURROGATE.search(value) is None
    if isinstance(value, int):
        return MIN_INTEGER <= value <= MAX_INTEGER
    if isinstance(value, float):
        return math.isfinite(value)
    return True
