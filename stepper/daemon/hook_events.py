"""Claude Code's events: what follows each. A table; the work is the engine's."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable

from stepper.common.errors import NotebookError, StepperError, UsageError
from stepper.common.text import one_line
from stepper.daemon import claude_code, pre_tool_use
from stepper.daemon.claude_code import Event
from stepper.daemon.workspace import resume_target
from stepper.daemon.workspace.notebook_paths import UncoveredError
from stepper.daemon.workspace.project_notebooks import Workspace
from stepper.messages import command_messages, run_report
from stepper.notebooks.notebook_json import load_json
from stepper.policy import (
    edit_gate,
    error_classification,
    final_message,
    prompt_commands,
)
from stepper.policy.model import CellEdit, FileWrite, StepStatus
from stepper.session import (
    notebook_commands,
    replaced_notebook,
    status_queries,
    undelivered_reports,
)
from stepper.session.background import background_runs, backgrounding
from stepper.session.cells import agent_edits
from stepper.session.clients import Caller
from stepper.session.session import Session

# the agent of the session is at work
TURN_GOES_ON = ("PreToolUse", "PostToolUse", "PostToolBatch")
PLUGIN = "CLAUDE_PLUGIN_ROOT"  # the client gives it to a plugin's hooks
# with a cell that is being interrupted: more than that takes, less than the client
# waits
PATIENCE_SECONDS = 8.0


async def handle_event(
    workspace: Workspace, name: str, data: bytes, caller: Caller
) -> bytes:
    """Return what the hook process prints for an event of Claude Code. Never raises a StepperError.

    `PostToolUse again` is asked by a client whose daemon ended before it could answer, `Wake again` by one that waits
    to wake the agent. Those, and `Rearm`, are told what they wait for by `caller.deliver`: their answer is empty.
    """
    event, _, again = name.partition(" ")
    answer = await _hook(workspace, event, again, data, caller)
    answer = claude_code.add_skill_notes(answer, workspace.is_another_skill)
    answer = claude_code.use_terminal_commands(answer, workspace.program)
    return claude_code.add_plugin_note(answer) if caller.environ.get(PLUGIN) else answer


async def _hook(
    workspace: Workspace, name: str, again: str, data: bytes, caller: Caller
) -> bytes:
    try:
        event = Event(
            load_json(claude_code.remove_notebook_copies(data)),
            caller.environ.get(background_runs.CLIENT_PID, ""),
        )
    except ValueError as error:
        problem = (
            f"the hook's payload can't be read: {error}"
            if data.strip()
            else "the hook's payload is empty"
        )
        return claude_code.format_failure(name, StepperError(problem))
    if name in TURN_GOES_ON:
        workspace.turns[event.session] = caller.is_alive
    try:
        if name == "PostToolUse":
            return await after_tool(workspace, event, caller, bool(again))
        if name in ("Wake", "Rearm"):
            await (
                wake(workspace, event, caller, bool(again))
                if name == "Wake"
                else rearm(workspace, event, caller)
            )
            return claude_code.SILENT
        if name not in EVENTS:
            return claude_code.SILENT
        answer = await EVENTS[name](workspace, event)
        if name == "UserPromptSubmit":
            workspace.turns[event.session] = caller.is_alive
        return answer
    except (claude_code.PayloadError, StepperError) as error:
        return claude_code.format_failure(name, error, data, workspace.paths.project)


async def after_tool(
    workspace: Workspace, event: Event, caller: Caller, again: bool
) -> bytes:
    """NotebookEdit or Write happened: run what is new."""
    change = event.change
    try:
        path = workspace.resolve(change.notebook)
    except UncoveredError as error:
        if workspace.once(event.session, error.name):
            renamed = workspace.renames.describe_uncovered(change.notebook)
            return claude_code.format_context(
                "PostToolUse",
                command_messages.format_uncovered(error.name, error.setting, renamed),
            )
        return claude_code.format_context(
            "PostToolUse", command_messages.format_still_uncovered(error.name)
        )
    session, used = workspace.session(path), change.tool_use_id
    if used in session.background_calls and not again:
        return claude_code.SILENT  # two installations fire
    # Before the run: the time is given back in the same step that writes, and a daemon
    # may die between the two.
    workspace.keep(path, change.session)
    call = background_runs.start_call(
        session, used, caller, _work(workspace, session, change, caller, again)
    )
    background_runs.keep_in_foreground(session, call)
    if not await background_runs.wait_for_call(session, call, change.session):
        _works(workspace, session, change)
        workspace.mark()
        return claude_code.format_context(
            "PostToolUse", backgrounding.format_backgrounded(session, call)
        )
    found = call.task.result()
    if found is not None:
        if caller.disconnected.is_set():
            first = found.stop.split("\n", 1)[0]
            undelivered_reports.add_undelivered(
                session,
                "\n".join(filter(None, [found.text, found.stop])),
                found.line or first,
            )
        elif (
            not found.stop and (missed := undelivered_reports.take_report(session)).text
        ):
            found = run_report.join_reports([missed, found])
    # then PostToolBatch does not fire
    if caller.disconnected.is_set() or (found is not None and found.stop):
        workspace.turns.pop(event.session, None)
        workspace.release(path=path)
        # it may be gone; the report matters more
        with contextlib.suppress(StepperError):
            session.file.touch()
    workspace.mark()
    return claude_code.format_context("PostToolUse", found)


async def _work(
    workspace: Workspace,
    session: Session,
    change: CellEdit | FileWrite,
    caller: Caller,
    again: bool,
) -> run_report.Report | None:
    """Run what an edit brings; return the report."""
    try:
        replaced_notebook.record_agent_version(session)
        if isinstance(change, CellEdit):
            found = await agent_edits.run_edited_cell(session, change, caller, again)
        else:
            found = await agent_edits.run_written_notebook(
                session, change, caller, again
            )
    except StepperError as error:
        if not caller.disconnected.is_set():
            raise
        found = run_report.format_not_run(error.message, error.hint)  # it is told later
    # it may work elsewhere
    if found is not None and change.tool_use_id not in session.state.background_calls:
        _works(workspace, session, change)
    return found


def _works(
    workspace: Workspace, session: Session, change: CellEdit | FileWrite
) -> None:
    """That session of the client works on this notebook."""
    workspace.make_current(session.name, change.session)
    workspace.worked.add(change.session)


async def wake(workspace: Workspace, event: Event, caller: Caller, again: bool) -> None:
    """Stand by to wake the agent, should what an edit runs be handed on. It may be asked before the edit's own event.

    `again` it is asked where the daemon that was asked first has ended: what had waited in line there runs now.
    """
    # the client wakes the main agent, never this one: it waits for the end
    if event.is_from_subagent:
        return
    change = event.change
    session, used = (
        workspace.opened(workspace.resolve(change.notebook)),
        change.tool_use_id or "",
    )
    # a short cell's: there is nothing to ask another daemon
    if used not in session.finished_call_ids:
        caller.send_handover(event.edit_payload)
    known = session.background_calls.get(used)
    if (
        again
        and used in session.state.background_calls
        and (known is None or known.is_recovered)
    ):
        alone = Caller(caller.environ)
        known = background_runs.start_call(
            session, used, alone, _work(workspace, session, change, alone, True)
        )
    if (
        again
        and known is None
        and any(used == each.call for each in session.state.undelivered)
    ):
        await _tell_missed(session, caller)
    else:
        await background_runs.wait_to_notify(session, used, caller)
    workspace.mark()


async def rearm(workspace: Workspace, event: Event, caller: Caller) -> None:
    """A session begins or a turn of it ends: stand by for what was handed on to it and has nobody else to wake it."""
    sessions, current = (
        list(workspace.sessions.values()),
        workspace.under_way(event.session),
    )
    if current is not None and event.is_session_start:
        await background_runs.recover_calls(current)
        background_runs.transfer_calls(current, event.session, event.client_pid)
    elif current is not None:
        background_runs.match_prompt_to_reports(sessions, event.session, "")
        if current.state.undelivered:
            await _tell_missed(current, caller)
            return
    await background_runs.deliver_next_report(
        background_runs.list_unattended_calls(sessions, event.session), caller
    )
    workspace.mark()


async def _tell_missed(session: Session, caller: Caller) -> None:
    told = undelivered_reports.format_undelivered(session)
    if told and await caller.deliver(told):
        undelivered_reports.mark_delivered(session)


async def after_batch(workspace: Workspace, event: Event) -> bytes:
    """All calls of a message are through: the notebooks whose last call was an edit get the present time."""
    edited = {os.path.realpath(path) for path in event.last_edits}
    for path in workspace.release(session=event.session):
        if path in edited:
            with contextlib.suppress(StepperError):
                workspace.opened(workspace.resolve(path)).file.touch()
    told = "\n".join(workspace.external_changes.report_changes(event.used_shell))
    steered = _steered(workspace, event)
    workspace.mark()
    if not told:
        return claude_code.format_user_line("\n".join(steered))
    return claude_code.format_context(
        "PostToolBatch", run_report.Report(told, "\n".join([*steered, told]))
    )


def _steered(workspace: Workspace, event: Event) -> list[str]:
    """Return what the slash commands of a session's user did, in lines for the user: each is shown once.

    The client runs their command after `UserPromptSubmit` (before it in 2.1.197), and its output is the agent's alone.
    """
    return workspace.steered.pop(event.session, [])


async def session_start(workspace: Workspace, event: Event) -> bytes:
    """A session begins, goes on or was compacted: what is under way."""
    session = workspace.under_way(event.session)
    if session is not None:  # a machine that restarted has ended its kernel
        with contextlib.suppress(StepperError):
            await session.kernel_manager.find()
            await session.do_maintenance()
    replaced = workspace.end_replaced_stops(event.session)
    if replaced:
        session = workspace.under_way(event.session)
    elsewhere = undelivered_reports.take_from_other_notebooks(
        workspace.sessions.values(), session, None
    )
    elsewhere = "\n".join(filter(None, [*replaced, elsewhere]))
    if session is None:
        return _context("SessionStart", elsewhere)
    missed = await missing(session)
    background_runs.transfer_calls(session, event.session, event.client_pid)
    workspace.mark()
    about = (await status_queries.get_context(session)).text
    parts = [
        elsewhere,
        missed.text,
        backgrounding.format_still_running(session, event.session),
        about,
    ]
    text = run_report.limit_report("\n".join(filter(None, parts)))
    lines = [*replaced, missed.line]
    if not event.is_after_compaction:
        lines.append(command_messages.format_stopped_line(session.name, session.state))
    line = "\n".join(filter(None, lines))
    return claude_code.format_context("SessionStart", run_report.Report(text, line))


async def missing(session: Session) -> run_report.Report:
    """Return what agent and user have not heard of edits; a run that begins, ends or is interrupted is waited for."""
    await background_runs.recover_calls(session)
    left = (
        session.running_caller is None or session.running_caller.disconnected.is_set()
    )
    if (
        session.lock.locked()
        and left
        and not (session.runs_in_background or session.kernel_manager.queue_status)
    ):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(session.wait_until_idle(), PATIENCE_SECONDS)
    return undelivered_reports.take_report(session)


async def prompt(workspace: Workspace, event: Event) -> bytes:
    """The person wrote something: the plain words are commands, all else an ordinary sentence."""
    owner = event.session
    lines = background_runs.match_prompt_to_reports(
        workspace.sessions.values(), owner, event.prompt
    )
    if event.is_notification:  # what woke the agent; no person wrote it
        workspace.mark()
        return claude_code.format_user_line("\n".join(lines))
    workspace.worked.discard(owner)
    workspace.sent_on.pop(owner, None)
    workspace.limited.discard(owner)
    if final_message.limits_work(event.prompt):
        workspace.limited.add(owner)
    workspace.release(session=owner)  # of a message that was broken off
    workspace.under_way(owner)  # opens the current notebook
    replaced = workspace.end_replaced_stops(owner)
    new = claude_code.format_new_notebook(event.prompt)
    # 2.1.197 sends this event after the injected command, 2.1.330 before it
    if new or event.is_stepper_command:
        workspace.worked.add(owner)
    if new:
        return new
    session = workspace.under_way(owner)
    given = _command(session, event)
    refused = ""
    if given is not None and given[0] in RESUMES:
        try:
            session, given = await _to_resume(workspace, session, owner, *given)
        except UsageError as error:
            refused = f"stepper: {error}"
    elsewhere = undelivered_reports.take_from_other_notebooks(
        workspace.sessions.values(), session, owner
    )
    steered = [*_steered(workspace, event), *replaced]
    elsewhere = "\n".join(filter(None, [*replaced, elsewhere]))
    if session is None:
        report = run_report.Report(
            run_report.limit_report(elsewhere), "\n".join(steered)
        )
        return claude_code.format_context(
            "UserPromptSubmit", report if elsewhere else None
        )
    missed = await missing(session)
    said, lines = [elsewhere, missed.text], [*steered, missed.line]
    if refused:
        said.append(refused)
        lines.append(refused)
    elif given is not None:
        words, more = given
        # who asks how far it is gets an answer and nothing else
        if PLAIN_WORDS[words] is not _status:
            workspace.worked.add(owner)
        response = await PLAIN_WORDS[words](
            session, owner if PLAIN_WORDS[words] is _stop else more
        )
        said.append(response)
        if words in UNDERSTOOD:
            first = response.removeprefix("stepper: ").split("\n", 1)[0]
            lines.append(
                f"stepper: understood as {UNDERSTOOD[words]}: {one_line(first, 200)}"
            )
    elif session.state.stop and not event.is_slash_command:
        said.append(
            command_messages.format_prompt_while_stopped(
                session.name, session.state.stop, session.state
            )
        )
    workspace.mark()
    text = "\n".join(filter(None, said))
    line = "\n".join(filter(None, lines))
    if not text:
        return claude_code.format_user_line(line)
    return claude_code.format_context(
        "UserPromptSubmit", run_report.Report(run_report.limit_report(text), line)
    )


def _command(session: Session | None, event: Event) -> tuple[str, str] | None:
    """Return the plain words that a prompt gives as a command, with the user's message, None where it is none."""
    given = prompt_commands.parse_command(event.prompt)
    if session is None or given is not None or event.is_slash_command:
        return given
    stop = session.state.stop
    asked = stop is not None and bool(error_classification.extract_question(stop.error))
    running = status_queries.get_running(session) is not None
    # "go on" may mean with the variables or without them where the kernel died
    stopped = stop is not None and not edit_gate.is_stopped_by_idle_death(session.state)
    return prompt_commands.parse_sentence(event.prompt, stopped, asked, running)


