"""What each command of the table does (`policy/commands.py` has the rows): for people, and other agents later."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from stepper import __version__
from stepper.daemon import resources
from stepper.daemon.workspace import Workspace, plan_of
from stepper.ground.errors import StepperError, UsageError
from stepper.ground.text import counted, one_line
from stepper.notebook.plainjson import load_json
from stepper.policy import cellcommands, commands, gate, plan
from stepper.policy.model import Consent
from stepper.session import answers, cellanswers, cells, following, patience, reading, standing, steering, unseen
from stepper.session.callers import Caller
from stepper.session.session import Session
from stepper.words import system

# The end of an agent's turn is looked at where one of these was given in it, or a cell ran.
CELLS = (cellcommands.CellRun, cellcommands.CellAdd, cellcommands.CellChange)
WORK = (*CELLS, commands.New, commands.Run, commands.Restore, commands.Continue, commands.Fix, commands.Skip)
CURRENT = (*CELLS, commands.Run, commands.Restore, commands.Use)  # what makes a notebook the current one
TICK_SECONDS = 1.0  # between two words to another agent on the cell that it waits for
SHUTDOWN = "it was ended by `stepper shutdown`"


@dataclass(frozen=True)
class Request:
    """One request: who asks, the folder it was asked in, the way to tell of progress, what the daemon is."""

    workspace: Workspace
    caller: Caller
    cwd: str
    progress: answers.Progress
    about: Mapping[str, Any]
    end: Callable[[], None] = lambda: None  # the daemon, once this is answered

    @property
    def owner(self) -> str:
        """The session of Claude Code in whose shell the command was given; '' elsewhere."""
        return self.caller.environ.get("STEPPER_SESSION", "")

    @property
    def consent(self) -> Consent:
        """Whether the person has accepted what other agents do: as far as their client tells its mode."""
        return Consent.WITHHELD if self.caller.environ.get("STEPPER_MODE") == "plan" else Consent.ASKED


async def answer(verb: str, payload: bytes, request: Request) -> bytes:
    """Return the JSON of a command's answer; raise StepperError."""
    row = commands.VERBS.get(verb)
    if row is None or not row.daemon:
        raise StepperError(f"this daemon ({__version__}) does not know {verb[:100]!r}", "stepper shutdown")
    told = _placed(commands.read(row.arguments, load_arguments(payload)))
    if request.caller.by == "mcp" and not isinstance(told, CELLS):  # the person's own commands ask nobody
        _accepted(request, row)
    if not isinstance(told, WORK):
        return answers.to_json(await _of_project(request, told))
    workspace = request.workspace
    workspace.worked.add(request.owner)
    waiting = workspace.elsewhere.waiting()
    done = await _of_project(request, told)
    if name := getattr(done, "notebook", None):
        workspace.elsewhere.wrote(os.path.join(workspace.paths.project, name), waiting)
    return answers.to_json(done)


def _accepted(request: Request, row: commands.Command) -> None:
    """Raise StepperError where another agent gives a command that is not its to give by itself now."""
    if row.name == "new" and request.consent is Consent.WITHHELD:
        raise StepperError(gate.PLAN_FIRST)
    if row.runs_code and (why := gate.unaccepted(request.consent, request.workspace.config.limits())):
        raise StepperError(f"nothing ran: {why}", f"stepper {row.name}  # the person's to give")


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
    """Return a command with its notebook in its place: `stepper continue a.ipynb` answers nothing."""
    match told:
        case commands.Continue(answer=said, notebook=None) | commands.Fix(hint=said, notebook=None):
            row: Any = type(told)
            return row(notebook=said) if re.fullmatch(r"\S+\.ipynb", said) else told
    return told


