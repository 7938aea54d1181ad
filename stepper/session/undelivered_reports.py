"""Reports that were not delivered yet, and cells that were changed outside stepper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stepper.common.text import clean
from stepper.messages import command_messages, run_report
from stepper.notebooks.journal_file import SyncMode
from stepper.notebooks.notebook_document import Document
from stepper.policy import journal_events
from stepper.policy.model import Cell
from stepper.session.session import Session
from stepper.session.session_state.notebook_journal import format_now


class ChangedCells(NamedTuple):
    """A notebook and its cells that are new or changed since their last run."""

    document: Document
    cells: list[Cell]


def add_undelivered(session: Session, text: str, line: str) -> None:
    """Record a report that could not be delivered.

    The next response contains `text` for the agent and `line` for the user.
    """
    session.journal.log(
        journal_events.Undelivered(
            at=format_now(),
            text=command_messages.format_undelivered(session.name, text),
            line=command_messages.format_undelivered_line(session.name, line),
        )
    )


def format_undelivered(session: Session) -> str:
    """Return the undelivered reports as text, or an empty string if there are none."""
    text = "\n".join(report.text for report in session.state.undelivered)
    return run_report.limit_report(clean(text), run_report.UNDELIVERED_LIMIT)


def mark_delivered(
    session: Session, delivered: Sequence[journal_events.Undelivered]
) -> None:
    """Record that these undelivered reports have been delivered."""
    remaining = [
        report for report in session.state.undelivered if report not in delivered
    ]
    session.journal.log(
        journal_events.Delivered(at=format_now()), sync=SyncMode.BACKGROUND
    )
    # The event above removes all reports.
    for report in remaining:
        session.journal.log(report)


def pop_text(session: Session) -> str:
    """Return the undelivered reports as text, and mark them as delivered.

    Return an empty string if there are none.
    """
    return pop_report(session).text


def pop_report(session: Session) -> run_report.Report:
    """Join the undelivered reports into one report, and mark them as delivered.

    The text of the report is empty if there are none.
    """
    reports = session.state.undelivered
    text = format_undelivered(session)
    lines = [report.line for report in reports if report.line]
    if text:
        mark_delivered(session, reports)
    return run_report.Report(text, "; ".join(lines))


def pop_from_other_notebooks(
    sessions: Iterable[Session], current: Session | None, owner: str | None
) -> str:
    """Return undelivered reports of all notebooks except `current`, as text.

    A notebook is included if it has a report on a background run of the agent session
    `owner` or, if `owner` is None, of any agent session. The returned reports are
    marked as delivered. Return an empty string if there are none.
    """
    texts = []
    for session in sessions:
        if session is current:
            continue
        has_reports = any(
            report.call and owner in (None, report.session)
            for report in session.state.undelivered
        )
        if has_reports:
            texts.append(pop_text(session))
    return "\n".join(texts)


def update_changed_cells(
    session: Session, document: Document | None = None
) -> ChangedCells:
    """Record the changed and deleted cells; return the changed cells.

    If the selected kernel does not support the notebook's language, return no cells.
    Pass `document` to avoid reading the file again. Raise NotebookError if the file
    cannot be read.
    """
    document = document or session.file.read_uncached()
    if not session.can_run(document):
        return ChangedCells(document, [])
    changed_cells = session.journal.compare_with_notebook(document.cells)
    session.reported_changes.forget_other_cells(changed_cells)
    session.journal.forget_deleted_last_cell(document.cells)
    return ChangedCells(document, changed_cells)


def pop_unreported_cells(session: Session, cells: Sequence[Cell]) -> list[Cell]:
    """Return the changed cells that no report has named, and mark them as reported."""
    unreported = session.reported_changes.select_unreported(cells)
    session.reported_changes.add_cells(cells)
    return unreported