async def _to_resume(
    workspace: Workspace, current: Session | None, owner: str, words: str, more: str
) -> tuple[Session | None, tuple[str, str]]:
    """Return the notebook that plain words resume, and the words with the user's message; raise UsageError.

    The message may begin with the notebook's name.
    """
    notebook, message = prompt_commands.split_notebook(more)
    if notebook:
        return workspace.named(notebook, workspace.paths.project), (words, message)
    if await workspace.stopped():
        asked = resume_target.ResumeCommand(RESUMES[words], message, "slash")
        project = workspace.paths.project
        current = await resume_target.find_target(workspace, project, owner, asked)
    return current, (words, message)


async def turn_end(workspace: Workspace, event: Event) -> bytes:
    """The agent ends its turn: where it does not say why, it is told what is left, once without progress.

    As context: the client shows a decision to block as a problem.
    """
    workspace.turns.pop(event.session, None)
    line = "\n".join(_steered(workspace, event))
    if event.session in workspace.limited or not final_message.lacks_explanation(
        event.last_message
    ):
        return claude_code.format_user_line(line)
    left = await _left(workspace, event)
    text = "\n".join(filter(None, [*workspace.external_changes.report_changes(), left]))
    return (
        claude_code.format_context(
            "Stop", run_report.Report(run_report.limit_report(text), line)
        )
        if text
        else claude_code.format_user_line(line)
    )


