"""Messages about stale cells, hidden state and the order of the cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepper.common.text import format_count, one_line
from stepper.policy.commands.command_lines import UNNAMED, CommandLines
from stepper.policy.dataflow.cell_dependencies import (
    BELOW,
    DELETED,
    EXTERNAL,
    INACTIVE,
    MODULE,
    UNBOUND,
    Cause,
    MarkedCell,
    UnresolvedName,
)
from stepper.policy.model import Cell

# How many groups, cell numbers and names one line lists.
MAX_GROUPS = 3
MAX_CELLS = 8
MAX_NAMES = 4

PREDICATES = {
    BELOW: "is below it",
    INACTIVE: "is no longer run",
    UNBOUND: "no longer binds it",
}


@dataclass(frozen=True)
class Provided:
    """A name that a cell read, and the cell that provides it (a JSON response)."""

    name: str
    provider_cell_id: str


@dataclass(frozen=True)
class Mark:
    """A cell that is stale or used hidden state (a JSON response).

    `because` lists the names; `why` says the same as a sentence.
    """

    cell_id: str
    because: Sequence[Provided]
    cell: int
    why: str


def join_words(words: Sequence[str], limit: int) -> str:
    """Return at most `limit` words as an enumeration: a, b and c."""
    shown = [*words]
    if len(words) > limit:
        shown = [*words[: limit - 1], f"{len(words) - limit + 1} more"]
    if len(shown) == 1:
        return shown[0]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def format_cells(numbers: Sequence[int]) -> str:
    """Return cells by their numbers: `cell 3`, `cells 3 and 4`."""
    noun = "cell" if len(numbers) == 1 else "cells"
    return f"{noun} {join_words([str(number) for number in numbers], MAX_CELLS)}"


def format_stale(marked: Sequence[MarkedCell], commands: CommandLines = UNNAMED) -> str:
    """Return the line on stale cells, or an empty string if there are none."""
    if not marked:
        return ""
    clauses = []
    for numbers, names, (number, where) in _group_cells(marked):
        subject = format_cells(numbers)
        pronoun = "it" if len(numbers) == 1 else "they"
        if where == MODULE:
            clauses.append(f"{subject} used {names}, which changed after {pronoun} ran")
        else:
            clauses.append(
                f"{subject} read {names}, which cell {number} changed after"
                f" {pronoun} ran"
            )
    target = "this cell" if len(marked) == 1 else "these cells in order"
    run = commands.shell("run --stale")
    return f"Stale: {_join_clauses(clauses)}. To run {target}: `{run}`."


def format_hidden(marked: Sequence[MarkedCell]) -> str:
    """Return the line on cells that used hidden state, or '' if there are none."""
    if not marked:
        return ""
    clauses = [
        f"{format_cells(numbers)} read {names} from {_describe_origin(*origin)}"
        for numbers, names, origin in _group_cells(marked)
    ]
    return f"Hidden state: {_join_clauses(clauses)}."


def format_marks(marked: Sequence[MarkedCell], state: str) -> list[Mark]:
    """Return marked cells for a status response.

    `state` is `stale` or `hidden state`.
    """
    marks = []
    for entry in marked:
        because = [Provided(cause.name, cause.provider_id) for cause in entry.causes]
        why = f"{state}: {_explain(entry.causes)}"
        marks.append(Mark(entry.cell.id, because, entry.cell.number, why))
    return marks


def _explain(causes: Sequence[Cause]) -> str:
    clauses = []
    for names, (number, where) in _group_names(causes):
        if where == MODULE:
            clauses.append(f"used {names}, which changed since")
        elif where:
            clauses.append(f"read {names} from {_describe_origin(number, where)}")
        else:
            clauses.append(f"read {names}, which cell {number} changed since")
    return _join_clauses(clauses)


def _describe_origin(number: int, where: str) -> str:
    if where == EXTERNAL:
        return "code that another client executed"
    if where == DELETED:  # another cell may have this number now
        return f"a deleted cell (cell {number} when it ran)"
    return f"cell {number}, which {PREDICATES[where]}"


def _group_names(causes: Sequence[Cause]) -> list[tuple[str, tuple[int, str]]]:
    """Return the names of each provider, as (names, (cell number, where))."""
    groups: dict[tuple[int, str], list[str]] = {}
    for cause in causes:
        names = groups.setdefault((cause.number, cause.where), [])
        names.append(_format_name(cause))
    return [(join_words(names, MAX_NAMES), origin) for origin, names in groups.items()]


def _format_name(cause: Cause) -> str:
    name = f"`{one_line(cause.name, 60)}`"
    return f"{name} (imported by `{one_line(cause.via, 60)}`)" if cause.via else name


def _group_cells(
    marked: Sequence[MarkedCell],
) -> list[tuple[list[int], str, tuple[int, str]]]:
    """Return the cells with equal causes, as (cell numbers, names, origin)."""
    groups: dict[tuple[str, tuple[int, str]], list[int]] = {}
    for entry in marked:
        for group in _group_names(entry.causes):
            groups.setdefault(group, []).append(entry.cell.number)
    return [(numbers, *group) for group, numbers in groups.items()]


def _join_clauses(clauses: Sequence[str]) -> str:
    hidden = len(clauses) - MAX_GROUPS
    more = f"; and {hidden} more" if hidden > 0 else ""
    return "; ".join(clauses[:MAX_GROUPS]) + more


def format_order(
    unresolved: Sequence[UnresolvedName],
    stale_count: int,
    unbound: Sequence[tuple[Cell, str]] = (),
    commands: CommandLines = UNNAMED,
) -> str:
    """Return whether a run from top to bottom should give the same results.

    `unbound` are the names that cells read and that no cell binds, with the cells.
    """
    stale = ""
    if stale_count:
        verb = "is" if stale_count == 1 else "are"
        count = format_count(stale_count, "cell")
        stale = f" {count} {verb} stale: `{commands.shell('run --stale')}`."
    if unresolved:
        clauses = []
        for entry in unresolved:
            only = "only " if entry.where == BELOW else ""
            name = one_line(entry.name, 60)
            clauses.append(
                f"cell {entry.cell.number} reads `{name}`, which {only}{entry.provider}"
            )
        return (
            "Running the cells from top to bottom will not reproduce these results:"
            f" {_join_clauses(clauses)}.{stale}"
        )
    if unbound:
        clauses = [
            f"cell {cell.number} reads `{one_line(name, 60)}`" for cell, name in unbound
        ]
        return (
            "No cell of the notebook is known to bind these names:"
            f" {_join_clauses(clauses)}.{stale}"
        )
    return (
        f"Running the cells from top to bottom should reproduce these results.{stale}"
    )
