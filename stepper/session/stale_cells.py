"""What of a notebook no longer follows, by data flow: found by `policy/dataflow/cell_dependencies`, told once, run again when asked."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from stepper.common.errors import NotebookError
from stepper.messages import stale_cells as words
from stepper.policy import cell_changes
from stepper.policy.dataflow import cell_dependencies
from stepper.policy.dataflow.cell_dependencies import Because, Follows, Marked
from stepper.policy.model import Cell
from stepper.session.session import Session


def look(session: Session, cells: Sequence[Cell]) -> Follows:
    """Return which cells are stale and which hold hidden state; of another language nothing is known."""
    if not session.speaks_python:
        return Follows()
    session.past.catch_up(
        session.state.runs, session.state.sources, session.state.elsewhere
    )
    found = cell_dependencies.look(cells, session.past)
    session.state.stale = {each.cell.id for each in found.stale}
    return found


def news(session: Session, cells: Sequence[Cell], ran: Sequence[Cell] = ()) -> str:
    """Return what no longer follows and was not told yet, in a line each; '' for nothing. It is told now.

    Where what `ran` stands below all that ran before and none of that is gone, nothing need be looked at.
    """
    if not session.speaks_python:
        return ""
    session.past.catch_up(
        session.state.runs, session.state.sources, session.state.elsewhere
    )
    if ran and cell_dependencies.at_the_end(cells, ran, session.past):
        return ""
    found, runs = look(session, cells), session.past.last
    told = set[tuple[object, ...]]()

    def is_new(cell: Cell, because: Because) -> bool:
        last = runs[because.provider].run if because.provider in runs else 0
        key = (cell.id, because.name, because.provider, because.where, last)
        told.add(key)
        return key not in session.stale_told

    def fresh(marked: Sequence[Marked]) -> list[Marked]:
        some = [
            each._replace(
                because=[
                    because for because in each.because if is_new(each.cell, because)
                ]
            )
            for each in marked
        ]
        return [each for each in some if each.because]

    lines = [words.stale(fresh(found.stale)), words.hidden(fresh(found.hidden))]
    session.stale_told = told
    return "\n".join(filter(None, lines))


def after(session: Session) -> str:
    """Return what no longer follows after a change by which nothing ran, as `news` does."""
    with contextlib.suppress(NotebookError):  # whoever works on it is told
        return news(session, session.read().cells)
    return ""


def marks(
    session: Session, cells: Sequence[Cell]
) -> tuple[list[words.Mark], list[words.Mark]]:
    """Return the stale cells and those with hidden state, as a status has them."""
    found = look(session, cells)
    return words.marks(found.stale, "stale"), words.marks(found.hidden, "hidden state")


def to_run(session: Session, cells: Sequence[Cell], below: int = -1) -> list[Cell]:
    """Return what `run --stale` has to run below a cell (its index), as things stand: the stale cells, and what these
    read of and was changed since it ran, or the present kernel does not hold.
    """
    found, state = look(session, cells), session.state
    wanted = {each.cell.id for each in found.stale}
    # in the present kernel, however they ended
    here = {*state.ran, *(state.counts.values() if state.ran else ())}
    here -= {cell.id for cell in cell_changes.changed(cells, state.ran_ever)}
    todo = [*wanted]
    while todo:
        above = found.providers.get(todo.pop(), set()) - wanted - here
        wanted |= above
        todo += above
    return [cell for cell in cells if cell.id in wanted and cell.index > below]


def order(session: Session, cells: Sequence[Cell]) -> str:
    """Return whether the order of the cells could reproduce what they gave; '' where that is not known."""
    stale = len(look(session, cells).stale)
    if not session.speaks_python:
        return ""
    unbound = cell_dependencies.unbound(cells, session.past)
    return words.order(cell_dependencies.gaps(cells, session.past), stale, unbound)
