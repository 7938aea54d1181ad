"""Calls of tools: their arguments checked, the daemon asked, progress told each second, what it answers as a result."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from secrets import token_hex
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
)

from stepper.common.errors import StepperError, UsageError
from stepper.common.text import format_count, one_line
from stepper.hook.client import DaemonExitedError
from stepper.mcp import argument_coercion, data_rendering, tool_results
from stepper.mcp.daemon_client import Asked, Daemon
from stepper.mcp.elicitation import Context, Stops
from stepper.mcp.tools import FOR_PEER, TOOLS, Tool

TICK_SECONDS = 1.0
LONGEST_SECONDS = 86_400
BACKGROUNDING = ("claude-code",)
# whose answers hold what the agent has not read yet
DELIVERING = ("run_cell", "add_cells", "run_notebook", "notebook_status")
LAST_RUNS = 5  # of a notebook, in its status
Given = Mapping[str, Any]
Result = CallToolResult | InputRequiredResult
stops = Stops()
log = logging.getLogger("stepper")


async def call(daemon: Daemon, ctx: Context, params: CallToolRequestParams) -> Result:
    """Do a call; what goes wrong is its result."""
    tool = TOOLS.get(params.name)
    if tool is None:
        use = FOR_PEER.get(params.name)
        if use is None:
            raise MCPError(
                INVALID_PARAMS,
                f"there is no tool {params.name[:100]!r}; there are {', '.join(TOOLS)}",
            )
        return tool_results.text(
            f"There is no tool {params.name}: use {use}. {TOOLS[use].about}", error=True
        )
    given: Given = argument_coercion.parse(tool.schema, params.arguments or {})
    params = params.model_copy(update={"arguments": given})
    if wrong := problems(tool, given):
        return tool_results.text(
            f"{tool.name} was not called: {'; '.join(wrong)}", error=True
        )
    result = await _result(daemon, ctx, params, tool, given)
    if tool.name in DELIVERING or not isinstance(result, CallToolResult):
        return result
    return await _with_undelivered(daemon, given, result)


async def _result(
    daemon: Daemon,
    ctx: Context,
    params: CallToolRequestParams,
    tool: Tool,
    given: Given,
) -> Result:
    """Return what comes of a call, an error as well."""
    try:
        if "wait_seconds" in tool.arguments and not tool.reads and backgrounds(ctx):
            given = {"wait_seconds": LONGEST_SECONDS, **given}
        if tool.name == "lift_stop":
            return await stops.lift(daemon, ctx, params)
        try:
            return await ANSWERS.get(tool.name, _ran)(daemon, ctx, tool, given)
        except DaemonExitedError:
            if not tool.reads:
                raise
            # the next daemon knows it too
            return await ANSWERS[tool.name](daemon, ctx, tool, given)
    except StepperError as error:
        return tool_results.failed(error)
    except Exception as error:  # the SDK would say "internal server error" alone
        log.exception("%s failed", tool.name)
        return tool_results.text(
            f"stepper itself failed: {type(error).__name__}: {error}", error=True
        )


async def _with_undelivered(
    daemon: Daemon, given: Given, result: CallToolResult
) -> CallToolResult:
    """Return a result with what the agent has not read yet of the notebook."""
    asked = {"notebook": given.get("notebook")}
    with suppress(StepperError):  # there may be no notebook
        found = await daemon.ask("cell undelivered", asked, launch=False)
        if found and found["text"]:
            return tool_results.with_undelivered(result, found["text"])
    return result


def backgrounds(ctx: Context) -> bool:
    """Whether the client itself goes on beside a call that lasts, and wakes its agent with the answer."""
    told = ctx.session.client_params
    return told is not None and told.client_info.name in BACKGROUNDING


def problems(tool: Tool, given: Given) -> list[str]:
    """Return what in the arguments the tool's schema refuses."""
    from jsonschema import Draft202012Validator  # takes its time: with the first call

    found = sorted(
        Draft202012Validator(tool.schema).iter_errors(given),
        key=lambda error: [*map(str, error.path)],
    )
    wrong = []
    for error in found[:5]:
        where = ".".join(map(str, error.path))
        wrong.append(
            f"{where}: {error.message[:300]}" if where else error.message[:300]
        )
    if any(
        error.validator == "additionalProperties" and not error.path for error in found
    ):
        wrong.append(f"it takes {', '.join(tool.arguments) or 'no arguments'}")
    return wrong


