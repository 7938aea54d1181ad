"""Calls of tools: checks the arguments, asks the daemon and returns the result.

While a call is running, its progress is reported every second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    InputRequiredResult,
)

from stepper.common.errors import StepperError, UsageError
from stepper.common.text import format_count, one_line
from stepper.hook.client import DaemonExitedError
from stepper.mcp import argument_coercion, data_rendering, tool_results
from stepper.mcp.daemon_client import Daemon, DaemonRequest
from stepper.mcp.elicitation import Context, Stops
from stepper.mcp.tools import FOR_PEER, TOOLS, Tool

PROGRESS_SECONDS = 1.0
MAX_WAIT_SECONDS = 86_400
# Clients that continue during a long call, and give their agent the result later.
BACKGROUND_CLIENTS = ("claude-code",)
# Tools whose responses already contain the undelivered reports.
DELIVERING_TOOLS = ("run_cell", "add_cells", "run_notebook", "notebook_status")
MAX_PROBLEMS = 5
PROBLEM_LIMIT = 300  # characters
LAST_RUNS = 5  # of a notebook, in its status
# What each action of `plan` requires, and also accepts.
PLAN_REQUIRED = {
    "add": ("title",),
    "edit": ("id", "title"),
    "remove": ("id",),
    "move": ("id", "after"),
    "confirm": ("reason",),
}
PLAN_OPTIONAL = {"add": ("after",)}
PLAN_ARGUMENTS = ("title", "id", "after", "reason")
Arguments = Mapping[str, Any]
Result = CallToolResult | InputRequiredResult
stops = Stops()
log = logging.getLogger("stepper")


async def call(daemon: Daemon, ctx: Context, params: CallToolRequestParams) -> Result:
    """Handle a call. Errors are results, except for the name of an unknown tool."""
    tool = TOOLS.get(params.name)
    if tool is None:
        return _suggest_tool(params.name)
    arguments: Arguments = argument_coercion.coerce_arguments(
        tool.schema, params.arguments or {}
    )
    params = params.model_copy(update={"arguments": arguments})
    problems = find_problems(tool, arguments)
    if problems:
        return tool_results.create_text_result(
            f"{tool.name} was not called: {'; '.join(problems)}", is_error=True
        )
    result = await _call_tool(daemon, ctx, params, tool, arguments)
    if tool.name in DELIVERING_TOOLS or not isinstance(result, CallToolResult):
        return result
    return await _add_undelivered(daemon, arguments, result)


def _suggest_tool(name: str) -> CallToolResult:
    """Return which tool to use in place of one of another server; raise MCPError."""
    use = FOR_PEER.get(name)
    if use is None:
        raise MCPError(
            INVALID_PARAMS,
            f"there is no tool {name[:100]!r}; there are {', '.join(TOOLS)}",
        )
    return tool_results.create_text_result(
        f"There is no tool {name}: use {use}. {TOOLS[use].about}", is_error=True
    )


async def _call_tool(
    daemon: Daemon,
    ctx: Context,
    params: CallToolRequestParams,
    tool: Tool,
    arguments: Arguments,
) -> Result:
    """Return the result of a call; an error is a result, too."""
    try:
        can_wait = "wait_seconds" in tool.arguments and not tool.reads
        if can_wait and _runs_in_background(ctx):
            arguments = {"wait_seconds": MAX_WAIT_SECONDS, **arguments}
        if tool.name == "lift_stop":
            return await stops.lift(daemon, ctx, params)
        handle = HANDLERS.get(tool.name, _run_cells)
        try:
            return await handle(daemon, ctx, tool, arguments)
        except DaemonExitedError:
            if not tool.reads:
                raise
            # The next daemon has the same data.
            return await handle(daemon, ctx, tool, arguments)
    except StepperError as error:
        return tool_results.create_error_result(error)
    except Exception as error:  # the SDK would only report an internal error
        log.exception("%s failed", tool.name)
        return tool_results.create_text_result(
            f"stepper itself failed: {type(error).__name__}: {error}", is_error=True
        )


async def _add_undelivered(
    daemon: Daemon, arguments: Arguments, result: CallToolResult
) -> CallToolResult:
    """Return a result with the undelivered reports on the notebook."""
    request = {"notebook": arguments.get("notebook")}
    with suppress(StepperError):  # there may be no notebook
        reports = await daemon.ask("cell undelivered", request, launch=False)
        if reports and reports["text"]:
            return tool_results.add_undelivered(result, reports["text"])
    return result


def _runs_in_background(ctx: Context) -> bool:
    """Return whether the client continues during a long call."""
    client = ctx.session.client_params
    return client is not None and client.client_info.name in BACKGROUND_CLIENTS


def find_problems(tool: Tool, arguments: Arguments) -> list[str]:
    """Return the problems that the tool's schema finds in the arguments."""
    from jsonschema import Draft202012Validator  # slow: imported by the first call

    validator = Draft202012Validator(tool.schema)
    errors = sorted(
        validator.iter_errors(arguments),
        key=lambda error: [*map(str, error.path)],
    )
    problems = []
    has_unknown_argument = False
    for error in errors[:MAX_PROBLEMS]:
        path = ".".join(map(str, error.path))
        message = error.message[:PROBLEM_LIMIT]
        problems.append(f"{path}: {message}" if path else message)
    for error in errors:
        if error.validator == "additionalProperties" and not error.path:
            has_unknown_argument = True
    if has_unknown_argument:
        names = ", ".join(tool.arguments) or "no arguments"
        problems.append(f"it takes {names}")
    return problems


