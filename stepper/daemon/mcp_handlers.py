"""Handlers of the commands that only MCP clients send.

After `wait_seconds`, a command returns an interim response, and its cells continue to
run in the background. This module is imported when the first command arrives.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from stepper.daemon import resource_usage
from stepper.daemon.request import Request, make_current, report_progress
from stepper.policy.commands import cli_commands, command_schema, mcp_cell_commands
from stepper.session import (
    mcp_responses,
    notebook_commands,
    replaced_notebook,
    responses,
    status_queries,
    undelivered_reports,
)
from stepper.session.background import time_limited_runs
from stepper.session.cells import cell_operations, cell_reading
from stepper.session.cells.sequence_result import SequenceResult
from stepper.session.session import Session


async def handle_cell_command(
    request: Request, session: Session, arguments: Any
) -> object:
    """Execute a command on cells and return its response.

    A command that edits cells makes the notebook the current one, unless the command
    is refused or fails before a cell runs. If the notebook is stopped, the cells that
    the agent wrote are recorded.
    """
    if not isinstance(arguments, mcp_cell_commands.CellEditArguments):
        return await _dispatch(request, session, arguments)
    workspace = request.workspace
    with make_current(request, session) as former_currents:
        response = await _dispatch(request, session, arguments)
        replaced_notebook.record_agent_version(session)
    if _is_refusal(response):
        workspace.currents.restore(former_currents, session.name, request.owner)
    return response


def _is_refusal(response: object) -> bool:
    """Return whether a command was refused before it wrote any cell."""
    if not isinstance(response, mcp_responses.CellRunResponse):
        return False
    return response.state in ("refused", "stopped") and not response.cells


async def _dispatch(request: Request, session: Session, arguments: Any) -> object:
    """Execute a command on cells, which is determined by the type of `arguments`."""
    match arguments:
        case mcp_cell_commands.CellRun() | mcp_cell_commands.CellAdd():
            return await _write_cells(request, session, arguments)
        case mcp_cell_commands.CellChange():
            return await cell_operations.change_cells(
                session, arguments, request.consent
            )
        case mcp_cell_commands.CellUndelivered():
            return responses.TextResponse(undelivered_reports.pop_text(session))
        case mcp_cell_commands.CellRead():
            return await cell_reading.read_cells(session, arguments, request.owner)
    raise NotImplementedError(type(arguments).__name__)


async def add_first_cells(
    request: Request, session: Session, new: cli_commands.New
) -> mcp_responses.CellRunResponse:
    """Add the first cells to a new notebook, and run them unless `run` is false."""
    names = ("cells", "run", "wait_seconds")
    values = {name: getattr(new, name) for name in names}
    arguments = command_schema.parse_arguments(mcp_cell_commands.CellAdd, values)
    return await _write_cells(request, session, arguments)


async def _write_cells(
    request: Request,
    session: Session,
    arguments: mcp_cell_commands.CellRun | mcp_cell_commands.CellAdd,
) -> mcp_responses.CellRunResponse:
    """Write cells to a notebook, and run them unless `run` is false.

    If the cells run for longer than `wait_seconds`, return an interim response.
    """
    caller = request.caller
    consent = request.consent
    caller.call_id = arguments.call

    def start_work() -> time_limited_runs.Work:
        """Return the coroutine that writes and runs the cells."""
        if isinstance(arguments, mcp_cell_commands.CellRun):
            return cell_operations.run_cell(session, arguments, caller, consent)
        return cell_operations.add_cells(session, arguments, caller, consent)

    async with report_progress(request, session):
        return await time_limited_runs.run_with_limit(
            session, request.owner, caller, arguments.wait_seconds, start_work
        )


async def run_cells(
    request: Request, session: Session, selection: str, wait_seconds: float
) -> mcp_responses.CellRunResponse:
    """Run the selected cells of a notebook.

    `selection` is a selection of `stepper run`, such as `all`. After `wait_seconds`,
    return an interim response; the run continues in the background.
    """

    async def run_selected() -> time_limited_runs.CellRunReport:
        """Run the cells, and return the report on all of them."""
        result = SequenceResult()
        response = await notebook_commands.run(
            session, selection, request.caller, request.progress, result
        )
        return cell_operations.create_run_report(session, response, result)

    async with report_progress(request, session):
        return await time_limited_runs.run_with_limit(
            session, request.owner, request.caller, wait_seconds, run_selected
        )


async def get_status(
    request: Request, session: Session | None, arguments: cli_commands.Status
) -> responses.StatusResponse:
    """Return the status of a notebook, or an empty status without a notebook.

    With `wait_seconds`, wait for a background run first. With `details`, the status
    includes resource usage and the names in the kernel.
    """
    response = responses.StatusResponse()
    context = responses.NamespaceSummary()
    if session:
        background_result = None
        if arguments.wait_seconds is not None:
            async with report_progress(request, session):
                background_result = await time_limited_runs.wait_for_background(
                    session, request.owner, request.caller, arguments.wait_seconds
                )
        status = await status_queries.get_status(session)
        response = replace(status, ended=background_result)
    if not arguments.details:
        return response
    resources = await asyncio.to_thread(
        resource_usage.measure_resources, response.kernel
    )
    if session:
        context = await status_queries.get_namespace_summary(session)
    return replace(response, resources=resources, context=context)
