"""Reports that were not delivered yet, and cells changed outside stepper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepper.common.text import clean
from stepper.messages import command_messages, run_report
from stepper.policy import journal_events
from stepper.policy.model import Cell
from stepper.session.protocols import Notebook
from stepper.session.session import Session
from stepper.session.session_state.notebook_journal import format_now


def add_undelivered(session: Session, text: str, line: str) -> None:
    """Record a report that could not be delivered.

    Agent and user get it with the next response.
    """
    session.journal.log(
        journal_events.Undelivered(
            at=format_now(),
            text=command_messages.format_undelivered(session.name, text),
            line=command_messages.format_undelivered_line(session.name, line),
        )
    )


def format_undelivered(session: Session) -> str:
    """Return the undelivered reports as text, or an empty string."""
    text = "\n".join(report.text for report in session.state.undelivered)
    return run_report.limit_report(clean(text), run_report.UNDELIVERED_LIMIT)


def mark_delivered(session: Session) -> None:
    """Record that all reports were delivered."""
    session.journal.log(journal_events.Delivered(at=format_now()), sync=None)


def take_text(session: Session) -> str:
    """Return the undelivered reports as text, and mark them as delivered."""
    return take_report(session).text


def take_report(session: Session) -> run_report.Report:
    """Return the undelivered reports with the line for the user.

    They are marked as delivered.
    """
    text = format_undelivered(session)
    lines = [report.line for report in session.state.undelivered if report.line]
    if text:
        mark_delivered(session)
    return run_report.Report(text, "; ".join(lines))


def take_from_other_notebooks(
    sessions: Iterable[Session], current: Session | None, owner: str | None
) -> str:
    """Return undelivered reports on background runs of other notebooks.

    They are marked as delivered. Without `owner`, return those of all agent sessions.
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
            texts.append(take_text(session))
    return "\n".join(texts)


def compare_with_runs(
    session: Session, document: Notebook | None = None
) -> tuple[Notebook, list[Cell]]:
    """Return the notebook and the cells that changed since they ran.

    Pass `document` to avoid reading the file again. Raise NotebookError.
    """
    document = document or session.file.read_uncached()
    if not session.can_run(document):
        return document, []
    changed_cells = session.journal.compare_with_notebook(document.cells)
    session.reported_changes.forget_other_cells(changed_cells)
    session.journal.forget_deleted_last_cell(document.cells)
    return document, changed_cells


def pop_unreported_cells(session: Session, cells: Sequence[Cell]) -> list[Cell]:
    """Return changed cells that were not reported; mark them as reported."""
    unreported = session.reported_changes.select_unreported(cells)
    session.reported_changes.add_cells(cells)
    return unreported
