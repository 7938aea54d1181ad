"""Doubts about a run that ended well, in a few lines of facts: what the kernel's helper noticed, the weightiest first.

The facts come from the user's process: every text in them is cleaned and cut, and each line begins with words of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepper.ground.text import one_line

SHOWN, LINE, NAME, MANY = 3, 160, 40, 1000
Fact = dict[str, Any]


def lines(facts: list[Fact]) -> list[str]:
    """Return at most three doubts, one line each, and how many there are more."""
    told = [(list(KINDS).index(kind), KINDS[kind](fact)) for fact in facts if (kind := fact.get("kind")) in KINDS]
    texts = [one_line(text, LINE) for _, text in sorted(told, key=lambda one: one[0])]
    left = len(texts) - SHOWN + sum(_number(fact, "count") for fact in facts if fact.get("kind") == "more")
    more = f"… and {left} more doubt{'s' if left > 1 else ''}"
    return texts[:SHOWN] + ([more] if left > 0 else [])


def _swallowed(fact: Fact) -> str:
    count = _number(fact, "count")
    times = f"{count:,} or more ×" if count >= MANY else f"{count} ×"
    message = _text(fact, "message", LINE)
    error = _text(fact, "error") + (f": {message}" if message else "")
    return f"line {_number(fact, 'line')}: {_text(fact, 'head')} swallowed {times} {error}"


def _multiplied(fact: Fact) -> str:
    given = " and ".join(f"{name} ({count:,})" for name, count in _operands(fact))
    return f"{_name(fact)} has {_number(fact, 'rows'):,} rows: more than {given}"


def _emptied(fact: Fact) -> str:
    given = " and ".join(f"{name} ({count:,})" for name, count in _operands(fact))
    return f"{_name(fact)} has 0 rows: nothing matched in the merge of {given}"


def _empty(fact: Fact) -> str:
    given = _operands(fact)
    if [name for name, _ in given] == [_name(fact)]:
        return f"{_name(fact)} has 0 rows now; before: {given[0][1]:,}"
    sources = ", ".join(f"{name} has {count:,}" for name, count in given[:3])
    return f"{_name(fact)} has 0 rows" + (f"; {sources}" if sources else "")


def _blank(fact: Fact) -> str:
    columns = [f'"{one_line(str(one), NAME)}"' for one in _list(fact, "columns")]
    if not columns:
        return f"{_name(fact)} is all NaN now"
    left = _number(fact, "count") - len(columns)
    listed = ", ".join(columns) + (f" and {left} more" if left > 0 else "")
    one = len(columns) == 1 and left <= 0
    return f"column{'' if one else 's'} {listed} of {_name(fact)} {'is' if one else 'are'} all NaN now"


def _warning(fact: Fact) -> str:
    line, count = _number(fact, "line"), _number(fact, "count")
    where = ", ".join(([f"line {line}"] if line else []) + ([f"{count} ×"] if count > 1 else []))
    message = _text(fact, "message", LINE)
    return _text(fact, "category") + (f" ({where})" if where else "") + (f": {message}" if message else "")


# The weightiest first.
KINDS: dict[str, Callable[[Fact], str]] = {
    "swallowed": _swallowed,
    "multiplied": _multiplied,
    "emptied": _emptied,
    "empty": _empty,
    "blank": _blank,
    "warning": _warning,
}


def _text(fact: Fact, key: str, limit: int = NAME) -> str:
    return one_line(str(fact.get(key) or ""), limit)


def _name(fact: Fact) -> str:
    return _text(fact, "name") or "the result"


def _number(fact: Fact, key: str) -> int:
    value = fact.get(key)
    return value if isinstance(value, int) else 0


def _list(fact: Fact, key: str) -> list[Any]:
    value = fact.get(key)
    return value if isinstance(value, list) else []


def _operands(fact: Fact) -> list[tuple[str, int]]:
    pairs = [one for one in _list(fact, "operands") if isinstance(one, list) and len(one) == 2]
    return [(one_line(str(name), NAME), count) for name, count in pairs if isinstance(count, int)]
