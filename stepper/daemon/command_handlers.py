"""Handlers of the commands in `policy/commands/cli_commands`.

`handle_command` handles a request. Commands without a notebook are handled in
`_handle_for_project`, commands on a notebook in `_dispatch`, and commands that only MCP
clients send in `mcp_handlers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from dataclasses import replace
from datetime import date
from functools import partial
from importlib import import_module
from typing import Any

from stepper import __version__
from stepper.common.errors import StepperError, UsageError
from stepper.daemon.request import Request, make_current, report_progress
from stepper.daemon.workspace import stopped_notebook_choice
from stepper.daemon.workspace.project_notebooks import parse_plan
from stepper.messages import attached_clients, command_messages
from stepper.notebooks import jupyter_saves
from stepper.notebooks.notebook_json import load_json
from stepper.policy import edit_gate, journal_events, plan
from stepper.policy.commands import cli_commands, command_schema, prompt_commands
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.model import Consent, Limits, Plan
from stepper.policy.notebook_state import State
from stepper.session import (
    connection_details,
    interrupts,
    notebook_commands,
    output_following,
    progress_events,
    responses,
    status_queries,
    undelivered_reports,
)
from stepper.session.session import Session
from stepper.session.session_state.notebook_journal import format_now

# Commands after which an agent that finishes its turn is reminded of open work.
WORK_COMMANDS = (
    cli_commands.New,
    cli_commands.Run,
    cli_commands.Restore,
    cli_commands.Continue,
    cli_commands.Fix,
    cli_commands.Skip,
)
# The commands that resume a notebook, with the argument that holds the user's message.
MESSAGE_ARGUMENTS: dict[type, str] = {
    cli_commands.Continue: "answer",
    cli_commands.Fix: "hint",
    cli_commands.Skip: "reason",
}
# These commands check the user's consent themselves, because it depends on the cell.
CELL_EDITS = ("cell run", "cell add", "cell change")
SEARCH_SECONDS = 5.0  # for `list` without --all
SLICE_SECONDS = 0.02  # of the search; other requests are processed between slices
ALL_ENTRIES = 1 << 24  # the number of directory entries that `list --all` reads
DELETED = "deleted"  # the state of a notebook without a file
SHUTDOWN_REASON = "it was shut down by `stepper shutdown`"


async def handle_command(name: str, payload: bytes, request: Request) -> bytes:
    """Execute a command and return its response as JSON.

    Raise StepperError if the command is unknown or fails.
    """
    if name.startswith("cell "):
        # The import adds these commands to ALL_COMMANDS.
        import_module("stepper.policy.commands.mcp_cell_commands")
    command = command_schema.ALL_COMMANDS.get(name)
    if command is None or not command.needs_daemon:
        message = f"the daemon (version {__version__}) has no command {name[:100]!r}"
        raise StepperError(message, "stepper shutdown")
    values = load_arguments(payload)
    arguments = command_schema.parse_arguments(command.arguments, values)
    arguments = _move_notebook_from_message(arguments)
    caller = request.caller
    is_cell_edit = name in CELL_EDITS
    # Only an agent's command needs an approval.
    if caller.interface == "mcp" and not is_cell_edit:
        _check_approval(request, command, arguments)
    if is_cell_edit or isinstance(arguments, WORK_COMMANDS):
        caller.timeout = getattr(arguments, "timeout_seconds", None)
        response = await _handle_work_command(request, arguments)
    else:
        response = await _handle_for_project(request, arguments)
    return responses.to_json(response)


async def _handle_work_command(request: Request, arguments: Any) -> object:
    """Execute a command that can run cells or resume a notebook; return its response.

    Record that the client works, and that the changes which the command makes to the
    notebook's file are not external changes.
    """
    workspace = request.workspace
    workspace.active_clients.add(request.owner)
    external_changes = workspace.external_changes
    changed_before = external_changes.find_changed()
    response = await _handle_for_project(request, arguments)
    notebook = getattr(response, "notebook", None)
    if notebook:
        path = os.path.join(workspace.paths.project, notebook)
        external_changes.ignore_own_change(path, changed_before)
    return response


def _check_approval(
    request: Request, command: command_schema.Command, arguments: Any
) -> None:
    """Raise StepperError if an agent's command needs an approval that is missing."""
    if command.name == "new" and request.consent is Consent.WITHHELD:
        raise StepperError(edit_gate.PLAN_FIRST)
    if not command.runs_code:
        return
    limits = request.workspace.config.load_limits()
    reason = edit_gate.check_approval(request.consent, limits)
    if reason:
        notebook = getattr(arguments, "notebook", None) or ""
        command_line = CommandLines(notebook).shell(command.name)
        hint = f"{command_line}  # only the user may run this command now"
        raise StepperError(f"nothing ran: {reason}", hint)