async def _ask(
    daemon: Daemon,
    ctx: Context,
    verb: str,
    arguments: Arguments,
    request: DaemonRequest | None = None,
) -> Any:
    """Return the daemon's response; report progress to the client meanwhile."""
    request = request or DaemonRequest()
    started = time.monotonic()

    async def report_progress() -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            seconds = round(time.monotonic() - started, 1)
            await ctx.session.report_progress(seconds, None, request.line or None)

    # A task group would wrap the daemon's errors in exception groups.
    reporting = asyncio.create_task(report_progress())
    try:
        return await daemon.ask(verb, arguments, request)
    finally:
        reporting.cancel()


async def _ask_to_run(
    daemon: Daemon, ctx: Context, verb: str, arguments: Arguments
) -> Any:
    """Ask the daemon to run cells.

    The call has an id: if the daemon exits, the next one returns the result of the run.
    """
    arguments = {**arguments, "call": f"{daemon.session}-{token_hex(6)}"}
    try:
        return await _ask(daemon, ctx, verb, arguments)
    except DaemonExitedError as error:
        if not error.accepted:
            raise
        return await _ask(daemon, ctx, verb, arguments)


async def _run_cells(
    daemon: Daemon, ctx: Context, tool: Tool, arguments: Arguments
) -> CallToolResult:
    verb, values = tool.verb(arguments)
    return tool_results.create_run_result(await _ask_to_run(daemon, ctx, verb, values))


async def _run_notebook(
    daemon: Daemon, ctx: Context, tool: Tool, arguments: Arguments
) -> CallToolResult:
    # Not repeated after an exit of the daemon, which would run the cells again.
    response = await _ask(daemon, ctx, *tool.verb(arguments))
    return tool_results.create_run_result(response)


async def _verify(
    daemon: Daemon, ctx: Context, tool: Tool, arguments: Arguments
) -> CallToolResult:
    response = await _ask(daemon, ctx, *tool.verb(arguments))
    # If there are too many cells, leave out those that are the same.
    by_importance = sorted(
        response["cells"], key=lambda cell: cell["verdict"] == "same"
    )
    cells = data_rendering.limit_rows(by_importance)
    cells.sort(key=lambda cell: cell["number"])
    files = data_rendering.limit_rows(response["files"])
    data = {**response, "cells": cells, "files": files}
    return tool_results.create_data_result(data, response["text"])


