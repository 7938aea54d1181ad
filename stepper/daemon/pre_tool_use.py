"""Before an edit, or a command in the agent's shell: what is refused, what the person is asked. Changes nothing."""

from __future__ import annotations

from stepper.common.errors import NotebookError, StepperError
from stepper.daemon.project_notebooks import Workspace
from stepper.hook import payload
from stepper.hook.payload import Event
from stepper.policy import cell_changes, edit_gate, plan
from stepper.policy.model import Cell, CellEdit, Consent, FileWrite
from stepper.session import backgrounding
from stepper.session.session import Session

TEXT_ALONE = "a new text cell runs nothing and is not asked for; a code cell is: saying yes to it runs it at once"
APPROVING_RUNS = (
    "stepper: approving an edit of a code cell runs the cell at once, in the"
    " notebook's kernel. New text cells run nothing."
)


async def before_read(workspace: Workspace, event: Event) -> bytes:
    """Show, once a session, that approving the edit of a code cell runs the cell.

    The client shows nothing of an edit's own event above its question. A `Read` of the
    notebook precedes the first edit of every session.
    """
    workspace.resolve(event.read_path)
    limits = workspace.config.limits()
    if not event.asks_each or edit_gate.check_approval(event.consent, limits):
        return payload.SILENT
    return payload.shown(workspace.once(event.session, APPROVING_RUNS))


async def before_tool(workspace: Workspace, event: Event) -> bytes:
    """An edit or a shell command is about to happen: deny what must not run, have the person asked for hers."""
    if event.is_shell:
        return shell_call(workspace, event.shell_command, event.consent)
    change = event.change
    session = workspace.session(workspace.resolve(change.notebook))
    await session.handle_idle_death()
    try:
        if why_not := refused(session, change):
            return payload.decided("deny", f"stepper: {why_not}")
        why = edit_gate.check_delegation(event.consent, session.limits())
        if why and brings_code(session, change):
            return payload.decided(
                "ask",
                f"stepper: saying yes runs this cell at once, with all your rights ({why})",
            )
    except StepperError:
        return payload.SILENT  # PostToolUse says what is wrong
    # Of an edit the client shows no hook's reason in its question. Where `before_read`
    # showed nothing, the line on the step's text stands above the first question.
    if (event.asks_each or why) and edit_gate.only_adds_text(session.state, change):
        is_shown = (event.session, APPROVING_RUNS) in workspace.told
        waits = edit_gate.check_approval(event.consent, session.limits())
        line = ""
        if not is_shown and not waits:
            line = workspace.once(event.session, TEXT_ALONE)
        return payload.decided("allow", TEXT_ALONE, line)
    return payload.SILENT


def shell_call(workspace: Workspace, command: str, consent: Consent) -> bytes:
    """The agent's shell is about to call stepper: what no edit may run here by itself, no command of its may either."""
    runs, verb = (
        edit_gate.find_running_command(command),
        edit_gate.find_user_command(command),
    )
    if consent is Consent.WITHHELD and edit_gate.NEW_COMMAND.search(command):
        return payload.decided("deny", f"stepper: {edit_gate.PLAN_FIRST}")
    if runs and consent is Consent.WITHHELD:
        return payload.decided("deny", f"stepper: nothing ran: {edit_gate.PLAN_MODE}")
    if verb:
        why = f"`stepper {verb}` is the user's command: lifting a stop or dropping state is theirs to decide"
        return payload.decided("ask", why)
    limits = workspace.config.limits() if runs else None
    why_not = (
        (
            edit_gate.check_approval(consent, limits)
            or edit_gate.check_delegation(consent, limits)
        )
        if limits
        else None
    )
    return (
        payload.decided("ask", f"`stepper {runs}` runs code here: {why_not}")
        if why_not
        else payload.SILENT
    )


def refused(session: Session, change: CellEdit | FileWrite) -> str | None:
    """Return why an edit that is about to happen must not. Takes no lock, changes nothing: the engine asks again."""
    limits, state, runs = (
        session.limits(),
        session.state,
        backgrounding.explain_refusal(session, change.session),
    )
    if isinstance(change, FileWrite):
        try:
            cells = session.file.parse(change.content).cells
        except NotebookError:
            return None  # PostToolUse says what is wrong with it
        fresh = backgrounding.list_other_pending_cells(session, cells)
        return (
            (edit_gate.check_stop(state) or runs) if fresh else None
        ) or edit_gate.check_cell_count(cells, limits)
    if change.mode == "delete" or change.cell_type == "markdown":
        return None
    cells = session.read().cells
    if change.mode == "insert":
        above = plan.find_cell(cells, change.after or "")
        index = above.index + 1 if above else 0
        new = Cell("", index, 0, "code", change.source)
        why = (
            edit_gate.check_stop(state)
            or runs
            or edit_gate.check_failed_step(state, cells, index)
        )
        return why or edit_gate.check_cell_count([*cells, new], limits)
    target = plan.find_cell(cells, change.cell_id or "")
    if target is not None and not target.is_code and change.cell_type is None:
        return None
    return edit_gate.check_stop(state) or runs


def brings_code(session: Session, change: CellEdit | FileWrite) -> bool:
    """Whether an edit that is about to happen brings code that would run."""
    if isinstance(change, FileWrite):
        return bool(
            cell_changes.select_not_run(
                session.file.parse(change.content).cells, session.state.last_sources
            )
        )
    kind = change.cell_type
    if kind is None and (
        target := plan.find_cell(session.read().cells, change.cell_id or "")
    ):
        kind = target.type
    return change.mode != "delete" and kind in ("code", None)
