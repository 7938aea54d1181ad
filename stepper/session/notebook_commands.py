"""Commands that run cells or change a notebook: run, eval, fix, skip, plan."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from stepper.common.errors import (
    KernelError,
    NotebookError,
    StepperError,
    UsageError,
)
from stepper.common.text import format_count
from stepper.messages import (
    changed_outputs,
    command_messages,
    module_reloads,
    run_report,
)
from stepper.messages.quoted_output import TEXT_LIMIT, get_terminal_text
from stepper.messages.run_report import RunSummary, capitalize_first
from stepper.policy import (
    cell_directives,
    changed_cells,
    edit_gate,
    journal_events,
    plan,
    run_time_measurement,
)
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.comparison.rerun_comparison import ChangedOutput
from stepper.policy.execution_result import Execution
from stepper.policy.model import (
    Cell,
    KernelMetadata,
    Key,
    Limits,
    Outcome,
    Plan,
    Run,
    StepStatus,
    Verdict,
)
from stepper.policy.notebook_state import State
from stepper.session import progress_events, responses, stale_cells, status_queries
from stepper.session.caller import Caller
from stepper.session.cells.cell_run import judge_execution, run_cell
from stepper.session.cells.sequence_result import SequenceResult
from stepper.session.protocols import Kernel
from stepper.session.rerun_output_changes import RecordedOutputs
from stepper.session.session import Session
from stepper.session.session_state.notebook_journal import format_now

# An answer to `continue` that reopens a skipped step.
REOPENED_STEP = re.compile(r"(?:reopen )?(?:step )?(\d{1,6})", re.IGNORECASE)


async def initialize_notebook(session: Session, new_plan: Plan) -> None:
    """Log the creation and the plan of a new notebook.

    Before that, interrupt and shut down the kernel of an earlier notebook with the same
    name.
    """
    # The running cell of an earlier notebook may take hours.
    await session.interrupt()
    async with session.take_turn():
        await session.kernel_manager.shut_down(
            "a new notebook with the same name replaced the notebook"
        )
        session.journal.log(journal_events.Created(at=format_now()))
        _log_plan(session, new_plan)


def _log_plan(session: Session, new_plan: Plan) -> None:
    """Log the new plan of a notebook."""
    plan_json = plan.to_json(new_plan)
    session.journal.log(journal_events.PlanChanged(at=format_now(), plan=plan_json))


async def run(
    session: Session,
    which: str,
    caller: Caller,
    progress: progress_events.ProgressCallback,
    result: SequenceResult | None = None,
) -> responses.RunResponse:
    """Run the pending, all or stale cells, or restore the kernel's variables.

    `which` is "pending", "all", "stale" or "restore". For "all", the kernel is shut
    down first, so the cells run in a new kernel. The run stops at the first failure.
    The finished runs and the failure are stored in `result`, if it is given. Raise
    StepperError if the agent requested the run and the notebook is stopped.
    """
    if which == "restore":
        return await restore(session, caller, progress, result)
    async with session.take_turn(caller=caller):
        if not caller.is_outside_agent:
            refusal = edit_gate.check_stop(session.state)
            if refusal:
                raise StepperError(f"nothing ran: {refusal}")
        document = session.read_with_unique_ids()
        cells = document.cells
        select_next = None
        recorded = None
        if which == "all":
            to_run = changed_cells.select_not_run(cells, {})
            recorded = RecordedOutputs(session, document, to_run)
            await _shut_down_kernel(
                session, caller, "the kernel was restarted for a run of all cells"
            )
        elif which == "stale":
            to_run = stale_cells.select_cells_to_run(session, cells)
            select_next = functools.partial(
                stale_cells.select_cells_to_run, session, cells
            )
        else:
            to_run = changed_cells.select_not_run(
                cells, session.state.succeeded_sources
            )
        sequence = CellSequence(session, cells, to_run, caller, progress, result)
        await sequence.run(select_next=select_next)
        return await _create_run_response(sequence, which, recorded)


async def restore(
    session: Session,
    caller: Caller,
    progress: progress_events.ProgressCallback,
    result: SequenceResult | None = None,
) -> responses.RestoreResponse:
    """Rerun the cells whose last run succeeded, in a new kernel.

    The restore stops at the first cell that was changed since its last run, or whose
    outcome differs from the last run. A stopped notebook stays stopped, unless
    `edit_gate.restore_resumes` says that `restore` resumes it.
    """
    async with session.take_turn(caller=caller):
        document = session.read_with_unique_ids()
        cells = document.cells
        selection = _select_to_restore(session, cells)
        # The recorded outputs must be read before the run replaces them.
        recorded = RecordedOutputs(session, document, selection.to_run)
        await _shut_down_kernel(
            session, caller, "the kernel was restarted to restore its variables"
        )
        is_mcp = caller.interface == "mcp"
        resumes = edit_gate.restore_resumes(session.state, by_agent=is_mcp)
        keeps_stop = session.state.stop is not None and not resumes
        session.journal.log(
            journal_events.Restored(at=format_now(), keeps_stop=keeps_stop)
        )
        sequence = CellSequence(
            session, cells, selection.to_run, caller, progress, result
        )
        await sequence.run(selection.earlier_runs)
        response = await _create_run_response(sequence, "restore", recorded)
        if selection.changed_cell is not None and response.ok:
            report = _format_partial_restore(response.ran, selection.changed_cell)
            response = replace(response, ok=False, report=report)
        if keeps_stop and response.ok:
            report = command_messages.format_still_stopped(session.name, session.state)
            response = replace(response, report=report)
        deleted_ids = selection.earlier_runs.keys() - {cell.id for cell in cells}
        return responses.RestoreResponse(**vars(response), gone=len(deleted_ids))


def _format_partial_restore(run_count: int, changed_cell: Cell) -> str:
    """Return the report on a restore that stopped at a changed cell."""
    label = capitalize_first(changed_cell.label)
    return (
        f"stepper: {format_count(run_count, 'cell')} ran again. {label} was not run"
        " again, because its source was changed after its last run."
    )


class RestoreSelection(NamedTuple):
    """The cells that `restore` reruns, and the successful runs by cell ID."""

    to_run: Sequence[Cell]
    earlier_runs: Mapping[str, Run]
    changed_cell: Cell | None  # the first cell with a changed source, if there is one


def _select_to_restore(session: Session, cells: Sequence[Cell]) -> RestoreSelection:
    """Select the cells whose last run succeeded, up to the first changed cell."""
    last_runs = {run.cell_id: run for run in session.state.runs}
    succeeded = {
        cell_id: run
        for cell_id, run in last_runs.items()
        if run.verdict is Verdict.FINE
    }
    runnable = changed_cells.select_runnable(cells)
    to_run = [cell for cell in runnable if cell.id in succeeded]
    hashes = {cell_id: run.source_hash for cell_id, run in succeeded.items()}
    not_run = changed_cells.select_not_run(to_run, hashes)
    if not not_run:
        return RestoreSelection(to_run, succeeded, None)
    changed_cell = not_run[0]
    unchanged = to_run[: to_run.index(changed_cell)]
    return RestoreSelection(unchanged, succeeded, changed_cell)


async def _shut_down_kernel(session: Session, caller: Caller, reason: str) -> None:
    """Shut down the kernel, so that the next run starts a new kernel.

    Raise KernelError if stepper must not replace the kernel.
    """
    await _check_replaceable(session, caller)
    await session.kernel_manager.shut_down(reason)
    session.journal.clear_lost_reason()


async def _check_replaceable(session: Session, caller: Caller) -> None:
    """Raise KernelError if stepper must not replace the kernel with a new one.

    stepper does not shut down a kernel that the user selected by its ID.
    """
    backend = session.kernel_manager.get_launch_config(
        caller.environ, session.state.plan.kernel
    ).backend
    if backend is None or not backend.description.attaches:
        return
    kernel = await session.kernel_manager.find_or_attach()
    if kernel is None or await kernel.check_death() is not None:
        return
    description = kernel.describe()
    if description.is_external:
        command = CommandLines(session.name).shell("use --kernel NAME")
        raise KernelError(
            f"the configuration selects {description.location} by its id: stepper does"
            " not restart this kernel, and its variables are kept",
            "restart the kernel on its Jupyter server, or select another backend:"
            f" {command}",
        )


class CellSequence:
    """Runs cells of a notebook in order, until a cell fails."""

    def __init__(
        self,
        session: Session,
        cells: Sequence[Cell],
        to_run: Sequence[Cell],
        caller: Caller,
        progress: progress_events.ProgressCallback,
        result: SequenceResult | None,
    ) -> None:
        self.session = session
        self.cells = cells  # all cells of the notebook
        # `run` may replace the cells that have not run yet.
        self.to_run = [*to_run]
        self.result = result or SequenceResult()
        self.success_count = 0
        self.caller = caller
        self._progress = progress

    async def run(
        self,
        earlier_runs: Mapping[str, Run] | None = None,
        select_next: Callable[[Sequence[str]], Sequence[Cell]] | None = None,
    ) -> None:
        """Run the cells until one fails or has another outcome than in `earlier_runs`.

        `earlier_runs` are runs by cell ID. `select_next`, if given, is called after
        each successful run with the IDs of the cells that have run; it returns the
        cells to run next. Raise StepperError if the first cell did not run because of
        an error; an error of a later cell is a failure, which the response reports.
        """
        for position, cell in enumerate(self.to_run, 1):
            try:
                summary = await self._run_cell(cell, position)
            except StepperError as error:
                if not self.result.finished:
                    raise
                self.result.failure = run_report.format_error(error)
                return
            self.result.finished.append(summary)
            report = self.session.journal.log_report(
                run_report.format_run(summary), summary
            )
            if summary.run.verdict is not Verdict.FINE:
                self.result.failure = report
                return
            self.success_count += 1
            if earlier_runs is not None:
                earlier_outcome = earlier_runs[cell.id].outcome
                if earlier_outcome is not summary.run.outcome:
                    difference = f"The earlier outcome was: {earlier_outcome.value}."
                    text = f"{report.text}\n{difference}"
                    self.result.failure = replace(report, text=text)
                    return
            if select_next is not None:
                done_ids = [done.id for done in self.to_run[:position]]
                self.to_run[position:] = select_next(done_ids)

    async def _run_cell(self, cell: Cell, position: int) -> RunSummary:
        """Run a cell, and report the progress before and after the run.

        `position` is the position of the cell among the cells to run, from 1.
        """
        total = len(self.to_run)
        self._progress(
            progress_events.CellStarted(cell=cell.number, position=position, of=total)
        )
        summary = await run_cell(
            self.session, self.cells, cell, self.caller, keep_time=False
        )
        line = run_report.format_line(summary)
        self._progress(
            progress_events.CellFinished(position=position, of=total, line=line)
        )
        return summary

    async def find_changed_outputs(
        self, recorded: RecordedOutputs | None
    ) -> list[ChangedOutput]:
        """Return the new outputs that differ from the recorded outputs."""
        if recorded is None:
            return []
        return await recorded.find_changed(self.result.finished)

    def report_changed_state(
        self, changed: Sequence[ChangedOutput], recorded: RecordedOutputs | None
    ) -> str:
        """Return report lines on changed outputs, changed modules and stale cells.

        Return an empty string if there are none. The stale cells count as reported
        afterwards. The lines are also added to the last summary.
        """
        is_ok = self.result.failure is None
        stale_lines = ""
        if self.to_run and is_ok:
            stale_lines = stale_cells.report_new(self.session, self.cells, self.to_run)
        lines = [stale_lines]
        if recorded is not None:
            modules = recorded.list_changed_modules()
            hint = ""
            if changed and is_ok:
                hint = changed_outputs.format_verify_hint(self.session.name)
            lines = [
                *changed_outputs.format_changed_outputs(changed),
                module_reloads.format_changed_since_recorded(modules),
                hint,
                stale_lines,
            ]
        text = "\n".join(filter(None, lines))
        finished = self.result.finished
        if text and finished:
            finished[-1] = replace(finished[-1], stale_lines=text)
        return text


async def _create_run_response(
    sequence: CellSequence, which: str, recorded: RecordedOutputs | None
) -> responses.RunResponse:
    """Return the response for a sequence of cells that ran.

    `which` is the kind of run. If `recorded` is given, the new outputs are compared
    with these outputs. The stale cells count as reported afterwards.
    """
    session = sequence.session
    changed = await sequence.find_changed_outputs(recorded)
    lines = sequence.report_changed_state(changed, recorded)
    stop_text = ""
    if which != "restore" and sequence.caller.is_outside_agent:
        stop_text = command_messages.format_agent_stopped(session.name, session.state)
    skipped_count = sum(
        cell.is_code and changed_cells.SKIP_TAG in cell.tags for cell in sequence.cells
    )
    failure = sequence.result.failure
    failure_text = failure.text if failure else ""
    return responses.RunResponse(
        notebook=session.name,
        ok=failure is None,
        ran=sequence.success_count,
        cells=len(sequence.to_run),
        skipped=skipped_count,
        report=failure_text,
        results=[_create_result(summary) for summary in sequence.result.finished],
        follows=lines,
        which=which,
        stop=stop_text,
        changed_outputs=changed,
    )


def _create_result(summary: RunSummary) -> responses.CellResult:
    """Return the result of a cell for the response."""
    run = summary.run
    output = get_terminal_text(summary.outputs)
    return responses.CellResult(
        cell=summary.cell.number,
        cell_id=run.cell_id,
        step=run.step,
        run=run.run,
        outcome=run.outcome.value,
        duration_s=run.duration_s,
        fault=run.fault,
        output=output[:TEXT_LIMIT],
    )


async def evaluate(
    session: Session, source: str, caller: Caller, may_start: bool = False
) -> responses.EvalResponse:
    """Execute code in the kernel without changing the notebook, and log the execution.

    Raise UsageError if the code cannot be encoded, and StepperError if no kernel is
    running. With `may_start`, start a kernel instead, unless variables were lost.
    """
    problem = changed_cells.find_encoding_problem(source)
    if problem:
        raise UsageError(problem)
    async with session.take_turn(caller=caller):
        kernel = await _get_or_start_kernel(session, caller, may_start)
        limits = session.limits()
        timeout = cell_directives.select_deadline(
            cell_directives.parse(source),
            limits.cell_timeout_seconds,
            limits.max_cell_timeout_seconds,
            caller.timeout,
        )
        # The cell is not in the notebook: it has neither an index nor a number.
        cell = Cell("eval", -1, 0, "code", source)
        started = journal_events.RunStarted(
            run=0,
            key=cell.id,
            at=format_now(),
            cell_id=cell.id,
            source=source,
            timeout=timeout,
        )
        execution, elapsed = await _execute_scratch(
            session, kernel, started, caller, limits
        )
        run = await _record_scratch_run(session, cell, started, execution, elapsed)
        summary = await _summarize_scratch_run(session, cell, run, execution, timeout)
        figures = session.language.diagnosis.list_saved_figures(run.run)
        return responses.EvalResponse(
            notebook=session.name,
            source=source,
            outcome=run.outcome,
            duration_s=run.duration_s,
            fault=run.fault,
            text=run_report.format_scratch(summary),
            output=get_terminal_text(execution.outputs),
            # The folder may also contain figures of earlier scratch executions.
            figures=figures[: len(execution.images)],
        )


async def _summarize_scratch_run(
    session: Session, cell: Cell, run: Run, execution: Execution, timeout: float
) -> RunSummary:
    """Save the figures of a scratch execution; return the data for its report.

    `timeout` is the deadline of the execution in seconds.
    """
    figure_lines: list[str] = []
    if execution.images:
        figure_lines = await asyncio.to_thread(
            session.language.diagnosis.summarize_figures, execution, run.run
        )
    return RunSummary(
        cell,
        run,
        execution.outputs,
        timeout=timeout,
        max_timeout=session.limits().max_cell_timeout_seconds,
        figures=figure_lines,
        modules=module_reloads.format_module_changes(
            execution.module_changes, session.name
        ),
    )


async def _record_scratch_run(
    session: Session,
    cell: Cell,
    started: journal_events.RunStarted,
    execution: Execution,
    elapsed: float,
) -> Run:
    """Judge a scratch execution and log it; return the run.

    `cell` stands for the executed code; `elapsed` is the time in seconds, including the
    wait for the kernel.
    """
    cells: Sequence[Cell] = ()
    if execution.outcome is not Outcome.OK:
        # The code has run: report its result even if the notebook is unreadable.
        with contextlib.suppress(NotebookError):
            cells = session.read().cells
    judgement = await judge_execution(session, cell, execution, cells)
    session.record_death(execution, "`stepper eval`")
    seconds = run_time_measurement.measure_busy_seconds(execution.timings, elapsed)
    run = started.create_run(
        execution.outcome, judgement.verdict, judgement.fault, seconds
    )
    session.journal.log(
        journal_events.ScratchExecuted(
            at=started.at,
            source=started.source,
            outcome=run.outcome,
            duration_s=run.duration_s,
            fault=run.fault,
            rebound=execution.undo.rebound if execution.undo else None,
            ends_reach=execution.undo is not None and execution.undo.ends_reach,
        )
    )
    return run


async def _get_or_start_kernel(
    session: Session, caller: Caller, may_start: bool
) -> Kernel:
    """Return the kernel for a scratch execution.

    Raise StepperError if no kernel is running. With `may_start`, start a kernel
    instead, unless variables were lost.
    """
    kernel = session.kernel_manager.kernel
    if kernel is None and may_start and not session.state.lost_reason:
        session.read()  # raises an error for a notebook in another language
        kernel = await session.kernel_manager.get_or_start_kernel(
            caller.environ, caller.disconnected
        )
    if kernel is not None:
        # This request also detects the death of the kernel.
        await session.namespace_tracker.fetch(kernel)
        if await kernel.check_death() is None:
            return kernel
    raise StepperError(
        f"{session.name} has no running kernel: the code did not run",
        CommandLines(session.name).shell("run"),
    )


async def _execute_scratch(
    session: Session,
    kernel: Kernel,
    started: journal_events.RunStarted,
    caller: Caller,
    limits: Limits,
) -> tuple[Execution, float]:
    """Execute code outside a cell; return the result and the duration in seconds."""
    started_at = time.monotonic()
    with session.requests.track_scratch_run(started):
        execution = await session.execute(
            kernel, started.source, caller, started.timeout, limits, scratch=True
        )
    return execution, time.monotonic() - started_at


async def restart(session: Session, caller: Caller) -> bool:
    """Replace the kernel with a new one; return whether a kernel was running.

    If the kernel had died while no cell was running, and the notebook stopped because
    of this, resume the notebook. Raise KernelError if stepper must not replace the
    kernel, or if the new kernel cannot start.
    """
    await _check_replaceable(session, caller)
    await session.interrupt()
    async with session.take_turn():
        had_kernel = await session.kernel_manager.shut_down("the kernel was restarted")
        if not had_kernel:
            session.read()  # raises an error for a notebook in another language
        stop = session.state.stop
        if stop is not None and stop.key is None:
            # The notebook stopped because the kernel died while no cell was running.
            session.journal.log(journal_events.Continued(at=format_now()))
        await session.kernel_manager.get_or_start_kernel(
            caller.environ, caller.disconnected
        )
        return had_kernel


async def shutdown(session: Session, reason: str) -> bool:
    """Interrupt and shut down the kernel; return whether a kernel was running."""
    await session.interrupt()
    async with session.take_turn():
        return await session.kernel_manager.shut_down(reason)


async def shut_down_idle_kernel(
    session: Session, last_used: float, reason: str
) -> bool:
    """Shut down the kernel unless code ran after `last_used` (monotonic clock).

    Return whether the kernel was shut down.
    """
    async with session.take_turn():
        if session.requests.last_used != last_used or not session.kernel_manager.kernel:
            return False
        return await session.kernel_manager.shut_down(reason)


async def resume(session: Session, answer: str = "") -> str:
    """Resume a stopped notebook, or reopen the skipped step that `answer` names.

    Return the text for the agent: the context and the user's answer.
    """
    resumed_stop = session.state.stop
    skipped_step = find_skipped_step(session, answer)
    if skipped_step is not None:
        reopen(session, skipped_step)
        return command_messages.format_reopen(session.name, session.state, skipped_step)
    if resumed_stop is not None:
        session.journal.log(
            journal_events.Continued(at=format_now(), answer=answer.strip())
        )
    namespace, is_alive = await status_queries.fetch_namespace(session)
    return command_messages.format_continue(
        session.name, session.state, namespace, is_alive, resumed_stop, answer
    )


def find_skipped_step(session: Session, answer: str) -> int | None:
    """Return the ID of the skipped step that an answer such as "step 3" names.

    Return None if the answer names no skipped step, or if the notebook is stopped.
    """
    match = REOPENED_STEP.fullmatch(answer.strip())
    if match is None or session.state.stop is not None:
        return None
    number = int(match[1])
    progress = session.state.progress.get(number)
    is_skipped = progress is not None and progress.status is StepStatus.SKIPPED
    return number if is_skipped else None


async def fix(session: Session, hint: str = "") -> str:
    """Resume a notebook and reset the retries of the failed step or cell.

    Return the text for the agent: the error and the user's hint.
    """
    key = find_failed_key(session)
    stop = session.state.stop
    session.journal.log(
        journal_events.Fixed(at=format_now(), key=key, hint=hint.strip())
    )
    text = command_messages.format_fix(
        session.name,
        session.state,
        key,
        _find_cell(session, key),
        session.limits().max_retries,
    )
    return "\n".join([text, *command_messages.format_answer(stop, hint)])


async def skip(session: Session, reason: str) -> str:
    """Skip the failed step or cell, and resume the notebook.

    If nothing failed, skip the next open step, if there is one. If no cell caused the
    stop, only resume the notebook. Return the text for the agent, which names the next
    step. Raise NotebookError, before anything is skipped, if the notebook cannot be
    read or the cell cannot be tagged.
    """
    key = find_failed_key(session)
    if key is None and session.state.stop is not None:
        return await resume(session)  # no cell caused the stop
    open_steps = session.state.open_steps
    if key is None and open_steps:
        key = open_steps[0].id
    reason = " ".join(reason.split())
    if key is None:
        return command_messages.format_skip(session.name, session.state, None, reason)
    session.file.read()  # `_find_cell` ignores a NotebookError
    cell = _find_cell(session, key)
    if cell is not None:
        session.file.add_tag(cell, changed_cells.SKIP_TAG)
    session.journal.log(journal_events.Skipped(at=format_now(), key=key, reason=reason))
    return command_messages.format_skip(session.name, session.state, key, reason)


def reopen(session: Session, number: int) -> responses.PlanResponse:
    """Reopen a skipped step, and remove the skip tag of its cell; return the plan.

    `number` is the ID of the step. Raise UsageError if the step does not exist or is
    not skipped, and NotebookError if the notebook cannot be read or written.
    """
    state = session.state
    if state.plan.find_step(number) is None:
        raise UsageError(
            f"the plan of {session.name} has no step {number}", _suggest_plan(session)
        )
    if state.get_progress(number).status is not StepStatus.SKIPPED:
        raise UsageError(f"step {number} is not skipped", _suggest_plan(session))
    session.file.read()  # `_find_cell` ignores a NotebookError
    cell = _find_cell(session, number)
    if cell is not None:
        session.file.remove_tag(cell, changed_cells.SKIP_TAG)
    session.journal.log(journal_events.Reopened(at=format_now(), key=number))
    return status_queries.get_plan(session)


def _suggest_plan(session: Session) -> str:
    """Return the hint of an error: the command that shows the plan."""
    return f"{session.state.commands.shell('plan')}  # shows the steps"


def use_kernel(session: Session, name: str, kernel: KernelMetadata) -> None:
    """Select the kernel backend `name` for the notebook's next kernel.

    An empty name selects the project's default backend. `kernel` is the kernelspec to
    write to the notebook. Raise NotebookError if the notebook cannot be written.
    """
    new_plan = replace(session.state.plan, kernel=name)
    session.file.write_plan(new_plan, kernel)
    _log_plan(session, new_plan)


def confirm(session: Session, reason: str) -> str:
    """Mark the first step with a false criterion as done.

    Return the text for the agent, which names the next step. Raise UsageError if no
    step has a false criterion, or if the reason is empty.
    """
    state = session.state
    step_ids = [
        step.id
        for step in state.plan.steps
        if state.get_step_status(step.id) is StepStatus.CRITERION_FALSE
    ]
    if not step_ids:
        raise UsageError(
            f"no step of {session.name} has a false criterion: there is nothing to"
            " confirm",
            _suggest_plan(session),
        )
    reason = " ".join(reason.split())
    if not reason:
        raise UsageError(
            "give a reason why the step is done although its criterion is false",
            state.commands.shell("confirm", '"REASON"'),
        )
    step_id = step_ids[0]
    session.journal.log(
        journal_events.Confirmed(at=format_now(), key=step_id, reason=reason)
    )
    return command_messages.format_confirm(session.name, state, step_id, reason)


def find_failed_key(session: Session) -> Key | None:
    """Return the key of the step or cell to which `fix` and `skip` apply, or None.

    Prefer the step or cell that stopped the notebook, then the last failed step, then
    the last failed cell that still exists.
    """
    state = session.state
    if state.stop is not None:
        return state.stop.key
    failed_keys = [
        run.key
        for run in state.runs
        if state.get_progress(run.key).status is StepStatus.FAILED
    ]
    steps = [key for key in failed_keys if isinstance(key, int)]
    if steps:
        return steps[-1]
    for key in reversed(failed_keys):
        if isinstance(key, str) and _find_cell(session, key) is not None:
            return key
    return None


def _find_cell(session: Session, key: Key | None) -> Cell | None:
    """Return the cell of a step or cell key, or None if it cannot be found."""
    if key is None:
        return None
    cell_id = session.state.get_progress(key).cell_id or key
    if not isinstance(cell_id, str):
        return None
    with contextlib.suppress(NotebookError):
        return plan.find_cell(session.file.read().cells, cell_id)
    return None


async def change_plan(
    session: Session, change: Callable[[State], Plan]
) -> responses.PlanResponse:
    """Replace the plan with the result of `change`; return the new plan.

    Raise UsageError if `change` raises ValueError, and NotebookError if the notebook
    cannot be written.
    """
    # A change of the plan does not wait for a background run. No turn is needed,
    # because there is no `await` between the changes of the file and of the journal.
    turn: contextlib.AbstractAsyncContextManager[None]
    if session.runs_in_background:
        turn = contextlib.nullcontext()
    else:
        turn = session.take_turn()
    async with turn:
        try:
            new_plan = change(session.state)
        except ValueError as error:
            raise UsageError(str(error), _suggest_plan(session)) from None
        session.file.write_plan(new_plan)
        _log_plan(session, new_plan)
    return status_queries.get_plan(session)