async def _execute(
    daemon: Daemon, ctx: Context, tool: Tool, arguments: Arguments
) -> CallToolResult:
    response = await _ask(daemon, ctx, *tool.verb(arguments))
    figures = response.get("figures", ())
    return tool_results.create_text_result(response["text"], figures)


async def _list(
    daemon: Daemon, ctx: Context, tool: Tool, arguments: Arguments
) -> CallToolResult:
    request = DaemonRequest()
    notebooks = await _ask(daemon, ctx, *tool.verb(arguments), request)
    text_filter = arguments.get("filter", "")
    lower_filter = text_filter.casefold()
    matching = [
        notebook
        for notebook in notebooks
        if lower_filter in notebook["notebook"].casefold()
    ]
    pages = data_rendering.split_pages(matching)
    page_count = len(pages)
    page = arguments.get("page", 1)
    count = format_count(len(matching), "notebook")
    if page > page_count:
        raise UsageError(
            f"there is no page {page}: the {count} take"
            f" {format_count(page_count, 'page')}"
        )
    shown = pages[page - 1]
    text = data_rendering.format_notebooks(shown)
    if text_filter and not matching:
        total = format_count(len(notebooks), "notebook")
        text = (
            f"No notebook's path contains {text_filter[:100]!r}; the project has"
            f" {total}."
        )
    if page_count > 1:
        text = (
            f"Page {page} of {page_count} ({count}; `page` and `filter` show"
            f" others):\n{text}"
        )
    data = {
        "notebooks": data_rendering.limit_rows(shown),
        "page": page,
        "pages": page_count,
        "count": len(matching),
        "complete": not request.line,
    }
    # The only progress line of a list says that not all folders were searched.
    text = "\n".join(filter(None, [text, request.line]))
    return tool_results.create_data_result(data, text)


