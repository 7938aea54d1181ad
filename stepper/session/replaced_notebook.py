"""Clears the stop of a notebook after its file was replaced with another notebook.

A stop belongs to the notebook, not to its path: git, a script or the user may replace
the file. Cells that the agent writes while the notebook is stopped are recorded, so
that the agent cannot clear a stop by replacing the file.
"""

from __future__ import annotations

from stepper.common.errors import NotebookError
from stepper.messages import external_changes as messages
from stepper.policy import journal_events, notebook_identity, plan
from stepper.session.session import Session
from stepper.session.session_state.notebook_journal import format_now


def record_agent_version(session: Session) -> None:
    """Record the cells and the plan that the agent wrote while the notebook is stopped.

    Do nothing if the notebook is not stopped.
    """
    state = session.state
    if state.stop is None:
        return
    try:
        document = session.file.read()
    except NotebookError:  # running a cell reports the error
        return
    marks = notebook_identity.list_marks(document.cells, plan.from_json(document.plan))
    new_marks = marks - notebook_identity.list_known_marks(state)
    if new_marks:
        session.journal.log(
            journal_events.AgentWrote(at=format_now(), marks=sorted(new_marks))
        )


def clear_stop_if_replaced(session: Session) -> str:
    """Clear the stop of a notebook if its file was replaced; return a message.

    Return an empty string if no stop was cleared.
    """
    stop = session.state.stop
    if stop is None:
        return ""
    try:
        document = session.file.read()
    except NotebookError:
        return ""
    file_plan = plan.from_json(document.plan)
    if not notebook_identity.is_replaced(session.state, document.cells, file_plan):
        return ""
    session.journal.log(journal_events.Replaced(at=format_now()))
    return messages.format_replaced(session.name, stop.error)