async def _of_project(request: Request, told: Any) -> object:
    """Do a command, for which no notebook need be there yet or whose notebook is named; return its answer."""
    workspace = request.workspace
    named = getattr(told, "notebook", None)
    match told:
        case commands.New():
            return await _new(request, told)
        case commands.Context() | commands.Status() if not (named or workspace.current(request.owner)):
            if isinstance(told, commands.Context):
                return _system(told, answers.Context())
            machine = await asyncio.to_thread(resources.look, answers.KernelStatus()) if told.details else None
            return answers.Status(daemon=request.about, resources=machine)
        case commands.List():
            return await _listed(request)
        case commands.Shutdown() if not named:
            request.end()
            ending = (steering.shutdown(session, SHUTDOWN) for session in workspace.all_sessions())
            return answers.Ended(sum(await asyncio.gather(*ending)))
        case _:
            return await _of_notebook(request, workspace.named(named, request.cwd, request.owner), told)


async def _listed(request: Request) -> list[answers.Listed]:
    """Return all notebooks; those that nobody works on are looked at, not opened."""
    workspace, found = request.workspace, []
    workspace.all_sessions()  # those with a kernel
    for path in workspace.notebooks():
        session = workspace.glance(path)
        age = round(max(0.0, time.time() - os.stat(path).st_mtime), 1)
        found.append(await standing.listed(session, session.name == workspace.current(request.owner), age))
    return found


async def _new(request: Request, told: commands.New) -> answers.Made:
    if not told.problem.strip():
        raise UsageError("the problem is empty", 'stepper new "PROBLEM"')
    made = plan_of(told.problem, told.steps or [])
    slug = plan.slug(told.name or told.problem)
    session, before = await request.workspace.new(made, slug, date.today(), request.owner)
    steps = [answers.NamedStep(step.id, step.title) for step in made.steps]
    ran = None
    if told.cells:
        added = commands.read(
            cellcommands.CellAdd, {name: getattr(told, name) for name in ("cells", "run", "wait_seconds")}
        )
        ran = await _cells(request, session, added)
    return answers.Made(session.name, steps, before, request.workspace.config.limits().kernel_cwd, ran)


async def _cells(
    request: Request, session: Session, told: cellcommands.CellRun | cellcommands.CellAdd
) -> cellanswers.CellRan:
    """Write cells for another agent, and run them."""
    caller, consent = request.caller, request.consent
    caller.call = told.call

    def work() -> patience.Work:
        if isinstance(told, cellcommands.CellRun):
            return cells.run(session, told, caller, consent)
        return cells.add(session, told, caller, consent)

    async with _telling(request, session):
        return await patience.waited(session, request.owner, caller, told.wait_seconds, work)


@contextlib.asynccontextmanager
async def _telling(request: Request, session: Session) -> AsyncIterator[None]:
    """Tell another agent each second what runs, as long as it waits."""

    async def tell() -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if running := standing.running(session):
                request.progress(answers.CellRuns(running=running))

    telling = asyncio.create_task(tell()) if request.caller.by == "mcp" else None
    try:
        yield
    finally:
        if telling is not None:
            telling.cancel()