def load_arguments(payload: bytes) -> dict[str, Any]:
    """Return the command arguments in a request's payload.

    Raise UsageError if the payload is not a JSON object.
    """
    try:
        values = load_json(payload or b"{}")
    except ValueError as error:
        message = f"the request's arguments can't be read: {error}"
        raise UsageError(message) from None
    if not isinstance(values, dict):
        raise UsageError("the request's arguments are not a JSON object")
    return values


def _move_notebook_from_message(arguments: Any) -> Any:
    """Return the arguments with a notebook name from the message as `notebook`.

    In `/fix a.ipynb the dates are in UTC`, the message starts with the notebook name.
    """
    message_argument = MESSAGE_ARGUMENTS.get(type(arguments))
    if message_argument is None or arguments.notebook is not None:
        return arguments
    message = getattr(arguments, message_argument)
    notebook, message = prompt_commands.split_notebook(message)
    changes = {message_argument: message, "notebook": notebook or None}
    return replace(arguments, **changes)


async def _handle_for_project(request: Request, arguments: Any) -> object:
    """Execute a command and return its response.

    If the command acts on a notebook, open the notebook's session first.
    """
    workspace = request.workspace
    name = getattr(arguments, "notebook", None)
    has_notebook = bool(name or workspace.currents.get(request.owner))
    match arguments:
        case cli_commands.New():
            return await _create_notebook(request, arguments)
        case cli_commands.Context() if not has_notebook:
            return _add_system_prompt(arguments, responses.ContextResponse())
        case cli_commands.Status() if not has_notebook:
            status = await _get_status(request, None, arguments)
            return replace(status, daemon=request.daemon_info)
        case cli_commands.List():
            return await _list_notebooks(request, arguments.all)
        case cli_commands.Kernels():
            from stepper.daemon import backend_commands

            return await backend_commands.list_backends(request)
        case cli_commands.Shutdown() if not name:
            return await _shut_down_project(request)
    session = await _open_session(request, arguments, name)
    return await _handle_for_notebook(request, session, arguments)


async def _open_session(request: Request, arguments: Any, name: str | None) -> Session:
    """Return the session of the notebook that a command acts on.

    `name` is the notebook in the command, if any. Raise UsageError if this notebook
    does not exist. Without a name, raise UsageError if there is no current notebook, or
    if the command resumes a notebook and several are stopped.
    """
    workspace = request.workspace
    match arguments:
        case cli_commands.Shutdown():
            deleted_session = workspace.find_deleted(name)
            if deleted_session is not None:
                return deleted_session
        case cli_commands.Continue() | cli_commands.Fix() | cli_commands.Skip():
            if not name:
                return await _open_session_to_resume(request, arguments)
        case cli_commands.Status(resumes=True):
            if not name:
                command = stopped_notebook_choice.ResumeCommand("lift_stop", "", "tool")
                return await stopped_notebook_choice.find_target(
                    workspace, request.cwd, request.owner, command
                )
    return workspace.find_session(name, request.cwd, request.owner)


