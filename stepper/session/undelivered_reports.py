"""What the agent has not seen: what came of edits whose report nobody could read, cells changed by other means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepper.common.text import clean
from stepper.messages import command_messages, run_report
from stepper.policy import cell_changes, journal_events
from stepper.policy.model import Cell
from stepper.session.kernel_manager import format_now
from stepper.session.protocols import Notebook
from stepper.session.session import Session


def add_undelivered(session: Session, text: str, line: str) -> None:
    """What came of an edit reached nobody: agent and user are told with the next thing that they read."""
    told = command_messages.format_undelivered(session.name, text)
    session.log(
        journal_events.Undelivered(
            at=format_now(),
            text=told,
            line=command_messages.format_undelivered_line(session.name, line),
        )
    )


def format_undelivered(session: Session) -> str:
    """Return what reached nobody, '' where all did."""
    return run_report.limit_report(
        clean("\n".join(each.text for each in session.state.undelivered)),
        run_report.UNDELIVERED_LIMIT,
    )


def mark_delivered(session: Session) -> None:
    """What reached nobody is told now."""
    session.log(journal_events.Delivered(at=format_now()), sync=None)


def take_text(session: Session) -> str:
    """Return what reached nobody, '' where all did: it is told now."""
    return take_report(session).text


def take_report(session: Session) -> run_report.Report:
    """Return the same as a report, with the user's line."""
    told = format_undelivered(session)
    line = "; ".join(each.line for each in session.state.undelivered if each.line)
    if told:
        mark_delivered(session)
    return run_report.Report(told, line)


def take_from_other_notebooks(
    sessions: Iterable[Session], current: Session | None, owner: str | None
) -> str:
    """Return what was handed on in other notebooks and ended meanwhile, '' for nothing: it is told now.

    To its own session, or, without `owner`, to any that begins.
    """
    told = []
    for session in sessions:
        mine = [
            each
            for each in session.state.undelivered
            if each.call and owner in (None, each.session)
        ]
        told += [take_text(session)] if mine and session is not current else []
    return "\n".join(told)


def compare_with_runs(
    session: Session, read: Notebook | None = None
) -> tuple[Notebook, list[Cell]]:
    """Return the notebook and its cells that have not run as they stand: those lose their standing.

    It may have been `read` just now. Raise NotebookError.
    """
    document, state = read or session.file.read_uncached(), session.state
    if not session.can_run(document):
        return document, []
    fresh = state.compare_with_notebook(document.cells)
    session.reported_unrun = {
        cell.id: session.reported_unrun[cell.id]
        for cell in fresh
        if cell.id in session.reported_unrun
    }
    if state.last_key is not None and state.progress_of(state.last_key).cell_id not in {
        cell.id for cell in document.cells
    }:
        state.last_key = None  # what failed is gone
    return document, fresh


def take_unreported_cells(session: Session, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of which nobody was told yet that they have not run as they stand: they are told now."""
    sources = {cell.id: cell_changes.hash_source(cell.source) for cell in cells}
    fresh = [
        cell
        for cell in cells
        if session.reported_unrun.get(cell.id) != sources[cell.id]
    ]
    session.reported_unrun.update(sources)
    return fresh
