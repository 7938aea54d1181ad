"""What other agents ask besides what people do: cells, and answers that do not wait for ever. Loaded with the first."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from stepper.common.errors import StepperError
from stepper.daemon import resource_usage
from stepper.daemon.request import Request, report_progress
from stepper.messages.run_report import RunSummary
from stepper.policy.commands import cli_commands, command_schema, mcp_commands
from stepper.session import (
    cell_operations,
    cell_reading,
    cell_responses,
    replaced_notebook,
    responses,
    run_waiting,
    status_queries,
    undelivered_reports,
    user_commands,
)
from stepper.session.session import Session


async def of_cells(request: Request, session: Session, told: Any) -> object:
    """Do a command on cells; return its answer."""
    if not isinstance(told, mcp_commands.CellEditArguments):
        return await _done(request, session, told)
    workspace = request.workspace
    before = workspace.currents()
    # at once: a cell may run for long
    workspace.make_current(session.name, request.owner)
    try:
        done = await _done(request, session, told)
        replaced_notebook.record_agent_version(session)
    except StepperError:
        workspace.restore_current(before, session.name, request.owner)
        raise
    if (
        isinstance(done, cell_responses.CellRunResponse)
        and done.state in ("refused", "stopped")
        and not done.cells
    ):
        workspace.restore_current(before, session.name, request.owner)
    return done


async def _done(request: Request, session: Session, told: Any) -> object:
    match told:
        case mcp_commands.CellRun() | mcp_commands.CellAdd():
            return await _written(request, session, told)
        case mcp_commands.CellChange():
            return cell_operations.change_cells(session, told, request.consent)
        case mcp_commands.CellUndelivered():
            return responses.TextResponse(undelivered_reports.take_text(session))
        case mcp_commands.CellRead():
            return await cell_reading.read_cells(session, told)
    raise NotImplementedError(type(told).__name__)


async def begin(
    request: Request, session: Session, told: cli_commands.New
) -> cell_responses.CellRunResponse:
    """Write the first cells of a new notebook, and run them."""
    given = {name: getattr(told, name) for name in ("cells", "run", "wait_seconds")}
    return await _written(
        request, session, command_schema.parse_arguments(mcp_commands.CellAdd, given)
    )


async def _written(
    request: Request,
    session: Session,
    told: mcp_commands.CellRun | mcp_commands.CellAdd,
) -> cell_responses.CellRunResponse:
    caller, consent = request.caller, request.consent
    caller.call_id = told.call

    def work() -> run_waiting.Work:
        if isinstance(told, mcp_commands.CellRun):
            return cell_operations.run_cell(session, told, caller, consent)
        return cell_operations.add_cells(session, told, caller, consent)

    async with report_progress(request, session):
        return await run_waiting.run_with_limit(
            session, request.owner, caller, told.wait_seconds, work
        )


async def run(
    request: Request, session: Session, which: str, wait: float
) -> cell_responses.CellRunResponse:
    """Run a notebook's cells; it is waited for so many seconds."""

    async def work() -> run_waiting.CellRunReport:
        ended = list[RunSummary]()
        done = await user_commands.run(
            session, which, request.caller, request.progress, ended
        )
        return cell_operations.create_run_report(session, done, ended)

    async with report_progress(request, session):
        return await run_waiting.run_with_limit(
            session, request.owner, request.caller, wait, work
        )


async def status(
    request: Request, session: Session | None, told: cli_commands.Status
) -> responses.StatusResponse:
    """Return the standing of a notebook with all that is asked for besides, once what goes on has ended."""
    ended = None
    if session and told.wait_seconds is not None:
        async with report_progress(request, session):
            ended = await run_waiting.wait_for_background(
                session, request.owner, request.caller, told.wait_seconds
            )
    found = (
        replace(await status_queries.get_status(session), ended=ended)
        if session
        else responses.StatusResponse()
    )
    if not told.details:
        return found
    machine = await asyncio.to_thread(resource_usage.measure_resources, found.kernel)
    return replace(
        found,
        resources=machine,
        context=await status_queries.get_namespace_summary(session)
        if session
        else responses.NamespaceSummary(),
    )