async def _create(
    daemon: Daemon, ctx: Context, tool: Tool, arguments: Arguments
) -> CallToolResult:
    try:
        response = await _ask(daemon, ctx, *tool.verb(arguments))
    except DaemonExitedError as error:
        error.hint = (
            "list_notebooks shows whether the notebook was created: if so, do not"
            f" create a second one; {error.hint}"
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


async def _read(
    daemon: Daemon, ctx: Context, tool: Tool, arguments: Arguments
) -> CallToolResult:
    page = await daemon.ask(*tool.verb(arguments))
    return tool_results.create_data_result(page, page["text"])


async def _change(
    daemon: Daemon, ctx: Context, tool: Tool, arguments: Arguments
) -> CallToolResult:
    response = await daemon.ask(*tool.verb(arguments))
    count = format_count(response["count"], "cell")
    effects = {
        "delete": f"{count} deleted",
        "move": f"{count} moved",
        "clear_output": f"outputs of {count} cleared",
    }
    effect = effects[arguments["action"]]
    if response["unchanged"]:
        effect = "nothing was moved: the cells are in that order already"
    notebook = one_line(response["notebook"])
    order = ", ".join(map(one_line, response["cells"])) or "none"
    text = f"{notebook}: {effect}. Its cells now: {order}"
    text = "\n".join(filter(None, [text, response["follows"]]))
    return tool_results.create_text_result(text)


async def _plan(
    daemon: Daemon, ctx: Context, tool: Tool, arguments: Arguments
) -> CallToolResult:
    action = arguments.get("action", "show")
    _check_plan_arguments(action, arguments)
    verb, values = tool.verb({"action": action, **arguments})
    response = await daemon.ask(verb, values)
    if "steps" not in response:
        request = {"notebook": arguments.get("notebook")}
        response = await daemon.ask("plan", request)
    steps = data_rendering.limit_rows(response["steps"])
    text = data_rendering.format_plan(response)
    return tool_results.create_data_result({**response, "steps": steps}, text)


def _check_plan_arguments(action: str, arguments: Arguments) -> None:
    """Raise UsageError if arguments of `plan` are missing or do not apply."""
    required = PLAN_REQUIRED.get(action, ())
    missing = [name for name in required if name not in arguments]
    if missing:
        raise UsageError(f"plan {action} needs {' and '.join(missing)}")
    accepted = (*required, *PLAN_OPTIONAL.get(action, ()))
    extra = [
        name for name in PLAN_ARGUMENTS if name in arguments and name not in accepted
    ]
    if extra:
        raise UsageError(f"plan {action} takes no {' and no '.join(extra)}")


async def _kernel(
    daemon: Daemon, ctx: Context, tool: Tool, arguments: Arguments
) -> CallToolResult:
    action = arguments["action"]
    place = arguments.get("place")
    if place and action not in ("start", "restart"):
        raise UsageError(f"kernel {action} takes no place")
    request = {"notebook": arguments.get("notebook"), "unread": True}
    status = await daemon.ask("status", request)
    notebook = status["notebook"]
    state = status["kernel"]["state"]
    if notebook is None:
        raise UsageError("there is no current notebook", "create_notebook creates one")
    is_elsewhere = False
    if place:
        use = await daemon.ask("use", {"notebook": notebook, "kernel": place})
        is_elsewhere = bool(use.get("elsewhere"))
    if action == "start" and state not in ("none", "dead"):
        text = f"{notebook}: its kernel is already running ({state})"
        if is_elsewhere:
            text += (
                f"; the next kernel will run in {place}: a restart starts it, and all"
                " variables are lost"
            )
        return tool_results.create_text_result(f"{text}.")
    verb = "restart" if action == "start" else action
    response = await _ask(daemon, ctx, verb, {"notebook": notebook})
    text = _describe_kernel_action(action, response)
    return tool_results.create_text_result(f"{notebook}: {text}.")


def _describe_kernel_action(action: str, response: Mapping[str, Any]) -> str:
    """Return the effect of an action on the kernel."""
    if action == "interrupt":
        return str(response["text"])
    if action == "shutdown":
        if response["left"]:
            return (
                f"{response['left']} was chosen by its id: stepper does not shut it"
                " down, and it keeps its variables"
            )
        if response["kernels"]:
            return "its kernel was shut down; all its variables are lost"
        return "it has no kernel"
    if response["had_kernel"]:
        return "a new kernel is running; all variables of the old one are lost"
    return "a new kernel is running; there was none before"


async def _status(
    daemon: Daemon, ctx: Context, tool: Tool, arguments: Arguments
) -> CallToolResult:
    status, runs, report = await get_status(daemon, arguments, ctx)
    finished = status.get("ended") or {}
    images: Sequence[ContentBlock] = ()
    if finished:
        images = tool_results.create_run_result(finished).content[1:]
    data = {**data_rendering.limit_status(status), "history": runs}
    text = data_rendering.format_status(status, runs, report)
    return tool_results.create_data_result(data, text, images)


async def get_status(
    daemon: Daemon, arguments: Arguments, ctx: Context | None = None
) -> tuple[Any, list[Any], str]:
    """Return the status of a notebook, its last runs and the last report.

    The report is '' if there is none, or if the status contains it. Without `ctx`, a
    user may be the reader: undelivered reports stay undelivered.
    """
    verb, values = TOOLS["notebook_status"].verb(arguments)
    if ctx:
        status = await _ask(daemon, ctx, verb, values)
    else:
        status = await daemon.ask(verb, {**values, "unread": True})
    if not status["notebook"]:
        return status, [], ""
    request = {"notebook": status["notebook"]}
    history = await daemon.ask("history", request)
    runs = history[-LAST_RUNS:]
    if not runs or status.get("ended"):
        return status, runs, ""
    report = await daemon.ask("report", request)
    return status, runs, report["text"]


Handler = Callable[[Daemon, Context, Tool, Arguments], Awaitable[CallToolResult]]
HANDLERS: dict[str, Handler] = {
    "list_notebooks": _list,
    "create_notebook": _create,
    "read_notebook": _read,
    "change_cells": _change,
    "run_notebook": _run_notebook,
    "verify": _verify,
    "execute_code": _execute,
    "notebook_status": _status,
    "plan": _plan,
    "kernel": _kernel,
}
