"""What each command of the table does (`policy/commands.py` has the rows): for people, and other agents later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, TypeVar

from stepper.daemon.workspace import Workspace, plan_of
from stepper.ground.errors import StepperError, UsageError
from stepper.notebook.plainjson import load_json
from stepper.policy import commands, gate
from stepper.policy import plan as plans
from stepper.session import answers, standing, steering
from stepper.session.ports import Progress
from stepper.session.session import Caller, Session

Told = TypeVar("Told")


@dataclass(frozen=True)
class Request:
    """One request: who asks, the folder it was asked in, the way to tell of progress, what the daemon is."""

    workspace: Workspace
    caller: Caller
    cwd: str
    progress: Progress
    about: Mapping[str, Any]

    @property
    def owner(self) -> str:
        """The session of Claude Code in whose shell the command was given; '' elsewhere."""
        return self.caller.environ.get("STEPPER_SESSION", "")

    def session(self, notebook: str | None) -> Session:
        """Return the session of the notebook that was named, or of the current one; UsageError where there is none."""
        return self.workspace.named(notebook, self.cwd, self.owner)

    def worked(self) -> None:
        """Note that a command was given, for the end of the agent's turn."""
        self.workspace.turns.worked.add(self.owner)

    def taken_up(self, notebook: str | None) -> Session:
        """Return the session of a notebook whose cells are to run: it is the current one from now on."""
        session = self.session(notebook)
        self.workspace.make_current(session.name, self.owner)
        self.worked()
        return session


Verb = Callable[[Request, Told], Awaitable[object]]
VERBS: dict[str, Verb[Any]] = {}


def serves(arguments: type[Told]) -> Callable[[Verb[Told]], Verb[Told]]:
    """Bind a function to the row whose arguments it takes."""

    def bound(function: Verb[Told]) -> Verb[Told]:
        (name,) = (row.name for row in commands.COMMANDS.values() if row.arguments is arguments)
        VERBS[name] = function
        return function

    return bound


async def answer(verb: str, payload: bytes, request: Request) -> bytes | None:
    """Return the JSON of a command's answer, None where there is no such command; raise StepperError."""
    if verb not in VERBS:
        return None
    told = commands.read(commands.COMMANDS[verb].arguments, load_arguments(payload))
    return answers.to_json(await VERBS[verb](request, told))


def load_arguments(payload: bytes) -> dict[str, Any]:
    """Return what a request tells; raise UsageError."""
    try:
        told = load_json(payload or b"{}")
    except ValueError as error:
        raise UsageError(f"the request's arguments can't be read: {error}") from None
    if not isinstance(told, dict):
        raise UsageError("the request's arguments are no object")
    return told


@serves(commands.New)
async def new(request: Request, told: commands.New) -> answers.Made:
    """Make a notebook with its plan."""
    if not told.problem.strip():
        raise UsageError("the problem is empty", 'stepper new "PROBLEM"')
    plan = plan_of(told.problem, told.steps or [])
    slug = plans.slug(told.name or told.problem)
    session, before = await request.workspace.new(plan, slug, date.today(), request.owner)
    request.worked()
    steps = [answers.NamedStep(step.id, step.title) for step in plan.steps]
    return answers.Made(session.name, steps, before, request.workspace.config.limits().kernel_cwd)


@serves(commands.Status)
async def status(request: Request, told: commands.Status) -> answers.Status:
    """Return notebook, state, steps, kernel and daemon; an empty standing where no notebook was made yet."""
    stands = answers.Status()
    if told.notebook or request.workspace.current(request.owner):
        stands = await standing.status(request.session(told.notebook))
    return replace(stands, daemon=request.about)


@serves(commands.Run)
async def run(request: Request, told: commands.Run) -> answers.Ran:
    """Run the cells that have not run here yet, or all."""
    return await steering.run(request.taken_up(told.notebook), told.all, request.caller, request.progress)


@serves(commands.Restore)
async def restore(request: Request, told: commands.Restore) -> answers.Restored:
    """Run the cells that had ended well again, in a fresh kernel."""
    return await steering.restore(request.taken_up(told.notebook), request.caller, request.progress)


