"""Recovers a run whose daemon exited or whose connection was lost.

The kernel reports the result. The cell is never run a second time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from stepper.common.errors import KernelError, KernelUnreachableError, NotebookError
from stepper.messages import run_report
from stepper.policy import cell_directives, error_classification, plan, run_decisions
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.journal_events import RunStarted, RunVoided
from stepper.policy.model import Cell, Death, Outcome, Verdict, parse_moment
from stepper.session.cell_run import CellWork, create_work, finish_run, record_execution
from stepper.session.protocols import Execution
from stepper.session.session import Session


async def recover_run(session: Session) -> None:
    """Wait for the interrupted run, within its deadline, and record its result.

    If the run never started, record that in the journal.
    """
    cut = session.state.running
    assert cut is not None
    where = f"run {cut.run} (cell {cut.number or '?'})"
    foreign = session.kernel_manager.needs_takeover
    lost = "its daemon" if foreign else "its line"
    try:
        execution = await _await_execution(session, cut)
    except KernelUnreachableError as error:
        why = f"{error.message}. What became of {where} is not known yet; until then nothing else runs: NOT run"
        raise KernelUnreachableError(
            why, CommandLines(session.name).shell("status")
        ) from None
    if execution is None:
        session.log(RunVoided(run=cut.run, tool_use_id=cut.tool_use_id))
        if cut.tool_use_id not in session.reconnecting_callers:  # else it runs now
            session.add_notice(
                f"{where} had not begun when it lost {lost}: it was NOT run",
                cut.run,
            )
        return
    execution.reconnected = not foreign
    session.namespace = execution.namespace
    work = _create_work(session, cut)
    unheard = (
        execution.fault is not None
        and execution.fault.ename == error_classification.UNOBSERVED_RUN
    )
    work.notes.append(
        f"{where} lost {lost} and went on" + ": this is how it ended" * (not unheard)
    )
    # where its cell stands now
    begun = replace(cut, number=work.cell.number, index=work.cell.index)
    run, follows = await record_execution(
        session, work, begun, execution, _compute_age(cut)
    )
    if (
        follows.action is run_decisions.NextAction.RETRY
    ):  # nobody waits to have it repeated
        work.notes += session.outputs.write_outputs(
            work.cell, execution, run.step, run.run, work.keeps_mtime
        )
    ended = await finish_run(session, work, run, execution, follows)
    session.record_report(run_report.format_run(ended), ended)
    if cut.tool_use_id in session.state.background_calls:
        return  # it is told as what was handed on
    fine = run.verdict is Verdict.FINE
    how = "ran ok, its outputs are on the cell" if fine else f"ended with {run.error}"
    report = session.state.commands.shell("report", str(cut.run))
    session.add_notice(
        f"{where} lost {lost} and went on: it {how}. `{report}`", cut.run
    )


async def _await_execution(session: Session, cut: RunStarted) -> Execution | None:
    """Return the result of the run, or None if it never started."""
    kernel, limits = session.kernel_manager.kernel, session.limits()
    if kernel is None or kernel.id != cut.kernel:
        # the journal names another one: whose state it holds, nobody knows
        if kernel is not None:
            await kernel.shutdown()
        # it was let go, its line was down
        if (
            kernel is None
            and session.state.lost_reason
            and not session.kernel_manager.unhandled_death
        ):
            return Execution(Outcome.CANCELLED, death=Death(session.state.lost_reason))
        death = session.kernel_manager.unhandled_death or Death("its process is gone")
        session.kernel_manager.unhandled_death = None
        return Execution(Outcome.KERNEL_DIED, death=death)
    was, session.kernel_manager.needs_takeover = (
        session.kernel_manager.needs_takeover,
        False,
    )
    left = max(0.0, (cut.timeout or limits.cell_timeout_seconds) - _compute_age(cut))
    try:
        return await kernel.await_earlier_request(
            cut.request, left, limits, cell_directives.parse(cut.source).wake
        )
    except KernelUnreachableError:
        session.kernel_manager.needs_takeover = was
        raise
    except KernelError as error:
        with contextlib.suppress(KernelError):  # it is let go
            await kernel.shutdown()
        return Execution(
            Outcome.KERNEL_DIED, death=Death(f"it did not answer: {error.message}")
        )


def _create_work(session: Session, cut: RunStarted) -> CellWork:
    """Return the work of the run, with the cell as it was sent to the kernel."""
    cell = Cell(cut.cell_id, cut.index, cut.number, "code", cut.source, cut.tags)
    cells: Sequence[Cell] = ()
    with contextlib.suppress(NotebookError):  # `put` says why
        cells = session.read().cells
        now_there = plan.find_cell(cells, cell.id)
        if now_there is not None and now_there.source == cell.source:
            cell = now_there
    # Its message may still be under way: PostToolBatch sets the time.
    work = create_work(session, cells, cell, keep_time=bool(cut.tool_use_id))
    work.key, work.timeout = cut.key, cut.timeout or work.timeout
    return work


def _compute_age(cut: RunStarted) -> float:
    """Return the time in seconds since a run started, never less than 0."""
    return max(0.0, (datetime.now(timezone.utc) - parse_moment(cut.at)).total_seconds())
