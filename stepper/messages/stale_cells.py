"""Messages about stale cells, hidden state and the order of the cells."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepper.common.text import format_count, one_line
from stepper.policy.commands.command_lines import UNNAMED, CommandLines
from stepper.policy.dataflow.causes import (
    BELOW,
    DELETED,
    EARLIER_VERSION,
    EXTERNAL,
    INACTIVE,
    INDIRECT,
    ITSELF,
    MODULE,
    OVERRIDDEN,
    OVERWRITTEN,
    PENDING,
    REMOVED,
    UNBOUND,
    UNDONE,
    UNDONE_RUN,
    UNDONE_VALUE,
    UNRESTORED,
    Cause,
    MarkedCell,
)
from stepper.policy.dataflow.unresolved_names import UnresolvedName
from stepper.policy.model import Cell

# The maximum numbers of groups, cells and names that one line lists.
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

    `cell` is the number of the cell. `because` lists the names that the cell read, and
    `why` is the explanation as text.
    """

    cell_id: str
    because: Sequence[Provided]
    cell: int
    why: str


class _Origin(NamedTuple):
    """The cell, module or client that changed or provided a name (see `Cause`)."""

    number: int
    where: str
    binder: int = 0


class _CellGroup(NamedTuple):
    """The numbers of cells that read the same names from the same origin."""

    numbers: list[int]
    names: str
    origin: _Origin


def join_words(words: Sequence[str], limit: int) -> str:
    """Return an enumeration such as `a, b and 3 more`.

    The enumeration has at most `limit` items. There must be at least one word.
    """
    items = [*words]
    if len(words) > limit:
        items = [*words[: limit - 1], f"{len(words) - limit + 1} more"]
    if len(items) == 1:
        return items[0]
    return f"{', '.join(items[:-1])} and {items[-1]}"


def format_cells(numbers: Sequence[int]) -> str:
    """Return the names of cells, such as `cell 3` or `cells 3 and 4`."""
    noun = "cell" if len(numbers) == 1 else "cells"
    return f"{noun} {join_words([str(number) for number in numbers], MAX_CELLS)}"


def format_stale(
    marked_cells: Sequence[MarkedCell],
    commands: CommandLines = UNNAMED,
    indirect_cells: Sequence[MarkedCell] = (),
) -> str:
    """Return the line on stale cells, or an empty string if there are none.

    `indirect_cells` are the cells that read from stale cells.
    """
    if not marked_cells:
        return ""
    clauses = [_format_stale_group(group) for group in _group_cells(marked_cells)]
    text = _join_clauses(clauses)
    if indirect_cells:
        numbers = [entry.cell.number for entry in indirect_cells]
        text = f"{text}; indirectly: {format_cells(numbers)}"
    count = len(marked_cells) + len(indirect_cells)
    target = "this cell" if count == 1 else "these cells in order"
    run = commands.shell("run --stale")
    return f"Stale: {text}. To run {target}: `{run}`."


def _format_stale_group(group: _CellGroup) -> str:
    """Return the clause on stale cells with the same cause."""
    numbers, names, origin = group
    subject = format_cells(numbers)
    pronoun = "it" if len(numbers) == 1 else "they"
    if origin.where == MODULE:
        return f"{subject} used {names}, which changed after {pronoun} ran"
    if origin.where == UNDONE:
        return f"a change by {subject} was undone: {names}"
    if origin.where == UNDONE_RUN:
        verb = "was" if len(numbers) == 1 else "were"
        return f"{subject} {verb} undone"
    changer = _describe_changer(origin)
    if origin.where == UNDONE_VALUE:
        return (
            f"{subject} read {names} after a change by {changer}, and this change was"
            " undone later"
        )
    if origin.where == OVERWRITTEN:
        return f"{subject} bound {names}, which {changer} changed after {pronoun} ran"
    if origin.where == REMOVED:
        return f"{subject} bound {names}, which {changer} deleted after {pronoun} ran"
    if origin.where == PENDING:
        return (
            f"{subject} read {names}, but the current source of cell {origin.number},"
            f" which binds or changes {names}, has not run"
        )
    return f"{subject} read {names}, which {changer} changed after {pronoun} ran"


