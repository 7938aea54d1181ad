"""What the kernel's part of the diagnosis tells, as values: one reader, which leaves out what is not so.

A cell can publish any message it likes: what comes from a kernel is read as a stranger's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONGEST, MOST = 2000, 400


@dataclass(frozen=True)
class Bound:
    """A line that bound something last, or (`argument`) gave it: in a cell, by its execution count, or in a file."""

    cell: int
    file: str
    line: int
    text: str
    argument: bool = False


@dataclass(frozen=True)
class Finding:
    """One sentence, and where that was bound last of which it speaks."""

    text: str
    bound: Bound | None = None


@dataclass(frozen=True)
class Look:
    """What the kernel's values tell of a fault, and what is needed to look on: a path, the function's names."""

    findings: tuple[Finding, ...] = ()
    path: str = ""
    program: bool = False
    locals: tuple[str, ...] = ()


@dataclass(frozen=True)
class Changed:
    """What a failed cell had bound before it failed: names with before and after, new ones, those written into."""

    rebound: tuple[tuple[str, str, str], ...] = ()
    bound: tuple[str, ...] = ()
    in_place: tuple[tuple[str, int], ...] = ()


def look(given: Any) -> Look:
    """Read what was looked up for a fault."""
    given = given if isinstance(given, Mapping) else {}
    findings = [_finding(item) for item in _items(given.get("findings"))]
    return Look(
        tuple(finding for finding in findings if finding),
        _text(given.get("path")),
        given.get("program") is True,
        tuple(filter(None, map(_text, _items(given.get("locals"))))),
    )


def changed(given: Any) -> Changed:
    """Read what a cell had changed."""
    given = given if isinstance(given, Mapping) else {}
    return Changed(
        tuple((row[0], row[1], row[2]) for row in _rows(given.get("rebound"), str, str, str)),
        tuple(filter(None, map(_text, _items(given.get("bound"))))),
        tuple((row[0], row[1]) for row in _rows(given.get("in_place"), str, int)),
    )


def _finding(given: Any) -> Finding | None:
    if not isinstance(given, Mapping) or not _text(given.get("text")):
        return None
    return Finding(_text(given.get("text")), _bound(given.get("bound")))


def _bound(given: Any) -> Bound | None:
    if (
        not isinstance(given, Mapping)
        or not isinstance(given.get("line"), int)
        or not isinstance(given.get("cell"), int)
    ):
        return None
    argument = given.get("argument") is True
    return Bound(given["cell"], _text(given.get("file")), given["line"], _text(given.get("text")), argument)


def _items(given: Any) -> list[Any]:
    return list(given[:MOST]) if isinstance(given, list | tuple) else []


def _rows(given: Any, *kinds: type) -> list[Any]:
    rows = [row for row in _items(given) if isinstance(row, list | tuple) and len(row) == len(kinds)]
    return [row for row in rows if all(isinstance(item, kind) for item, kind in zip(row, kinds, strict=True))]


def _text(given: Any) -> str:
    return given[:LONGEST] if isinstance(given, str) else ""
