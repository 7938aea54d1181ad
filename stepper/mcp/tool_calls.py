"""Calls of tools: check the arguments, send commands and return results.

During a call, the server reports the progress every second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any, NamedTuple

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
)

from stepper.common.errors import StepperError, UsageError
from stepper.common.text import format_count, one_line
from stepper.hook.daemon_client import DaemonExitedError
from stepper.mcp import argument_coercion, data_rendering, tool_results
from stepper.mcp.daemon_client import Daemon, DaemonRequest
from stepper.mcp.elicitation import Context, StopQuestions
from stepper.mcp.tools import ACTION, TOOL_BY_PEER, TOOLS, NotebookPage, Tool, Values

PROGRESS_SECONDS = 1.0
MAX_WAIT_SECONDS = 86_400
# Clients in which the agent continues during a long call and gets the result later.
BACKGROUND_CLIENTS = ("claude-code",)
# Tools whose responses already contain the undelivered reports.
DELIVERING_TOOLS = ("run_cell", "add_cells", "run_notebook", "notebook_status")
MAX_PROBLEMS = 5
REQUESTED_STATES = ("queued", "starting")  # of a kernel that is not running yet
PROBLEM_LIMIT = 300  # characters
NAME_LIMIT = 100  # characters of a text from the client in an error
LAST_RUNS = 5  # of a notebook, in its status
Result = CallToolResult | InputRequiredResult
questions = StopQuestions()
log = logging.getLogger("stepper")


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool with valid arguments."""

    daemon: Daemon
    ctx: Context
    tool: Tool
    arguments: Values

    @property
    def notebook_argument(self) -> dict[str, Any]:
        """The notebook of the call, as an argument of a command."""
        return {"notebook": self.arguments.get("notebook")}

    async def send(
        self, command: str, values: Values, request: DaemonRequest | None = None
    ) -> Any:
        """Send a command and report progress to the client; return the response."""
        request = request or DaemonRequest()
        start_time = time.monotonic()

        async def report_progress() -> None:
            """Send the elapsed seconds and the last progress line every second."""
            while True:
                await asyncio.sleep(PROGRESS_SECONDS)
                seconds = round(time.monotonic() - start_time, 1)
                line = request.line or None
                await self.ctx.session.report_progress(seconds, None, line)

        # A task group would wrap the daemon's errors in exception groups.
        progress_task = asyncio.create_task(report_progress())
        try:
            return await self.daemon.ask(command, values, request)
        finally:
            progress_task.cancel()

    async def send_arguments(self, request: DaemonRequest | None = None) -> Any:
        """Send the tool's command with the call's arguments; return the response."""
        tool_request = self.tool.make_request(self.arguments)
        return await self.send(tool_request.command, tool_request.values, request)


async def call(daemon: Daemon, ctx: Context, params: CallToolRequestParams) -> Result:
    """Call a tool; return its result, with undelivered reports. Errors are results.

    Raises:
        MCPError: The tool is unknown.
    """
    tool = TOOLS.get(params.name)
    if tool is None:
        return _suggest_tool(params.name)
    arguments = argument_coercion.coerce_arguments(tool.schema, params.arguments or {})
    problems = find_problems(tool, arguments)
    if problems:
        message = f"{tool.name} was not called: {'; '.join(problems)}"
        return tool_results.create_text_result(message, is_error=True)
    tool_call = ToolCall(daemon, ctx, tool, arguments)
    coerced_params = params.model_copy(update={"arguments": arguments})
    result = await _call_tool(tool_call, coerced_params)
    if tool.name in DELIVERING_TOOLS or not isinstance(result, CallToolResult):
        return result
    return await _add_undelivered(tool_call, result)


