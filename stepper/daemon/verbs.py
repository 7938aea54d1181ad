"""The commands that come through the socket, each one function in a table: the CLI's, and other agents' later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

from stepper.daemon.workspace import Workspace, plan_of
from stepper.ground.errors import StepperError, UsageError
from stepper.notebook.plainjson import load_json
from stepper.policy import gate
from stepper.policy import plan as plans
from stepper.session import steering
from stepper.session.ports import Progress
from stepper.session.session import Caller, Session


@dataclass
class Request:
    """One request: its arguments, who asks, the folder it was asked in, and the way to tell of progress."""

    workspace: Workspace
    arguments: dict[str, Any]
    caller: Caller
    cwd: str
    progress: Progress

    @property
    def owner(self) -> str:
        """The session of Claude Code in whose shell the command was given; '' elsewhere."""
        return self.caller.environ.get("STEPPER_SESSION", "")

    @property
    def session(self) -> Session:
        """The session of the notebook that was named, or of the current one; UsageError where there is none."""
        return self.workspace.named(self.arguments.get("notebook"), self.cwd, self.owner)

    def worked(self) -> None:
        """Note that a command was given, for the end of the agent's turn."""
        self.workspace.turns.worked.add(self.owner)


# What a request may tell, each of its own kind.
ARGUMENTS: dict[str, type] = {
    "notebook": str, "problem": str, "name": str, "steps": list, "all": bool, "run": int, "source": str, "cell": str,
    "page": int, "reason": str, "change": str, "title": str, "after": int, "id": int,
}  # fmt: skip


def arguments(payload: bytes) -> dict[str, Any]:
    """Return a request's arguments, less those that are null; raise UsageError."""
    try:
        told = load_json(payload or b"{}")
    except ValueError as error:
        raise UsageError(f"the request's arguments can't be read: {error}") from None
    if not isinstance(told, dict):
        raise UsageError("the request's arguments are no object")
    given = {name: value for name, value in told.items() if value is not None}
    for name, value in given.items():
        if not isinstance(value, ARGUMENTS.get(name, object)):
            raise UsageError(f"the request's argument {name[:100]!r} must be of the kind {ARGUMENTS[name].__name__}")
    return given


# What each change of a plan must tell.
CHANGES = {"add": ("title",), "edit": ("id", "title"), "remove": ("id",), "move": ("id", "after")}


def asked(arguments: dict[str, Any], name: str) -> Any:
    """Return an argument that must be there; raise UsageError."""
    if name not in arguments:
        raise UsageError(f"the request's argument {name!r} is missing")
    return arguments[name]


async def new(request: Request) -> Any:
    """Make a notebook with its plan."""
    workspace, problem = request.workspace, request.arguments.get("problem") or ""
    if not problem.strip():
        raise UsageError("the problem is empty", 'stepper new "PROBLEM"')
    plan = plan_of(problem, request.arguments.get("steps") or [])
    slug = plans.slug(request.arguments.get("name") or problem)
    session, before = await workspace.new(plan, slug, date.today(), request.owner)
    request.worked()
    return {
        "notebook": session.name,
        "steps": [{"id": step.id, "title": step.title} for step in plan.steps],
        "unfinished": before,
        "kernel_cwd": workspace.config.limits().kernel_cwd,
    }


async def status(request: Request) -> Any:
    """Return notebook, state, steps and kernel; an empty standing where no notebook was made yet."""
    if request.arguments.get("notebook") or request.workspace.current(request.owner):
        return await steering.status(request.session)
    kernel = {"pid": None, "state": "none", "rss_bytes": None, "python": None}
    return {"notebook": None, "state": "ready", "steps": [], "kernel": kernel}


async def run(request: Request) -> Any:
    """Run the cells that have not run here yet, or all."""
    session = request.session
    request.workspace.make_current(session.name, request.owner)
    request.worked()
    return await steering.run(session, bool(request.arguments.get("all")), request.caller, request.progress)


async def restore(request: Request) -> Any:
    """Run the cells that had ended well again, in a fresh kernel."""
    session = request.session
    request.workspace.make_current(session.name, request.owner)
    request.worked()
    return await steering.restore(session, request.caller, request.progress)


async def history(request: Request) -> Any:
    """Return every run."""
    return steering.history(request.session)


async def report(request: Request) -> Any:
    """Return a run with the report that the agent read."""
    return steering.report(request.session, request.arguments.get("run"))


async def interrupt(request: Request) -> Any:
    """Interrupt the cell that runs."""
    session = request.session
    return {"notebook": session.name, "interrupted": await session.interrupt()}


async def evaluate(request: Request) -> Any:
    """Run code in the live kernel without touching the notebook."""
    session, source = request.session, request.arguments.get("source") or ""
    if not source.strip():
        raise UsageError("there is no code", 'stepper eval "df.columns"')
    why = gate.stopped(session.state) if request.owner else None  # the person may look
    if why:
        raise StepperError(f"nothing ran: {why}")
    return await steering.evaluate(session, source, request.caller)


async def output(request: Request) -> Any:
    """Return a page of a cell's output."""
    return steering.output(request.session, asked(request.arguments, "cell"), request.arguments.get("page", 1))


async def restart(request: Request) -> Any:
    """Replace the kernel by a fresh one."""
    session = request.session
    return {"notebook": session.name, "had_kernel": await steering.restart(session, request.caller)}


async def go_on(request: Request) -> Any:
    """Lift a stop."""
    request.worked()
    return {"text": await steering.go_on(request.session)}


async def fix(request: Request) -> Any:
    """Lift a stop and grant fresh retries."""
    request.worked()
    return {"text": await steering.fix(request.session)}


async def skip(request: Request) -> Any:
    """Skip the step that failed, else the next one."""
    request.worked()
    return {"text": await steering.skip(request.session, request.arguments.get("reason") or "")}


async def context(request: Request) -> Any:
    """Return what another agent needs to go on."""
    if request.workspace.current(request.owner):
        return await steering.context(request.session)
    return {
        "current_notebook": None,
        "imported_modules": {},
        "defined_functions": {},
        "variables": {},
        "plan": [],
        "text": "No notebook was made here yet.",
    }


async def plan(request: Request) -> Any:
    """Return the plan, after a change where one is asked for."""
    session, verb = request.session, request.arguments.get("change")
    if verb:
        if verb not in CHANGES:
            raise UsageError(f"a plan can't be changed by {verb[:100]!r}", "stepper plan --help")
        for name in CHANGES[verb]:
            asked(request.arguments, name)
        await steering.change_plan(session, verb, request.arguments)
    return {"notebook": session.name, "steps": steering.plan_json(session)}


async def shutdown(request: Request) -> Any:
    """End all kernels of the project; the daemon ends after the answer."""
    sessions = request.workspace.all_sessions()
    ended = await asyncio.gather(*(steering.shutdown(session, "stepper shutdown") for session in sessions))
    return {"kernels": sum(ended)}


COMMANDS: dict[str, Callable[[Request], Awaitable[Any]]] = {
    "new": new,
    "status": status,
    "run": run,
    "history": history,
    "report": report,
    "eval": evaluate,
    "output": output,
    "interrupt": interrupt,
    "restart": restart,
    "restore": restore,
    "continue": go_on,
    "fix": fix,
    "skip": skip,
    "context": context,
    "plan": plan,
    "shutdown": shutdown,
}
