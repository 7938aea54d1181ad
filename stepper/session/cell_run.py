"""Runs one cell: executes it, evaluates the result, writes outputs and reports."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepper.common.errors import (
    KernelError,
    KernelUnreachableError,
    NotebookError,
    StepperError,
)
from stepper.common.text import one_line
from stepper.messages import attached_clients, command_messages, local_modules
from stepper.messages.quoted_output import Completeness, format_location
from stepper.messages.run_report import RunSummary
from stepper.policy import (
    cell_changes,
    execution_time,
    journal_events,
    run_decisions,
)
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.dataflow import cell_dependencies
from stepper.policy.kernel_namespace import UNKNOWN_NAMESPACE
from stepper.policy.model import (
    Cell,
    Fault,
    Key,
    Limits,
    Outcome,
    Run,
    StepStatus,
    Verdict,
    parse_moment,
)
from stepper.session.clients import Caller
from stepper.session.kernel_manager import format_now
from stepper.session.protocols import Execution
from stepper.session.session import LANGUAGES, Session
from stepper.session.stale_cells import format_order


@dataclass
class CellWork:
    """A cell to run, with its limits and notes."""

    cells: Sequence[Cell]  # the notebook's
    cell: Cell
    key: Key  # what it counts for
    timeout: float  # its deadline in seconds
    limits: Limits
    keeps_mtime: bool  # the file's, for those who poll it
    notes: list[str]
    was_complete: bool
    criterion: str = ""
    wake: str = ""  # the pattern of a line that wakes the agent
    repeat_count: int = (
        0  # how often stepper itself has run it, after a transient error
    )

    def create_started_event(
        self, run: int, caller: Caller, kernel: str = ""
    ) -> journal_events.RunStarted:
        """Return the journal event that the run started."""
        cell = self.cell
        return journal_events.RunStarted(
            run=run,
            key=self.key,
            at=format_now(),
            tool_use_id=caller.call_id,
            by=caller.interface,
            outside_agent=caller.is_outside_agent,
            request=uuid.uuid4().hex,
            timeout=self.timeout,
            cell_id=cell.id,
            number=cell.number,
            index=cell.index,
            source=cell.source,
            tags=cell.tags,
            kernel=kernel,
        )


def create_work(
    session: Session,
    cells: Sequence[Cell],
    cell: Cell,
    keep_time: bool = True,
    timeout_of_call: float | None = None,
) -> CellWork:
    """Return the work for a cell."""
    limits = session.limits()
    task = run_decisions.make_run_parameters(
        session.state, cells, cell, limits, timeout_of_call
    )
    notes, was_complete = [*task.notes], session.state.is_complete
    # what reads like Python may mean something else
    criterion = task.criterion if session.speaks_python else ""
    how = (notes, was_complete, criterion, task.wake)
    return CellWork(cells, cell, task.key, task.timeout, limits, keep_time, *how)


async def run_cell(
    session: Session,
    cells: Sequence[Cell],
    cell: Cell,
    caller: Caller,
    keep_time: bool = True,
) -> RunSummary:
    """Run a cell, again after a transient error; stop the notebook if required."""
    if why := cell_changes.find_encoding_problem(cell.source):
        raise StepperError(f"{cell.label}: {why}")
    work = create_work(session, cells, cell, keep_time, caller.timeout)
    while True:
        try:
            kernel = await session.kernel_manager.get_kernel(
                caller.environ, caller.disconnected
            )
        except KernelError as error:
            return _handle_start_failure(session, work, caller, error)
        if session.speaks_python and kernel.language not in ("", *LANGUAGES):
            why = f"{session.name} is a notebook in Python, and its kernel runs {one_line(kernel.language, 50)}"
            raise KernelError(
                f"{why}: the cell was NOT run",
                CommandLines(session.name).shell("use --kernel NAME"),
            )
        about = kernel.describe()
        beyond = command_messages.warn_walltime(
            work.timeout, about.location, about.walltime_left
        )
        work.notes = [*session.take_notices(), *work.notes, *beyond]
        if caller.disconnected.is_set():
            raise StepperError(
                "interrupted before the cell ran: whoever asked for it went away"
            )
        begun, began = (
            work.create_started_event(session.state.next_run, caller, kernel.id),
            time.monotonic(),
        )
        session.log(begun, sync=False)
        how = (begun.request, False, work.criterion, work.wake)
        try:
            execution = await session.execute(
                kernel, cell.source, caller, work.timeout, work.limits, *how
            )
        except KernelUnreachableError as error:
            # the journal knows that it began: the next turn asks what came of it
            error = KernelUnreachableError(
                command_messages.format_disconnected(cell.label, error.message),
                CommandLines(session.name).shell("status"),
            )
            error.accepted = True
            raise error from None
        run, follows = await record_execution(
            session, work, begun, execution, time.monotonic() - began
        )
        if follows.action is not run_decisions.NextAction.RETRY:
            break
        again = f"stepper ran it again after {follows.wait:g} s"
        work.notes.append(f"run {run.run}: {run.error}; {again}")
        if await _wait_before_retry(session, follows.wait, caller):
            run = replace(run, verdict=Verdict.CANCELLED, outcome=Outcome.CANCELLED)
            break
        work.repeat_count += 1
    return await finish_run(session, work, run, execution, follows)


async def record_execution(
    session: Session,
    work: CellWork,
    begun: journal_events.RunStarted,
    execution: Execution,
    elapsed: float,
) -> tuple[journal_events.RunEnded, run_decisions.RunDecision]:
    """Evaluate an execution, write its outputs and record the run.

    `elapsed` is the time in seconds, including waiting for the kernel. Return the run
    and the decision on what happens next.
    """
    state, cell = session.state, work.cell
    seconds = execution_time.measure_busy_seconds(execution.timings, elapsed)
    work.notes += execution_time.note_waiting_time(
        seconds, elapsed, execution.reconnected
    )
    fault, verdict = await judge_execution(
        session, cell, execution, work.cells, command_messages.format_rebuild(state)
    )
    execution.criterion_result = (
        session.diagnosis.get_criterion_result(execution.diagnosis_data)
        if work.criterion
        else None
    )
    run = journal_events.RunEnded(
        **vars(begun.create_run(execution.outcome, verdict, fault, seconds)),
        repeat=work.repeat_count,
        execution_count=execution.execution_count,
        displays=execution.displays,
        left_out=execution.left_out,
        request=begun.request,
        figures=session.diagnosis.describe_figures(execution),
        packages=run_decisions.find_new_packages(state, execution.namespace),
        imports=run_decisions.find_new_imports(state, execution.namespace),
        unmet=run_decisions.explain_false_criterion(
            state, begun, work.criterion, execution.criterion_result
        )
        if verdict is Verdict.FINE
        else "",
        bound=cell_dependencies.list_reported_bindings(
            session.analyze_names(begun.source), session.namespace
        )
        if session.speaks_python
        else {},
    )
    follows = run_decisions.decide_after_run(state, run, work.limits)
    if follows.action is not run_decisions.NextAction.RETRY:
        work.notes += session.outputs.write_outputs(
            cell, execution, run.step, run.run, work.keeps_mtime
        )
    work.notes += follows.notes
    session.log(run, sync=None)
    session.record_death(execution, f"cell {cell.number}")
    session.last_failed_execution = (
        execution if verdict is Verdict.RECOVERABLE else None
    )
    return run, follows


async def judge_execution(
    session: Session,
    cell: Cell,
    execution: Execution,
    cells: Sequence[Cell],
    built: str = "",
) -> tuple[Fault | None, Verdict]:
    """Return the fault of an execution, with its suggestion, and the verdict."""
    memory = execution.memory
    if memory:
        before, after = execution.namespace_before, execution.namespace
        if after is before:  # nothing was reported at its end
            after = UNKNOWN_NAMESPACE
        memory = "; ".join([memory, *command_messages.format_largest(before, after)])
    fault, verdict = run_decisions.judge_run(
        execution.outcome, execution.fault, cell.tags, execution.death, memory, built
    )
    if fault is not None:
        fault = await session.add_suggestion(
            fault, execution.diagnosis_data, execution.namespace, cell, cells
        )
    return fault, verdict


async def finish_run(
    session: Session,
    work: CellWork,
    run: journal_events.RunEnded,
    execution: Execution,
    follows: run_decisions.RunDecision,
) -> RunSummary:
    """Return the data for the report of a run; stop the notebook if required."""
    session.put_late()
    ended = summarize_run(session, work, run, execution)
    # pictures are made smaller, folders looked at
    slow = bool(execution.images) or run.verdict is not Verdict.FINE
    besides = (session, execution, run)
    seen, left = (
        await asyncio.to_thread(_describe_figures_and_effects, *besides)
        if slow
        else _describe_figures_and_effects(*besides)
    )
    met = execution.criterion_result is not None and execution.criterion_result.holds
    origins = _label_origins(session, work.cells) if run.fault else {}
    ended = replace(
        ended,
        origins=origins,
        figures=seen,
        warnings=left,
        criterion_met=met,
        unmet=run.unmet,
    )
    # only the agent's own runs stop the agent
    if follows.action is run_decisions.NextAction.STOP and not run.outside_agent:
        session.stop_notebook(work.key, ended, follows.attempts + work.repeat_count)
    if session.state.plan.steps and not session.state.open_steps:
        session.state.compare_with_notebook(work.cells)
    if session.state.is_complete and not work.was_complete:
        with contextlib.suppress(NotebookError):  # it may be gone by now
            document = session.file.read()
            stands = format_order(session, document.cells)
            session.needs_replay = run_decisions.should_verify(
                session.state, work.limits, document.cells
            )
            tail = command_messages.format_completion(
                session.name,
                session.state,
                document.figure_count,
                stands,
                session.needs_replay,
            )
            ended = replace(
                ended,
                tail=tail,
                completion=command_messages.format_completion_line(session.state),
            )
    elif (
        session.state.plan.steps
        and not session.state.open_steps
        and session.state.open_cells
    ):
        tail = [
            f"No step is left, but the notebook is not complete. {command_messages.format_open_cells(session.state)}"
        ]
        ended = replace(ended, tail=tail)
    return ended


def summarize_run(
    session: Session, work: CellWork, run: Run, execution: Execution
) -> RunSummary:
    """Return the data for the report of a run."""
    state, kernel = session.state, session.kernel_manager.kernel
    about = kernel.describe() if kernel else None
    return RunSummary(
        cell=work.cell,
        run=run,
        outputs=execution.outputs,
        plan=state.plan,
        next_step=state.plan.find_step(
            state.find_open_step(StepStatus.CRITERION_FALSE) or state.find_open_step()
        ),
        attempts=state.progress_of(work.key).attempts,
        max_retries=work.limits.max_retries,
        timeout=work.timeout,
        max_timeout=work.limits.max_cell_timeout_seconds,
        notes=[
            *work.notes,
            *command_messages.format_late_outputs(state, work.cells),
            *attached_clients.format_executions(state),
        ],
        captured=execution.widget_outputs,
        completeness=_get_completeness(execution),
        modules=local_modules.format_module_changes(
            execution.module_changes, session.name
        ),
        inserted_sources=execution.next_inputs,
        comment=session.comment,
        commands=state.commands,
        where=format_location(about.location, about.walltime_left, about.problem)
        if about
        else "",
    )


def _get_completeness(execution: Execution) -> Completeness:
    """Return how much of a run's outputs the notebook contains."""
    if not execution.in_notebook:
        return Completeness.UNKNOWN
    return Completeness.PART if execution.left_out else Completeness.WHOLE