async def _open_session_to_resume(request: Request, arguments: Any) -> Session:
    """Return the session that a command without a notebook name resumes.

    Unless an agent sent the command, the stops of replaced notebooks are cleared first,
    so that these notebooks are not resumed.
    """
    await request.workspace.open_stopped_sessions()
    _clear_replaced_stops(request)
    interface = "shell"
    if request.caller.interface == "mcp":
        interface = "tool"
    elif request.owner:
        interface = "slash"
    command_type = type(arguments)
    name = command_type.__name__.lower()
    message = getattr(arguments, MESSAGE_ARGUMENTS[command_type])
    command = stopped_notebook_choice.ResumeCommand(name, message, interface)
    return await stopped_notebook_choice.find_target(
        request.workspace, request.cwd, request.owner, command
    )


def _clear_replaced_stops(request: Request) -> None:
    """Clear the stops of replaced notebooks and report them as progress events.

    Do nothing if the request comes from an agent.
    """
    if not request.caller.is_outside_agent:
        return
    for line in request.workspace.clear_replaced_stops(request.owner):
        request.progress(progress_events.Waiting(line=line))


async def _shut_down_project(request: Request) -> responses.ShutdownResponse:
    """Shut down all kernels and the daemon.

    If a kernel can't be shut down, raise the error after all other shutdowns.
    """
    request.shut_down()
    shutdowns = [
        notebook_commands.shutdown(session, SHUTDOWN_REASON)
        for session in request.workspace.open_all_sessions()
    ]
    results = await asyncio.gather(*shutdowns, return_exceptions=True)
    count = 0
    for result in results:
        # Raised after all shutdowns: an error must not keep other kernels running.
        if isinstance(result, BaseException):
            raise result
        count += int(result)
    return responses.ShutdownResponse(count)


async def _list_notebooks(
    request: Request, search_all: bool
) -> list[responses.NotebookEntry]:
    """Return an entry for each notebook of the project.

    Deleted notebooks that still have a kernel, or whose kernel can't be reached, are
    included. Other requests are processed between two notebooks.
    """
    workspace = request.workspace
    # Find the new names of renamed notebooks.
    workspace.open_all_sessions()
    for session in list(workspace.sessions.values()):
        if not workspace.has_file(session):
            workspace.renames.follow_missing(session)
    # Search the folders for notebooks.
    if not await _search_folders(request, search_all):
        line = "Not all folders of this project were searched."
        if not search_all:
            line += " To list every notebook, run: stepper list --all"
        request.progress(progress_events.Waiting(line=line))
    # List the notebooks that exist.
    current = workspace.currents.get(request.owner)
    entries: list[responses.NotebookEntry] = []
    for name in workspace.notebook_paths.list_known():
        started_at = time.monotonic()
        # The notebook may have been deleted, or its name may be invalid.
        with contextlib.suppress(UsageError, OSError):
            entries.append(await workspace.rows.get_row(name, current))
        await _yield_to_requests(request, time.monotonic() - started_at)
    # List the deleted notebooks that may still have a kernel.
    for session in list(workspace.sessions.values()):
        if workspace.has_file(session):
            continue
        is_current = session.name == current
        entry = await status_queries.get_entry(session, is_current, 0.0)
        has_kernel = session.kernel_manager.kernel is not None
        if has_kernel or entry.kernel.trouble:
            entries.append(replace(entry, state=DELETED))
    return entries


async def _search_folders(request: Request, search_all: bool) -> bool:
    """Search the project's folders for notebooks.

    Return whether all folders were searched. Even with `search_all`, this is not the
    case if the project has too many folders for the index. Other requests are processed
    after each slice of the search.
    """
    notebook_paths = request.workspace.notebook_paths
    index = notebook_paths.index
    deadline = time.monotonic() + SEARCH_SECONDS
    max_entries = None
    if search_all:
        deadline = math.inf
        max_entries = ALL_ENTRIES
    slice_seconds = SLICE_SECONDS
    while True:
        folder_count = len(index.folders)
        started_at = time.monotonic()
        index.refresh(notebook_paths.list_patterns(), slice_seconds, max_entries)
        if not notebook_paths.is_incomplete:
            return True
        # A single folder took longer than the slice.
        if len(index.folders) == folder_count:
            slice_seconds *= 2
        if time.monotonic() > deadline or slice_seconds > SEARCH_SECONDS:
            return False
        await _yield_to_requests(request, time.monotonic() - started_at)