async def _of_notebook(request: Request, session: Session, told: Any) -> object:
    if isinstance(told, CURRENT):
        request.workspace.make_current(session.name, request.owner)
    waits = standing.waits(session) if isinstance(told, commands.Run | commands.Restore | commands.Eval) else ""
    if waits:
        request.progress(answers.Waits(line=waits))
    match told:
        case commands.Status():
            return await _status(request, session, told)
        case commands.Use():
            return answers.Used(session.name)
        case commands.Context():
            return _system(told, await standing.context(session))
        case commands.Restore() | commands.Run(which="restore"):
            if request.caller.by == "mcp" and (why := gate.stopped(session.state)):  # it would lift the stop
                raise StepperError(f"nothing ran: {why}")
            return await _run(request, session, "restore", getattr(told, "wait_seconds", None))
        case commands.Run():
            return await _run(request, session, "all" if told.all else told.which, told.wait_seconds)
        case commands.History():
            return standing.history(session)
        case commands.Report():
            return standing.report(session, told.run)
        case commands.Output() if told.follow:
            return await following.follow(session, told.cell, request.caller, request.progress)
        case commands.Output():
            return standing.output(session, told.cell, told.page)
        case commands.Eval():
            return await _eval(request, session, told.source)
        case commands.Interrupt():
            return answers.Interrupted(session.name, await session.interrupt())
        case commands.Restart():
            return answers.Restarted(session.name, await steering.restart(session, request.caller))
        case commands.Shutdown():
            return answers.Ended(int(await steering.shutdown(session, SHUTDOWN)), session.name)
        case commands.Continue():
            return answers.Said(await steering.go_on(session, told.answer))
        case commands.Fix():
            return answers.Said(await steering.fix(session, told.hint))
        case commands.Skip():
            return answers.Said(await steering.skip(session, told.reason))
        case commands.Confirm():
            return answers.Said(steering.confirm(session, told.words))
        case commands.PlanAdd():
            return await steering.change_plan(session, lambda state: plan.added(state, told.title, told.after))
        case commands.PlanEdit():
            return await steering.change_plan(session, lambda state: plan.edited(state, told.id, told.title))
        case commands.PlanRemove():
            return await steering.change_plan(session, lambda state: plan.removed(state, told.id))
        case commands.PlanMove():
            return await steering.change_plan(session, lambda state: plan.moved(state, told.id, told.after))
        case commands.Plan():
            return standing.planned(session)
        case cellcommands.CellRun() | cellcommands.CellAdd():
            return await _cells(request, session, told)
        case cellcommands.CellChange():
            return cells.change(session, told, request.consent)
        case cellcommands.CellRead():
            return reading.read(session, told)
    raise NotImplementedError(type(told).__name__)


async def _run(request: Request, session: Session, which: str, wait: float | None) -> answers.Ran:
    """Run a notebook's cells; other agents wait only so many seconds for it."""
    caller, done = request.caller, list[answers.Ran]()

    async def work() -> patience.Came:
        run = steering.restore(session, caller, request.progress) if which == "restore" else (
            steering.run(session, which, caller, request.progress)
        )  # fmt: skip
        done.append(await run)
        text = done[0].report or f"stepper: {counted(done[0].ran, 'cell')} of {one_line(session.name)} ran ok."
        state = "ok" if done[0].ok else "stopped" if session.state.stop else "failed"
        return patience.Came(text, ok=done[0].ok, state=state)

    async with _telling(request, session):
        if wait is None:
            await work()
        else:
            found = await patience.waited(session, request.owner, caller, wait, work)
        return done[0] if done else answers.Ran(session.name, True, 0, 0, 0, found.text, [], found.call)


async def _status(request: Request, session: Session, told: commands.Status) -> answers.Status:
    ended = None
    if told.wait_seconds is not None:
        async with _telling(request, session):
            ended = await patience.over(session, request.owner, request.caller, told.wait_seconds)
    found = replace(await standing.status(session), daemon=request.about, ended=ended)
    missed = unseen.take_missed(session) if request.owner else found.unheard  # the agent has it now
    if told.details:
        machine = await asyncio.to_thread(resources.look, found.kernel)
        found = replace(found, context=await standing.holds(session), resources=machine)
    return replace(found, unheard=missed)


def _system(told: commands.Context, found: answers.Context) -> answers.Context:
    """Return a context, as the system text of the agent that it is for."""
    if told.agent is None:
        return found
    held = {"modules": found.imported_modules, "functions": found.defined_functions, "variables": found.variables}
    return replace(found, text=system.told(told.agent, told.lang, found.current_notebook, held))


async def _eval(request: Request, session: Session, source: str) -> answers.Evaluated:
    if not source.strip():
        raise UsageError("there is no code", 'stepper eval "df.columns"')
    why = gate.stopped(session.state) if request.owner else None  # the person may look
    if why:
        raise StepperError(f"nothing ran: {why}")
    async with _telling(request, session):
        return await steering.evaluate(session, source, request.caller)
