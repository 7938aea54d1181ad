"""Handlers of Claude Code's hook events; `EVENTS` lists most of them.

PreToolUse events are in `pre_tool_use`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, replace
from typing import NamedTuple

from stepper.common.errors import NotebookError, StepperError, UsageError
from stepper.common.text import format_count, one_line
from stepper.daemon import claude_code_json, pre_tool_use, read_events
from stepper.daemon.claude_code_json import Event
from stepper.daemon.workspace import stopped_notebook_choice
from stepper.daemon.workspace.notebook_paths import UncoveredError
from stepper.daemon.workspace.project_notebooks import WorkProgress, Workspace
from stepper.messages import command_messages, run_report, status_text
from stepper.notebooks import slim_copies
from stepper.notebooks.notebook_json import load_json
from stepper.policy import edit_gate, error_classification, final_message
from stepper.policy.commands import prompt_commands
from stepper.policy.commands.prompt_commands import PromptCommand
from stepper.policy.model import CellEdit, FileWrite, StepStatus
from stepper.session import (
    notebook_commands,
    replaced_notebook,
    status_queries,
    undelivered_reports,
)
from stepper.session.background import background_runs, backgrounding
from stepper.session.caller import Caller
from stepper.session.cells import agent_edits
from stepper.session.session import Session

# Events that are sent only while the agent works.
AGENT_EVENTS = ("PreToolUse", "PostToolUse", "PostToolBatch")
PLUGIN = "CLAUDE_PLUGIN_ROOT"  # Claude Code sets it for the hooks of a plugin
# The wait for a cell that is being interrupted: longer than an interrupt takes, but
# shorter than the client's timeout.
INTERRUPT_WAIT_SECONDS = 8.0
SUMMARY_CHARACTERS = 200  # of a response, in the line for the user
# The names of the stepper commands that resume a notebook, by the parsed command.
RESUME_NAMES = {
    prompt_commands.CONTINUE: "continue",
    prompt_commands.FIX: "fix",
    prompt_commands.SKIP: "skip",
}


async def handle_event(
    workspace: Workspace, name: str, data: bytes, caller: Caller
) -> bytes:
    """Handle a hook event, and return the output that the hook process prints.

    `name` is the event's name. If the hook process repeats a request because its daemon
    exited, the name ends with `again`, as in `PostToolUse again`. `data` is the
    payload. A StepperError is reported in the output. The output of `Wake` and `Rearm`
    is empty, because `caller.deliver` sends their messages to the agent.
    """
    event, _, suffix = name.partition(" ")
    is_repeated = suffix == "again"
    output = await _handle_event(workspace, event, is_repeated, data, caller)
    output = claude_code_json.add_skill_notes(output, workspace.has_other_skill)
    output = claude_code_json.use_terminal_commands(output, workspace.program)
    if caller.environ.get(PLUGIN):
        output = claude_code_json.add_plugin_note(output)
    return output


async def _handle_event(
    workspace: Workspace, name: str, is_repeated: bool, data: bytes, caller: Caller
) -> bytes:
    """Parse the payload of an event, and call the event's handler.

    Also record that the agent is working, if the event shows this. Errors are reported
    in the output.
    """
    try:
        payload = load_json(claude_code_json.remove_notebook_copies(data))
        client_pid = caller.environ.get(background_runs.CLIENT_PID, "")
        event = Event(payload, client_pid)
    except ValueError as error:
        problem = "the hook's payload is empty"
        if data.strip():
            problem = f"the hook's payload can't be read: {error}"
        return claude_code_json.format_failure(name, StepperError(problem))
    if name in AGENT_EVENTS:
        workspace.running_turns[event.session] = caller.is_alive
    try:
        if name == "PostToolUse":
            return await handle_edit(workspace, event, caller, is_repeated)
        if name == "Wake":
            await wait_for_edit(workspace, event, caller, is_repeated)
            return claude_code_json.SILENT
        if name == "Rearm":
            await wait_for_background_runs(workspace, event, caller)
            return claude_code_json.SILENT
        if name in read_events.EVENTS:
            return await read_events.EVENTS[name](workspace, event, caller)
        if name not in EVENTS:
            return claude_code_json.SILENT
        output = await EVENTS[name](workspace, event)
        if name == "UserPromptSubmit":
            workspace.running_turns[event.session] = caller.is_alive
        return output
    except (claude_code_json.PayloadError, StepperError) as error:
        return claude_code_json.format_failure(
            name, error, data, workspace.paths.project
        )


async def handle_edit(
    workspace: Workspace, event: Event, caller: Caller, is_repeated: bool
) -> bytes:
    """Run the cells that NotebookEdit or Write changed, and return the report.

    If the run takes too long, it continues in the background, and the report is an
    interim report. The output is empty if another hook handles the same edit, or if
    there is nothing to report.
    """
    change = event.change
    try:
        path = workspace.resolve(change.notebook)
    except UncoveredError as error:
        report = _report_uncovered(workspace, event, error)
        return claude_code_json.format_context("PostToolUse", report)
    session = workspace.open_session(path)
    call_id = change.tool_use_id
    if call_id in session.background_calls and not is_repeated:
        # The hooks of two installations sent the same event.
        return claude_code_json.SILENT
    # Recorded before the run: the daemon may be killed after the run has restored the
    # modification time.
    workspace.restored_mtimes.add(path, change.session)
    call = background_runs.start_call(
        session,
        call_id,
        caller,
        _run_edit(workspace, session, change, caller, is_repeated),
    )
    background_runs.move_to_foreground(session, call)
    if not await background_runs.wait_for_call(session, call, change.session):
        _record_work(workspace, session, change)
        workspace.update_markers()
        report = backgrounding.format_backgrounded(session, call)
        return claude_code_json.format_context("PostToolUse", report)
    edit_report = call.task.result()
    if edit_report is not None:
        edit_report = _add_undelivered_reports(session, edit_report, caller)
    # If the turn is over, no PostToolBatch follows, which would update the file's time.
    is_stopped = edit_report is not None and bool(edit_report.stop)
    if is_stopped or caller.disconnected.is_set():
        workspace.restored_mtimes.discard(path)
        _finish_turn(workspace, session, event.session)
    workspace.update_markers()
    return claude_code_json.format_context("PostToolUse", edit_report)


def _finish_turn(workspace: Workspace, session: Session, client: str) -> None:
    """Record that the agent of a client session stopped, and touch the notebook.

    The modification times of the notebook, and of large notebooks that the agent edited
    in this turn, become the current time.
    """
    workspace.running_turns.pop(client, None)
    # The file may have been deleted, but the report must be delivered anyway.
    with contextlib.suppress(StepperError):
        session.file.touch()
    _touch_large_notebooks(workspace, client)


def _finish_message(workspace: Workspace, path: str, client: str) -> None:
    """Set the modification time of a notebook to now, after a message with edits.

    Claude Code then reads the notebook again by itself. This fails for a large
    notebook, and Claude Code would refuse the next edit. Therefore, a large notebook
    gets the current time only at the end of the turn, and the agent must call Read
    before its first edit in the next turn.
    """
    notebook_path = workspace.resolve(path)
    session = workspace.get_session(notebook_path)
    if slim_copies.read_large_file(session.file) is None:
        session.file.touch()
    else:
        workspace.kept_mtimes.setdefault(client, set()).add(notebook_path)


def _touch_large_notebooks(workspace: Workspace, client: str) -> None:
    """Set the modification times of large notebooks that the agent edited in a turn."""
    paths = workspace.kept_mtimes.pop(client, None)
    if not paths:
        return
    for path in paths:
        with contextlib.suppress(StepperError):
            workspace.get_session(path).file.touch()
    workspace.update_markers()


def _report_uncovered(
    workspace: Workspace, event: Event, error: UncoveredError
) -> run_report.Report:
    """Return the report on an edit of a notebook that does not match `notebooks:`.

    Further reports on the same notebook are shorter.
    """
    # The notebook's name is recorded instead of the text of a message.
    is_first = bool(workspace.take_once(event.session, error.name))
    if not is_first:
        return command_messages.format_still_uncovered(error.name)
    renamed = workspace.renames.describe_uncovered(event.change.notebook)
    return command_messages.format_uncovered(error.name, error.setting, renamed)


def _add_undelivered_reports(
    session: Session, report: run_report.Report, caller: Caller
) -> run_report.Report:
    """Return a report, preceded by the notebook's undelivered reports.

    A report on a stop is returned unchanged. If the client disconnected, the report is
    also stored as undelivered.
    """
    if caller.disconnected.is_set():
        stop_line, _, _ = report.stop.partition("\n")
        text = _join([report.text, report.stop])
        undelivered_reports.add_undelivered(session, text, report.line or stop_line)
        return report
    if report.stop:
        return report
    undelivered_report = undelivered_reports.pop_report(session)
    if not undelivered_report.text:
        return report
    return run_report.join_reports([undelivered_report, report])


async def _run_edit(
    workspace: Workspace,
    session: Session,
    change: CellEdit | FileWrite,
    caller: Caller,
    is_repeated: bool,
) -> run_report.Report | None:
    """Run the cells of an edit, and return the report, or None if there is none.

    Unless the run continues in the background, make the notebook the current one. Raise
    StepperError if the cells can't be run and the caller is connected. If the caller
    has disconnected, the report contains the error.
    """
    try:
        replaced_notebook.record_agent_version(session)
        if isinstance(change, CellEdit):
            report = await agent_edits.run_edited_cell(
                session, change, caller, is_repeated
            )
        else:
            report = await agent_edits.run_written_notebook(
                session, change, caller, is_repeated
            )
    except StepperError as error:
        running = session.state.running
        running_id = running.tool_use_id if running is not None else ""
        if running_id and running_id == change.tool_use_id:
            # An earlier request of this call started the cell.
            error.accepted = True
        if not caller.disconnected.is_set():
            raise
        # The report is delivered later.
        report = run_report.format_error(error)
    # The agent may work on another notebook while this one runs in the background.
    is_background = change.tool_use_id in session.state.background_calls
    if report is not None and not is_background:
        _record_work(workspace, session, change)
    return report


def _record_work(
    workspace: Workspace, session: Session, change: CellEdit | FileWrite
) -> None:
    """Record that an agent session worked, and make the notebook its current one."""
    workspace.currents.set(session.name, change.session)
    workspace.active_clients.add(change.session)


async def wait_for_edit(
    workspace: Workspace, event: Event, caller: Caller, is_repeated: bool
) -> None:
    """Notify the agent when the cells of an edit have run in the background.

    This event may arrive before PostToolUse of the same edit. If the event is repeated
    because the daemon exited, cells that were still queued run now.
    """
    # Claude Code can notify only the main agent. A subagent waits for its cells.
    if event.is_from_subagent:
        return
    change = event.change
    path = workspace.resolve(change.notebook)
    session = workspace.get_session(path)
    call_id = change.tool_use_id or ""
    # The next daemon needs no request about a call that has finished.
    if not session.background_calls.has_finished(call_id):
        caller.send_handover(event.edit_payload)
    call = session.background_calls.find(call_id)
    is_lost = call is None or call.is_recovered
    was_in_background = call_id in session.state.background_calls
    if is_repeated and was_in_background and is_lost:
        background_caller = Caller(caller.environ)
        work = _run_edit(
            workspace, session, change, background_caller, is_repeated=True
        )
        call = background_runs.start_call(session, call_id, background_caller, work)
    undelivered_ids = [report.call for report in session.state.undelivered]
    if is_repeated and call is None and call_id in undelivered_ids:
        await _deliver_undelivered(session, caller)
    else:
        await background_runs.wait_to_notify(session, call_id, caller)
    workspace.update_markers()


async def wait_for_background_runs(
    workspace: Workspace, event: Event, caller: Caller
) -> None:
    """Notify the agent when a background run without a waiting hook finishes.

    Claude Code sends this event when a session starts and when a turn ends. If the
    current notebook has undelivered reports at the end of a turn, only deliver these.
    """
    sessions = list(workspace.sessions.values())
    current = workspace.find_open_work(event.session)
    if current is not None and event.is_session_start:
        await background_runs.recover_calls(current)
        background_runs.transfer_calls(current, event.session, event.client_pid)
    elif current is not None:
        background_runs.mark_reports_in_prompt(sessions, event.session, "")
        if current.state.undelivered:
            await _deliver_undelivered(current, caller)
            workspace.update_markers()
            return
    calls = background_runs.list_unattended_calls(sessions, event.session)
    await background_runs.deliver_next_report(calls, caller)
    workspace.update_markers()


async def _deliver_undelivered(session: Session, caller: Caller) -> None:
    """Send the undelivered reports of a notebook to the agent.

    Mark the reports as delivered if the client acknowledges them. Reports that are
    added while the client responds remain undelivered.
    """
    sent_reports = list(session.state.undelivered)
    text = undelivered_reports.format_undelivered(session)
    if text and await caller.deliver(text):
        undelivered_reports.mark_delivered(session, sent_reports)


async def handle_batch(workspace: Workspace, event: Event) -> bytes:
    """Update modification times and report external changes after a PostToolBatch.

    A notebook gets the current time if the last tool call on this notebook was an edit.
    """
    edited = {os.path.realpath(path) for path in event.paths_edited_last}
    for path in workspace.restored_mtimes.take_all(event.session):
        if path not in edited:
            continue
        with contextlib.suppress(StepperError):
            _finish_message(workspace, path, event.session)
    reports = workspace.external_changes.report_changes(event.used_shell)
    problems = workspace.slim_copies.take_problems()
    reports += [f"stepper: {problem}." for problem in problems]
    lines = _take_command_lines(workspace, event)
    workspace.update_markers()
    return _format_output("PostToolBatch", reports, [*lines, *reports])


def _take_command_lines(workspace: Workspace, event: Event) -> list[str]:
    """Remove and return the user's lines about slash commands that have run.

    Claude Code shows the output of a slash command only to the agent, so the next hook
    event shows these lines to the user. The command may run before or after
    UserPromptSubmit: this depends on the version of Claude Code.
    """
    return workspace.command_lines.pop(event.session, [])


async def handle_session_start(workspace: Workspace, event: Event) -> bytes:
    """Return the context for an agent session that started, resumed or was compacted.

    The context contains undelivered reports, running cells and the notebook's status.
    The reports are marked as delivered. Background runs without a client will notify
    this agent session. The stops of replaced notebooks are cleared.
    """
    owner = event.session
    session = workspace.find_open_work(owner)
    if session is not None:  # the kernel may have died, for example at a reboot
        with contextlib.suppress(StepperError):
            await session.kernel_manager.find_or_attach()
            await session.do_maintenance()
    replaced_lines = workspace.clear_replaced_stops(owner)
    if replaced_lines:
        session = workspace.find_open_work(owner)
    other_reports = undelivered_reports.pop_from_other_notebooks(
        workspace.sessions.values(), session, None
    )
    texts = [*replaced_lines, other_reports]
    lines = [*replaced_lines]
    if session is not None:
        undelivered_report = await take_undelivered(session)
        background_runs.transfer_calls(session, owner, event.client_pid)
        workspace.update_markers()
        context = await status_queries.get_context(session, event.continues_session)
        running_text = backgrounding.format_still_running(session, owner)
        texts += [undelivered_report.text, running_text, context.text]
        lines.append(undelivered_report.line)
        if not event.is_after_compaction:
            stopped_line = command_messages.format_stopped_line(
                session.name, session.state
            )
            lines.append(stopped_line)
    return _format_context("SessionStart", texts, lines)


async def take_undelivered(session: Session) -> run_report.Report:
    """Return the undelivered reports and mark them as delivered.

    If a run is starting, finishing or being interrupted, wait for its report first, for
    INTERRUPT_WAIT_SECONDS at most.
    """
    await background_runs.recover_calls(session)
    caller = session.requests.running_caller
    has_client = caller is not None and not caller.disconnected.is_set()
    is_queued = session.kernel_manager.queue_status is not None
    must_not_wait = has_client or is_queued or session.runs_in_background
    if session.requests.is_locked and not must_not_wait:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(
                session.requests.wait_until_idle(), INTERRUPT_WAIT_SECONDS
            )
    return undelivered_reports.pop_report(session)


async def handle_prompt(workspace: Workspace, event: Event) -> bytes:
    """Execute the command in a user's prompt, if any, and deliver undelivered reports.

    Other prompts are ordinary messages to the agent. A prompt starts a turn, and the
    stops of replaced notebooks are cleared.
    """
    owner = event.session
    delivered_lines = background_runs.mark_reports_in_prompt(
        workspace.sessions.values(), owner, event.prompt
    )
    if event.is_notification:  # the user did not write it
        workspace.update_markers()
        return claude_code_json.format_user_line("\n".join(delivered_lines))
    _reset_turn(workspace, event)
    new_notebook = claude_code_json.format_new_notebook(event.prompt)
    # Claude Code 2.1.197 runs a slash command before this event, 2.1.330 after it.
    if new_notebook or event.is_stepper_command:
        workspace.active_clients.add(owner)
    if new_notebook:
        return new_notebook
    replaced_lines = workspace.clear_replaced_stops(owner)
    # Choose the notebook for the command.
    session = workspace.find_open_work(owner)
    command = _parse_command(session, event)
    refusal = ""
    if command is not None and command.words in RESUME_NAMES:
        try:
            target = await _find_resume_target(workspace, session, owner, command)
            session = target.session
            command = target.command
        except UsageError as error:
            refusal = f"stepper: {error}"
    # Collect undelivered reports: texts for the agent, and lines for the user.
    other_reports = undelivered_reports.pop_from_other_notebooks(
        workspace.sessions.values(), session, owner
    )
    texts = [*replaced_lines, other_reports]
    lines = [*_take_command_lines(workspace, event), *replaced_lines]
    if session is not None:
        undelivered_report = await take_undelivered(session)
        texts.append(undelivered_report.text)
        lines.append(undelivered_report.line)
    # Execute the command.
    response = PromptResponse(refusal, refusal)
    if not refusal and session is not None:
        response = await _respond_to_prompt(workspace, session, event, command)
    texts.append(response.text)
    lines.append(response.line)
    workspace.update_markers()
    return _format_output("UserPromptSubmit", texts, lines)


class PromptResponse(NamedTuple):
    """The response to a prompt: a text for the agent, and a line for the user."""

    text: str = ""
    line: str = ""


async def _respond_to_prompt(
    workspace: Workspace,
    session: Session,
    event: Event,
    command: PromptCommand | None,
) -> PromptResponse:
    """Execute the command in a prompt, or remind the agent that a notebook is stopped.

    The response is empty if there is neither a command nor a stop.
    """
    if command is not None:
        text = await _execute_command(workspace, session, event.session, command)
        return PromptResponse(text, _format_user_line(command, text))
    stop = session.state.stop
    if stop is None or event.is_slash_command:
        return PromptResponse()
    reminder = command_messages.format_prompt_while_stopped(
        session.name, stop, session.state
    )
    return PromptResponse(reminder)


def _reset_turn(workspace: Workspace, event: Event) -> None:
    """Reset the state of an agent session at the start of a turn."""
    owner = event.session
    workspace.active_clients.discard(owner)
    workspace.continuations.pop(owner, None)
    workspace.limited_clients.discard(owner)
    if final_message.limits_work(event.prompt):
        workspace.limited_clients.add(owner)
    # An interrupted turn has no end: its entries are discarded, and the edits of large
    # notebooks become visible to other programs now.
    workspace.restored_mtimes.take_all(owner)
    _touch_large_notebooks(workspace, owner)
    # Open the current notebook: `clear_replaced_stops` checks only open sessions.
    workspace.find_open_work(owner)


def _parse_command(session: Session | None, event: Event) -> PromptCommand | None:
    """Return the command in a prompt, or None if the prompt is an ordinary message.

    Sentences such as "continue" are commands only if they fit the notebook's state.
    """
    command = prompt_commands.parse_command(event.prompt)
    if session is None or command is not None or event.is_slash_command:
        return command
    stop = session.state.stop
    has_question = stop is not None and bool(
        error_classification.extract_question(stop.error)
    )
    is_running = status_queries.get_running(session) is not None
    # After the death of an idle kernel, it is unclear whether "go on" means with or
    # without restoring the variables.
    is_stopped = stop is not None and not edit_gate.is_stopped_by_idle_death(
        session.state
    )
    return prompt_commands.parse_sentence(
        event.prompt,
        is_stopped=is_stopped,
        has_question=has_question,
        is_running=is_running,
    )


class ResumeTarget(NamedTuple):
    """The session that a command resumes, and the command without a notebook name."""

    session: Session | None  # None if there is no notebook with open work
    command: PromptCommand


async def _find_resume_target(
    workspace: Workspace, current: Session | None, owner: str, command: PromptCommand
) -> ResumeTarget:
    """Return the session that a command resumes, and the command without its name.

    If the command's message starts with a notebook name, this is the session of the
    named notebook. Otherwise, it is the session of the stopped notebook, or `current`
    if no notebook is stopped. Raise UsageError if the named notebook does not exist, or
    if several notebooks are stopped and none is named.
    """
    project = workspace.paths.project
    words = command.words
    notebook, message = prompt_commands.split_notebook(command.message)
    if notebook:
        session = workspace.find_session(notebook, project)
        return ResumeTarget(session, PromptCommand(words, message))
    if await workspace.open_stopped_sessions():
        resume_command = stopped_notebook_choice.ResumeCommand(
            RESUME_NAMES[words], message, "slash"
        )
        current = await stopped_notebook_choice.find_target(
            workspace, project, owner, resume_command
        )
    return ResumeTarget(current, PromptCommand(words, message))


async def _execute_command(
    workspace: Workspace, session: Session, owner: str, command: PromptCommand
) -> str:
    """Execute a command and return the text for the agent."""
    # A user who requests the status expects a response and no further work.
    if command.words != prompt_commands.STATUS:
        workspace.active_clients.add(owner)
    match command.words:
        case prompt_commands.CONTINUE:
            return await notebook_commands.resume(session, command.message)
        case prompt_commands.FIX:
            return await notebook_commands.fix(session, command.message)
        case prompt_commands.SKIP:
            return await notebook_commands.skip(session, command.message)
        case prompt_commands.STOP:
            results = await background_runs.interrupt_calls(
                session, owner, INTERRUPT_WAIT_SECONDS
            )
            if results:
                return results
            return f"stepper: no cell of {one_line(session.name)} is running."
    return await _format_status(session)


def _format_user_line(command: PromptCommand, response: str) -> str:
    """Return a line for the user that names the command found in a prompt.

    Return an empty string for the status command, because the agent shows the status.
    """
    if command.words == prompt_commands.STATUS:
        return ""
    name = "`stop the cell`"
    if command.words in RESUME_NAMES:
        name = f"/{RESUME_NAMES[command.words]}"
    text = response.removeprefix("stepper: ")
    first_line, _, _ = text.partition("\n")
    summary = one_line(first_line, SUMMARY_CHARACTERS)
    return f"stepper: understood your message as {name}: {summary}"


async def handle_turn_end(workspace: Workspace, event: Event) -> bytes:
    """Remind an agent of open work if its last message does not explain why it stops.

    In this case, also report external changes. The reminder is added as context,
    because Claude Code would show a decision to block as an error. Without a reminder,
    large notebooks that the agent edited get the current modification time.
    """
    workspace.running_turns.pop(event.session, None)
    lines = _take_command_lines(workspace, event)
    lacks_explanation = final_message.lacks_explanation(event.last_message)
    if event.session in workspace.limited_clients or not lacks_explanation:
        _touch_large_notebooks(workspace, event.session)
        return claude_code_json.format_user_line(_join(lines))
    reminder = _take_reminder(workspace, event)
    if not reminder:  # with a reminder, the agent may continue its edits
        _touch_large_notebooks(workspace, event.session)
    changes = workspace.external_changes.report_changes()
    return _format_output("Stop", [*changes, reminder], lines)


def _take_reminder(workspace: Workspace, event: Event) -> str:
    """Return a reminder of open work, and record it as given.

    Return an empty string if no work is open, if the agent did not work in this turn or
    has to wait, or if there was no progress since the last reminder.
    """
    owner = event.session
    session = workspace.find_open_work(owner)
    if session is None or owner not in workspace.active_clients:
        return ""
    if session.state.stop or session.runs_in_background:
        return ""
    # The next cell needs the user's approval.
    if edit_gate.check_approval(event.consent, session.limits()):
        return ""
    with contextlib.suppress(NotebookError):
        undelivered_reports.update_changed_cells(session)
    state = session.state
    open_steps = state.open_steps
    if not (open_steps or state.is_failing or state.open_cells):
        return ""
    done_count = len(state.plan.steps) - len(open_steps)
    # While a cell has failed, each further run counts as progress.
    next_run = state.next_run if state.is_failing else None
    progress = WorkProgress(session.name, done_count, next_run)
    if workspace.continuations.get(owner) == progress:
        return ""
    if open_steps:
        next_status = state.get_step_status(open_steps[0].id)
        if next_status is StepStatus.INTERRUPTED:  # the user interrupted the step
            return ""
    # The agent will be notified soon.
    if any(call.is_being_reported for call in session.background_calls):
        return ""
    workspace.continuations[owner] = progress
    return _format_open_work(session)


def _format_open_work(session: Session) -> str:
    """Return the reminder of a notebook's open work."""
    state = session.state
    name = one_line(session.name)
    step_count = len(state.plan.steps)
    if step_count and not state.open_steps:
        text = (
            f"all steps of {name} are done or skipped, but the notebook is not"
            f" complete. {command_messages.format_open_cells(state)}"
        )
    elif state.is_failing:
        text = (
            f"the last run of {name} failed and has not been fixed."
            f" {command_messages.format_failing(state)}"
        )
    else:
        open_count = len(state.open_steps)
        steps = format_count(step_count, "step")
        verb = "is" if open_count == 1 else "are"
        text = (
            f"{open_count} of {steps} of {name} {verb} not done."
            f" {command_messages.format_next(state)}"
        )
    return f"stepper: {text} If you are blocked, tell the user why."


