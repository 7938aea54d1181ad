"""Where a notebook stands, as answers: status, plan, runs, reports, outputs, context. Nothing here changes anything."""

from __future__ import annotations

from datetime import datetime, timezone

from stepper.ground.errors import UsageError
from stepper.ground.text import clean, one_line
from stepper.policy import ledger
from stepper.policy.model import Cell, Step, instant
from stepper.policy.namespace import UNKNOWN, Namespace
from stepper.session import answers
from stepper.session.ports import Target
from stepper.session.session import SHOWN_SECONDS, Session
from stepper.words import brief
from stepper.words import report as reports
from stepper.words.quotes import paged
from stepper.words.report import step_name

LINE = 200  # characters of what a cell printed last


async def status(session: Session) -> answers.Status:
    """Return the standing of notebook, plan and kernel. Takes no lock: it answers while a cell runs."""
    await session.keeper.find()
    steps = [_step(session, step) for step in session.state.plan.steps]
    return answers.Status(session.name, session.state.name, steps, running(session), await session.keeper.status())


def running(session: Session) -> answers.Running | None:
    """Return what runs now, and how it gets on."""
    begun, kernel = session.state.running or session.looks, session.keeper.kernel
    if begun is None:
        return None
    step = begun.key if isinstance(begun.key, int) else None
    name = f"step {step}" if step is not None else f"cell {begun.number}" if begun.number else begun.cell_id
    seconds = max(0.0, (datetime.now(timezone.utc) - instant(begun.at)).total_seconds())
    line = one_line(kernel.coming.last_line(), LINE) if kernel and kernel.coming else ""
    cell_id = begun.cell_id if session.state.running else None
    return answers.Running(name, step, cell_id, round(seconds, 1), begun.timeout, line)


def shown(session: Session) -> str:
    """Return the line on what runs, for those who look on; '' where nothing has for long."""
    now, plan = running(session), session.state.plan
    if now is None or now.seconds < SHOWN_SECONDS:
        return ""
    step = plan.step(now.step)
    return brief.running(step_name(plan, step) if step else now.name, now.seconds, now.timeout, now.line)


def waits(session: Session) -> str:
    """Return for what a request to this notebook has to wait, '' where it has not."""
    now, name = running(session), one_line(session.name)
    if not session.lock.locked():
        return ""
    return f"waiting for {now.name} of {name}, running for {now.seconds:.0f} s" if now else f"waiting for {name}"


def _step(session: Session, step: Step) -> answers.StepStatus:
    progress = session.state.of(step.id)
    running = session.state.running is not None and session.state.running.key == step.id
    status = "running" if running else progress.status.value
    return answers.StepStatus(step.id, step.title, status, progress.cell_id, progress.attempts)


def planned(session: Session) -> answers.Planned:
    """Return the plan's steps with their statuses."""
    stands = [(step, session.state.of(step.id)) for step in session.state.plan.steps]
    steps = [
        answers.PlannedStep(step.id, step.title, step.criterion, step.kind, progress.status, progress.reason)
        for step, progress in stands
    ]
    return answers.Planned(session.name, steps)


def history(session: Session) -> list[answers.PastRun]:
    """Return every run, oldest first."""
    return [
        answers.PastRun(session.name, run.run, run.cell_id, run.step, run.started_at, run.duration_s, run.outcome.value)
        for run in session.state.runs
    ]


def report(session: Session, number: int | None) -> answers.Report:
    """Return a run with the report that the agent read, the last one by default; raise UsageError."""
    state = session.state
    number = state.last_report if number is None else number
    if number and number not in state.reports:  # an old one: the journal has it
        state = ledger.replay(event for event in session.journal.load()[0] if event.get("run") == number)
    run = next((run for run in state.runs if run.run == number), None)
    if run is None and (number is None or number not in state.reports):
        raise UsageError(f"{session.name} has no run {number}" if number else f"no cell of {session.name} has run here")
    text = reports.bounded(clean(state.reports.get(number or 0, "")))
    known = {key: getattr(run, key, None) for key in ("run", "cell_id", "step", "outcome", "fault")}
    return answers.Report(**known, text=text)


def named(session: Session, name: str) -> Cell:
    """Return the code cell of that id or number; raise UsageError."""
    fits = [cell for cell in session.file.read().cells if cell.is_code and name in (cell.id, str(cell.number))]
    if not fits:
        raise UsageError(f"{session.name} has no code cell {name!r}", "give its number among the code cells, or its id")
    return fits[0]


def output(session: Session, name: str, page: int) -> answers.Page:
    """Return a page of a cell's text outputs, as the notebook holds them; raise UsageError."""
    cell = named(session, name)
    pages = paged(session.file.outputs_of(Target.of(cell)))
    if not 1 <= page <= len(pages):
        raise UsageError(f"the output of {cell.label} has {len(pages)} page(s)")
    return answers.Page(session.name, cell.id, page, len(pages), pages[page - 1])


async def context(session: Session) -> answers.Context:
    """Return what another agent needs to go on, and the same as text."""
    known, alive = await namespace(session)
    return answers.Context(
        session.name,
        known.modules,
        known.functions,
        {name: brief.describe(variable) for name, variable in known.variables.items()},
        planned(session).steps,
        brief.context(session.name, session.state, known, alive),
    )


async def namespace(session: Session) -> tuple[Namespace, bool]:
    """Return the kernel's namespace in short, and whether the kernel is alive."""
    kernel = await session.keeper.find()
    if kernel is None or await kernel.death() is not None:
        return UNKNOWN, False
    if not session.namespace and not session.lock.locked():
        async with session.turn():
            kernel = session.keeper.kernel
            if kernel is not None:
                await session.known(kernel)
    return session.namespace, kernel is not None