async def _asked(
    daemon: Daemon,
    ctx: Context,
    verb: str,
    told: Given,
    asked: Asked | None = None,
) -> Any:
    """Return the daemon's answer, and tell the client meanwhile how it gets on."""
    request, begun = asked or Asked(), time.monotonic()

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await ctx.session.report_progress(
                round(time.monotonic() - begun, 1),
                None,
                request.line or None,
            )

    # no group: that would wrap what the daemon says in one of exceptions
    ticking = asyncio.create_task(tick())
    try:
        return await daemon.ask(verb, told, request)
    finally:
        ticking.cancel()


async def _work(daemon: Daemon, ctx: Context, verb: str, told: Given) -> Any:
    """As `_asked`, for what runs cells: known by an id, by which another daemon tells what became of it."""
    told = {**told, "call": f"{daemon.session}-{token_hex(6)}"}
    try:
        return await _asked(daemon, ctx, verb, told)
    except DaemonExitedError as error:
        if not error.accepted:
            raise
        return await _asked(daemon, ctx, verb, told)


async def _ran(
    daemon: Daemon, ctx: Context, tool: Tool, given: Given
) -> CallToolResult:
    verb, told = tool.verb(given)
    return tool_results.ran(await _work(daemon, ctx, verb, told))


async def _run_notebook(
    daemon: Daemon, ctx: Context, tool: Tool, given: Given
) -> CallToolResult:
    # not asked again: that would run them again
    return tool_results.ran(await _asked(daemon, ctx, *tool.verb(given)))


async def _verify(
    daemon: Daemon, ctx: Context, tool: Tool, given: Given
) -> CallToolResult:
    told = await _asked(daemon, ctx, *tool.verb(given))
    cells = sorted(
        told["cells"], key=lambda cell: cell["verdict"] == "same"
    )  # the others are told, however many these are
    shown = sorted(data_rendering.rows(cells), key=lambda cell: cell["number"])
    return tool_results.data(
        {**told, "cells": shown, "files": data_rendering.rows(told["files"])},
        told["text"],
    )


async def _execute(
    daemon: Daemon, ctx: Context, tool: Tool, given: Given
) -> CallToolResult:
    answer = await _asked(daemon, ctx, *tool.verb(given))
    return tool_results.text(answer["text"], answer.get("figures", ()))


async def _list(
    daemon: Daemon, ctx: Context, tool: Tool, given: Given
) -> CallToolResult:
    request = Asked()
    rows = await _asked(daemon, ctx, *tool.verb(given), request)
    wanted = given.get("filter", "").casefold()
    found = [row for row in rows if wanted in row["notebook"].casefold()]
    page = given.get("page", 1)
    by_page = data_rendering.pages(found)
    pages = len(by_page)
    if page > pages:
        raise UsageError(
            f"there is no page {page}: the {format_count(len(found), 'notebook')} take {format_count(pages, 'page')}"
        )
    shown = by_page[page - 1]
    if wanted and not found:
        text = f"No notebook's path contains {given['filter'][:100]!r}; the project has {format_count(len(rows), 'notebook')}."
    else:
        text = data_rendering.listed(shown)
    if pages > 1:
        text = f"Page {page} of {pages} ({format_count(len(found), 'notebook')}; `page` and `filter` show others):\n{text}"
    told = {
        "notebooks": data_rendering.rows(shown),
        "page": page,
        "pages": pages,
        "count": len(found),
        "complete": not request.line,
    }
    # the one line that a list reports: that not all folders were searched
    return tool_results.data(told, "\n".join(filter(None, [text, request.line])))


async def _create(
    daemon: Daemon, ctx: Context, tool: Tool, given: Given
) -> CallToolResult:
    try:
        made = await _asked(daemon, ctx, *tool.verb(given))
    except DaemonExitedError as error:
        error.hint = f"list_notebooks shows whether the notebook was made: then make no second one; {error.hint}"
        raise
    ran = made.get("cells") or {}
    report = tool_results.ran(ran) if ran else None
    said = "\n".join(filter(None, [data_rendering.made(made), ran.get("text", "")]))
    answer = tool_results.data(
        {**made, "steps": data_rendering.rows(made["steps"])},
        said,
        report.content[1:] if report else (),
    )
    return answer.model_copy(update={"is_error": report.is_error}) if report else answer


async def _read(
    daemon: Daemon, ctx: Context, tool: Tool, given: Given
) -> CallToolResult:
    page = await daemon.ask(*tool.verb(given))
    return tool_results.data(page, page["text"])


