"""The PreToolUse hook: which edits and shell commands are denied, allowed or asked for.

Nothing is changed here. The checks are repeated when the edit arrives.
"""

from __future__ import annotations

from stepper.common.errors import NotebookError, StepperError
from stepper.daemon import claude_code
from stepper.daemon.claude_code import Event
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
    "stepper: approving an edit of a code cell runs the cell at once, in the"
    " notebook's kernel. New text cells run nothing."
)


async def before_read(workspace: Workspace, event: Event) -> bytes:
    """Show, once a session, that approving the edit of a code cell runs the cell.

    Claude Code shows no hook's message above the question about an edit. A `Read` of the
    notebook precedes the first edit of every session.
    """
    workspace.resolve(event.read_path)
    limits = workspace.config.limits()
    if not event.asks_for_each_edit or edit_gate.check_approval(event.consent, limits):
        return claude_code.SILENT
    return claude_code.format_user_line(
        workspace.once(event.session, APPROVAL_RUNS_CELL)
    )


async def before_tool(workspace: Workspace, event: Event) -> bytes:
    """Return the decision on an edit or a shell command that is about to happen."""
    if event.is_shell_call:
        return decide_shell_command(workspace, event.shell_command, event.consent)
    change = event.change
    session = workspace.session(workspace.resolve(change.notebook))
    await session.handle_idle_death()
    try:
        refusal = find_refusal(session, change)
        if refusal:
            return claude_code.format_decision("deny", f"stepper: {refusal}")
        reason = edit_gate.check_delegation(event.consent, session.limits())
        if reason and brings_code(session, change):
            return claude_code.format_decision(
                "ask",
                "stepper: approving this edit runs the cell immediately, with all"
                f" your permissions ({reason})",
            )
    except StepperError:
        return claude_code.SILENT  # PostToolUse reports the error
    is_asked = event.asks_for_each_edit or reason
    if is_asked and edit_gate.only_adds_text(session.state, change):
        return _allow_markdown(workspace, event, session)
    return claude_code.SILENT


def _allow_markdown(workspace: Workspace, event: Event, session: Session) -> bytes:
    """Return the decision that allows a new Markdown cell.

    Claude Code shows no hook's reason in its question about an edit. If `before_read`
    showed nothing, this line is shown above the first question.
    """
    was_shown = (event.session, APPROVAL_RUNS_CELL) in workspace.told
    must_ask = edit_gate.check_approval(event.consent, session.limits())
    line = ""
    if not was_shown and not must_ask:
        line = workspace.once(event.session, MARKDOWN_ALLOWED)
    return claude_code.format_decision("allow", MARKDOWN_ALLOWED, line)


def decide_shell_command(workspace: Workspace, command: str, consent: Consent) -> bytes:
    """Return the decision on a shell command of the agent.

    The agent must not run by a command what it must not run by an edit.
    """
    running_command = edit_gate.find_running_command(command)
    user_command = edit_gate.find_user_command(command)
    if consent is Consent.WITHHELD:
        if edit_gate.NEW_COMMAND.search(command):
            return claude_code.format_decision(
                "deny", f"stepper: {edit_gate.PLAN_FIRST}"
            )
        if running_command:
            reason = f"stepper: nothing ran: {edit_gate.PLAN_MODE}"
            return claude_code.format_decision("deny", reason)
    if user_command:
        reason = (
            f"`stepper {user_command}` is the user's command: only the user may resume"
            " a"
            " stopped notebook or discard state"
        )
        return claude_code.format_decision("ask", reason)
    if not running_command:
        return claude_code.SILENT
    limits = workspace.config.limits()
    unapproved = edit_gate.check_approval(consent, limits)
    unapproved = unapproved or edit_gate.check_delegation(consent, limits)
    if not unapproved:
        return claude_code.SILENT
    reason = f"`stepper {running_command}` runs code in the kernel: {unapproved}"
    return claude_code.format_decision("ask", reason)


def find_refusal(session: Session, change: CellEdit | FileWrite) -> str | None:
    """Return why an edit must not happen, None if it may.

    Takes no lock and changes nothing: the session checks again when the edit arrives.
    """
    running = backgrounding.explain_refusal(session, change.session)
    if isinstance(change, FileWrite):
        return _find_write_refusal(session, change, running)
    if change.mode == "delete" or change.cell_type == "markdown":
        return None
    cells = session.read().cells
    stopped = edit_gate.check_stop(session.state)
    if change.mode == "insert":
        above = plan.find_cell(cells, change.after or "")
        index = above.index + 1 if above else 0
        new_cell = Cell("", index, 0, "code", change.source)
        waiting = edit_gate.check_failed_step(session.state, cells, index)
        too_many = edit_gate.check_cell_count([*cells, new_cell], session.limits())
        return stopped or running or waiting or too_many
    target = plan.find_cell(cells, change.cell_id or "")
    if target is not None and not target.is_code and change.cell_type is None:
        return None
    return stopped or running


def _find_write_refusal(
    session: Session, change: FileWrite, running: str | None
) -> str | None:
    """Return why a notebook must not be written; `running` says why no cell may run."""
    try:
        cells = session.file.parse(change.content).cells
    except NotebookError:
        return None  # PostToolUse reports the error
    if backgrounding.list_other_pending_cells(session, cells):
        refusal = edit_gate.check_stop(session.state) or running
        if refusal:
            return refusal
    return edit_gate.check_cell_count(cells, session.limits())


def brings_code(session: Session, change: CellEdit | FileWrite) -> bool:
    """Whether an edit contains code that would run."""
    if isinstance(change, FileWrite):
        cells = session.file.parse(change.content).cells
        return bool(changed_cells.select_not_run(cells, session.state.last_sources))
    cell_type = change.cell_type
    if cell_type is None:
        target = plan.find_cell(session.read().cells, change.cell_id or "")
        if target:
            cell_type = target.type
    return change.mode != "delete" and cell_type in ("code", None)
