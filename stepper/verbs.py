"""The verbs that come through the socket: hook events and the commands, each one function in a table."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

from stepper.adapters.notebook import load_json
from stepper.core import hookio, report
from stepper.core import plan as plans
from stepper.core.model import CellEdit
from stepper.engine import Caller
from stepper.errors import StepperError, UsageError
from stepper.ports import Progress
from stepper.workspace import Workspace, plan_of


@dataclass
class Request:
    """One request: its arguments, who asks, the folder it was asked in, and the way to tell of progress."""

    arguments: dict[str, Any]
    caller: Caller
    cwd: str
    progress: Progress


async def hook(workspace: Workspace, event: str, data: bytes, caller: Caller) -> bytes:
    """Return what the hook process prints for an event of Claude Code. Never raises a StepperError."""
    try:
        payload = hookio.payload(load_json(data))
        handler = EVENTS.get(event)
        return hookio.answer(event, await handler(workspace, payload, caller) if handler else None)
    except ValueError as error:
        problem = f"the hook's payload can't be read: {error}" if data.strip() else "the hook's payload is empty"
        return hookio.failed(event, StepperError(problem), accepted=False)
    except StepperError as error:
        return hookio.failed(event, error, accepted=False)


async def after_tool(workspace: Workspace, payload: dict[str, Any], caller: Caller) -> report.Report | None:
    """NotebookEdit or Write happened: run what is new."""
    change = hookio.change(payload)
    path = workspace.resolve(change.notebook)
    session = workspace.session(path)
    # Before the run: the time is given back in the same step that writes, and a daemon may die between the two.
    workspace.keep(path, change.session)
    if isinstance(change, CellEdit):
        found = await session.edited(change, caller)
    else:
        found = await session.written(change, caller)
    if found is not None:
        workspace.make_current(session.name)
        if found.stop:
            workspace.release(path=path)
            session.file.touch()
    return found


async def after_batch(workspace: Workspace, payload: dict[str, Any], caller: Caller) -> None:
    """All calls of a message are through: the notebooks whose last call was an edit get the present time."""
    edited = {os.path.realpath(path) for path in hookio.last_edits(payload)}
    for path in workspace.release(session=hookio.session(payload)):
        if path in edited:
            workspace.session(path).file.touch()


EVENTS: dict[str, Callable[[Workspace, dict[str, Any], Caller], Awaitable[report.Report | None]]] = {
    "PostToolUse": after_tool,
    "PostToolBatch": after_batch,
}


async def new(workspace: Workspace, request: Request) -> Any:
    """Make a notebook with its plan."""
    problem = request.arguments.get("problem") or ""
    if not problem.strip():
        raise UsageError("the problem is empty", 'stepper new "PROBLEM"')
    plan = plan_of(problem, request.arguments.get("steps") or [])
    slug = plans.slug(request.arguments.get("name") or problem)
    session, before = await workspace.new(plan, slug, date.today())
    return {
        "notebook": session.name,
        "steps": [{"id": step.id, "title": step.title} for step in plan.steps],
        "unfinished": before,
        "kernel_cwd": workspace.config.limits().kernel_cwd,
    }


async def status(workspace: Workspace, request: Request) -> Any:
    """Return notebook, state, steps and kernel."""
    return await workspace.named(request.arguments.get("notebook"), request.cwd).status()


async def run(workspace: Workspace, request: Request) -> Any:
    """Run the cells that have not run here yet, or all."""
    session = workspace.named(request.arguments.get("notebook"), request.cwd)
    workspace.make_current(session.name)
    return await session.run(bool(request.arguments.get("all")), request.caller, request.progress)


async def history(workspace: Workspace, request: Request) -> Any:
    """Return every run."""
    return workspace.named(request.arguments.get("notebook"), request.cwd).history()


async def interrupt(workspace: Workspace, request: Request) -> Any:
    """Interrupt the cell that runs."""
    session = workspace.named(request.arguments.get("notebook"), request.cwd)
    return {"notebook": session.name, "interrupted": await session.interrupt()}


async def restart(workspace: Workspace, request: Request) -> Any:
    """Replace the kernel by a fresh one."""
    session = workspace.named(request.arguments.get("notebook"), request.cwd)
    return {"notebook": session.name, "had_kernel": await session.restart(request.caller)}


async def shutdown(workspace: Workspace, request: Request) -> Any:
    """End all kernels of the project; the daemon ends after the answer."""
    sessions = workspace.all_sessions()
    ended = await asyncio.gather(*(session.shutdown("stepper shutdown") for session in sessions))
    return {"kernels": sum(ended)}


COMMANDS: dict[str, Callable[[Workspace, Request], Awaitable[Any]]] = {
    "new": new,
    "status": status,
    "run": run,
    "history": history,
    "interrupt": interrupt,
    "restart": restart,
    "shutdown": shutdown,
}
