"""What other agents ask besides what people do: cells, and answers that do not wait for ever. Loaded with the first."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from stepper.daemon import resources
from stepper.daemon.requests import Request, telling
from stepper.ground.errors import StepperError
from stepper.policy import arguments, cellcommands, commands
from stepper.session import (
    answers,
    cellanswers,
    cells,
    patience,
    reading,
    standing,
    steering,
)
from stepper.session.session import Session
from stepper.words.report import Ended


async def of_cells(request: Request, session: Session, told: Any) -> object:
    """Do a command on cells; return its answer."""
    if not isinstance(told, cellcommands.Cells):
        return await _done(request, session, told)
    workspace = request.workspace
    before = workspace.currents()
    # at once: a cell may run for long
    workspace.make_current(session.name, request.owner)
    try:
        done = await _done(request, session, told)
    except StepperError:
        workspace.restore_current(before, session.name, request.owner)
        raise
    if (
        isinstance(done, cellanswers.CellRan)
        and done.state in ("refused", "stopped")
        and not done.cells
    ):
        workspace.restore_current(before, session.name, request.owner)
    return done


async def _done(request: Request, session: Session, told: Any) -> object:
    match told:
        case cellcommands.CellRun() | cellcommands.CellAdd():
            return await _written(request, session, told)
        case cellcommands.CellChange():
            return cells.change(session, told, request.consent)
        case cellcommands.CellRead():
            return await reading.read(session, told)
    raise NotImplementedError(type(told).__name__)


async def begin(
    request: Request, session: Session, told: commands.New
) -> cellanswers.CellRan:
    """Write the first cells of a new notebook, and run them."""
    given = {name: getattr(told, name) for name in ("cells", "run", "wait_seconds")}
    return await _written(request, session, arguments.read(cellcommands.CellAdd, given))


async def _written(
    request: Request,
    session: Session,
    told: cellcommands.CellRun | cellcommands.CellAdd,
) -> cellanswers.CellRan:
    caller, consent = request.caller, request.consent
    caller.call = told.call

    def work() -> patience.Work:
        if isinstance(told, cellcommands.CellRun):
            return cells.run(session, told, caller, consent)
        return cells.add(session, told, caller, consent)

    async with telling(request, session):
        return await patience.waited(
            session, request.owner, caller, told.wait_seconds, work
        )


async def run(
    request: Request, session: Session, which: str, wait: float
) -> cellanswers.CellRan:
    """Run a notebook's cells; it is waited for so many seconds."""

    async def work() -> patience.Came:
        ended = list[Ended]()
        done = await steering.run(
            session, which, request.caller, request.progress, ended
        )
        return cells.of_runs(session, done, ended)

    async with telling(request, session):
        return await patience.waited(session, request.owner, request.caller, wait, work)


async def status(
    request: Request, session: Session | None, told: commands.Status
) -> answers.Status:
    """Return the standing of a notebook with all that is asked for besides, once what goes on has ended."""
    ended = None
    if session and told.wait_seconds is not None:
        async with telling(request, session):
            ended = await patience.over(
                session, request.owner, request.caller, told.wait_seconds
            )
    found = (
        replace(await standing.status(session), ended=ended)
        if session
        else answers.Status()
    )
    if not told.details:
        return found
    machine = await asyncio.to_thread(resources.look, found.kernel)
    return replace(
        found,
        resources=machine,
        context=await standing.holds(session) if session else answers.Holds(),
    )
