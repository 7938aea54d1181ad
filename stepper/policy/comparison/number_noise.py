"""Remove rounding errors near zero from arrays and tables.

In a computed matrix, zeros may be printed as 1.1e-17 or -2.2e-17, and differ between
machines. Such a number counts as zero if it is tiny in comparison with the other
numbers of its array, or of its column in a table. Numbers outside of arrays and tables
remain as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from stepper.policy.comparison.ignored_differences import NUMBER, parse_number
from stepper.policy.comparison.output_items import Item

# A number counts as zero if it is at most this share of the largest number.
NOISE = 1e-12
# Larger numbers never count as zero.
MAX_NOISE = 1e-9
# Longer texts (in characters) remain as they are.
MAX_LENGTH = 1_000_000
SMALL_NUMBER = re.compile(r"[eE]-\d\d")
ZERO = "0.0"


class _Position(NamedTuple):
    """A number, and its position in a list of lines."""

    line: int  # index of the line
    start: int
    end: int
    value: float


def remove_noise(items: list[Item]) -> list[Item]:
    """Return the items, with 0.0 in place of rounding errors near zero."""
    result = list[Item]()
    lines = list[str]()
    for item in items:
        if isinstance(item, str):
            lines.append(item)
            continue
        result += _remove_from_lines(lines)
        lines = []
        result.append(item)
    result += _remove_from_lines(lines)
    return result


def _remove_from_lines(lines: list[str]) -> list[str]:
    """Return adjacent lines, with 0.0 in place of rounding errors near zero."""
    if not any(map(SMALL_NUMBER.search, lines)):
        return lines
    if sum(map(len, lines)) > MAX_LENGTH:
        return lines
    noise = set[_Position]()
    for array in _list_arrays(lines):
        noise.update(_select_noise(array))
    for column in _list_columns(lines):
        noise.update(_select_noise(column))
    result = [*lines]
    for position in sorted(noise, reverse=True):
        line = result[position.line]
        # The number of spaces before a number depends on its sign.
        before = line[: position.start].rstrip()
        if before and not before.endswith(("[", "(")):
            before += " "
        after = line[position.end :]
        result[position.line] = f"{before}{ZERO}{after}"
    return result


def _select_noise(numbers: Sequence[_Position]) -> list[_Position]:
    """Return the numbers of an array or a column that are rounding errors."""
    scale = 0.0
    for number in numbers:
        size = abs(number.value)
        if math.isfinite(size):
            scale = max(scale, size)
    limit = min(NOISE * scale, MAX_NOISE)
    return [number for number in numbers if 0 < abs(number.value) <= limit]


def _list_numbers(index: int, line: str) -> list[_Position]:
    """Return the numbers in a line with their positions.

    `index` is the index of the line.
    """
    numbers = []
    for match in NUMBER.finditer(line):
        start, end = match.span(1)
        value = parse_number(match[1])
        numbers.append(_Position(index, start, end, value))
    return numbers


def _list_arrays(lines: Sequence[str]) -> list[list[_Position]]:
    """Return the numbers of each array, a text in outermost square brackets."""
    arrays = list[list[_Position]]()
    depth = 0
    for index, line in enumerate(lines):
        by_start = {number.start: number for number in _list_numbers(index, line)}
        for column, character in enumerate(line):
            if character == "[":
                depth += 1
                if depth == 1:
                    arrays.append([])
            elif character == "]":
                depth = max(0, depth - 1)
            elif depth and column in by_start:
                number = by_start[column]
                arrays[-1].append(number)
    return arrays


def _list_columns(lines: Sequence[str]) -> list[list[_Position]]:
    """Return the numbers of each column of each table.

    The numbers of a column end at the same position of their lines. Blank lines
    separate tables.
    """
    columns = dict[tuple[int, int], list[_Position]]()
    table = 0  # the number of the table
    for index, line in enumerate(lines):
        if not line.strip():
            table += 1
        for number in _list_numbers(index, line):
            column = columns.setdefault((table, number.end), [])
            column.append(number)
    return [*columns.values()]