async def _yield_to_requests(request: Request, seconds: float) -> None:
    """Let the event loop process other requests.

    If cells are running, pause for `seconds`; otherwise only for one iteration.
    """
    sessions = request.workspace.sessions.values()
    is_running = any(session.requests.is_locked for session in sessions)
    delay = seconds if is_running else 0
    await asyncio.sleep(delay)


async def _create_notebook(
    request: Request, arguments: cli_commands.New
) -> responses.NotebookCreatedResponse:
    """Create a notebook with a plan, and add and run the first cells of the command.

    Raise UsageError if the problem is empty or an argument is not valid.
    """
    if not arguments.problem.strip():
        raise UsageError("the problem is empty", 'stepper new "PROBLEM"')
    workspace = request.workspace
    new_plan = parse_plan(arguments.problem, arguments.steps or [])
    slug = plan.make_slug(arguments.name or arguments.problem)
    default_kernel = workspace.config.load_limits().kernel
    kernel = arguments.kernel or default_kernel
    # Validate the kernel and the cells before the notebook is created.
    metadata = None
    # A new notebook has the metadata of a local kernel, and uses the default kernel.
    if not kernel == default_kernel == Limits.kernel:
        from stepper.daemon import backend_commands

        metadata = await backend_commands.get_metadata(request, kernel)
    if arguments.cells:
        from stepper.session.cells import cell_operations

        cell_operations.parse_cells(arguments.cells)
    unfinished_name = workspace.get_unfinished_name(request.owner)
    session = await workspace.create_notebook(
        new_plan, slug, date.today(), request.owner
    )
    if metadata is not None:
        notebook_commands.use_kernel(session, arguments.kernel or "", metadata)
    steps = [responses.NamedStep(step.id, step.title) for step in new_plan.steps]
    first_run = None
    if arguments.cells:
        from stepper.daemon import mcp_handlers

        first_run = await mcp_handlers.add_first_cells(request, session, arguments)
    limits = workspace.config.load_limits()
    cwd = limits.kernel_cwd
    backend = limits.kernels.get(kernel)
    if backend is not None and backend.description.has_own_folder:
        cwd = f"a folder of `{kernel}`"
    return responses.NotebookCreatedResponse(
        session.name, steps, unfinished_name, cwd, first_run
    )


async def _handle_for_notebook(
    request: Request, session: Session, arguments: Any
) -> object:
    """Execute a command on a notebook and return its response.

    `run`, `restore` and `use` make the notebook the current one, unless the command
    fails before a cell runs.
    """
    _clear_replaced_stops(request)
    selecting_commands = cli_commands.Run | cli_commands.Restore | cli_commands.Use
    if not isinstance(arguments, selecting_commands):
        return await _dispatch(request, session, arguments)
    with make_current(request, session):
        return await _dispatch(request, session, arguments)


async def _dispatch(request: Request, session: Session, arguments: Any) -> object:
    """Execute a command on a notebook and return its response."""
    has_wait_option = isinstance(arguments, cli_commands.Run | cli_commands.Eval)
    if has_wait_option and not arguments.wait:
        _refuse_while_running(request, session, arguments)
    match arguments:
        case (
            cli_commands.Run()
            | cli_commands.Restore()
            | cli_commands.Eval()
            | cli_commands.Verify()
        ):
            return await _run_code(request, session, arguments)
        case (
            cli_commands.Use()
            | cli_commands.KernelsWait()
            | cli_commands.Interrupt()
            | cli_commands.Undo()
            | cli_commands.Restart()
            | cli_commands.Shutdown()
        ):
            return await _control_kernel(request, session, arguments)
        case cli_commands.Continue() | cli_commands.Fix():
            return await _resume(request, session, arguments)
        case cli_commands.Skip():
            text = await notebook_commands.skip(session, arguments.reason)
            _add_command_line(request, session, "skip", text)
            return responses.TextResponse(text)
        case cli_commands.Confirm():
            text = notebook_commands.confirm(session, arguments.words)
            return responses.TextResponse(text)
        case cli_commands.PlanReopen():
            return notebook_commands.reopen(session, arguments.id)
        case (
            cli_commands.PlanAdd()
            | cli_commands.PlanEdit()
            | cli_commands.PlanRemove()
            | cli_commands.PlanMove()
        ):
            change = partial(_build_changed_plan, arguments)
            return await notebook_commands.change_plan(session, change)
    return await _answer_query(request, session, arguments)