def _suggest_tool(name: str) -> CallToolResult:
    """Return an error result that names the tool to use instead of an unknown tool.

    Raises:
        MCPError: The name is not the name of a similar tool of another server.
    """
    tool_name = TOOL_BY_PEER.get(name)
    if tool_name is None:
        raise MCPError(
            INVALID_PARAMS,
            f"unknown tool {name[:NAME_LIMIT]!r}; the tools are {', '.join(TOOLS)}",
        )
    return tool_results.create_text_result(
        f"Unknown tool {name}. Use {tool_name}: {TOOLS[tool_name].description}",
        is_error=True,
    )


async def _call_tool(tool_call: ToolCall, params: CallToolRequestParams) -> Result:
    """Return the result of a call. An error is returned as a result."""
    tool = tool_call.tool
    try:
        if tool.name == "lift_stop":
            return await questions.ask(tool_call.daemon, tool_call.ctx, params)
        return await _run_handler(tool_call)
    except StepperError as error:
        return tool_results.create_error_result(error)
    except Exception as error:  # the SDK would only report an internal error
        log.exception("%s failed", tool.name)
        return tool_results.create_text_result(
            f"internal error in stepper: {type(error).__name__}: {error}", is_error=True
        )


async def _run_handler(tool_call: ToolCall) -> CallToolResult:
    """Run the handler of a tool, a second time if the daemon exits during a read.

    If the client continues during a long call, a tool that can wait for a cell waits
    for up to MAX_WAIT_SECONDS by default.

    Raises:
        StepperError: The command failed.
    """
    tool = tool_call.tool
    can_wait = "wait_seconds" in tool.arguments and not tool.reads
    if can_wait and _runs_in_background(tool_call.ctx):
        arguments = {"wait_seconds": MAX_WAIT_SECONDS, **tool_call.arguments}
        tool_call = replace(tool_call, arguments=arguments)
    handler = HANDLERS[tool.name]
    try:
        return await handler(tool_call)
    except DaemonExitedError:
        if not tool.reads:
            raise
        # The next daemon has the same data.
        return await handler(tool_call)


async def _add_undelivered(
    tool_call: ToolCall, result: CallToolResult
) -> CallToolResult:
    """Add the undelivered reports on the notebook to a result."""
    with suppress(StepperError):  # there may be no notebook
        reports = await tool_call.daemon.ask(
            "cell undelivered", tool_call.notebook_argument, launch=False
        )
        if reports and reports["text"]:
            return tool_results.add_undelivered(result, reports["text"])
    return result


def _runs_in_background(ctx: Context) -> bool:
    """Return whether the client can make a long tool call in the background."""
    client = ctx.session.client_params
    return client is not None and client.client_info.name in BACKGROUND_CLIENTS


def find_problems(tool: Tool, arguments: Values) -> list[str]:
    """Validate arguments with the tool's schema; return a list of problems.

    The list contains at most MAX_PROBLEMS problems. If an argument is unknown, the last
    item names the arguments of the tool.
    """
    from jsonschema import Draft202012Validator  # slow: imported by the first call

    validator = Draft202012Validator(tool.schema)
    errors = sorted(
        validator.iter_errors(arguments),
        key=lambda error: [*map(str, error.path)],
    )
    problems = []
    for error in errors[:MAX_PROBLEMS]:
        path = ".".join(map(str, error.path))
        message = error.message[:PROBLEM_LIMIT]
        if path:
            message = f"{path}: {message}"
        problems.append(message)
    has_unknown_argument = any(
        error.validator == "additionalProperties" and not error.path for error in errors
    )
    if has_unknown_argument:
        names = ", ".join(tool.arguments)
        problems.append(f"the arguments of {tool.name} are {names}")
    return problems


async def _run_cells(tool_call: ToolCall) -> CallToolResult:
    """Run cells. If the daemon exits, request the result from the next daemon.

    The id of the call identifies the run: the next daemon does not run the cells again.
    """
    request = tool_call.tool.make_request(tool_call.arguments)
    call_id = f"{tool_call.daemon.session}-{token_hex(6)}"
    values = {**request.values, "call": call_id}
    try:
        response = await tool_call.send(request.command, values)
    except DaemonExitedError as error:
        if not error.accepted:
            raise
        response = await tool_call.send(request.command, values)
    return tool_results.create_run_result(response)


