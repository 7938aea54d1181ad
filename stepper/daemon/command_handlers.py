"""What each command of the table does (`policy/commands/cli_commands.py` has the rows): for people, and other agents later."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from dataclasses import replace
from datetime import date
from importlib import import_module
from typing import Any

from stepper import __version__
from stepper.common.errors import StepperError, UsageError
from stepper.daemon.request import Request, report_progress
from stepper.daemon.workspace import resume_target
from stepper.daemon.workspace.project_notebooks import plan_of
from stepper.messages import attached_clients as beside_words
from stepper.messages import command_messages
from stepper.notebooks import jupyter_saves
from stepper.notebooks.notebook_json import load_json
from stepper.policy import edit_gate, journal_events, plan, prompt_commands
from stepper.policy.commands import cli_commands, command_schema
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.model import Consent, Limits
from stepper.session import (
    attach,
    interrupts,
    notebook_commands,
    output_following,
    progress_events,
    responses,
    status_queries,
    undelivered_reports,
)
from stepper.session.kernel_manager import format_now
from stepper.session.session import Session

# The end of an agent's turn is looked at where one of these was given in it, or a cell
# ran.
WORK = (
    cli_commands.New,
    cli_commands.Run,
    cli_commands.Restore,
    cli_commands.Continue,
    cli_commands.Fix,
    cli_commands.Skip,
)
# the commands that resume a notebook, with the argument that holds the user's message
MESSAGES: dict[type, str] = {
    cli_commands.Continue: "answer",
    cli_commands.Fix: "hint",
    cli_commands.Skip: "reason",
}
CELLS = ("cell run", "cell add", "cell change")
# for which `list` searches the project's folders where it is not told to search all
SEARCH_SECONDS = 5.0
SLICE_SECONDS = 0.02  # of it between two looks at other requests
ALL_ENTRIES = 1 << 24  # of the folders of a project that is searched whole
DELETED = "deleted"
SHUTDOWN = "it was ended by `stepper shutdown`"


async def handle_command(verb: str, payload: bytes, request: Request) -> bytes:
    """Return the JSON of a command's answer; raise StepperError."""
    if verb.startswith("cell "):
        import_module("stepper.policy.commands.mcp_commands")
    row = command_schema.ALL_COMMANDS.get(verb)
    if row is None or not row.needs_daemon:
        raise StepperError(
            f"this daemon ({__version__}) does not know {verb[:100]!r}",
            "stepper shutdown",
        )
    told, of_cells = (
        _placed(command_schema.parse_arguments(row.arguments, load_arguments(payload))),
        verb in CELLS,
    )
    # the person's own commands ask nobody
    if request.caller.interface == "mcp" and not of_cells:
        _accepted(request, row, told)
    if not of_cells and not isinstance(told, WORK):
        return responses.to_json(await _of_project(request, told))
    request.caller.timeout = getattr(told, "timeout_seconds", None)
    workspace = request.workspace
    workspace.worked.add(request.owner)
    waiting = workspace.external_changes.find_changed()
    done = await _of_project(request, told)
    if name := getattr(done, "notebook", None):
        workspace.external_changes.ignore_own_change(
            os.path.join(workspace.paths.project, name), waiting
        )
    return responses.to_json(done)


def _accepted(request: Request, row: command_schema.Command, told: Any) -> None:
    """Raise StepperError where another agent gives a command that is not its to give by itself now."""
    if row.name == "new" and request.consent is Consent.WITHHELD:
        raise StepperError(edit_gate.PLAN_FIRST)
    if row.runs_code and (
        why := edit_gate.check_approval(
            request.consent, request.workspace.config.limits()
        )
    ):
        command = CommandLines(getattr(told, "notebook", None) or "").shell(row.name)
        raise StepperError(
            f"nothing ran: {why}", f"{command}  # the user's command to give"
        )


def load_arguments(payload: bytes) -> dict[str, Any]:
    """Return what a request tells; raise UsageError."""
    try:
        told = load_json(payload or b"{}")
    except ValueError as error:
        raise UsageError(f"the request's arguments can't be read: {error}") from None
    if not isinstance(told, dict):
        raise UsageError("the request's arguments are no object")
    return told


