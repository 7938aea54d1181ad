"""Wake patterns: which regular expressions may look at what a cell prints, and what a line must hold to match one.

Python's engine tries ways to match one after the other; a pattern is taken where they are few whatever is printed:
no repeat holds what may match in several ways, so that they grow with a power of a line's length at most.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

try:
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_parse as parser

LONGEST = 200  # characters of a pattern
UNBOUNDED = 100  # as often at least: a repeat's length counts as any
# repeats without a bound; ways that all that has one may match in
MOST_UNBOUNDED, MOST_WAYS = 4, 1000
REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
ONE_CHARACTER = ("LITERAL", "NOT_LITERAL", "ANY", "IN", "CATEGORY", "AT")


class UnfitError(ValueError):
    """Why a pattern is not taken."""


@dataclass(frozen=True)
class Sought:
    """What a pattern looks for in lines."""

    pattern: re.Pattern[str]
    # what a line holds that matches, in this order: of each one
    runs: tuple[tuple[str, ...], ...]
    grows: bool  # a line that matches does so whatever comes behind it


def sought(pattern: str) -> Sought:
    """Return what a pattern that has no problem looks for."""
    compiled, items = _parsed(pattern)
    folds = compiled.flags & re.IGNORECASE
    runs = [
        tuple(run.lower() if folds else run for run in each) for each in _runs(items)
    ]
    ends = any(
        str(kind) == "AT" and str(given) != "AT_BEGINNING"
        for kind, given in _each(items)
    )
    return Sought(
        compiled,
        tuple(each for each in runs if not folds or "".join(each).isascii()),
        not ends,
    )


def _parsed(pattern: str) -> tuple[re.Pattern[str], Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a later Python may read otherwise
        return re.compile(pattern), parser.parse(pattern)


def problem(pattern: str) -> str:
    """Return why a pattern is not taken, '' for one that is."""
    if not pattern or len(pattern) > LONGEST:
        return f"a pattern has 1 to {LONGEST} characters"
    try:
        unbounded, ways = _ways(_parsed(pattern)[1])
    except UnfitError as error:
        return str(error)
    except (re.error, OverflowError, RecursionError) as error:
        return f"no regular expression: {error}"
    if unbounded > MOST_UNBOUNDED or ways > MOST_WAYS:
        return f"it may take too long: more than {MOST_UNBOUNDED} unbounded repeats, or {MOST_WAYS:,} ways for the rest"
    return ""


def _ways(items: Iterable[Any]) -> tuple[int, int]:
    """Return how many unbounded repeats a pattern has, and in how many ways the rest may match; raise UnfitError."""
    unbounded, ways = 0, 1
    for kind, given in items:
        more, its = _of(str(kind), given)
        unbounded, ways = unbounded + more, ways * its
    return unbounded, ways


def _of(kind: str, given: Any) -> tuple[int, int]:
    if kind in ONE_CHARACTER:
        return 0, 1
    if kind == "SUBPATTERN":
        return _ways(given[-1])
    if kind == "BRANCH":
        counts = [_ways(branch) for branch in given[1]]
        return sum(unbounded for unbounded, _ in counts), sum(
            ways for _, ways in counts
        )
    if kind not in REPEATS:
        raise UnfitError("groups that look around or back are not taken")
    least, most, body = int(given[0]), int(given[1]), given[2]
    unbounded, ways = _ways(body)
    if most > 1 and (unbounded or ways > 1 or not body.getwidth()[0]):
        raise UnfitError(
            "it may take too long: a repeat holds another one, alternatives, or nothing"
        )
    return unbounded + (most - least >= UNBOUNDED), ways * (
        1 if most - least >= UNBOUNDED else most - least + 1
    )


def _runs(items: Iterable[Any]) -> list[tuple[str, ...]]:
    """Return the texts that a match holds, in their order; alternatives to each other are together."""
    runs, text = list[tuple[str, ...]](), ""
    for kind, given in (*items, ("END", None)):
        if str(kind) == "LITERAL":
            text += chr(given)
        elif str(kind) != "AT":  # which is between characters
            runs += [(text,)] if text else []
            text = ""
        if str(kind) == "BRANCH":
            branches = [
                max(
                    (run[0] for run in _runs(branch) if len(run) == 1),
                    key=len,
                    default="",
                )
                for branch in given[1]
            ]
            runs += [tuple(branches)] if all(branches) else []
        elif (str(kind) == "SUBPATTERN" and not given[1]) or (
            str(kind) in REPEATS and given[0]
        ):
            runs += _runs(given[-1])
    return runs


def _each(items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield all that a pattern is made of."""
    for kind, given in items:
        yield kind, given
        inner = (
            given[1]
            if str(kind) == "BRANCH"
            else [given[-1]]
            if str(kind) in (*REPEATS, "SUBPATTERN")
            else []
        )
        for each in inner:
            yield from _each(each)