async def _run_notebook(tool_call: ToolCall) -> CallToolResult:
    """Run existing cells of the notebook."""
    # Not repeated if the daemon exits, because this would run the cells again.
    response = await tool_call.send_arguments()
    return tool_results.create_run_result(response)


async def _verify_notebook(tool_call: ToolCall) -> CallToolResult:
    """Replay the notebook; return the verdict and the cells, limited to MAX_ROWS.

    If there are too many cells, cells with the same outputs are left out first.
    """
    response = await tool_call.send_arguments()
    cells = response["cells"]
    different_cells = [cell for cell in cells if cell["verdict"] != "same"]
    same_cells = [cell for cell in cells if cell["verdict"] == "same"]
    rows = data_rendering.limit_rows([*different_cells, *same_cells])
    rows.sort(key=lambda cell: cell["number"])
    files = data_rendering.limit_rows(response["files"])
    data = {**response, "cells": rows, "files": files}
    return tool_results.create_data_result(data, response["text"])


async def _execute_code(tool_call: ToolCall) -> CallToolResult:
    """Execute code without a cell; return its output and figures."""
    response = await tool_call.send_arguments()
    figures = response.get("figures", ())
    return tool_results.create_text_result(response["text"], figures)


async def _list_notebooks(tool_call: ToolCall) -> CallToolResult:
    """Return a page of the notebooks that match the filter.

    Raises:
        UsageError: The page does not exist.
    """
    request = DaemonRequest()
    notebooks = await tool_call.send_arguments(request)
    text_filter = tool_call.arguments.get("filter", "")
    matching_notebooks = _filter_notebooks(notebooks, text_filter)
    pages = data_rendering.split_pages(matching_notebooks)
    page_count = len(pages)
    page = tool_call.arguments.get("page", 1)
    count = format_count(len(matching_notebooks), "notebook")
    if page > page_count:
        raise UsageError(
            f"page {page} does not exist: the list of {count} has"
            f" {format_count(page_count, 'page')}"
        )
    page_notebooks = pages[page - 1]
    text = data_rendering.format_notebooks(page_notebooks)
    if text_filter and not matching_notebooks:
        total = format_count(len(notebooks), "notebook")
        text = (
            f"No notebook has {text_filter[:NAME_LIMIT]!r} in its path. The project has"
            f" {total}."
        )
    if page_count > 1:
        text = (
            f"Page {page} of {page_count} ({count}). To see other notebooks, use `page`"
            f" or `filter`.\n{text}"
        )
    # The only progress line of a list says that not all folders were searched.
    incomplete_note = request.line
    if incomplete_note:
        text = f"{text}\n{incomplete_note}" if text else incomplete_note
    is_complete = not incomplete_note
    notebook_page = NotebookPage(page, page_count, len(matching_notebooks), is_complete)
    rows = data_rendering.limit_rows(page_notebooks)
    data = {"notebooks": rows, **vars(notebook_page)}
    return tool_results.create_data_result(data, text)


def _filter_notebooks(
    notebooks: Sequence[data_rendering.Data], text_filter: str
) -> list[data_rendering.Data]:
    """Return the notebooks with `text_filter` in their paths, ignoring case."""
    lower_filter = text_filter.casefold()
    return [
        notebook
        for notebook in notebooks
        if lower_filter in notebook["notebook"].casefold()
    ]


async def _create_notebook(tool_call: ToolCall) -> CallToolResult:
    """Create a notebook; run its first cells if the call contains cells.

    Raises:
        DaemonExitedError: The daemon exited; the notebook may have been created.
    """
    try:
        response = await tool_call.send_arguments()
    except DaemonExitedError as error:
        error.hint = (
            "The notebook may have been created: call list_notebooks before you create"
            f" it again. {error.hint}"
        )
        raise
    text = data_rendering.format_created(response)
    steps = data_rendering.limit_rows(response["steps"])
    data = {**response, "steps": steps}
    run_response = response.get("cells")
    if not run_response:
        return tool_results.create_data_result(data, text)
    run_result = tool_results.create_run_result(run_response)
    text = "\n".join(filter(None, [text, run_response.get("text", "")]))
    images = run_result.content[1:]
    result = tool_results.create_data_result(data, text, images)
    return result.model_copy(update={"is_error": run_result.is_error})