def _placed(told: Any) -> Any:
    """Return a command with its notebook in its place: `/fix a.ipynb the dates are in UTC` names one first."""
    if type(told) not in MESSAGES or told.notebook is not None:
        return told
    name = MESSAGES[type(told)]
    notebook, message = prompt_commands.split_notebook(getattr(told, name))
    return replace(told, notebook=notebook or None, **{name: message})


async def _of_project(request: Request, told: Any) -> object:
    """Do a command, for which no notebook need be there yet or whose notebook is named; return its answer."""
    workspace = request.workspace
    named = getattr(told, "notebook", None)
    match told:
        case cli_commands.New():
            return await _new(request, told)
        case cli_commands.Context() | cli_commands.Status() if not (
            named or workspace.current(request.owner)
        ):
            if isinstance(told, cli_commands.Context):
                return _system(told, responses.ContextResponse())
            return replace(
                await _status(request, None, told), daemon=request.daemon_info
            )
        case cli_commands.List():
            return await _listed(request, told.all)
        case cli_commands.Kernels():
            from stepper.daemon import kernels_commands

            return await kernels_commands.list_backends(request)
        case cli_commands.Shutdown() if not named:
            request.shut_down()
            ending = (
                notebook_commands.shutdown(session, SHUTDOWN)
                for session in workspace.all_sessions()
            )
            ended = await asyncio.gather(*ending, return_exceptions=True)
            for wrong in ended:
                # the others have ended all the same
                if isinstance(wrong, BaseException):
                    raise wrong
            return responses.ShutdownResponse(sum(map(bool, ended)))
        case cli_commands.Shutdown() if (
            deleted := workspace.deleted(named)
        ) is not None:
            return await _of_notebook(request, deleted, told)
        case cli_commands.Continue() | cli_commands.Fix() | cli_commands.Skip() if (
            not named
        ):
            session = await _to_resume(request, told)
            return await _of_notebook(request, session, told)
        case cli_commands.Status(resumes=True) if not named:
            asked = resume_target.ResumeCommand("lift_stop", "", "tool")
            session = await resume_target.find_target(
                workspace, request.cwd, request.owner, asked
            )
            return await _of_notebook(request, session, told)
        case _:
            return await _of_notebook(
                request, workspace.named(named, request.cwd, request.owner), told
            )


def _end_replaced_stops(request: Request) -> None:
    """End the stops of notebooks that were replaced, where a user, a script or CI asks for something."""
    if request.caller.is_outside_agent:
        for line in request.workspace.end_replaced_stops(request.owner):
            request.progress(progress_events.Waiting(line=line))


async def _to_resume(request: Request, told: Any) -> Session:
    """Return the notebook that `continue`, `fix` or `skip` acts on where it names none."""
    await request.workspace.stopped()  # opens them
    _end_replaced_stops(request)
    message = getattr(told, MESSAGES[type(told)])
    face = "shell"
    if request.caller.interface == "mcp":
        face = "tool"
    elif request.owner:
        face = "slash"
    name = type(told).__name__.lower()
    asked = resume_target.ResumeCommand(name, message, face)
    return await resume_target.find_target(
        request.workspace, request.cwd, request.owner, asked
    )


async def _listed(request: Request, everything: bool) -> list[responses.NotebookEntry]:
    """Return all notebooks; those that nobody works on are looked at, not opened. Other requests go on meanwhile."""
    workspace, found = request.workspace, list[responses.NotebookEntry]()
    workspace.all_sessions()  # those with a kernel
    for session in [*workspace.sessions.values()]:
        if not workspace.exists(session):
            workspace.renames.follow_missing(session)
    if not await _searched(request, everything):
        line = (
            "Not all folders of this project were searched. To list every notebook,"
            " run: stepper list --all"
        )
        request.progress(progress_events.Waiting(line=line))
    current = workspace.current(request.owner)
    for name in workspace.notebook_paths.list_known():
        began = time.monotonic()
        # whoever names it is told; it is gone
        with contextlib.suppress(UsageError, OSError):
            found.append(await workspace.rows.row(name, current))
        await _give_way(request, time.monotonic() - began)
    for session in [*workspace.sessions.values()]:
        if (
            not workspace.exists(session)
            and await session.kernel_manager.find() is not None
        ):
            listed = await status_queries.get_entry(
                session, session.name == current, 0.0
            )
            found.append(replace(listed, state=DELETED))
    return found