def format_hidden(
    marked_cells: Sequence[MarkedCell],
    commands: CommandLines = UNNAMED,
    repairable_ids: Collection[str] = (),
) -> str:
    """Return the line on cells that used hidden state, or an empty string.

    `repairable_ids` are the ids of cells that get their values from the cells above if
    they run again.
    """
    if not marked_cells:
        return ""
    clauses = [
        f"{format_cells(numbers)} read {names} from {_describe_origin(origin)}"
        for numbers, names, origin in _group_cells(marked_cells)
    ]
    line = f"Hidden state: {_join_clauses(clauses)}."
    repairable_cells = [
        entry for entry in marked_cells if entry.cell.id in repairable_ids
    ]
    if not repairable_cells:
        return line
    cells = format_cells([entry.cell.number for entry in repairable_cells])
    run = commands.shell("run --stale")
    return f"{line} To run {cells} with the values of the cells above: `{run}`."


def format_marks(marked_cells: Sequence[MarkedCell], state: str) -> list[Mark]:
    """Return the marks of cells for a status response.

    `state` is the common state of the cells, such as `stale` or `hidden state`.
    """
    marks = []
    for entry in marked_cells:
        because = [
            Provided(cause.name, cause.provider_id)
            for cause in entry.causes
            if cause.where != UNDONE_RUN
        ]
        why = f"{state}: {_explain(entry.causes)}"
        marks.append(Mark(entry.cell.id, because, entry.cell.number, why))
    return marks


def _explain(causes: Sequence[Cause]) -> str:
    """Return clauses on a cell's causes as text; at most MAX_GROUPS are named."""
    clauses = [_explain_cause(names, origin) for names, origin in _group_names(causes)]
    return _join_clauses(clauses)


def _explain_cause(names: str, origin: _Origin) -> str:
    """Return the clause on one cause, such as "read `x` from an undone run"."""
    if not origin.where:  # the usual cause: a cell that still exists changed the name
        return f"read {names}, which cell {origin.number} has changed since"
    if origin.where == MODULE:
        return f"used {names}, which has changed since"
    if origin.where == UNDONE:
        return f"its change of {names} was undone"
    if origin.where == UNDONE_RUN:
        return "its run was undone"
    changer = _describe_changer(origin)
    if origin.where == UNDONE_VALUE:
        return (
            f"read {names} after a change by {changer}, and this change was undone"
            " later"
        )
    if origin.where == OVERWRITTEN:
        return f"bound {names}, which {changer} has changed since"
    if origin.where == REMOVED:
        return f"bound {names}, which {changer} has deleted since"
    if origin.where == PENDING:
        return (
            f"read {names}, but the current source of cell {origin.number}, which binds"
            f" or changes {names}, has not run"
        )
    if origin.where == INDIRECT:
        return f"reads {names} from cell {origin.number}"
    return f"read {names} from {_describe_origin(origin)}"


def _describe_origin(origin: _Origin) -> str:
    """Return a noun phrase for an origin of hidden state."""
    if origin.where == EXTERNAL:
        return "code that another client executed"
    if origin.where == EARLIER_VERSION:
        return "an earlier version of the same cell"
    if origin.where == ITSELF:
        return "an earlier run of the same cell"
    if origin.where == OVERRIDDEN:
        return f"cell {origin.number} instead of cell {origin.binder}"
    if origin.where == UNRESTORED:
        return "an undone run, whose value could not be restored"
    if origin.where == DELETED:  # another cell may have this number now
        return f"a deleted cell (cell {origin.number} when it ran)"
    return f"cell {origin.number}, which {PREDICATES[origin.where]}"