async def _run_code(request: Request, session: Session, arguments: Any) -> object:
    """Execute a command that runs cells or other code."""
    if isinstance(arguments, cli_commands.Verify):
        from stepper.daemon.replay import replay_workspace

        return await replay_workspace.verify_notebook(request, session, arguments)
    wait_reason = status_queries.explain_wait(session)
    if wait_reason:
        request.progress(progress_events.Waiting(line=wait_reason))
    if isinstance(arguments, cli_commands.Eval):
        return await _evaluate(request, session, arguments.source)
    return await _run(request, session, arguments)


async def _control_kernel(request: Request, session: Session, arguments: Any) -> object:
    """Execute a command that chooses, starts, changes or ends a kernel."""
    match arguments:
        case cli_commands.Use(kernel=str(kernel)):
            from stepper.daemon import backend_commands

            return await backend_commands.use_backend(request, session, kernel)
        case cli_commands.Use():
            return responses.CurrentNotebookResponse(session.name)
        case cli_commands.KernelsWait():
            from stepper.daemon import backend_commands

            return await backend_commands.wait_for_kernel(request, session)
        case cli_commands.Interrupt():
            return await interrupts.interrupt(session)
        case cli_commands.Undo():
            from stepper.session.cells import requested_undo

            return await requested_undo.undo(session, arguments.cell, request.caller)
        case cli_commands.Restart():
            async with report_progress(request, session):
                had_kernel = await notebook_commands.restart(session, request.caller)
                return responses.RestartResponse(session.name, had_kernel)
    return await _shut_down_kernel(session)


async def _answer_query(request: Request, session: Session, arguments: Any) -> object:
    """Answer a query, or a command that only MCP clients send."""
    match arguments:
        case cli_commands.Status():
            return await _report_status(request, session, arguments)
        case cli_commands.Context():
            context = await status_queries.get_context(session)
            return _add_system_prompt(arguments, context)
        case cli_commands.History():
            return status_queries.list_history(session)
        case cli_commands.Report():
            return status_queries.get_report(session, arguments.run)
        case cli_commands.Show():
            from stepper.session.cells import notebook_reading

            return await notebook_reading.show_notebook(
                session, request.owner, arguments.cells or ""
            )
        case cli_commands.Output():
            return await _get_output(request, session, arguments)
        case cli_commands.Snapshot():
            from stepper.session import view_snapshot

            sessions = list(request.workspace.sessions.values())
            return await view_snapshot.take_snapshot(session, sessions, arguments)
        case cli_commands.Attach():
            return await connection_details.get_connection_details(session)
        case cli_commands.Plan():
            return status_queries.get_plan(session)
    from stepper.daemon import mcp_handlers

    return await mcp_handlers.handle_cell_command(request, session, arguments)


def _build_changed_plan(arguments: Any, state: State) -> Plan:
    """Return a notebook's plan with the change that a command makes.

    Raise UsageError if the plan can't be changed in this way.
    """
    match arguments:
        case cli_commands.PlanAdd():
            return plan.add_step(state, arguments.title, arguments.after)
        case cli_commands.PlanEdit():
            return plan.edit_step(state, arguments.id, arguments.title)
        case cli_commands.PlanRemove():
            return plan.remove_step(state, arguments.id)
        case cli_commands.PlanMove():
            return plan.move_step(state, arguments.id, arguments.after)
    raise NotImplementedError(type(arguments).__name__)