async def _left(workspace: Workspace, event: Event) -> str:
    """Return what is left of the work that was done in this turn, '' where nothing is, or that was said already."""
    owner, session = event.session, workspace.under_way(event.session)
    if (
        session is None
        or owner not in workspace.worked
        or session.state.stop
        or session.runs_in_background
    ):
        return ""
    # the next step would wait for the person
    if edit_gate.check_approval(event.consent, session.limits()):
        return ""
    with contextlib.suppress(NotebookError):
        undelivered_reports.compare_with_runs(session)
    state, name = session.state, one_line(session.name)
    steps, failing = len(state.plan.steps), state.is_failing
    progress = (
        session.name,
        -state.next_run if failing else steps - len(state.open_steps),
    )
    if (
        not (state.open_steps or failing or state.open_cells)
        or workspace.sent_on.get(owner) == progress
    ):
        return ""
    # by the person
    if (
        state.open_steps
        and state.get_step_status(state.open_steps[0].id) is StepStatus.INTERRUPTED
    ):
        return ""
    # it is about to be woken
    if any(call.is_being_reported for call in session.background_calls.values()):
        return ""
    workspace.sent_on[owner] = progress
    if steps and not state.open_steps:
        said = (
            f"all steps of {name} are over, but the notebook is not complete."
            f" {command_messages.format_open_cells(state)}"
        )
    elif failing:
        said = (
            f"the last run of {name} failed and has not been fixed."
            f" {command_messages.format_failing(state)}"
        )
    else:
        said = (
            f"{len(state.open_steps)} of {steps} steps of {name} are not done."
            f" {command_messages.format_next(state)}"
        )
    return f"stepper: {said} If you are blocked, tell the user why."