def _describe_figures_and_effects(
    session: Session, execution: Execution, run: Run
) -> tuple[list[str], list[str]]:
    """Return the figure summary, and side effects or warnings."""
    adviser = session.diagnosis
    # by the clock that files are stamped by
    since_ns = int(parse_moment(run.started_at).timestamp() * 1e9)
    if run.verdict is Verdict.FINE:
        left = adviser.find_warnings(execution)
    else:
        how = "its interrupt" if run.outcome is Outcome.CANCELLED else "failing"
        left = adviser.describe_side_effects(
            execution.diagnosis_data,
            None if session.kernel_manager.is_remote else since_ns,
            how,
        )
    seen = adviser.summarize_figures(execution, run.run)
    kernel = session.kernel_manager.kernel
    is_here = kernel is not None and not kernel.describe().location
    if is_here and adviser.can_render(execution):
        seen = [
            *seen,
            command_messages.format_render_hint(session.state.commands, run.number),
        ]
    return seen, left


async def _wait_before_retry(session: Session, wait: float, caller: Caller) -> bool:
    """Wait before a cell runs again; return True if interrupted."""
    session.running_caller = caller
    session.retry_interrupted.clear()
    try:
        await asyncio.wait_for(session.retry_interrupted.wait(), wait)
    except asyncio.TimeoutError:
        return False
    finally:
        session.running_caller = None
    return True


def _handle_start_failure(
    session: Session, work: CellWork, caller: Caller, error: KernelError
) -> RunSummary:
    """Report that no kernel could start; stop the notebook if required."""
    if not error.stops_notebook:
        raise error
    fault = Fault(
        "KernelStartFailed",
        f"the cell was NOT run: {error.message}",
        ("KernelStartFailed",),
    )
    run = work.create_started_event(0, caller).create_run(
        Outcome.KERNEL_DIED, Verdict.UNRECOVERABLE, fault, 0.0
    )
    work.notes, work.timeout = [], 0.0
    ended = summarize_run(session, work, run, Execution(run.outcome))
    if not caller.is_outside_agent:
        session.stop_notebook(
            work.key, ended, session.state.progress_of(work.key).attempts, error.hint
        )
    return ended


def _label_origins(session: Session, cells: Sequence[Cell]) -> dict[int, str]:
    """Return the labels of the cells that ran, by execution count."""
    names = {cell.id: cell.label for cell in cells if cell.is_code}
    return {
        n: names.get(cell_id, "a cell that is gone")
        for n, cell_id in session.state.cells_by_execution_count.items()
    }