async def _shut_down_kernel(session: Session) -> responses.ShutdownResponse:
    """Shut down the kernel of a notebook.

    If the kernel is not stepper's own and keeps running, the response contains its
    location.
    """
    kernel = await session.kernel_manager.find_or_attach()
    info = None
    if kernel is not None:
        info = kernel.describe()
    was_running = await notebook_commands.shutdown(session, SHUTDOWN_REASON)
    external_location = None
    if info and info.is_external:
        external_location = info.location
    return responses.ShutdownResponse(int(was_running), session.name, external_location)


async def _get_output(
    request: Request, session: Session, arguments: cli_commands.Output
) -> object:
    """Return a cell's figures, the new output of a running cell, or an output page."""
    if arguments.figure:
        from stepper.daemon import figure_rendering

        return await figure_rendering.render_figures(request, session, arguments.cell)
    if arguments.follow:
        return await output_following.follow_output(
            session, arguments.cell, request.caller, request.progress
        )
    return status_queries.get_output(session, arguments.cell, arguments.page)


def _refuse_while_running(
    request: Request,
    session: Session,
    arguments: cli_commands.Run | cli_commands.Eval,
) -> None:
    """Raise StepperError if an agent's shell command would wait for a running cell.

    The cell might run for hours.
    """
    is_from_agents_shell = request.caller.interface == "cli" and request.owner
    running = status_queries.get_running(session)
    if not is_from_agents_shell or running is None or not session.requests.is_locked:
        return
    commands = session.state.commands
    waiting_command = commands.shell("run --wait")
    if isinstance(arguments, cli_commands.Eval):
        waiting_command = commands.shell("eval --wait", "CODE")
    message = (
        f"nothing ran: {running.name} of {session.name} has been running for"
        f" {running.seconds:.0f} s"
    )
    raise StepperError(message, f"{waiting_command}  # waits until the cell finishes")


async def _resume(
    request: Request,
    session: Session,
    arguments: cli_commands.Continue | cli_commands.Fix,
) -> responses.TextResponse:
    """Resume a stopped notebook, and return the text for the agent.

    A message that the user entered in a terminal is also stored as an undelivered
    report, which the agent gets with its next response. A slash command also adds a
    line for the user.
    """
    stop = session.state.stop
    if isinstance(arguments, cli_commands.Continue):
        command = "continue"
        message = arguments.answer
        text = await notebook_commands.resume(session, message)
    else:
        command = "fix"
        message = arguments.hint
        text = await notebook_commands.fix(session, message)
    in_terminal = request.caller.interface == "cli" and not request.owner
    if in_terminal and message.strip():
        undelivered_text = command_messages.format_from_terminal(
            session.name, command, stop, message
        )
        event = journal_events.Undelivered(at=format_now(), text=undelivered_text)
        session.journal.log(event)
    _add_command_line(request, session, command, text)
    return responses.TextResponse(text)


def _add_command_line(
    request: Request, session: Session, command: str, response: str
) -> None:
    """Add a line for the user about a slash command; do nothing for other commands.

    Only the agent reads the command's output. Claude Code shows the line to the user
    after the next event of the agent session.
    """
    owner = request.owner
    if not owner or request.caller.interface != "cli":
        return
    line = command_messages.format_command_line(session.name, command, response)
    lines = request.workspace.command_lines.setdefault(owner, [])
    lines.append(line)