async def _read_notebook(tool_call: ToolCall) -> CallToolResult:
    """Return a page of cells."""
    page = await tool_call.send_arguments()
    return tool_results.create_data_result(page, page["text"])


async def _change_cells(tool_call: ToolCall) -> CallToolResult:
    """Delete, move or clear cells."""
    response = await tool_call.send_arguments()
    count = format_count(response["count"], "cell")
    effects = {
        "delete": f"{count} deleted",
        "move": f"{count} moved",
        "clear_output": f"outputs of {count} cleared",
    }
    effect = effects[tool_call.arguments["action"]]
    if response["unchanged"]:
        effect = "no cell was moved, because the cells are already in this order"
    notebook = one_line(response["notebook"])
    cell_ids = ", ".join(map(one_line, response["cells"])) or "none"
    text = f"{notebook}: {effect}. The ids of the cells now: {cell_ids}"
    text = "\n".join(filter(None, [text, response["follows"]]))
    return tool_results.create_text_result(text)


async def _show_or_change_plan(tool_call: ToolCall) -> CallToolResult:
    """Return the plan, after the change that the action requests."""
    _check_action_arguments(tool_call)
    response = await tool_call.send_arguments()
    if "steps" not in response:
        response = await tool_call.send("plan", tool_call.notebook_argument)
    steps = data_rendering.limit_rows(response["steps"])
    data = {**response, "steps": steps}
    text = data_rendering.format_plan(response)
    return tool_results.create_data_result(data, text)


def _check_action_arguments(tool_call: ToolCall) -> None:
    """Raise UsageError if arguments are missing or do not apply to the action."""
    tool = tool_call.tool
    arguments = tool_call.arguments
    action = arguments.get(ACTION, tool.default_action)
    call_text = f"`{tool.name}` with `{ACTION}: {action}`"
    for name in tool.list_action_arguments(action, required_only=True):
        if name not in arguments:
            raise UsageError(f"{call_text} requires `{name}`")
    accepted = tool.list_action_arguments(action)
    for name in arguments:
        if name not in (ACTION, "notebook", *accepted):
            raise UsageError(f"{call_text} does not accept `{name}`")


async def _control_kernel(tool_call: ToolCall) -> CallToolResult:
    """Start, interrupt, undo, restart or shut down the kernel of a notebook.

    If the call has a `place`, first select this kernel backend for the notebook.

    Raises:
        UsageError: An argument does not apply to the action, or there is no notebook.
    """
    _check_action_arguments(tool_call)
    status = await tool_call.daemon.ask(
        "status", {**tool_call.notebook_argument, "unread": True}
    )
    notebook = status["notebook"]
    if notebook is None:
        raise UsageError("there is no current notebook", "`create_notebook`")
    action = tool_call.arguments[ACTION]
    place = tool_call.arguments.get("place")
    needs_restart = False
    if place:
        needs_restart = await _select_backend(tool_call.daemon, notebook, place)
    state = status["kernel"]["state"]
    if action == "start" and state not in ("none", "dead"):
        text = _format_existing_kernel(notebook, state)
        if needs_restart:
            text += (
                f" The next kernel will run in {place}. To start it now, call `kernel`"
                f" with `action: restart`: {_describe_loss(state)}."
            )
        return tool_results.create_text_result(text)
    command = tool_call.tool.actions[action][0]
    values = {"notebook": notebook}
    if action == "undo":
        values["cell"] = tool_call.arguments.get("cell")
    response = await tool_call.send(command, values)
    if action == "undo":
        return tool_results.create_text_result(f"{notebook}: {response['text']}")
    text = _describe_kernel_action(action, response)
    return tool_results.create_text_result(f"{notebook}: {text}.")