def _describe_changer(origin: _Origin) -> str:
    """Return a noun phrase for the cell that changed a name."""
    if origin.number:
        return f"cell {origin.number}"
    return "a deleted cell"


def _group_names(causes: Sequence[Cause]) -> list[tuple[str, _Origin]]:
    """Return the enumeration of the names from each origin, with the origin."""
    groups: dict[_Origin, list[str]] = {}
    for cause in causes:
        origin = _Origin(cause.number, cause.where, cause.binder)
        names = groups.setdefault(origin, [])
        names.append(_format_name(cause))
    return [(join_words(names, MAX_NAMES), origin) for origin, names in groups.items()]


def _format_name(cause: Cause) -> str:
    """Return the name of a variable, a module or other state for a message."""
    name = one_line(cause.name, 60)
    if cause.name.isidentifier() or cause.where == MODULE:
        name = f"`{name}`"
    if cause.via:
        return f"{name} (imported by `{one_line(cause.via, 60)}`)"
    return name


def _group_cells(marked_cells: Sequence[MarkedCell]) -> list[_CellGroup]:
    """Return groups of the cells that read the same names from the same origin."""
    groups: dict[tuple[str, _Origin], list[int]] = {}
    for entry in marked_cells:
        for group in _group_names(entry.causes):
            groups.setdefault(group, []).append(entry.cell.number)
    return [
        _CellGroup(numbers, names, origin)
        for (names, origin), numbers in groups.items()
    ]


def _join_clauses(clauses: Sequence[str]) -> str:
    """Return the first MAX_GROUPS clauses, and the number of the others."""
    text = "; ".join(clauses[:MAX_GROUPS])
    hidden_count = len(clauses) - MAX_GROUPS
    if hidden_count > 0:
        return f"{text}; and {hidden_count} more"
    return text


def format_order(
    unresolved_names: Sequence[UnresolvedName],
    stale_count: int,
    unbound_reads: Sequence[tuple[Cell, str]] = (),
    commands: CommandLines = UNNAMED,
    has_hidden_state: bool = False,
) -> str:
    """Return sentences on the expected results of a run from top to bottom.

    `unresolved_names` are names that a cell reads, but that are defined only elsewhere:
    below, in a deleted or inactive cell, or by another client. `stale_count` is the
    number of stale cells. `unbound_reads` contains pairs of a cell and a name for which
    no definition was found. `has_hidden_state` says that the last run of a cell used
    hidden state.
    """
    stale_sentence = _format_stale_count(stale_count, commands)
    if unresolved_names:
        clauses = []
        for entry in unresolved_names:
            name = one_line(entry.name, 60)
            clauses.append(
                f"cell {entry.cell.number} reads `{name}`, which {entry.definition}"
            )
        return (
            "Running the cells from top to bottom will not reproduce these results:"
            f" {_join_clauses(clauses)}.{stale_sentence}"
        )
    if unbound_reads:
        clauses = [
            f"cell {cell.number} reads `{one_line(name, 60)}`"
            for cell, name in unbound_reads
        ]
        return (
            "stepper found no cell that defines some names before they are read:"
            f" {_join_clauses(clauses)}.{stale_sentence}"
        )
    if has_hidden_state:
        return (
            "Running the cells from top to bottom may give other results, because of"
            f" hidden state.{stale_sentence}"
        )
    return (
        "Running the cells from top to bottom should reproduce these results."
        f"{stale_sentence}"
    )


def _format_stale_count(count: int, commands: CommandLines) -> str:
    """Return a space and a sentence with the number of stale cells.

    Return an empty string if there are no stale cells.
    """
    if not count:
        return ""
    cells = format_count(count, "cell")
    verb = "is" if count == 1 else "are"
    target = "it" if count == 1 else "them"
    run_stale = commands.shell("run --stale")
    return f" {cells} {verb} stale; to run {target}: `{run_stale}`."
