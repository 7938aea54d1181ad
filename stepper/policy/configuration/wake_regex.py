"""Validate and compile the regular expressions that are accepted as wake patterns.

Python's regex engine tries the ways in which a pattern can match one after the other. A
pattern is accepted only if no repeated part can match in several ways. The matching
time is then at most polynomial in the length of a line.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

try:
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_parse as parser

MAX_PATTERN_LENGTH = 200
# A repeat with a range of at least this many counts as unbounded.
UNBOUNDED_RANGE = 100
MAX_UNBOUNDED_REPEATS = 4
# The maximum number of ways in which the bounded parts of a pattern can match.
MAX_BOUNDED_WAYS = 1000
# Kinds of items in a parsed pattern, by the names that `re` gives them.
REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
SINGLE_CHARACTERS = ("LITERAL", "NOT_LITERAL", "ANY", "IN", "CATEGORY", "AT")


class UnsafePatternError(ValueError):
    """A pattern is not accepted; the message is the reason."""


@dataclass(frozen=True)
class WakePattern:
    """A compiled pattern, with facts that make searching many lines faster."""

    regex: re.Pattern[str]
    # A matching line contains at least one text of each tuple, in this order. If the
    # pattern ignores case, the texts are in lower case, and only for lines of ASCII
    # characters it is certain that they contain the texts.
    required_texts: tuple[tuple[str, ...], ...]
    # Whether a matching line still matches when text is appended to the line.
    matches_longer_lines: bool


class _Cost(NamedTuple):
    """The backtracking that an item of a pattern may cause.

    `bounded_ways` is the number of ways in which the parts without unbounded repeats
    can match.
    """

    unbounded_repeats: int
    bounded_ways: int


def compile_pattern(pattern: str) -> WakePattern:
    """Compile a pattern; `find_problem` must have accepted it."""
    regex, items = _parse(pattern)
    ignores_case = bool(regex.flags & re.IGNORECASE)
    required_texts = list[tuple[str, ...]]()
    for texts in _find_required_texts(items):
        if not ignores_case:
            required_texts.append(texts)
            continue
        lower_case = tuple(text.lower() for text in texts)
        # In other scripts, a character may match several lower-case characters.
        if "".join(lower_case).isascii():
            required_texts.append(lower_case)
    # Anchors other than `^` (`$`, `\b`) may match only at the end of a line.
    has_other_anchor = any(
        str(kind) == "AT" and str(argument) != "AT_BEGINNING"
        for kind, argument in _walk(items)
    )
    return WakePattern(
        regex, tuple(required_texts), matches_longer_lines=not has_other_anchor
    )


def _parse(pattern: str) -> tuple[re.Pattern[str], Any]:
    """Return a compiled pattern, and its items as `re` parses them."""
    with warnings.catch_warnings():
        # Ignore warnings about syntax that will change in a later Python.
        warnings.simplefilter("ignore")
        return re.compile(pattern), parser.parse(pattern)


def find_problem(pattern: str) -> str:
    """Return why a pattern is not accepted, or an empty string if it is accepted."""
    if not pattern or len(pattern) > MAX_PATTERN_LENGTH:
        return f"a pattern must have 1 to {MAX_PATTERN_LENGTH} characters"
    try:
        _, items = _parse(pattern)
        cost = _measure_sequence(items)
    except UnsafePatternError as error:
        return str(error)
    except (re.error, OverflowError, RecursionError) as error:
        return f"invalid regular expression: {error}"
    if (
        cost.unbounded_repeats > MAX_UNBOUNDED_REPEATS
        or cost.bounded_ways > MAX_BOUNDED_WAYS
    ):
        return (
            "matching may take too long: the pattern has more than"
            f" {MAX_UNBOUNDED_REPEATS} unbounded repeats, or its other parts can match"
            f" in more than {MAX_BOUNDED_WAYS:,} ways"
        )
    return ""


def _measure_sequence(items: Iterable[Any]) -> _Cost:
    """Return the cost of a sequence of items.

    Raise UnsafePatternError if an item is not allowed.
    """
    unbounded_repeats = 0
    bounded_ways = 1
    for kind, argument in items:
        cost = _measure_item(str(kind), argument)
        unbounded_repeats += cost.unbounded_repeats
        bounded_ways *= cost.bounded_ways
    return _Cost(unbounded_repeats, bounded_ways)


def _measure_item(kind: str, argument: Any) -> _Cost:
    """Return the cost of an item.

    Raise UnsafePatternError if the item is not allowed.
    """
    if kind in SINGLE_CHARACTERS:
        return _Cost(0, 1)
    if kind == "SUBPATTERN":
        return _measure_sequence(argument[-1])
    if kind == "BRANCH":
        costs = [_measure_sequence(branch) for branch in argument[1]]
        unbounded_repeats = sum(cost.unbounded_repeats for cost in costs)
        bounded_ways = sum(cost.bounded_ways for cost in costs)
        return _Cost(unbounded_repeats, bounded_ways)
    if kind in REPEATS:
        return _measure_repeat(int(argument[0]), int(argument[1]), argument[2])
    raise UnsafePatternError(
        "lookaround, backreferences, conditions and atomic groups are not allowed"
    )


def _measure_repeat(minimum: int, maximum: int, body: Any) -> _Cost:
    """Return the cost of a repeat.

    Raise UnsafePatternError if the repeated part can match in several ways.
    """
    cost = _measure_sequence(body)
    can_match_nothing = not body.getwidth()[0]
    is_ambiguous = cost.unbounded_repeats > 0 or cost.bounded_ways > 1
    if maximum > 1 and (is_ambiguous or can_match_nothing):
        raise UnsafePatternError(
            "matching may take too long: a repeated group contains another repeat or"
            " alternatives, or can match an empty string"
        )
    if maximum - minimum >= UNBOUNDED_RANGE:
        return _Cost(cost.unbounded_repeats + 1, cost.bounded_ways)
    counts = maximum - minimum + 1
    return _Cost(cost.unbounded_repeats, cost.bounded_ways * counts)


def _find_required_texts(items: Iterable[Any]) -> list[tuple[str, ...]]:
    """Return the texts that each match contains, in order.

    Each tuple contains alternatives: a match contains at least one of them.
    """
    required_texts = list[tuple[str, ...]]()
    text = ""  # the literal characters since the last item of another kind
    for kind, argument in items:
        name = str(kind)
        if name == "LITERAL":
            text += chr(argument)
            continue
        if name == "AT":  # an anchor does not separate characters
            continue
        if text:
            required_texts.append((text,))
            text = ""
        required_texts += _find_texts_of_item(name, argument)
    if text:
        required_texts.append((text,))
    return required_texts


def _find_texts_of_item(kind: str, argument: Any) -> list[tuple[str, ...]]:
    """Return the texts that alternatives, a group or a repeat require.

    The result has the form of `_find_required_texts`. It is empty for other items.
    """
    if kind == "BRANCH":
        branch_texts = [_find_longest_text(branch) for branch in argument[1]]
        return [tuple(branch_texts)] if all(branch_texts) else []
    is_group_without_flags = kind == "SUBPATTERN" and not argument[1]
    is_required_repeat = kind in REPEATS and argument[0] > 0
    if is_group_without_flags or is_required_repeat:
        return _find_required_texts(argument[-1])
    return []


def _find_longest_text(branch: Iterable[Any]) -> str:
    """Return the longest text that a branch requires, or an empty string."""
    texts = [
        alternatives[0]
        for alternatives in _find_required_texts(branch)
        if len(alternatives) == 1
    ]
    return max(texts, key=len, default="")


def _walk(items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield all items of a parsed pattern, including nested ones."""
    for kind, argument in items:
        yield kind, argument
        name = str(kind)
        sequences = []
        if name == "BRANCH":
            sequences = argument[1]
        elif name in (*REPEATS, "SUBPATTERN"):
            sequences = [argument[-1]]
        for sequence in sequences:
            yield from _walk(sequence)
