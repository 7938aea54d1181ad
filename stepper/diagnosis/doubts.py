"""Doubts about a run that ended well, in a few lines: what the kernel's helper noticed, the weightiest first.

The facts come from the user's process: what is not so is left out, and each line begins with words of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stepper.ground.reading import read_all
from stepper.ground.text import one_line

SHOWN, LINE, NAME, MANY = 3, 160, 40, 1000


@dataclass(frozen=True)
class Doubt:
    """What the helper tells of a doubt; every kind fills the fields that its words need."""

    kind: str
    name: str = ""  # of a frame
    rows: int = 0
    operands: tuple[tuple[str, int], ...] = ()  # the frames that it was made of, and their rows
    columns: tuple[str, ...] = ()  # the first ones
    count: int = 0  # of columns, errors, warnings
    line: int = 0  # of the cell
    head: str = ""  # of the handler
    error: str = ""
    message: str = ""
    category: str = ""


def lines(facts: list[Any], first: Sequence[str] = ()) -> list[str]:
    """Return at most three doubts, one line each, and how many there are more; `first` are in words already."""
    doubts = [doubt for doubt in read_all(Doubt, facts) if doubt.kind in KINDS]
    doubts.sort(key=lambda doubt: list(KINDS).index(doubt.kind))
    texts = [*first, *(one_line(KINDS[doubt.kind](doubt), LINE) for doubt in doubts)]
    left = len(texts) - SHOWN
    return texts[:SHOWN] + ([f"… and {left} more doubt{'s' if left > 1 else ''}"] if left > 0 else [])


def _swallowed(doubt: Doubt) -> str:
    times = f"{doubt.count:,} or more ×" if doubt.count >= MANY else f"{doubt.count} ×"
    return f"line {doubt.line}: {_cut(doubt.head)} swallowed {times} {_cut(doubt.error)}{_message(doubt)}"


def _warning(doubt: Doubt) -> str:
    line = [f"line {doubt.line}"] if doubt.line else []
    where = ", ".join(line + ([f"{doubt.count} ×"] if doubt.count > 1 else []))
    return _cut(doubt.category) + (f" ({where})" if where else "") + _message(doubt)


def _empty(doubt: Doubt) -> str:
    if [name for name, _ in doubt.operands] == [doubt.name]:
        return f"{_cut(doubt.name)} has 0 rows now; before: {doubt.operands[0][1]:,}"
    sources = ", ".join(f"{_cut(name)} has {rows:,}" for name, rows in doubt.operands[:3])
    return f"{_cut(doubt.name)} has 0 rows" + (f"; {sources}" if sources else "")


def _blank(doubt: Doubt) -> str:
    if not doubt.columns:
        return f"{_cut(doubt.name)} is all NaN now"
    left = doubt.count - len(doubt.columns)
    listed = ", ".join(f'"{_cut(column)}"' for column in doubt.columns) + (f" and {left} more" if left > 0 else "")
    column, are = ("column", "is") if len(doubt.columns) == 1 and left <= 0 else ("columns", "are")
    return f"{column} {listed} of {_cut(doubt.name)} {are} all NaN now"


def _cut(text: str) -> str:
    return one_line(text, NAME)


def _message(doubt: Doubt) -> str:
    return f": {one_line(doubt.message, LINE)}" if doubt.message else ""


def _sides(doubt: Doubt) -> str:
    return " and ".join(f"{_cut(name)} ({rows:,})" for name, rows in doubt.operands)


# The weightiest first.
KINDS: dict[str, Callable[[Doubt], str]] = {
    "swallowed": _swallowed,
    "multiplied": lambda doubt: f"{_cut(doubt.name)} has {doubt.rows:,} rows: more than {_sides(doubt)}",
    "emptied": lambda doubt: f"{_cut(doubt.name)} has 0 rows: nothing matched in the merge of {_sides(doubt)}",
    "empty": _empty,
    "blank": _blank,
    "warning": _warning,
}
