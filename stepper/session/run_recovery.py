"""Recovers a run after the daemon exited or the connection to the kernel was lost.

The kernel reports the result. A cell that has started never runs a second time.
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
from stepper.policy.execution_result import Execution
from stepper.policy.journal_events import RunStarted, RunVoided
from stepper.policy.model import Cell, Death, Outcome, Run, Verdict, parse_moment
from stepper.session.cells.cell_run import (
    CellWork,
    create_work,
    finish_run,
    record_execution,
    write_unretried_outputs,
)
from stepper.session.session import Session


async def recover_run(session: Session) -> None:
    """Wait for the unfinished run in the journal and record its result.

    The deadline of the run still applies. If the run never started, record this in the
    journal. Raise KernelUnreachableError if the kernel cannot be reached.
    """
    started = session.state.running
    assert started is not None
    run_name = f"run {started.run} (cell {started.number or '?'})"
    daemon_exited = session.kernel_manager.needs_takeover
    interruption = "the connection to the kernel was lost"
    if daemon_exited:
        interruption = "the daemon exited"
    try:
        execution = await _await_execution(session, started)
    except KernelUnreachableError as error:
        raise KernelUnreachableError(
            f"{error.message}. The result of {run_name} is not known yet. Until it is,"
            " no other code can run",
            CommandLines(session.name).shell("status"),
        ) from None
    if execution is None:
        _record_unstarted(session, started, run_name, interruption)
        return
    execution.reconnected = not daemon_exited
    session.namespace_tracker.record_recovered(execution.namespace)
    work = _create_work(session, started)
    work.notes.append(_format_note(run_name, interruption, execution))
    age = _compute_age(started)
    # The cell may have moved in the notebook.
    started = replace(started, number=work.cell.number, index=work.cell.index)
    result = await record_execution(session, work, started, execution, age)
    run = result.run
    if result.decision.action is run_decisions.NextAction.RETRY:
        # The cell is not run again, because no client waits for the result.
        write_unretried_outputs(session, work, result)
    summary = await finish_run(session, work, result)
    session.journal.log_report(run_report.format_run(summary), summary)
    # `background_runs` delivers the result of a background run.
    if started.tool_use_id not in session.state.background_calls:
        _add_result_notice(session, run, run_name, interruption)


def _record_unstarted(
    session: Session, started: RunStarted, run_name: str, interruption: str
) -> None:
    """Record that a run never started, and add a notice for the agent."""
    session.journal.log(RunVoided(run=started.run, tool_use_id=started.tool_use_id))
    # A client that reconnects for this call runs the cell now.
    if session.requests.is_reconnecting(started.tool_use_id):
        return
    session.notices.add(
        f"{run_name} had not started when {interruption}: the cell was NOT run",
        started.run,
    )


def _add_result_notice(
    session: Session, run: Run, run_name: str, interruption: str
) -> None:
    """Add a notice on the result of a recovered run."""
    result = f"the cell failed with {run.error}"
    if run.verdict is Verdict.FINE:
        result = "the cell ran ok"
    elif run.outcome is Outcome.CANCELLED:
        result = "the cell was cancelled"
    command = session.state.commands.shell("report", str(run.run))
    session.notices.add(
        f"{run_name} continued after {interruption}: {result}. For the report, run:"
        f" {command}",
        run.run,
    )


def _format_note(run_name: str, interruption: str, execution: Execution) -> str:
    """Return the note for the report on a recovered run."""
    note = f"{run_name} continued after {interruption}"
    fault = execution.fault
    if fault is not None and fault.ename == error_classification.UNOBSERVED_RUN:
        return note  # the run has finished, but its result is not known
    return f"{note}: this is its result"


async def _await_execution(session: Session, started: RunStarted) -> Execution | None:
    """Return the result of the run, or None if the run never started.

    If the kernel exited or does not answer, the outcome is KERNEL_DIED. If the user
    replaced the unreachable kernel, the outcome is CANCELLED. Raise
    KernelUnreachableError if the kernel cannot be reached.
    """
    manager = session.kernel_manager
    kernel = manager.kernel
    if kernel is None or kernel.id != started.kernel:
        return await _handle_lost_kernel(session)
    limits = session.limits()
    timeout = started.timeout or limits.cell_timeout_seconds
    remaining = max(0.0, timeout - _compute_age(started))
    wake_pattern = cell_directives.parse(started.source).wake
    try:
        with manager.count_as_taken_over():
            return await kernel.await_earlier_request(
                started.request, remaining, limits, wake_pattern
            )
    except KernelUnreachableError:
        raise  # the cell may still be running
    except KernelError as error:
        # Give up the kernel, even if it cannot be shut down.
        with contextlib.suppress(KernelError):
            await kernel.shutdown()
        return Execution(
            Outcome.KERNEL_DIED, death=Death(f"it did not answer: {error.message}")
        )


async def _handle_lost_kernel(session: Session) -> Execution:
    """Return the result of a run whose kernel was lost.

    If the notebook has another kernel now, shut down that kernel, because its state is
    unknown.
    """
    manager = session.kernel_manager
    if manager.kernel is not None:
        await manager.kernel.shutdown()
    elif session.state.lost_reason and not manager.unhandled_death:
        # The user replaced or shut down the kernel while the connection was lost.
        return Execution(Outcome.CANCELLED, death=Death(session.state.lost_reason))
    death = manager.pop_unhandled_death()
    if death is None:
        death = Death("its process no longer exists")
    return Execution(Outcome.KERNEL_DIED, death=death)


def _create_work(session: Session, started: RunStarted) -> CellWork:
    """Return the work of a started run, with the source that was sent to the kernel."""
    cell = Cell(
        started.cell_id,
        started.index,
        started.number,
        "code",
        started.source,
        started.tags,
    )
    cells: Sequence[Cell] = ()
    # If the notebook cannot be read, this is reported when its outputs are written.
    with contextlib.suppress(NotebookError):
        cells = session.read().cells
        current_cell = plan.find_cell(cells, cell.id)
        if current_cell is not None and current_cell.source == cell.source:
            cell = current_cell
    # A hook of the client may still be running. It sets the file's modification time
    # when it returns, so the time must not change before.
    keep_time = bool(started.tool_use_id)
    work = create_work(session, cells, cell, keep_time=keep_time)
    work.key = started.key
    work.timeout = started.timeout or work.timeout
    return work


def _compute_age(started: RunStarted) -> float:
    """Return the seconds since a run started, at least 0."""
    age = datetime.now(timezone.utc) - parse_moment(started.at)
    return max(0.0, age.total_seconds())