async def _searched(request: Request, everything: bool) -> bool:
    """Search the project's folders for notebooks, in slices; return whether all of them were searched."""
    places = request.workspace.notebook_paths
    until, seconds, entries = time.monotonic() + SEARCH_SECONDS, SLICE_SECONDS, None
    if everything:
        until, entries = math.inf, ALL_ENTRIES
    while True:
        before = len(places.index.folders)
        began = time.monotonic()
        places.index.refresh(places.list_patterns(), seconds, entries)
        if not places.is_incomplete:
            return True
        # a single folder takes longer than that
        if len(places.index.folders) == before:
            seconds *= 2
        if time.monotonic() > until or seconds > SEARCH_SECONDS:
            return False
        await _give_way(request, time.monotonic() - began)


async def _give_way(request: Request, seconds: float) -> None:
    """Let other requests go on; where cells run, for as long as the work before took."""
    runs = any(session.lock.locked() for session in request.workspace.sessions.values())
    await asyncio.sleep(seconds if runs else 0)


async def _new(
    request: Request, told: cli_commands.New
) -> responses.NotebookCreatedResponse:
    if not told.problem.strip():
        raise UsageError("the problem is empty", 'stepper new "PROBLEM"')
    made = plan_of(told.problem, told.steps or [])
    slug = plan.make_slug(told.name or told.problem)
    kernel = told.kernel or request.workspace.config.limits().kernel
    metadata = None
    if kernel != Limits.kernel:
        from stepper.daemon import kernels_commands

        metadata = await kernels_commands.get_metadata(request, kernel)
    if told.cells:
        from stepper.session.cells import cell_operations

        cell_operations.parse_cells(
            told.cells
        )  # what is refused is refused before there is a notebook
    session, before = await request.workspace.new(
        made, slug, date.today(), request.owner
    )
    if metadata is not None:
        notebook_commands.use_kernel(session, told.kernel or "", metadata)
    steps = [responses.NamedStep(step.id, step.title) for step in made.steps]
    ran = None
    if told.cells:
        from stepper.daemon import mcp_handlers

        ran = await mcp_handlers.add_first_cells(request, session, told)
    at = request.workspace.config.limits().kernels.get(kernel)
    cwd = f"a folder of `{kernel}`" if at and at.kind in ("ssh", "jupyter") else None
    return responses.NotebookCreatedResponse(
        session.name,
        steps,
        before,
        cwd or request.workspace.config.limits().kernel_cwd,
        ran,
    )


async def _of_notebook(request: Request, session: Session, told: Any) -> object:
    workspace = request.workspace
    _end_replaced_stops(request)
    before = workspace.currents()
    if not isinstance(told, cli_commands.Run | cli_commands.Restore | cli_commands.Use):
        return await _done(request, session, told)
    # the current one from now on
    workspace.make_current(session.name, request.owner)
    next_run = session.state.next_run
    try:
        return await _done(request, session, told)
    except StepperError as error:
        nothing_ran = session.state.next_run == next_run and not error.accepted
        if nothing_ran:
            workspace.restore_current(before, session.name, request.owner)
        raise


