"""Decisions on edits and shell commands before they are executed: deny, allow or ask.

The checks change no notebook, and are repeated when an edit is executed.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepper.common.errors import NotebookError, StepperError
from stepper.daemon import claude_code_json
from stepper.daemon.claude_code_json import Event
from stepper.daemon.workspace.project_notebooks import Workspace
from stepper.policy import changed_cells, edit_gate, plan
from stepper.policy.model import Cell, CellEdit, Consent, FileWrite
from stepper.session.background import backgrounding
from stepper.session.session import Session

MARKDOWN_ALLOWED = (
    "stepper approves new Markdown cells automatically; approving a code cell runs it"
    " immediately"
)
APPROVAL_RUNS_CELL = (
    "stepper: approving an edit of a code cell runs the cell immediately, in the"
    " notebook's kernel. New Markdown cells run nothing."
)


async def handle_read(workspace: Workspace, event: Event) -> bytes:
    """Inform the user, once per session, that approving a code cell runs the cell.

    Claude Code does not show hook messages above the question about an edit. Therefore,
    the message is shown earlier: when the agent reads the notebook.
    """
    workspace.resolve(event.read_path)  # raises UsageError for other files
    limits = workspace.config.load_limits()
    approval_runs_cell = edit_gate.check_approval(event.consent, limits) is None
    if not event.asks_for_each_edit or not approval_runs_cell:
        return claude_code_json.SILENT
    line = workspace.take_once(event.session, APPROVAL_RUNS_CELL)
    return claude_code_json.format_user_line(line)


async def decide_tool_call(workspace: Workspace, event: Event) -> bytes:
    """Return the decision on an edit or a shell command of the agent.

    The output is empty if the client should decide as usual.
    """
    if event.is_shell_call:
        return decide_shell_command(workspace, event.shell_command, event.consent)
    change = event.change
    path = workspace.resolve(change.notebook)
    session = workspace.open_session(path)
    await session.handle_idle_death()
    try:
        refusal = find_refusal(session, change)
        if refusal:
            return claude_code_json.format_decision("deny", f"stepper: {refusal}")
        limits = session.limits()
        delegation = edit_gate.check_delegation(event.consent, limits)
        if delegation and has_code_to_run(session, change):
            reason = (
                "stepper: if you approve this edit, the cell runs immediately, with all"
                f" your permissions ({delegation})"
            )
            return claude_code_json.format_decision("ask", reason)
    except StepperError:
        return claude_code_json.SILENT  # PostToolUse reports the error
    asks_user = event.asks_for_each_edit or delegation
    if asks_user and edit_gate.only_adds_text(session.state, change):
        return _allow_markdown(workspace, event, session)
    return claude_code_json.SILENT


def _allow_markdown(workspace: Workspace, event: Event, session: Session) -> bytes:
    """Return the decision that allows a new Markdown cell.

    Unless `handle_read` has informed the user, the output includes a line which says
    that approving a code cell runs the cell.
    """
    was_shown = (event.session, APPROVAL_RUNS_CELL) in workspace.shown_messages
    approval_reason = edit_gate.check_approval(event.consent, session.limits())
    approval_runs_cell = approval_reason is None
    line = ""
    if not was_shown and approval_runs_cell:
        line = workspace.take_once(event.session, MARKDOWN_ALLOWED)
    return claude_code_json.format_decision("allow", MARKDOWN_ALLOWED, line)


def decide_shell_command(workspace: Workspace, command: str, consent: Consent) -> bytes:
    """Return the decision on a shell command of the agent.

    A command that runs code needs the same approval as an edit that runs code. The
    output is empty if the client should decide as usual.
    """
    code_command = edit_gate.find_code_running_command(command)
    if consent is Consent.WITHHELD:
        if edit_gate.NEW_COMMAND.search(command):
            reason = f"stepper: {edit_gate.PLAN_FIRST}"
            return claude_code_json.format_decision("deny", reason)
        if code_command:
            reason = f"stepper: nothing ran: {edit_gate.PLAN_MODE}"
            return claude_code_json.format_decision("deny", reason)
    user_command = edit_gate.find_user_command(command)
    if user_command:
        reason = (
            f"`stepper {user_command}` is the user's command: only the user may resume"
            " a stopped notebook or discard state"
        )
        return claude_code_json.format_decision("ask", reason)
    if not code_command:
        return claude_code_json.SILENT
    limits = workspace.config.load_limits()
    # The reason why the user must approve the command, or None.
    approval_reason = edit_gate.check_approval(consent, limits)
    if not approval_reason:
        approval_reason = edit_gate.check_delegation(consent, limits)
    if not approval_reason:
        return claude_code_json.SILENT
    reason = f"`stepper {code_command}` runs code in the kernel: {approval_reason}"
    return claude_code_json.format_decision("ask", reason)


def find_refusal(session: Session, change: CellEdit | FileWrite) -> str | None:
    """Return the reason for refusing an edit, or None if the edit is allowed.

    The state can change before the edit is executed, so the session checks it again.
    """
    running = backgrounding.explain_refusal(session, change.session)
    if isinstance(change, FileWrite):
        return _find_write_refusal(session, change, running)
    if change.mode == "delete" or change.cell_type == "markdown":
        return None
    cells = session.read().cells  # also updates the plan that the checks use
    stopped = edit_gate.check_stop(session.state)
    if change.mode == "insert":
        return stopped or running or _find_insert_refusal(session, change, cells)
    if change.cell_type is None:
        cell = plan.find_cell(cells, change.cell_id or "")
        if cell is not None and not cell.is_code:
            return None
    return stopped or running


def _find_insert_refusal(
    session: Session, change: CellEdit, cells: Sequence[Cell]
) -> str | None:
    """Return the reason for refusing a new cell, or None if the cell is allowed."""
    cell_above = plan.find_cell(cells, change.after or "")
    index = cell_above.index + 1 if cell_above else 0
    failed_step = edit_gate.check_failed_step(session.state, cells, index)
    if failed_step:
        return failed_step
    # The check uses neither the ID nor the number, which the cell does not have yet.
    new_cell = Cell("", index, 0, "code", change.source)
    return edit_gate.check_cell_count([*cells, new_cell], session.limits())


def _find_write_refusal(
    session: Session, change: FileWrite, running: str | None
) -> str | None:
    """Return the reason for refusing a Write of a notebook, or None if it is allowed.

    `running` is the reason why no further cell can run now, or None.
    """
    try:
        cells = session.file.parse(change.content).cells
    except NotebookError:
        return None  # PostToolUse reports the error
    if backgrounding.list_other_pending_cells(session, cells):
        refusal = edit_gate.check_stop(session.state) or running
        if refusal:
            return refusal
    return edit_gate.check_cell_count(cells, session.limits())


def has_code_to_run(session: Session, change: CellEdit | FileWrite) -> bool:
    """Return whether code may run after an edit."""
    if isinstance(change, FileWrite):
        cells = session.file.parse(change.content).cells
        return bool(changed_cells.select_not_run(cells, session.state.last_sources))
    if change.mode == "delete":
        return False
    cell_type = change.cell_type
    if cell_type is None:
        cell = plan.find_cell(session.read().cells, change.cell_id or "")
        cell_type = cell.type if cell else None
    # A cell of an unknown type may be a code cell.
    return cell_type is None or cell_type == "code"
