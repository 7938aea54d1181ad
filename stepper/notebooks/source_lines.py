"""The lines of a notebook file at which the sources of its code cells start.

CI systems show a difference next to the line of the file. The JSON parser of the
standard library has no positions, so this module steps through the outer objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

SPACE = re.compile(r"[ \t\r\n]*")
_decoder = json.JSONDecoder()


def find_source_lines(text: str) -> dict[int, int]:
    """Return the line of each code cell's source, by the number of the cell.

    `text` is the content of a notebook file. Numbers and lines start at 1. The result
    is empty if the text is not a valid notebook.
    """
    try:
        return _find_lines(text)
    except (ValueError, IndexError, RecursionError):
        return {}


def _find_lines(text: str) -> dict[int, int]:
    """Return the line of each code cell's source, by the number of the cell.

    Raise ValueError, IndexError or RecursionError if the text is not valid.
    """
    lines: dict[int, int] = {}
    line = 1
    last_position = 0
    for start in _list_cells(text):
        positions = dict(_iterate_object(text, start))
        cell_type = _decode(text, positions.get("cell_type"))
        if cell_type != "code":
            continue
        source_position = positions.get("source", start)
        line += text.count("\n", last_position, source_position)
        last_position = source_position
        cell_number = len(lines) + 1
        lines[cell_number] = line
    return lines


def _list_cells(text: str) -> list[int]:
    """Return the positions of the cells. Raise ValueError if the text is not valid."""
    start = _skip_space(text, 0)
    for key, position in _iterate_object(text, start):
        if key == "cells":
            return _list_items(text, position)
    return []


def _iterate_object(text: str, start: int) -> Iterator[tuple[str, int]]:
    """Yield the keys of a JSON object, each with the position of its value."""
    if text[start] != "{":
        raise ValueError("not an object")
    position = _skip_space(text, start + 1)
    while text[position] != "}":
        key, position = _decoder.raw_decode(text, position)
        position = _skip_space(text, position)
        value = _skip_space(text, position + 1)  # after the colon
        yield key, value
        position = _skip_value(text, value)


def _list_items(text: str, start: int) -> list[int]:
    """Return the positions of the items of a JSON array."""
    if text[start] != "[":
        raise ValueError("not an array")
    positions = []
    position = _skip_space(text, start + 1)
    while text[position] != "]":
        positions.append(position)
        position = _skip_value(text, position)
    return positions


def _skip_value(text: str, position: int) -> int:
    """Return the position after a value, a comma and spaces."""
    _, position = _decoder.raw_decode(text, position)
    position = _skip_space(text, position)
    if text[position] == ",":
        position = _skip_space(text, position + 1)
    return position


def _skip_space(text: str, position: int) -> int:
    match = SPACE.match(text, position)
    assert match is not None  # the pattern matches an empty text
    return match.end()


def _decode(text: str, position: int | None) -> Any:
    """Return the value at a position, or None without a position."""
    if position is None:
        return None
    value, _ = _decoder.raw_decode(text, position)
    return value