async def _select_backend(daemon: Daemon, notebook: str, backend: str) -> bool:
    """Select the kernel backend of a notebook's next kernel.

    Return True if the notebook has a kernel that does not run in this backend.
    """
    response = await daemon.ask("use", {"notebook": notebook, "kernel": backend})
    return bool(response.get("elsewhere"))


def _format_existing_kernel(notebook: str, state: str) -> str:
    """Return a sentence on a kernel that does not have to be started."""
    verb = "is already running"
    if state in REQUESTED_STATES:
        verb = "was already requested"
    return f"The kernel of {notebook} {verb} ({state})."


def _describe_loss(state: str) -> str:
    """Return a clause on the effect of a restart of a kernel in this state."""
    if state in REQUESTED_STATES:
        return "a cell that waits for the kernel will not run"
    return "all variables will be lost"


def _describe_kernel_action(action: str, response: Mapping[str, Any]) -> str:
    """Return a clause on the effect of an action on the kernel."""
    if action == "interrupt":
        return str(response["text"])
    if action == "shutdown":
        if response["left"]:
            return (
                f"the kernel {response['left']} was not shut down, because stepper did"
                " not start this kernel; the kernel keeps its variables"
            )
        if response["kernels"]:
            return "the kernel was shut down; all its variables are lost"
        return "no kernel was running"
    if response["had_kernel"]:
        return "a new kernel is running; all variables of the old one are lost"
    return "a new kernel is running"


async def _show_status(tool_call: ToolCall) -> CallToolResult:
    """Return the status, with the report on a run that finished during the wait."""
    request = tool_call.tool.make_request(tool_call.arguments)
    status = await tool_call.send(request.command, request.values)
    details = await _add_runs(tool_call.daemon, status)
    data = data_rendering.limit_status(status)
    data["history"] = details.runs
    text = data_rendering.format_status(*details)
    finished_run = status.get("ended")
    if not finished_run:
        return tool_results.create_data_result(data, text)
    run_result = tool_results.create_run_result(finished_run)
    images = run_result.content[1:]
    return tool_results.create_data_result(data, text, images)


class StatusDetails(NamedTuple):
    """The status of a notebook, its last runs, and the report on the last run.

    The report is empty if no cell ran or if the status contains the report.
    """

    status: Any
    runs: list[Any]
    report: str


async def get_current_status(daemon: Daemon) -> StatusDetails:
    """Return the status of the current notebook.

    Undelivered reports stay undelivered, because the reader may be a user.

    Raises:
        StepperError: The daemon can't return the status.
    """
    request = TOOLS["notebook_status"].make_request({})
    values = {**request.values, "unread": True}
    status = await daemon.ask(request.command, values)
    return await _add_runs(daemon, status)


async def _add_runs(daemon: Daemon, status: Any) -> StatusDetails:
    """Return a status with the last runs and the last report."""
    notebook = status["notebook"]
    if not notebook:
        return StatusDetails(status, [], "")
    request = {"notebook": notebook}
    history = await daemon.ask("history", request)
    runs = history[-LAST_RUNS:]
    report_text = ""
    if runs and not status.get("ended"):
        report = await daemon.ask("report", request)
        report_text = report["text"]
    return StatusDetails(status, runs, report_text)


Handler = Callable[[ToolCall], Awaitable[CallToolResult]]
HANDLERS: dict[str, Handler] = {
    "list_notebooks": _list_notebooks,
    "create_notebook": _create_notebook,
    "read_notebook": _read_notebook,
    "run_cell": _run_cells,
    "add_cells": _run_cells,
    "change_cells": _change_cells,
    "run_notebook": _run_notebook,
    "verify": _verify_notebook,
    "execute_code": _execute_code,
    "notebook_status": _show_status,
    "plan": _show_or_change_plan,
    "kernel": _control_kernel,
}