async def _done(request: Request, session: Session, told: Any) -> object:
    if isinstance(told, cli_commands.Run | cli_commands.Eval) and not told.wait:
        _refuse_while_running(request, session, told)
    waits = (
        status_queries.explain_wait(session)
        if isinstance(told, cli_commands.Run | cli_commands.Restore | cli_commands.Eval)
        else ""
    )
    if waits:
        request.progress(progress_events.Waiting(line=waits))
    match told:
        case cli_commands.Status():
            found = replace(
                await _status(request, session, told), daemon=request.daemon_info
            )
            if not request.workspace.exists(session):
                found = replace(found, state=DELETED)
            reads = request.owner and not told.unread
            # it has it now
            return replace(
                found,
                unheard=undelivered_reports.take_text(session)
                if reads
                else found.unheard,
            )
        case cli_commands.Use(kernel=str(name)):
            from stepper.daemon import kernels_commands

            return await kernels_commands.use_backend(request, session, name)
        case cli_commands.Use():
            return responses.CurrentNotebookResponse(session.name)
        case cli_commands.Context():
            return _system(told, await status_queries.get_context(session))
        case cli_commands.Restore() | cli_commands.Run():
            return await _run(request, session, told)
        case cli_commands.Verify():
            from stepper.daemon import replay_workspace

            return await replay_workspace.asked(request, session, told)
        case cli_commands.History():
            return status_queries.list_history(session)
        case cli_commands.Report():
            return status_queries.get_report(session, told.run)
        case cli_commands.Output() if told.figure:
            from stepper.daemon import figure_rendering

            return await figure_rendering.render(request, session, told.cell)
        case cli_commands.Output() if told.follow:
            return await output_following.follow_output(
                session, told.cell, request.caller, request.progress
            )
        case cli_commands.Output():
            return status_queries.get_output(session, told.cell, told.page)
        case cli_commands.Snapshot():
            from stepper.session import view_snapshot

            return await view_snapshot.take_snapshot(
                session, [*request.workspace.sessions.values()], told
            )
        case cli_commands.Eval():
            return await _eval(request, session, told.source)
        case cli_commands.KernelsWait():
            from stepper.daemon import kernels_commands

            return await kernels_commands.wait_for_kernel(request, session)
        case cli_commands.Attach():
            return await attach.attach(session)
        case cli_commands.Interrupt():
            return await interrupts.interrupt(session)
        case cli_commands.Restart():
            async with report_progress(request, session):
                return responses.RestartResponse(
                    session.name,
                    await notebook_commands.restart(session, request.caller),
                )
        case cli_commands.Shutdown():
            kernel = await session.kernel_manager.find()
            about = kernel.describe() if kernel is not None else None
            ended = await notebook_commands.shutdown(session, SHUTDOWN)
            return responses.ShutdownResponse(
                int(ended),
                session.name,
                about.location if about and about.is_external else None,
            )
        case cli_commands.Continue() | cli_commands.Fix():
            return await _resume(request, session, told)
        case cli_commands.Skip():
            response = await notebook_commands.skip(session, told.reason)
            _show_user(request, session, "skip", response)
            return responses.TextResponse(response)
        case cli_commands.Confirm():
            return responses.TextResponse(
                notebook_commands.confirm(session, told.words)
            )
        case cli_commands.PlanAdd():
            return await notebook_commands.change_plan(
                session, lambda state: plan.add_step(state, told.title, told.after)
            )
        case cli_commands.PlanEdit():
            return await notebook_commands.change_plan(
                session, lambda state: plan.edit_step(state, told.id, told.title)
            )
        case cli_commands.PlanRemove():
            return await notebook_commands.change_plan(
                session, lambda state: plan.remove_step(state, told.id)
            )
        case cli_commands.PlanReopen():
            return notebook_commands.reopen(session, told.id)
        case cli_commands.PlanMove():
            return await notebook_commands.change_plan(
                session, lambda state: plan.move_step(state, told.id, told.after)
            )
        case cli_commands.Plan():
            return status_queries.get_plan(session)
    from stepper.daemon import mcp_handlers

    return await mcp_handlers.handle_cell_command(request, session, told)


def _refuse_while_running(
    request: Request, session: Session, told: cli_commands.Run | cli_commands.Eval
) -> None:
    """Raise StepperError where an agent's shell command would wait for a cell that runs, maybe for hours."""
    from_agents_shell = request.caller.interface == "cli" and request.owner
    running = status_queries.get_running(session)
    if not from_agents_shell or running is None or not session.lock.locked():
        return
    commands = session.state.commands
    waiting = commands.shell("run --wait")
    if isinstance(told, cli_commands.Eval):
        waiting = commands.shell("eval --wait", "CODE")
    raise StepperError(
        f"nothing ran: {running.name} of {session.name} is running, for"
        f" {running.seconds:.0f} s so far",
        f"{waiting}  # waits until that cell has ended",
    )