async def _change(
    daemon: Daemon, ctx: Context, tool: Tool, given: Given
) -> CallToolResult:
    done = await daemon.ask(*tool.verb(given))
    order = ", ".join(map(one_line, done["cells"])) or "none"
    many = format_count(done["count"], "cell")
    what = {
        "delete": f"{many} deleted",
        "move": f"{many} moved",
        "clear_output": f"outputs of {many} cleared",
    }[given["action"]]
    if done["unchanged"]:
        what = "nothing was moved: the cells are in that order already"
    said = f"{one_line(done['notebook'])}: {what}. Its cells now: {order}"
    return tool_results.text("\n".join(filter(None, [said, done["follows"]])))


async def _plan(
    daemon: Daemon, ctx: Context, tool: Tool, given: Given
) -> CallToolResult:
    needs = {
        "add": ["title"],
        "edit": ["id", "title"],
        "remove": ["id"],
        "move": ["id", "after"],
        "confirm": ["reason"],
    }
    takes = {**needs, "add": ["title", "after"]}
    action = given.get("action", "show")
    lacking = [name for name in needs.get(action, ()) if name not in given]
    extra = [
        name
        for name in ("title", "id", "after", "reason")
        if name in given and name not in takes.get(action, ())
    ]
    if lacking or extra:
        wrong = (
            f"needs {' and '.join(lacking)}"
            if lacking
            else f"takes no {' and no '.join(extra)}"
        )
        raise UsageError(f"plan {action} {wrong}")
    told = await daemon.ask(*tool.verb({"action": action, **given}))
    if "steps" not in told:
        told = await daemon.ask("plan", {"notebook": given.get("notebook")})
    return tool_results.data(
        {**told, "steps": data_rendering.rows(told["steps"])},
        data_rendering.planned(told),
    )


async def _kernel(
    daemon: Daemon, ctx: Context, tool: Tool, given: Given
) -> CallToolResult:
    action, place = given["action"], given.get("place")
    if place and action not in ("start", "restart"):
        raise UsageError(f"kernel {action} takes no place")
    status = await daemon.ask(
        "status", {"notebook": given.get("notebook"), "unread": True}
    )
    notebook, state = status["notebook"], status["kernel"]["state"]
    if notebook is None:
        raise UsageError("there is no current notebook", "create_notebook makes one")
    used = (
        await daemon.ask("use", {"notebook": notebook, "kernel": place})
        if place
        else {}
    )
    if action == "start" and state not in ("none", "dead"):
        next_one = (
            f"; the next one runs in {place}: restart, which loses its variables"
            if used.get("elsewhere")
            else ""
        )
        return tool_results.text(
            f"{notebook}: its kernel runs already ({state}){next_one}."
        )
    told = await _asked(
        daemon, ctx, "restart" if action == "start" else action, {"notebook": notebook}
    )
    if action == "interrupt":
        said = told["text"]
    elif action == "shutdown":
        said = (
            "its kernel is ended; all its variables are lost"
            if told["kernels"]
            else "it has no kernel"
        )
        said = (
            f"{told['left']} was named by its id: it is left, with its variables"
            if told["left"]
            else said
        )
    else:
        lost = (
            "all variables of the old one are lost"
            if told["had_kernel"]
            else "there was none before"
        )
        said = f"a fresh kernel runs; {lost}"
    return tool_results.text(f"{notebook}: {said}.")


async def _status(
    daemon: Daemon, ctx: Context, tool: Tool, given: Given
) -> CallToolResult:
    told, runs, report = await standing(daemon, given, ctx)
    ended = told.get("ended") or {}
    images = tool_results.ran(ended).content[1:] if ended else ()
    return tool_results.data(
        {**data_rendering.held_short(told), "history": runs},
        data_rendering.standing(told, runs, report),
        images,
    )


async def standing(
    daemon: Daemon, given: Given, ctx: Context | None = None
) -> tuple[Any, list[Any], str]:
    """Return where a notebook stands, its last runs, and the last report, '' where there is none or it comes anew.

    Outside of a call (`ctx`) a person may be who reads it: what the agent was not told yet stays to be told.
    """
    verb, asks = TOOLS["notebook_status"].verb(given)
    told = await (
        _asked(daemon, ctx, verb, asks)
        if ctx
        else daemon.ask(verb, {**asks, "unread": True})
    )
    named = {"notebook": told["notebook"]}
    runs = (await daemon.ask("history", named))[-LAST_RUNS:] if told["notebook"] else []
    again = runs and not told.get("ended")
    return told, runs, (await daemon.ask("report", named))["text"] if again else ""


ANSWERS: dict[
    str, Callable[[Daemon, Context, Tool, Given], Awaitable[CallToolResult]]
] = {
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
