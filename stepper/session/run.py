"""One run of one cell in a session: begun, executed, judged, its outputs put away, journaled, told."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from dataclasses import astuple, dataclass, replace
from itertools import count

from stepper.ground.errors import KernelError, NotebookError, StepperError
from stepper.policy import changes, events, judge, retry, turn
from stepper.policy.model import Cell, Fault, Key, Limits, Outcome, Run, Verdict
from stepper.policy.namespace import Namespace
from stepper.session.keeper import now
from stepper.session.ports import Execution, Notebook
from stepper.session.session import Caller, Session
from stepper.words import brief, report
from stepper.words.report import Ended


@dataclass
class Work:
    """A cell that is to run, and what is noted on the way."""

    document: Notebook
    cell: Cell
    key: Key
    timeout: float
    limits: Limits
    keep_time: bool
    notes: list[str]
    was_complete: bool


@dataclass(frozen=True)
class Concluded:
    """A run that is journaled: what came of it, and what follows."""

    begin: judge.Begun
    run: Run
    execution: Execution
    follows: turn.After


def work_on(session: Session, document: Notebook, cell: Cell, keep_time: bool = True) -> Work:
    """Return the work on a cell."""
    limits = session.limits()
    task = turn.task(session.state, document.cells, cell, limits)
    return Work(document, cell, task.key, task.timeout, limits, keep_time, [*task.notes], session.state.complete)


async def run_cell(
    session: Session,
    document: Notebook,
    cell: Cell,
    caller: Caller,
    tool_use_id: str | None = None,
    keep_time: bool = True,
) -> Ended:
    """Run one cell to its verdict, again after a transient error; stop the notebook where that is to follow."""
    if why := changes.halved(cell.source):
        raise StepperError(f"{cell.label}: {why}")
    work = work_on(session, document, cell, keep_time)
    for repeat in count():
        try:
            kernel = await session.keeper.get(caller.environ)
        except KernelError as error:
            return _not_started(session, work, error)
        work.notes = [*session.take_notes(), *work.notes]
        begin = judge.Begun(session.state.next_run, work.key, now(), time.monotonic(), tool_use_id, repeat,
                            uuid.uuid4().hex, work.timeout)  # fmt: skip
        if caller.left.is_set():
            raise StepperError("the caller went away before the cell ran")
        session.log(begin.event(cell, kernel.id), sync=False)
        known = session.namespace
        execution = await session.execute(kernel, cell.source, caller, work.timeout, work.limits, begin.request)
        done = await conclude(session, work, begin, execution, known, kernel.id, kernel.about().python)
        if done.follows.decision.act is not retry.Act.AGAIN:
            break
        wait = done.follows.decision.wait
        work.notes.append(
            f"run {done.run.run}: {report.short_fault(done.run.fault)}; stepper ran it again after {wait:g} s"
        )
        if await _paused(session, wait, caller):
            done = replace(done, run=replace(done.run, verdict=Verdict.CANCELLED, outcome=Outcome.CANCELLED))
            break
    return await tell(session, work, done)


async def conclude(
    session: Session,
    work: Work,
    begin: judge.Begun,
    execution: Execution,
    known: Namespace,
    kernel_id: str,
    python: str,
) -> Concluded:
    """Judge an execution, put its outputs away and journal the run; `known` is what the kernel held before it."""
    state, cell = session.state, work.cell
    known = session.namespace or known  # a kernel that died tells no more
    fault, verdict = judged(cell, execution, known, brief.built(state))
    if fault is not None:
        fault = await asyncio.to_thread(
            session.adviser.suggested, fault, execution.told, cell, work.document.cells, state, known, python
        )
    run = events.Ran(
        **vars(begin.run(cell, execution.outcome, fault, verdict, kernel_id, time.monotonic())),
        repeat=begin.repeat,
        execution_count=execution.execution_count,
        displays=execution.displays,
        left_out=astuple(execution.left_out) if execution.left_out else None,
        request=begin.request,
    )
    follows = turn.after(state, run, work.limits)
    if follows.decision.act is not retry.Act.AGAIN:
        work.notes += session.outputs.put(cell, execution, run.step, run.run, work.keep_time)
    work.notes += follows.notes
    session.log(run, sync=None)
    session.ended(execution, f"cell {cell.number}")
    session.failed = execution if verdict is Verdict.RECOVERABLE else None
    return Concluded(begin, run, execution, follows)


async def tell(session: Session, work: Work, done: Concluded) -> Ended:
    """Return what the report needs of a run; stop the notebook where that follows."""
    run, execution = done.run, done.execution
    session.put_late()
    ended = summed(session, work, run, execution)
    besides = (session, execution, run, done.begin.wall_ns)
    slow = bool(execution.pictures) or run.verdict is not Verdict.FINE  # pictures are made smaller, folders looked at
    seen, left = await asyncio.to_thread(_besides, *besides) if slow else _besides(*besides)
    ended = replace(ended, origins=_origins(session, work.document), seen=seen, doubts=left)
    if done.follows.decision.act is retry.Act.STOP:
        session.stop(work.key, ended, done.follows.attempts + done.begin.repeat)
    if session.state.complete and not work.was_complete:
        with contextlib.suppress(NotebookError):  # it may be gone by now
            figures = session.file.read().figures
            ended = replace(ended, tail=brief.completion(session.name, session.state, figures))
    return ended


def judged(cell: Cell, execution: Execution, known: Namespace, built: str = "") -> tuple[Fault | None, Verdict]:
    """Return the fault of an execution and what follows; `known` is what the kernel told last.

    `built` tells what had built the variables, for a kernel that died.
    """
    memory = "; ".join([execution.memory, *brief.largest(known)]) if execution.memory else ""
    return judge.judge(execution.outcome, execution.fault, cell.tags, execution.death, memory, built)


def summed(session: Session, work: Work, run: Run, execution: Execution) -> Ended:
    """Return a run as the reports need it."""
    state = session.state
    return Ended(
        cell=work.cell,
        run=run.run,
        outcome=run.outcome,
        verdict=run.verdict,
        duration_s=run.duration_s,
        outputs=execution.outputs,
        fault=run.fault,
        plan=state.plan,
        step=state.plan.step(run.step),
        next_step=state.plan.step(state.open_step()),
        attempts=state.of(work.key).attempts,
        max_retries=work.limits.max_retries,
        timeout=work.timeout,
        notes=[*work.notes, *brief.came(state, work.document.cells)],
        captured=execution.captured,
        next_inputs=execution.next_inputs,
    )


def _besides(session: Session, execution: Execution, run: Run, since_ns: int) -> tuple[list[str], list[str]]:
    """Return the lines on pictures, and on what a failed cell left behind or what is odd about one that ran ok."""
    adviser = session.adviser
    left = adviser.doubtful(execution) if run.verdict is Verdict.FINE else adviser.kept(execution.told, since_ns)
    return adviser.seen(execution, run.run), left


async def _paused(session: Session, wait: float, caller: Caller) -> bool:
    """Wait before stepper runs a cell again; return True where that was interrupted."""
    session.waits_for = caller
    session.pause.clear()
    try:
        await asyncio.wait_for(session.pause.wait(), wait)
    except asyncio.TimeoutError:
        return False
    finally:
        session.waits_for = None
    return True


def _not_started(session: Session, work: Work, error: KernelError) -> Ended:
    """No kernel: what a command mends is reported and nothing more; one that fails to start stops the notebook."""
    if not error.stops:
        raise error
    cell, key = work.cell, work.key
    fault = Fault("KernelStartFailed", f"the cell was NOT run: {error.message}", ("KernelStartFailed",))
    begin = judge.Begun(0, key, now(), 0.0, None, 0)
    run = begin.run(cell, Outcome.KERNEL_DIED, fault, Verdict.UNRECOVERABLE, "", begin.clock)
    work.notes, work.timeout = [], 0.0
    ended = summed(session, work, run, Execution(run.outcome))
    session.stop(key, ended, session.state.of(key).attempts, error.hint)
    return ended


def _origins(session: Session, document: Notebook) -> dict[int, str]:
    """Return how reports name the cells that ran in this kernel, by execution count."""
    names = {cell.id: cell.label for cell in document.cells if cell.is_code}
    return {n: names.get(cell_id, "a cell that is gone") for n, cell_id in session.state.counts.items()}