async def _resume(
    request: Request, session: Session, told: cli_commands.Continue | cli_commands.Fix
) -> responses.TextResponse:
    """Resume a stopped notebook. What the user says in a terminal reaches the agent once, with what it reads next."""
    stop = session.state.stop
    if isinstance(told, cli_commands.Continue):
        command, message = "continue", told.answer
        response = await notebook_commands.resume(session, message)
    else:
        command, message = "fix", told.hint
        response = await notebook_commands.fix(session, message)
    in_terminal = request.caller.interface == "cli" and not request.owner
    if in_terminal and message.strip():
        text = command_messages.format_from_terminal(
            session.name, command, stop, message
        )
        session.log(journal_events.Undelivered(at=format_now(), text=text))
    _show_user(request, session, command, response)
    return responses.TextResponse(response)


def _show_user(request: Request, session: Session, command: str, response: str) -> None:
    """Have Claude Code's user read with the session's next event what a typed command did: only the agent reads it."""
    if request.caller.interface == "cli" and request.owner:
        line = command_messages.format_command_line(session.name, command, response)
        request.workspace.steered.setdefault(request.owner, []).append(line)


async def _run(
    request: Request, session: Session, told: cli_commands.Run | cli_commands.Restore
) -> object:
    which, wait = "restore", None
    if isinstance(told, cli_commands.Run):
        if told.all and told.stale:
            raise UsageError("--all and --stale exclude each other")
        which, wait = (
            "all" if told.all else "stale" if told.stale else told.which,
            told.wait_seconds,
        )
    by_agent = which == "restore" and request.caller.interface == "mcp"
    if (
        by_agent
        and not edit_gate.is_stopped_by_kernel_death(session.state)
        and (why := edit_gate.check_stop(session.state))
    ):
        # of failed attempts nothing is to be rebuilt
        raise StepperError(f"nothing ran: {why}")
    if wait is not None:
        from stepper.daemon import mcp_handlers

        return await mcp_handlers.run(request, session, which, wait)
    async with report_progress(request, session):
        return await notebook_commands.run(
            session, which, request.caller, request.progress
        )


async def _status(
    request: Request, session: Session | None, told: cli_commands.Status
) -> responses.StatusResponse:
    if told.details or told.wait_seconds is not None:
        from stepper.daemon import mcp_handlers

        return await mcp_handlers.status(request, session, told)
    if session is None:
        return responses.StatusResponse()
    path = os.path.join(request.workspace.paths.project, session.name)
    unaware = beside_words.format_not_reloaded(
        [server.url for server in jupyter_saves.find_servers_without_reload(path)]
    )
    renamed = request.workspace.renames.get_notice(session)
    return replace(
        await status_queries.get_status(session), jupyter=unaware, renamed=renamed
    )


def _system(
    told: cli_commands.Context, found: responses.ContextResponse
) -> responses.ContextResponse:
    """Return a context, as the system text of the agent that it is for."""
    if told.agent is None:
        return found
    from stepper.messages import system_prompt

    held = {
        "modules": found.imported_modules,
        "functions": found.defined_functions,
        "variables": found.variables,
    }
    return replace(
        found,
        text=system_prompt.format_system_prompt(
            told.agent, told.lang, found.current_notebook, held
        ),
    )


async def _eval(
    request: Request, session: Session, source: str
) -> responses.EvalResponse:
    if not source.strip():
        example = session.state.commands.shell("eval", '"df.columns"')
        raise UsageError("there is no code", example)
    why = (
        edit_gate.check_stop(session.state) if request.owner else None
    )  # the person may look
    if why:
        raise StepperError(f"nothing ran: {why}")
    async with report_progress(request, session):
        return await notebook_commands.evaluate(
            session, source, request.caller, starts=request.caller.interface == "mcp"
        )
