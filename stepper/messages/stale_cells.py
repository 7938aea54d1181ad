"""What no longer follows, in words: stale cells, hidden state, whether the order of the cells could reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepper.common.text import format_count, one_line
from stepper.policy.dataflow.cell_dependencies import (
    BELOW,
    ELSEWHERE,
    GONE,
    MODULE,
    OFF,
    UNBOUND,
    Because,
    Gap,
    Marked,
)
from stepper.policy.model import Cell

GROUPS, CELLS, NAMES = 3, 8, 4  # told in a line
WHERE = {
    GONE: "was deleted",
    BELOW: "stands below",
    OFF: "is no longer run",
    UNBOUND: "no longer binds it",
    ELSEWHERE: "elsewhere",
    MODULE: "changed",
}


@dataclass(frozen=True)
class Provided:
    """A name that a cell read, and the cell that provides it."""

    name: str
    provider_cell_id: str


@dataclass(frozen=True)
class Mark:
    """A cell that is stale, or holds hidden state; `why` is `because` in words."""

    cell_id: str
    because: Sequence[Provided]
    cell: int
    why: str


def joined(parts: Sequence[str], most: int) -> str:
    """Return parts as an enumeration: a, b and c."""
    some = (
        [*parts]
        if len(parts) <= most
        else [*parts[: most - 1], f"{len(parts) - most + 1} more"]
    )
    return some[0] if len(some) == 1 else f"{', '.join(some[:-1])} and {some[-1]}"


def cells(numbers: Sequence[int]) -> str:
    """Return cells by their numbers."""
    return f"{'cell' if len(numbers) == 1 else 'cells'} {joined([*map(str, numbers)], CELLS)}"


def stale(marked: Sequence[Marked]) -> str:
    """Return the line on stale cells, '' for none."""
    told = []
    for numbers, names, (number, where) in _groups(marked):
        pronoun = "it" if len(numbers) == 1 else "they"
        if where == WHERE[MODULE]:
            told.append(
                f"{cells(numbers)} used {names}, which changed after {pronoun} ran"
            )
        else:
            told.append(
                f"{cells(numbers)} read {names}, which cell {number} rebound after {pronoun} ran"
            )
    runs = (
        f"`stepper run --stale` runs {'it' if len(marked) == 1 else 'them in order'}."
    )
    return f"Stale: {_some(told)}. {runs}" if told else ""


def hidden(marked: Sequence[Marked]) -> str:
    """Return the line on cells that hold hidden state, '' for none."""
    told = [
        f"{cells(numbers)} read {names} from {_from(number, where)}"
        for numbers, names, (number, where) in _groups(marked)
    ]
    return f"Hidden state: {_some(told)}." if told else ""


def marks(marked: Sequence[Marked], what: str) -> list[Mark]:
    """Return marked cells as a status has them; `what` they are."""
    return [
        Mark(
            each.cell.id,
            [Provided(one.name, one.provider) for one in each.because],
            each.cell.number,
            f"{what}: {_why(each.because)}",
        )
        for each in marked
    ]


def _why(because: Sequence[Because]) -> str:
    return _some(
        [
            f"used {names}, which changed since"
            if where == WHERE[MODULE]
            else f"read {names}{f' from {_from(number, where)}' if where else f', which cell {number} rebound since'}"
            for names, (number, where) in _by(because)
        ]
    )


def _from(number: int, where: str) -> str:
    if where == WHERE[ELSEWHERE]:
        return "an execution from elsewhere"
    if where == WHERE[GONE]:  # its number may be another cell's by now
        return f"a deleted cell (it was cell {number})"
    return f"cell {number}, which {where}"


def _by(because: Sequence[Because]) -> list[tuple[str, tuple[int, str]]]:
    """Return which names a cell read of which other one: names, (its number, where it is)."""
    found: dict[tuple[int, str], list[str]] = {}
    for each in because:
        found.setdefault((each.number, WHERE.get(each.where, "")), []).append(
            _named(each)
        )
    return [(joined(names, NAMES), provider) for provider, names in found.items()]


def _named(because: Because) -> str:
    through = f" (through `{one_line(because.through, 60)}`)" if because.through else ""
    return f"`{one_line(because.name, 60)}`{through}"


def _groups(marked: Sequence[Marked]) -> list[tuple[list[int], str, tuple[int, str]]]:
    """Return which cells read the same names of the same one: their numbers, and as `_by`."""
    found: dict[tuple[str, tuple[int, str]], list[int]] = {}
    for each in marked:
        for group in _by(each.because):
            found.setdefault(group, []).append(each.cell.number)
    return [(numbers, *group) for group, numbers in found.items()]


def _some(told: Sequence[str]) -> str:
    more = f"; and {len(told) - GROUPS} more" if len(told) > GROUPS else ""
    return "; ".join(told[:GROUPS]) + more


def order(
    gaps: Sequence[Gap], left: int, unbound: Sequence[tuple[Cell, str]] = ()
) -> str:
    """Return whether the order of the cells could reproduce what they gave; `left` cells are stale as it is.

    `unbound` are names that cells read and no present source binds.
    """
    odd = (
        f" {format_count(left, 'cell')} of it {'is' if left == 1 else 'are'} stale: `stepper run --stale`."
        if left
        else ""
    )
    if not gaps and unbound:
        reads = [
            f"cell {cell.number} reads `{one_line(name, 60)}`" for cell, name in unbound
        ]
        return f"No cell of the notebook is known to bind these names: {_some(reads)}.{odd}"
    if not gaps:
        return f"The order of its cells could reproduce it.{odd}"
    told = [
        f"cell {gap.cell.number} reads `{one_line(gap.name, 60)}`, which {'only ' * (gap.where == BELOW)}{gap.provider}"
        for gap in gaps
    ]
    return f"The order of its cells can NOT reproduce it: {_some(told)}.{odd}"