async def _run(
    request: Request,
    session: Session,
    arguments: cli_commands.Run | cli_commands.Restore,
) -> object:
    """Run cells of a notebook, or restore the state of its kernel.

    With `wait_seconds`, return an interim response if the run takes longer. Raise
    StepperError if an agent wants to restore the state of a stopped notebook, unless
    the kernel died.
    """
    selection = _choose_selection(arguments)
    wait_seconds = None
    if isinstance(arguments, cli_commands.Run):
        wait_seconds = arguments.wait_seconds
    is_agents_restore = selection == "restore" and request.caller.interface == "mcp"
    # After the death of a kernel, the agent may restore its state.
    if is_agents_restore and not edit_gate.is_stopped_by_kernel_death(session.state):
        refusal = edit_gate.check_stop(session.state)
        if refusal:
            raise StepperError(f"nothing ran: {refusal}")
    if wait_seconds is not None:
        from stepper.daemon import mcp_handlers

        return await mcp_handlers.run_cells(request, session, selection, wait_seconds)
    async with report_progress(request, session):
        return await notebook_commands.run(
            session, selection, request.caller, request.progress
        )


def _choose_selection(arguments: cli_commands.Run | cli_commands.Restore) -> str:
    """Return the selection of cells that a command runs, such as "all".

    Raise UsageError if the options of the command can't be combined.
    """
    if isinstance(arguments, cli_commands.Restore):
        return "restore"
    if arguments.all and arguments.stale:
        raise UsageError("--all and --stale cannot be combined")
    if arguments.all:
        return "all"
    if arguments.stale:
        return "stale"
    return arguments.which


async def _report_status(
    request: Request, session: Session, arguments: cli_commands.Status
) -> responses.StatusResponse:
    """Return the status of a notebook.

    For an agent, the status includes the undelivered reports, which are then marked as
    delivered, unless `arguments.unread` is true.
    """
    status = await _get_status(request, session, arguments)
    status = replace(status, daemon=request.daemon_info)
    if not request.workspace.has_file(session):
        status = replace(status, state=DELETED)
    if request.owner and not arguments.unread:
        undelivered = undelivered_reports.pop_text(session)
        status = replace(status, unheard=undelivered)
    return status


async def _get_status(
    request: Request, session: Session | None, arguments: cli_commands.Status
) -> responses.StatusResponse:
    """Return the status of a notebook, or an empty status without a notebook."""
    if arguments.details or arguments.wait_seconds is not None:
        from stepper.daemon import mcp_handlers

        return await mcp_handlers.get_status(request, session, arguments)
    if session is None:
        return responses.StatusResponse()
    path = os.path.join(request.workspace.paths.project, session.name)
    servers = jupyter_saves.find_servers_without_reload(path)
    urls = [server.url for server in servers]
    status = await status_queries.get_status(session)
    return replace(
        status,
        jupyter=attached_clients.format_not_reloaded(urls),
        renamed=request.workspace.renames.get_notice(session),
    )


def _add_system_prompt(
    arguments: cli_commands.Context, context: responses.ContextResponse
) -> responses.ContextResponse:
    """Return `context`, with a system prompt if `arguments` names an agent."""
    if arguments.agent is None:
        return context
    from stepper.messages import prompt_without_skills

    namespace = {
        "modules": context.imported_modules,
        "functions": context.defined_functions,
        "variables": context.variables,
    }
    text = prompt_without_skills.format_system_prompt(
        arguments.agent, arguments.lang, context.current_notebook, namespace
    )
    return replace(context, text=text)


async def _evaluate(
    request: Request, session: Session, source: str
) -> responses.EvalResponse:
    """Execute code in the kernel without changing the notebook.

    Raise UsageError if the code is empty, and StepperError if the notebook is stopped
    and an agent sent the command.
    """
    if not source.strip():
        example = session.state.commands.shell("eval", '"df.columns"')
        raise UsageError("the code is empty", example)
    is_from_agent = bool(request.owner)
    if is_from_agent:  # only the user may inspect a stopped notebook
        refusal = edit_gate.check_stop(session.state)
        if refusal:
            raise StepperError(f"nothing ran: {refusal}")
    can_start_kernel = request.caller.interface == "mcp"
    async with report_progress(request, session):
        return await notebook_commands.evaluate(
            session, source, request.caller, may_start=can_start_kernel
        )
