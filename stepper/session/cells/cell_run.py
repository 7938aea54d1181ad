"""Runs one cell: executes it, evaluates the result, writes outputs and reports."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from stepper.common.errors import (
    KernelError,
    KernelUnreachableError,
    NotebookError,
    RequestInterruptedError,
    StepperError,
)
from stepper.common.text import one_line
from stepper.messages import (
    attached_clients,
    command_messages,
    module_reloads,
    statement_times,
    undo_report,
)
from stepper.messages.error_hint import format_hint
from stepper.messages.quoted_output import Completeness, format_location
from stepper.messages.run_report import RunSummary, format_run
from stepper.notebooks.journal_file import SyncMode
from stepper.policy import (
    changed_cells,
    journal_events,
    run_decisions,
    run_time_measurement,
)
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.dataflow import run_history
from stepper.policy.execution_result import Execution
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
from stepper.policy.namespace_model import UNKNOWN_NAMESPACE
from stepper.policy.undo_model import UndoRequest
from stepper.session.caller import Caller
from stepper.session.cells import cell_undo
from stepper.session.protocols import Kernel
from stepper.session.session import Session
from stepper.session.session_state.notebook_journal import format_now
from stepper.session.session_state.notebook_language import PYTHON_LANGUAGES
from stepper.session.stale_cells import format_order, update_dependencies


@dataclass
class CellWork:
    """A cell to run, the parameters of the run and the notes for its report."""

    cells: Sequence[Cell]  # all cells of the notebook
    cell: Cell
    key: Key  # the step or cell that the attempt counts for
    timeout: float  # in seconds
    limits: Limits
    keeps_mtime: bool  # preserve the modification time of the file
    notes: list[str]
    was_complete: bool  # whether the notebook was complete before the run
    criterion: str = ""
    wake: str = ""  # the pattern of an output line that wakes the agent
    repeat_count: int = 0  # how often stepper ran the cell again

    def create_started_event(
        self,
        run: int,
        caller: Caller,
        kernel: str = "",
        undo: UndoRequest | None = None,
    ) -> journal_events.RunStarted:
        """Return the journal event for the start of a run.

        `run` is the number of the run, or 0 if the cell does not run, and `kernel` the
        ID of the kernel. `undo` may contain earlier runs that the kernel undoes first.
        """
        restore = undo.restore if undo else None
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
            undoes=restore.own_runs if restore else (),
            undoes_others=restore.other_runs if restore else (),
            undoes_names=restore.sorted_names if restore else None,
        )


class RunResult(NamedTuple):
    """A logged run, its execution, and the decision on the next action.

    The next action is to retry the cell, to stop the notebook or to continue.
    """

    run: journal_events.RunEnded
    execution: Execution
    decision: run_decisions.RunDecision


def create_work(
    session: Session,
    cells: Sequence[Cell],
    cell: Cell,
    *,
    keep_time: bool = True,
    timeout_of_call: float | None = None,
) -> CellWork:
    """Return the work for a cell, with parameters from the plan and the limits.

    With `keep_time`, the modification time of the file is preserved. `timeout_of_call`
    is the timeout in seconds that the caller requested, if any.
    """
    limits = session.limits()
    parameters = run_decisions.make_run_parameters(
        session.state, cells, cell, limits, timeout_of_call
    )
    # A criterion is a Python expression.
    criterion = ""
    if session.language.is_python:
        criterion = parameters.criterion
    return CellWork(
        cells=cells,
        cell=cell,
        key=parameters.key,
        timeout=parameters.timeout,
        limits=limits,
        keeps_mtime=keep_time,
        notes=[*parameters.notes],
        was_complete=session.state.is_complete,
        criterion=criterion,
        wake=parameters.wake,
    )


async def run_cell(
    session: Session,
    cells: Sequence[Cell],
    cell: Cell,
    caller: Caller,
    *,
    keep_time: bool = True,
    recompute: bool = True,
) -> RunSummary:
    """Run a cell and retry it after transient errors; return the summary of the run.

    Stop the notebook if required. With `keep_time`, the modification time of the file
    is preserved. With `recompute`, first run the cells above that must compute values
    again; if one of these cells fails, return its summary. If the notebook stops
    because no kernel can start, return a summary with the run number 0. Raise
    StepperError if the cell did not run for another reason. If it is unknown whether
    the cell ran, the error's `accepted` attribute is true.
    """
    problem = changed_cells.find_encoding_problem(cell.source)
    if problem:
        raise StepperError(f"{cell.label}: {problem}")
    work = create_work(
        session, cells, cell, keep_time=keep_time, timeout_of_call=caller.timeout
    )
    if recompute:
        failed_summary = await _recompute(session, work, caller)
        if failed_summary is not None:
            return failed_summary
    try:
        result = await _run_once(session, work, caller)
    except KernelError as error:
        work.notes = []  # these notes are on a run that did not start
        return _handle_start_failure(
            session, work, caller, error, "the cell was NOT run"
        )
    try:
        result = await _retry(session, work, caller, result)
    except KernelError as error:
        return _handle_start_failure(
            session, work, caller, error, "the retry was NOT run"
        )
    return await finish_run(session, work, result)


async def _run_once(session: Session, work: CellWork, caller: Caller) -> RunResult:
    """Run a cell without retries; log the run and write its outputs.

    If the cell will be retried, no outputs are written. Raise StepperError if the cell
    did not run. If it is unknown whether the cell ran, the error's `accepted` attribute
    is true.
    """
    kernel = await session.kernel_manager.get_or_start_kernel(
        caller.environ, caller.disconnected
    )
    _check_language(session, kernel)
    description = kernel.describe()
    work.notes = [*session.pop_notices(), *work.notes]
    if not work.repeat_count:
        work.notes += command_messages.format_walltime_note(
            work.timeout, description.location, description.walltime_left
        )
    if caller.disconnected.is_set():
        raise RequestInterruptedError(
            "interrupted before the cell ran: the client disconnected"
        )
    work.notes += await cell_undo.undo_deleted_cells(
        session, work.cells, before_run=True
    )
    undo = cell_undo.create_request(session, kernel, work.cells, work.cell, work.limits)
    started = work.create_started_event(session.state.next_run, caller, kernel.id, undo)
    started_at = time.monotonic()
    session.journal.log(started, sync=SyncMode.NONE)
    execution = await _execute(session, kernel, work, started, caller, undo)
    elapsed = time.monotonic() - started_at
    return await record_execution(session, work, started, execution, elapsed)


async def _retry(
    session: Session, work: CellWork, caller: Caller, result: RunResult
) -> RunResult:
    """Run a cell again while the last decision is a retry; return the last result.

    `result` is the result of the first run. If a retry is cancelled, cannot start, or
    has an unknown result, write the outputs of the last run. Notes for the report are
    added to `work`. Raise StepperError, with a true `accepted` attribute, if it is
    unknown whether the cell ran again. Raise KernelError if the retry could not start
    and the notebook must be stopped.
    """
    while result.decision.action is run_decisions.NextAction.RETRY:
        run = result.run
        wait = result.decision.wait
        failure = f"run {run.run} failed: {run.error}"
        if not await session.requests.wait_for_retry(wait, caller):
            work.notes.append(f"{failure}; the retry was cancelled")
            write_unretried_outputs(session, work, result)
            return _mark_cancelled(result)
        retry_note = f"{failure}; stepper ran the cell again after {wait:g} s"
        work.notes.append(retry_note)
        work.repeat_count += 1
        try:
            result = await _run_once(session, work, caller)
        except StepperError as error:
            write_unretried_outputs(session, work, result)
            if error.accepted:
                raise
            work.repeat_count -= 1
            if isinstance(error, KernelError) and error.stops_notebook:
                _replace_note(work, retry_note, [failure])
                raise
            new_notes = [f"{failure}; the retry did not run: {error.message}"]
            if error.hint:
                new_notes.append(format_hint(one_line(error.hint)))
            _replace_note(work, retry_note, new_notes)
            is_interrupt = isinstance(error, RequestInterruptedError)
            if is_interrupt or caller.disconnected.is_set():
                return _mark_cancelled(result)
            return result
    return result


def _replace_note(work: CellWork, note: str, new_notes: Sequence[str]) -> None:
    """Replace a note for the report with other notes, at the same position."""
    position = work.notes.index(note)
    work.notes[position : position + 1] = new_notes


def _mark_cancelled(result: RunResult) -> RunResult:
    """Return the result of a failed run whose retry was cancelled.

    The user interrupted the retry, so the failure must not be reported as final.
    """
    cancelled_run = replace(
        result.run, verdict=Verdict.CANCELLED, outcome=Outcome.CANCELLED
    )
    return result._replace(run=cancelled_run)


async def _recompute(
    session: Session, work: CellWork, caller: Caller
) -> RunSummary | None:
    """Recompute values that the kernel cannot restore, by running other cells.

    These are the cells that assign the values. If the values are not recomputed, for
    example because this takes too long, only add a note to the report on the cell that
    needs the values. If one of the cells fails, return its summary, otherwise None.
    """
    kernel = session.kernel_manager.kernel
    if kernel is None:
        return None
    plan = cell_undo.plan_recomputation(
        session, kernel, work.cells, work.cell, work.limits
    )
    if plan is None:
        return None
    if not plan.cells:
        note = undo_report.format_costly_recomputation(
            plan.names, plan.seconds, session.state.commands
        )
        work.notes.append(note)
        return None
    started_at = time.monotonic()
    for cell in plan.cells:
        summary = await run_cell(
            session,
            work.cells,
            cell,
            caller,
            keep_time=work.keeps_mtime,
            recompute=False,
        )
        if summary.run.verdict is not Verdict.FINE:
            note = undo_report.format_failed_recomputation(plan.names, work.cell.number)
            return replace(summary, notes=[*summary.notes, note])
        session.journal.log_report(format_run(summary), summary)
    seconds = time.monotonic() - started_at
    numbers = [cell.number for cell in plan.cells]
    note = undo_report.format_recomputation(plan.names, numbers, seconds)
    work.notes.append(note)
    return None


def _check_language(session: Session, kernel: Kernel) -> None:
    """Raise KernelError if a Python notebook has a kernel of another language."""
    if session.language.is_python and kernel.language not in ("", *PYTHON_LANGUAGES):
        raise KernelError(
            f"{session.name} is a Python notebook, but its kernel runs"
            f" {one_line(kernel.language, 50)}",
            CommandLines(session.name).shell("use --kernel NAME"),
        )


async def _execute(
    session: Session,
    kernel: Kernel,
    work: CellWork,
    started: journal_events.RunStarted,
    caller: Caller,
    undo: UndoRequest | None,
) -> Execution:
    """Execute a cell.

    If the result cannot be determined, for example because the connection to the kernel
    is lost, raise KernelUnreachableError with a true `accepted` attribute: the cell may
    have run.
    """
    try:
        return await session.execute(
            kernel,
            work.cell.source,
            caller,
            work.timeout,
            work.limits,
            request=started.request,
            criterion=work.criterion,
            wake=work.wake,
            undo=undo,
        )
    except KernelError as error:
        # The journal contains the start of the run. The next turn asks the kernel for
        # the result. This includes a kernel that does not reply after the connection
        # was restored (KernelStartError): the cell was sent to this kernel.
        unknown_result = KernelUnreachableError(
            command_messages.format_disconnected(work.cell.label, error.message),
            CommandLines(session.name).shell("status"),
        )
        unknown_result.accepted = True
        raise unknown_result from None


async def record_execution(
    session: Session,
    work: CellWork,
    started: journal_events.RunStarted,
    execution: Execution,
    elapsed: float,
) -> RunResult:
    """Evaluate an execution, write its outputs and log the run.

    If the cell will be retried, no outputs are written. Notes for the report are added
    to `work`. `elapsed` is the time in seconds, including the wait for the kernel.
    """
    state = session.state
    cell = work.cell
    seconds = run_time_measurement.measure_busy_seconds(execution.timings, elapsed)
    work.notes += run_time_measurement.note_waiting_time(
        seconds, elapsed, has_reconnected=execution.reconnected
    )
    work.notes += cell_undo.record_restore(session, started, execution)
    fault, verdict = await judge_execution(
        session, cell, execution, work.cells, command_messages.format_rebuild(state)
    )
    execution.criterion_result = None
    if work.criterion:
        execution.criterion_result = session.language.diagnosis.get_criterion_result(
            execution.diagnosis_data
        )
    unmet_criterion = ""
    if verdict is Verdict.FINE:
        unmet_criterion = run_decisions.explain_false_criterion(
            state, started, work.criterion, execution.criterion_result
        )
    finished_run = started.create_run(execution.outcome, verdict, fault, seconds)
    run = _create_run_event(
        session, work, started, execution, finished_run, unmet_criterion
    )
    decision = run_decisions.decide_after_run(state, run, work.limits)
    # A retry replaces the outputs. Without it, see `write_unretried_outputs`.
    if decision.action is not run_decisions.NextAction.RETRY:
        work.notes += session.outputs.write_outputs(
            cell, execution, run.step, run.run, keep_time=work.keeps_mtime
        )
    work.notes += decision.notes
    session.journal.log(run, sync=SyncMode.BACKGROUND)
    session.record_death(execution, f"cell {cell.number}")
    has_failed = verdict is Verdict.RECOVERABLE
    failed_execution = execution if has_failed else None
    session.outputs.set_failed_execution(failed_execution)
    return RunResult(run, execution, decision)


def write_unretried_outputs(
    session: Session, work: CellWork, result: RunResult
) -> None:
    """Write the outputs of a run that is not retried, although this was decided.

    The notes on the outputs are added to the work.
    """
    run = result.run
    work.notes += session.outputs.write_outputs(
        work.cell, result.execution, run.step, run.run, keep_time=work.keeps_mtime
    )


def _create_run_event(
    session: Session,
    work: CellWork,
    started: journal_events.RunStarted,
    execution: Execution,
    run: Run,
    unmet_criterion: str,
) -> journal_events.RunEnded:
    """Return the journal event of a finished run.

    `unmet_criterion` is a text on the step's criterion if the criterion is false,
    otherwise an empty string.
    """
    state = session.state
    bindings = {}
    facts = execution.undo
    if session.language.is_python:
        bindings = run_history.list_reported_bindings(
            session.language.analyze_names(started.source),
            session.namespace_tracker.current,
            cell_undo.list_only_restored(facts),
            cell_undo.list_changed_in_place(facts),
        )
    return journal_events.RunEnded(
        **vars(run),
        repeat=work.repeat_count,
        execution_count=execution.execution_count,
        displays=execution.displays,
        left_out=execution.left_out,
        request=started.request,
        figures=session.language.diagnosis.describe_figures(execution),
        packages=run_decisions.find_new_packages(state, execution.namespace),
        imports=run_decisions.find_new_imports(state, execution.namespace),
        unmet=unmet_criterion,
        bound=bindings,
        **cell_undo.list_journaled_facts(facts),
    )


async def judge_execution(
    session: Session,
    cell: Cell,
    execution: Execution,
    cells: Sequence[Cell],
    lost_state: str = "",
) -> run_decisions.Judgement:
    """Return the fault of an execution, possibly with a suggestion, and the verdict.

    `cells` are all cells of the notebook. `lost_state` is a text on the variables that
    are lost if the kernel died.
    """
    memory = execution.memory
    if memory:
        before = execution.namespace_before
        after = execution.namespace
        if after is before:  # the kernel did not report its namespace afterwards
            after = UNKNOWN_NAMESPACE
        memory = "; ".join([memory, *command_messages.format_largest(before, after)])
    fault, verdict = run_decisions.judge_run(
        execution.outcome,
        execution.fault,
        cell.tags,
        execution.death,
        memory,
        lost_state,
    )
    if fault is not None:
        fault = await session.add_suggestion(
            fault, execution.diagnosis_data, execution.namespace, cell, cells
        )
        restore = None
        if execution.undo:
            restore = execution.undo.restore
        removed = restore.removed if restore else {}
        fault = cell_undo.explain_removed_name(session, fault, removed, cell, cells)
    return run_decisions.Judgement(fault, verdict)


async def finish_run(session: Session, work: CellWork, result: RunResult) -> RunSummary:
    """Finish a logged run: stop the notebook if required, and summarize the run."""
    run, execution, decision = result
    session.write_late_outputs()
    summary = summarize_run(session, work, run, execution)
    # Scaling images and listing folders takes time.
    is_slow = bool(execution.images) or run.verdict is not Verdict.FINE
    if is_slow:
        figure_lines, warnings = await asyncio.to_thread(
            _describe_figures_and_effects, session, execution, run
        )
    else:
        figure_lines, warnings = _describe_figures_and_effects(session, execution, run)
    criterion_result = execution.criterion_result
    origins = {}
    if run.fault:
        origins = _label_origins(session, work.cells)
    is_criterion_met = criterion_result is not None and criterion_result.holds
    summary = replace(
        summary,
        origins=origins,
        figures=figure_lines,
        warnings=warnings,
        criterion_met=is_criterion_met,
        unmet=run.unmet,
    )
    # Only the agent's own runs stop the agent.
    is_stop = decision.action is run_decisions.NextAction.STOP
    if is_stop and not run.outside_agent:
        session.journal.stop_notebook(
            work.key, summary, decision.attempts + work.repeat_count
        )
    if session.state.plan.steps and not session.state.open_steps:
        update_dependencies(session, work.cells)
        session.journal.compare_with_notebook(work.cells)
        return _add_completion(session, work, summary)
    return summary


def _add_completion(
    session: Session, work: CellWork, summary: RunSummary
) -> RunSummary:
    """Return the summary with a text on the complete notebook or on open cells.

    This is called after a run that leaves no step open. Request a replay if the
    notebook should be verified.
    """
    state = session.state
    if state.is_complete and not work.was_complete:
        # The notebook may have been deleted by now.
        with contextlib.suppress(NotebookError):
            document = session.file.read()
            order_lines = format_order(session, document.cells)
            needs_replay = run_decisions.should_verify(
                state, work.limits, document.cells
            )
            if needs_replay:
                session.requests.request_replay()
            tail = command_messages.format_completion(
                session.name,
                state,
                document.figure_count,
                order_lines,
                needs_replay,
            )
            completion = command_messages.format_completion_line(state)
            return replace(summary, tail=tail, completion=completion)
    elif state.open_cells:
        open_cells = command_messages.format_open_cells(state)
        line = f"No step is open, but the notebook is not complete. {open_cells}"
        tail = [line]
        if state.hidden_ids:
            tail.append(format_order(session, work.cells))
        return replace(summary, tail=tail)
    return summary


def summarize_run(
    session: Session, work: CellWork, run: Run, execution: Execution
) -> RunSummary:
    """Return the summary of a run for its report."""
    state = session.state
    # A step with a false criterion is the next step only if no other step is open.
    next_step = state.find_open_step(StepStatus.CRITERION_FALSE)
    if next_step is None:
        next_step = state.find_open_step()
    kernel = session.kernel_manager.kernel
    location = ""
    if kernel:
        description = kernel.describe()
        location = format_location(
            description.location, description.walltime_left, description.problem
        )
    return RunSummary(
        cell=work.cell,
        run=run,
        outputs=execution.outputs,
        plan=state.plan,
        next_step=next_step,
        attempts=state.get_progress(work.key).attempts,
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
        modules=module_reloads.format_module_changes(
            execution.module_changes, session.name
        ),
        inserted_sources=execution.next_inputs,
        comment=session.language.comment,
        commands=state.commands,
        where=location,
    )


def _get_completeness(execution: Execution) -> Completeness:
    """Return whether the notebook contains all, some or unknown outputs of a run."""
    if not execution.in_notebook:
        return Completeness.UNKNOWN
    if execution.left_out:
        return Completeness.PART
    return Completeness.WHOLE


def _describe_figures_and_effects(
    session: Session, execution: Execution, run: Run
) -> tuple[list[str], list[str]]:
    """Save the figures of a run; return the lines of the figure summary, and warnings.

    If the run did not succeed, the warnings describe its side effects.
    """
    diagnosis = session.language.diagnosis
    if run.verdict is Verdict.FINE:
        warnings = diagnosis.find_warnings(execution)
    else:
        warnings = _describe_side_effects(session, execution, run)
    figure_lines = diagnosis.summarize_figures(execution, run.run)
    kernel = session.kernel_manager.kernel
    is_local = kernel is not None and not kernel.describe().location
    if is_local and diagnosis.can_render(execution):
        hint = command_messages.format_render_hint(session.state.commands, run.number)
        figure_lines = [*figure_lines, hint]
    return figure_lines, warnings


def _describe_side_effects(
    session: Session, execution: Execution, run: Run
) -> list[str]:
    """Return lines on the times and the side effects of a run that did not succeed."""
    # Files of other machines can't be checked, and these machines have other clocks.
    files_since = None
    if not session.kernel_manager.is_remote:
        files_since = int(parse_moment(run.started_at).timestamp() * 1e9)
    is_cancelled = run.outcome is Outcome.CANCELLED
    event = "its interrupt" if is_cancelled else "failing"
    effects = session.language.diagnosis.describe_side_effects(
        execution.diagnosis_data, files_since, event
    )
    names = effects.names
    if execution.undo is not None:
        names = undo_report.format_next_start(
            execution.undo,
            bool(effects.cell_files),
            run.duration_s,
            session.language.comment,
        )
    times = statement_times.parse_times(execution.diagnosis_data.get("times"))
    failing_line = 0  # unknown
    if run.fault and run.fault.line:
        failing_line = run.fault.line
    return [
        *statement_times.format_times(times, run.duration_s, failing_line),
        *effects.commands,
        *names,
        *effects.cell_files,
        *effects.other_files,
    ]


def _handle_start_failure(
    session: Session,
    work: CellWork,
    caller: Caller,
    error: KernelError,
    consequence: str,
) -> RunSummary:
    """Summarize a run for which no kernel could start; stop the notebook if required.

    `consequence` says whether the cell or its retry was not run. Raise `error` if it
    does not stop the notebook.
    """
    if not error.stops_notebook:
        raise error
    fault = Fault(
        "KernelStartFailed",
        f"{consequence}: {error.message}",
        ("KernelStartFailed",),
    )
    started = work.create_started_event(0, caller)  # the cell does not run
    run = started.create_run(Outcome.KERNEL_DIED, Verdict.UNRECOVERABLE, fault, 0.0)
    work.timeout = 0.0
    summary = summarize_run(session, work, run, Execution(run.outcome))
    if not caller.is_outside_agent:
        attempts = session.state.get_progress(work.key).attempts
        session.journal.stop_notebook(work.key, summary, attempts, error.hint)
    return summary


def _label_origins(session: Session, cells: Sequence[Cell]) -> dict[int, str]:
    """Return the labels of the cells that ran, by execution count."""
    labels = {cell.id: cell.label for cell in cells if cell.is_code}
    return {
        count: labels.get(cell_id, "a deleted cell")
        for count, cell_id in session.state.cells_by_execution_count.items()
    }
