"""What other agents ask besides what people do: cells, and answers that do not wait for ever. Loaded with the first."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from stepper.daemon import resources
from stepper.daemon.requests import Request, telling
from stepper.ground.text import counted, one_line
from stepper.policy import arguments, cellcommands, commands
from stepper.session import answers, cellanswers, cells, patience, reading, standing, steering
from stepper.session.session import Session


async def of_cells(request: Request, session: Session, told: Any) -> object:
    """Do a command on cells; return its answer."""
    if isinstance(told, cellcommands.Cells):
        request.workspace.make_current(session.name, request.owner)
    match told:
        case cellcommands.CellRun() | cellcommands.CellAdd():
            return await _written(request, session, told)
        case cellcommands.CellChange():
            return cells.change(session, told, request.consent)
        case cellcommands.CellRead():
            return reading.read(session, told)
    raise NotImplementedError(type(told).__name__)


async def begin(request: Request, session: Session, told: commands.New) -> cellanswers.CellRan:
    """Write the first cells of a new notebook, and run them."""
    given = {name: getattr(told, name) for name in ("cells", "run", "wait_seconds")}
    return await _written(request, session, arguments.read(cellcommands.CellAdd, given))


async def _written(
    request: Request, session: Session, told: cellcommands.CellRun | cellcommands.CellAdd
) -> cellanswers.CellRan:
    caller, consent = request.caller, request.consent
    caller.call = told.call

    def work() -> patience.Work:
        if isinstance(told, cellcommands.CellRun):
            return cells.run(session, told, caller, consent)
        return cells.add(session, told, caller, consent)

    async with telling(request, session):
        return await patience.waited(session, request.owner, caller, told.wait_seconds, work)


async def run(request: Request, session: Session, which: str, wait: float) -> answers.Ran:
    """Run a notebook's cells; it is waited for so many seconds."""
    caller, done = request.caller, list[answers.Ran]()

    async def work() -> patience.Came:
        done.append(await steering.run(session, which, caller, request.progress))
        text = done[0].report or f"stepper: {counted(done[0].ran, 'cell')} of {one_line(session.name)} ran ok."
        state = "ok" if done[0].ok else "stopped" if session.state.stop else "failed"
        return patience.Came(text, ok=done[0].ok, state=state)

    async with telling(request, session):
        found = await patience.waited(session, request.owner, caller, wait, work, tells=False)
        return done[0] if done else answers.Ran(session.name, True, 0, 0, 0, found.text, [], found.call)


async def status(request: Request, session: Session | None, told: commands.Status) -> answers.Status:
    """Return the standing of a notebook with all that is asked for besides, once what goes on has ended."""
    ended = None
    if session and told.wait_seconds is not None:
        async with telling(request, session):
            ended = await patience.over(session, request.owner, request.caller, told.wait_seconds)
    found = replace(await standing.status(session), ended=ended) if session else answers.Status()
    if not told.details:
        return found
    machine = await asyncio.to_thread(resources.look, found.kernel)
    return replace(found, resources=machine, context=await standing.holds(session) if session else answers.Holds())