def _context(event: str, text: str) -> bytes:
    return claude_code.format_context(
        event, run_report.Report(run_report.limit_report(text)) if text else None
    )


async def _status(session: Session, _: str) -> str:
    now = await status_queries.get_status(session)
    stands = command_messages.format_kernel_state(
        now.kernel.state, now.kernel.where, now.kernel.left_seconds, now.kernel.trouble
    )
    head = f"stepper: {one_line(session.name)}: {now.state}; kernel {stands}."
    cells = [
        f"  {command_messages.MARKS[StepStatus(cell.status)]} cell {cell.cell}:"
        f" {cell.title}"
        for cell in now.cells
    ]
    cells += [f"  cell {mark.cell}: {mark.why}" for mark in (*now.stale, *now.hidden)]
    stop = [told.text for told in (now.verified, now.stop) if told]
    return "\n".join(
        [
            head,
            *command_messages.format_plan(session.state),
            *cells,
            *stop,
            command_messages.format_next(session.state),
        ]
    )


async def _stop(session: Session, owner: str) -> str:
    return (
        await background_runs.interrupt_calls(session, owner, PATIENCE_SECONDS)
        or f"stepper: no cell of {one_line(session.name)} runs."
    )


# `policy/prompt_commands` finds them in a prompt
PLAIN_WORDS: dict[str, Callable[[Session, str], Awaitable[str]]] = {
    "continue notebook": notebook_commands.resume,
    "fix and retry": notebook_commands.fix,
    "skip cell": notebook_commands.skip,
    "show status": _status,
    "stop the cell": _stop,
}

RESUMES = {  # the plain words that resume a notebook, with the command that does
    "continue notebook": "continue",
    "fix and retry": "fix",
    "skip cell": "skip",
}
UNDERSTOOD = {  # what the user reads of a plain word: the command that it was taken for
    "continue notebook": "/continue",
    "fix and retry": "/fix",
    "skip cell": "/skip",
    "stop the cell": "`stop the cell`",
}

EVENTS: dict[str, Callable[[Workspace, Event], Awaitable[bytes]]] = {
    "PreToolUse": pre_tool_use.before_tool,
    "BeforeRead": pre_tool_use.before_read,
    "PostToolBatch": after_batch,
    "SessionStart": session_start,
    "UserPromptSubmit": prompt,
    "Stop": turn_end,
}
