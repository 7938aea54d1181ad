"""What Claude Code did to a notebook → what runs of it: change → gate → look ahead → run → report."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from stepper.ground.errors import KernelError, StepperError
from stepper.policy import changes, events, gate, judge, plan, progress, retry
from stepper.policy.model import Cell, CellEdit, FileWrite, Outcome, Verdict
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
        if cell not in changes.runnable([cell]):
            return None
        waits = gate.unaccepted(edit.consent, session.limits())
        if waits:
            return brief.waits(waits, f"stepper run {session.name}")
        why = _refused(session, document, cell, new=edit.mode == "insert") or await _again(session, document, cell)
        if why:
            return report.not_run(why)
        ended = await _held(session, document, cell, caller, edit.tool_use_id)
        ended = ended or await run_cell(session, document, cell, caller, edit.tool_use_id)
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
    cells = changes.not_run_yet(document.cells, session.state.ran_ever)
    waits = gate.unaccepted(write.consent, session.limits()) if cells else None
    if waits:
        return brief.waits(waits, f"stepper run {session.name}")
    ended: list[Ended] = []
    for cell in cells:
        why = _refused(session, document, cell, new=cell.id not in session.state.ran_ever)
        if why:
            refused = report.not_run(why)
            return report.joined([report.of_runs(ended, len(cells)), refused]) if ended else refused
        try:
            held = await _held(session, document, cell, caller, write.tool_use_id)
            ended.append(held or await run_cell(session, document, cell, caller, write.tool_use_id))
        except StepperError as error:
            if not ended:
                raise
            told = report.of_runs(ended, len(cells))
            return report.joined([told, report.not_run(error.message, error.hint)])
        if ended[-1].verdict is not Verdict.FINE:
            break
    return session.kept(report.of_runs(ended, len(cells)), ended[-1]) if ended else None


def _refused(session: Session, document: Notebook, cell: Cell, new: bool) -> str | None:
    """Return why the gate would have denied the cell that stands in the notebook now."""
    others = [other for other in document.cells if other.id != cell.id]
    return (
        gate.stopped(session.state)
        or (gate.waiting(session.state, others, cell.index) if new else None)
        or (gate.too_many(document.cells, session.limits()) if new else None)
    )


async def _again(session: Session, document: Notebook, cell: Cell) -> str | None:
    """Return why a source is not run again: it would end as it did, because nothing has changed since.

    The client's edit has emptied the cell's outputs: they are put back.
    """
    key = plan.key(session.state, document.cells, cell)
    last = progress.same_again(session.state, key, changes.source_hash(cell.source))
    if last is None or session.failed is None or not session.facts:  # in doubt it runs
        return None
    if await asyncio.to_thread(session.adviser.changed_since, last, session.facts):
        return None
    session.put(cell, session.failed, last.step, last.run, keep_time=True)
    return progress.repeated(last)


async def _held(
    session: Session, document: Notebook, cell: Cell, caller: Caller, tool_use_id: str | None
) -> Ended | None:
    """Return the fault that a cell would end with for certain; None where it may run, or is written once more."""
    limits, state = session.limits(), session.state
    key, source = plan.key(state, document.cells, cell), changes.source_hash(cell.source)
    if not limits.preflight or state.of(key).held == source or changes.RAISES_TAG in cell.tags:
        return None
    try:
        python = await _known(session, caller)
    except KernelError:
        return None  # running it tells
    fault = session.adviser.before(cell, session.facts)
    if fault is None:
        return None
    fault = session.adviser.suggested(fault, {}, cell, document.cells, state, session.facts, python)
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
    session.facts = session.facts or await kernel.facts()
    return kernel.about().python