def _join(texts: Iterable[str]) -> str:
    """Return the non-empty texts, joined by newlines."""
    return "\n".join(filter(None, texts))


def _format_context(event: str, texts: Iterable[str], lines: Iterable[str]) -> bytes:
    """Return a hook's output with texts for the agent and lines for the user.

    If all texts are empty, the output is empty too.
    """
    text = _join(texts)
    if not text:
        return claude_code_json.SILENT
    limited_text = run_report.limit_report(text)
    report = run_report.Report(limited_text, _join(lines))
    return claude_code_json.format_context(event, report)


def _format_output(event: str, texts: Iterable[str], lines: Iterable[str]) -> bytes:
    """Return a hook's output with texts for the agent, lines for the user, or both."""
    output = _format_context(event, texts, lines)
    return output or claude_code_json.format_user_line(_join(lines))


async def _format_status(session: Session) -> str:
    """Return the status, the plan and the next step of a notebook."""
    status = await status_queries.get_status(session)
    # The prompt delivers the undelivered reports.
    document = asdict(replace(status, unheard=""))
    planned_steps = {}
    for step in status_queries.get_plan(session).steps:
        planned_steps[step.id] = asdict(step)
    # Add the titles and criteria of the plan to the steps of the status.
    steps = []
    for step_status in document["steps"]:
        planned_step = planned_steps.get(step_status["id"], {})
        steps.append({**planned_step, **step_status})
    document["steps"] = steps
    text = status_text.format_status(document)
    return f"stepper: {text}\n{command_messages.format_next(session.state)}"


EVENTS: dict[str, Callable[[Workspace, Event], Awaitable[bytes]]] = {
    "PreToolUse": pre_tool_use.decide_tool_call,
    "PostToolBatch": handle_batch,
    "SessionStart": handle_session_start,
    "UserPromptSubmit": handle_prompt,
    "Stop": handle_turn_end,
}
