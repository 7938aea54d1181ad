"""What Claude Code did to a notebook → what runs of it: change → gate → look ahead → run → report."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from stepper.ground.errors import KernelError, StepperError
from stepper.policy import changes, events, judge, plan, progress, retry, turn
from stepper.policy.model import Cell, CellEdit, FileWrite, Outcome, Run, Verdict
from stepper.session.keeper import now
from stepper.session.ports import Execution, Notebook
from stepper.session.run import run_cell, summed, work_on
from stepper.session.session import Caller, Session
from stepper.words import brief, report
from stepper.words.report import Ended, Report


async def edited(session: Session, edit: CellEdit, caller: Caller, again: bool = False) -> Report | None:
    """Run the code cell that was just inserted or replaced; None where there is nothing to run or to say.

    With `again` the daemon that was asked first has ended: what became of that very call is told.
    """
    if edit.mode == "delete" or edit.cell_type not in (None, "code"):
        return None
    async with session.turn(caller if again else None, edit.tool_use_id):
        if session.seen(edit.tool_use_id):
            return session.answered(edit.tool_use_id) if again else None
        document = session.mended()
        cell = plan.edited_cell(document.cells, edit)
        if cell is None:
            return report.not_run(
                f"no cell {edit.cell_id!r} in {session.name}", "Read the notebook again: its cell ids are shown there"
            )
        new = edit.mode == "insert"
        decided = turn.before(session.state, document.cells, cell, edit.consent, session.limits, new)
        if decided.do is not turn.Do.RUN:
            return _not_run(session, decided)
        if decided.repeats is not None and await _same(session, cell, decided.repeats):
            return report.not_run(progress.repeated(decided.repeats))
        ended = await _run(session, document, cell, decided, caller, edit.tool_use_id)
        return session.kept(report.of_run(ended), ended)


async def written(session: Session, write: FileWrite, caller: Caller, again: bool = False) -> Report | None:
    """Run the new and changed code cells of a notebook that was written whole, from the top.

    With `again` the daemon that was asked first has ended: what it had run is told, and the rest is run.
    """
    async with session.turn(caller if again else None, write.tool_use_id):
        before = session.answered(write.tool_use_id) if again else None
        if session.seen(write.tool_use_id) and (not again or (before is not None and not before.ok)):
            return before
        document = session.mended()
        if plan.from_json(document.plan) is None and session.state.plan.steps:
            session.file.set_plan(session.state.plan)  # the Write dropped it
            document = session.read()
        found = await _cells_of(session, document, write, caller)
        return report.joined([before, found]) if before and found else before or found


async def _cells_of(session: Session, document: Notebook, write: FileWrite, caller: Caller) -> Report | None:
    state = session.state
    cells = changes.not_run_yet(document.cells, state.ran_ever)
    ended: list[Ended] = []
    for cell in cells:
        new = cell.id not in state.ran_ever
        try:
            decided = turn.before(state, document.cells, cell, write.consent, session.limits, new)
            refused = _not_run(session, decided)
            if refused is not None:
                return report.joined([report.of_runs(ended, len(cells)), refused]) if ended else refused
            ended.append(await _run(session, document, cell, decided, caller, write.tool_use_id))
        except StepperError as error:
            if not ended:
                raise
            told = report.of_runs(ended, len(cells))
            return report.joined([told, report.not_run(error.message, error.hint)])
        if ended[-1].verdict is not Verdict.FINE:
            break
    return session.kept(report.of_runs(ended, len(cells)), ended[-1]) if ended else None


def _not_run(session: Session, decided: turn.Before) -> Report | None:
    """Return what is said of a cell that does not run, None where there is nothing to say."""
    if decided.do is turn.Do.WAIT:
        return brief.waits(decided.why, f"stepper run {session.name}")
    return report.not_run(decided.why) if decided.do is turn.Do.REFUSE else None


async def _same(session: Session, cell: Cell, last: Run) -> bool:
    """Whether a cell would end as its last run did, because nothing has changed since.

    The client's edit has emptied the cell's outputs: they are put back.
    """
    if session.failed is None or not session.namespace:  # in doubt it runs
        return False
    if await asyncio.to_thread(session.adviser.changed_since, last, session.namespace):
        return False
    session.outputs.put(cell, session.failed, last.step, last.run, keep_time=True)
    return True


async def _run(
    session: Session, document: Notebook, cell: Cell, decided: turn.Before, caller: Caller, tool_use_id: str | None
) -> Ended:
    """Run a cell, unless a fault is certain: then it is said before anything of it ran."""
    held = await _held(session, document, cell, caller, tool_use_id) if decided.look_ahead else None
    return held or await run_cell(session, document, cell, caller, tool_use_id)


async def _held(
    session: Session, document: Notebook, cell: Cell, caller: Caller, tool_use_id: str | None
) -> Ended | None:
    """Return the fault that a cell would end with for certain; None where it may run."""
    limits, state = session.limits(), session.state
    key = plan.key(state, document.cells, cell)
    try:
        python = await _known(session, caller)
    except KernelError:
        return None  # running it tells
    fault = session.adviser.before(cell, session.namespace)
    if fault is None:
        return None
    fault = session.adviser.suggested(fault, {}, cell, document.cells, state, session.namespace, python)
    begin = judge.Begun(0, key, now(), time.monotonic(), tool_use_id, 0)
    run = begin.run(cell, Outcome.ERROR, fault, Verdict.RECOVERABLE, "", begin.clock)
    attempts = state.of(key).attempts
    session.log(events.Held(**vars(run), at=begin.at))
    work = replace(work_on(session, document, cell), timeout=0.0, notes=session.take_notes())
    ended = summed(session, work, run, Execution(run.outcome))
    counted = state.of(key).attempts > attempts
    if counted and retry.decide(run.verdict, state.of(key).attempts, 0, limits).act is retry.Act.STOP:
        session.stop(key, ended, state.of(key).attempts)
    return replace(ended, held=True, counted=counted)


async def _known(session: Session, caller: Caller) -> str:
    """Have the kernel's names at hand, asked where they are not known; return its interpreter."""
    kernel = await session.keeper.get(caller.environ)
    session.namespace = session.namespace or await kernel.namespace()
    return kernel.about().python