@serves(commands.History)
async def history(request: Request, told: commands.History) -> list[answers.PastRun]:
    """Return every run."""
    return standing.history(request.session(told.notebook))


@serves(commands.Report)
async def report(request: Request, told: commands.Report) -> answers.Report:
    """Return a run with the report that the agent read."""
    return standing.report(request.session(told.notebook), told.run)


@serves(commands.Interrupt)
async def interrupt(request: Request, told: commands.Interrupt) -> answers.Interrupted:
    """Interrupt the cell that runs."""
    session = request.session(told.notebook)
    return answers.Interrupted(session.name, await session.interrupt())


@serves(commands.Eval)
async def evaluate(request: Request, told: commands.Eval) -> answers.Evaluated:
    """Run code in the live kernel without touching the notebook."""
    session = request.session(told.notebook)
    if not told.source.strip():
        raise UsageError("there is no code", 'stepper eval "df.columns"')
    why = gate.stopped(session.state) if request.owner else None  # the person may look
    if why:
        raise StepperError(f"nothing ran: {why}")
    return await steering.evaluate(session, told.source, request.caller)


@serves(commands.Output)
async def output(request: Request, told: commands.Output) -> answers.Page:
    """Return a page of a cell's output."""
    return standing.output(request.session(told.notebook), told.cell, told.page)


@serves(commands.Restart)
async def restart(request: Request, told: commands.Restart) -> answers.Restarted:
    """Replace the kernel by a fresh one."""
    session = request.session(told.notebook)
    return answers.Restarted(session.name, await steering.restart(session, request.caller))


@serves(commands.Continue)
async def go_on(request: Request, told: commands.Continue) -> answers.Said:
    """Lift a stop."""
    request.worked()
    return answers.Said(await steering.go_on(request.session(told.notebook)))


@serves(commands.Fix)
async def fix(request: Request, told: commands.Fix) -> answers.Said:
    """Lift a stop and grant fresh retries."""
    request.worked()
    return answers.Said(await steering.fix(request.session(told.notebook)))


@serves(commands.Skip)
async def skip(request: Request, told: commands.Skip) -> answers.Said:
    """Skip the step that failed, else the next one."""
    request.worked()
    return answers.Said(await steering.skip(request.session(told.notebook), told.reason))


@serves(commands.Context)
async def context(request: Request, told: commands.Context) -> answers.Context:
    """Return what another agent needs to go on."""
    if request.workspace.current(request.owner):
        return await standing.context(request.session(None))
    return answers.Context()


@serves(commands.Plan)
async def plan(request: Request, told: commands.Plan) -> answers.Planned:
    """Return the plan."""
    return standing.planned(request.session(told.notebook))


@serves(commands.PlanAdd)
async def plan_add(request: Request, told: commands.PlanAdd) -> answers.Planned:
    """Add a step."""
    session = request.session(told.notebook)
    return await steering.change_plan(session, lambda state: plans.added(state, told.title, told.after))


@serves(commands.PlanEdit)
async def plan_edit(request: Request, told: commands.PlanEdit) -> answers.Planned:
    """Change a step's title."""
    session = request.session(told.notebook)
    return await steering.change_plan(session, lambda state: plans.edited(state, told.id, told.title))


@serves(commands.PlanRemove)
async def plan_remove(request: Request, told: commands.PlanRemove) -> answers.Planned:
    """Remove a step."""
    return await steering.change_plan(request.session(told.notebook), lambda state: plans.removed(state, told.id))


@serves(commands.PlanMove)
async def plan_move(request: Request, told: commands.PlanMove) -> answers.Planned:
    """Move a step."""
    session = request.session(told.notebook)
    return await steering.change_plan(session, lambda state: plans.moved(state, told.id, told.after))


@serves(commands.Shutdown)
async def shutdown(request: Request, told: commands.Shutdown) -> answers.Ended:
    """End all kernels of the project; the daemon ends after the answer."""
    sessions = request.workspace.all_sessions()
    ended = await asyncio.gather(*(steering.shutdown(session, "stepper shutdown") for session in sessions))
    return answers.Ended(sum(ended))
