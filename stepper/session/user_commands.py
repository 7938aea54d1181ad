"""Commands that run cells or change a notebook: run, eval, fix, skip, plan."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from stepper.common.errors import (
    KernelError,
    NotebookError,
    StepperError,
    UsageError,
)
from stepper.messages import changed_outputs, command_messages, local_modules
from stepper.messages import run_report as reports
from stepper.messages.quoted_output import TEXT_LIMIT, get_terminal_text
from stepper.policy import (
    cell_changes,
    cell_directives,
    edit_gate,
    execution_time,
    journal_events,
    plan,
)
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.comparison.recorded_outputs import ChangedOutput
from stepper.policy.model import Cell, Key, Outcome, Plan, Run, StepStatus, Verdict
from stepper.policy.notebook_state import State
from stepper.session import progress_events, responses, stale_cells, status_queries
from stepper.session.cell_run import judge_execution, run_cell
from stepper.session.clients import Caller
from stepper.session.kernel_manager import format_now
from stepper.session.output_changes import RecordedOutputs
from stepper.session.protocols import KernelMetadata
from stepper.session.session import Session

# a step that `continue` reopens
STEP = re.compile(r"(?:reopen )?(?:step )?(\d{1,6})", re.IGNORECASE)
Runs = list[reports.RunSummary] | None


async def create_notebook(session: Session, made: Plan) -> None:
    """Start the journal of a new notebook."""
    await session.interrupt()  # a cell of the one before may run for hours
    async with session.turn():
        await session.kernel_manager.shut_down(
            "its notebook was replaced by a new one of that name"
        )
        session.log(journal_events.Created(at=format_now()))
        session.log(
            journal_events.PlanChanged(at=format_now(), plan=plan.to_json(made))
        )


async def run(
    session: Session,
    which: str,
    caller: Caller,
    progress: progress_events.ProgressCallback,
    all_ended: Runs = None,
) -> responses.RunResponse:
    """Run the pending, all or stale cells, or restore the state of the kernel.

    The run ends at the first failure. The results are appended to `all_ended`.
    """
    if which == "restore":
        return await restore(session, caller, progress, all_ended)
    async with session.turn(caller=caller):
        why = None if caller.is_outside_agent else edit_gate.check_stop(session.state)
        if why:
            raise StepperError(f"nothing ran: {why}")
        document, state = session.read_with_unique_ids(), session.state
        notebook = document.cells
        cells = cell_changes.select_not_run(
            notebook, {} if which == "all" else state.succeeded_sources
        )
        recorded = again = None
        if which == "all":
            recorded = RecordedOutputs(session, document, cells)
            await _shut_down_kernel(
                session, caller, "it was restarted for a run of all cells"
            )
        if which == "stale":
            cells, again = (
                stale_cells.select_cells_to_run(session, notebook),
                functools.partial(stale_cells.select_cells_to_run, session, notebook),
            )
        return await _run_cells(
            session,
            which,
            notebook,
            cells,
            caller,
            progress,
            all_ended,
            again=again,
            recorded=recorded,
        )


async def restore(
    session: Session,
    caller: Caller,
    progress: progress_events.ProgressCallback,
    all_ended: Runs = None,
) -> responses.RestoreResponse:
    """Run the cells that succeeded again, in a new kernel.

    The run ends at the first cell that changed or has another result. The notebook
    stays stopped unless the death of the kernel caused the stop.
    """
    async with session.turn(caller=caller):
        document = session.read_with_unique_ids()
        notebook = document.cells
        last = {run.cell_id: run for run in session.state.runs}
        well = {
            cell_id: run for cell_id, run in last.items() if run.verdict is Verdict.FINE
        }
        cells = [
            cell for cell in cell_changes.select_runnable(notebook) if cell.id in well
        ]
        known = {cell_id: run.source_hash for cell_id, run in well.items()}
        changed = next(iter(cell_changes.select_not_run(cells, known)), None)
        if changed is not None:
            cells = cells[: cells.index(changed)]
        recorded = RecordedOutputs(session, document, cells)
        await _shut_down_kernel(
            session, caller, "it was restarted to restore the notebook's state"
        )
        keeps_stop = session.state.stop is not None and not edit_gate.restore_resumes(
            session.state, caller.interface == "mcp"
        )
        session.log(journal_events.Restored(at=format_now(), keeps_stop=keeps_stop))
        gone = len(well.keys() - {cell.id for cell in notebook})
        ended = await _run_cells(
            session,
            "restore",
            notebook,
            cells,
            caller,
            progress,
            all_ended,
            before=well,
            recorded=recorded,
        )
        if changed is not None and ended.ok:
            why = f"{ended.ran} cells are restored; {changed.label} was changed since it ran: it was NOT run"
            ended = replace(ended, ok=False, report=f"stepper: {why}")
        if keeps_stop and ended.ok:
            ended = replace(
                ended,
                report=command_messages.format_still_stopped(
                    session.name, session.state
                ),
            )
        return responses.RestoreResponse(**vars(ended), gone=gone)


async def _shut_down_kernel(session: Session, caller: Caller, why: str) -> None:
    """Shut down the kernel before a run in a new one."""
    await _check_start(session, caller)
    await session.kernel_manager.shut_down(why)
    session.state.lost_reason = ""


async def _check_start(session: Session, caller: Caller) -> None:
    """Raise KernelError where no fresh kernel may start: then the old one stays."""
    at = session.kernel_manager.get_launch_config(
        caller.environ, session.state.plan.kernel
    ).backend
    kernel = (
        await session.kernel_manager.find() if at is not None and at.attaches else None
    )
    if (
        kernel is not None
        and kernel.describe().is_external
        and await kernel.check_death() is None
    ):
        why = f"{kernel.describe().location} was named by its id: it is left as it is, with its variables, and none is started"
        raise KernelError(
            why,
            f"restart it there; or {CommandLines(session.name).shell('use --kernel NAME')}  # another place",
        )


async def _run_cells(
    session: Session,
    which: str,
    notebook: Sequence[Cell],
    cells: Sequence[Cell],
    caller: Caller,
    progress: progress_events.ProgressCallback,
    all_ended: Runs,
    before: Mapping[str, Run] | None = None,
    again: Callable[[int], Sequence[Cell]] | None = None,
    recorded: RecordedOutputs | None = None,
) -> responses.RunResponse:
    """Run cells until one fails or differs from the run in `before`.

    `again` returns the cells to run below an index. New outputs are compared with the
    `recorded` ones.
    """
    done, failed, results, cells = 0, None, list[responses.CellResult](), [*cells]
    runs = list[reports.RunSummary]()
    for position, cell in enumerate(cells, 1):
        progress(
            progress_events.CellStarted(
                cell=cell.number, position=position, of=len(cells)
            )
        )
        ended = await run_cell(session, notebook, cell, caller, keep_time=False)
        progress(
            progress_events.CellFinished(
                position=position, of=len(cells), line=reports.format_line(ended)
            )
        )
        results.append(_create_result(ended))
        runs.append(ended)
        if all_ended is not None:
            all_ended.append(ended)
        found = session.record_report(reports.format_run(ended), ended)
        if ended.run.verdict is not Verdict.FINE:
            failed = found
            break
        done += 1
        cells[position:] = again(cell.index) if again else cells[position:]
        if before is not None and before[cell.id].outcome is not ended.run.outcome:
            told = f"It ended otherwise than before ({before[cell.id].outcome.value})."
            failed = replace(found, text=f"{found.text}\n{told}")
            break
    skipped = sum(
        cell.is_code and cell_changes.SKIP_TAG in cell.tags for cell in notebook
    )
    text = failed.text if failed else ""
    left = (
        stale_cells.report_new(session, notebook, cells) if cells and not failed else ""
    )
    stop = ""
    if which != "restore" and caller.is_outside_agent:
        stop = command_messages.format_agent_stopped(session.name, session.state)
    changed = list[ChangedOutput]()
    if recorded is not None:
        changed = await recorded.find_changed(runs)
        cause = local_modules.format_changed_since_recorded(
            recorded.list_changed_modules()
        )
        check = (
            changed_outputs.format_verify_hint(session.name)
            if changed and not failed
            else ""
        )
        lines = [*changed_outputs.format_changed_outputs(changed), cause, check, left]
        left = "\n".join(filter(None, lines))
    if left and all_ended:
        all_ended[-1] = replace(all_ended[-1], stale_lines=left)
    return responses.RunResponse(
        session.name,
        failed is None,
        done,
        len(cells),
        skipped,
        text,
        results,
        left,
        which,
        stop,
        changed,
    )


def _create_result(ended: reports.RunSummary) -> responses.CellResult:
    run, output = ended.run, get_terminal_text(ended.outputs)[:TEXT_LIMIT]
    return responses.CellResult(
        ended.cell.number,
        run.cell_id,
        run.step,
        run.run,
        run.outcome.value,
        run.duration_s,
        run.fault,
        output,
    )


async def evaluate(
    session: Session, source: str, caller: Caller, starts: bool = False
) -> responses.EvalResponse:
    """Run code in the kernel without changing the notebook.

    Raise StepperError if there is no kernel; `starts` allows a new one if no state was
    lost.
    """
    if why := cell_changes.find_encoding_problem(source):
        raise UsageError(why)
    async with session.turn(caller=caller):
        kernel = session.kernel_manager.kernel
        if kernel is None and starts and not session.state.lost_reason:
            session.read()  # none is begun for another language's
            kernel = await session.kernel_manager.get_kernel(
                caller.environ, caller.disconnected
            )
        if kernel is not None:
            await session.get_namespace(
                kernel
            )  # which notices a kernel that died just now
        if kernel is None or await kernel.check_death() is not None:
            why = f"{session.name} has no live kernel: there is nothing to look at"
            raise StepperError(why, CommandLines(session.name).shell("run"))
        limits, asked = session.limits(), cell_directives.parse(source)
        most = limits.max_cell_timeout_seconds
        timeout = cell_directives.select_deadline(
            asked, limits.cell_timeout_seconds, most, caller.timeout
        )
        began, at = time.monotonic(), format_now()
        cell = Cell("eval", -1, 0, "code", source)
        begun = journal_events.RunStarted(
            run=0, key=cell.id, at=at, cell_id=cell.id, source=source, timeout=timeout
        )
        session.scratch_run = begun
        try:
            execution = await session.execute(
                kernel, source, caller, timeout, limits, scratch=True
            )
        finally:
            session.scratch_run = None
        elapsed = time.monotonic() - began
        took = execution_time.measure_busy_seconds(execution.timings, elapsed)
        cells = list[Cell]()
        if execution.outcome is not Outcome.OK:
            # the code has run: what it said matters more
            with contextlib.suppress(NotebookError):
                cells = [*session.read().cells]
        fault, verdict = await judge_execution(session, cell, execution, cells)
        session.record_death(execution, "`stepper eval`")
        run = begun.create_run(execution.outcome, verdict, fault, took)
        session.log(
            journal_events.ScratchExecuted(
                at=at,
                source=source,
                outcome=run.outcome,
                duration_s=run.duration_s,
                fault=fault,
            )
        )
        shows_pictures = bool(execution.images)
        seen = (
            await asyncio.to_thread(session.diagnosis.summarize_figures, execution, 0)
            if shows_pictures
            else []
        )
        text = reports.format_scratch(
            reports.RunSummary(
                cell,
                run,
                execution.outputs,
                timeout=timeout,
                max_timeout=most,
                figures=seen,
                modules=local_modules.format_module_changes(
                    execution.module_changes, session.name
                ),
            )
        )
        output, figures = (
            get_terminal_text(execution.outputs),
            session.diagnosis.list_saved_figures(0)[: len(execution.images)],
        )
        return responses.EvalResponse(
            session.name,
            source,
            run.outcome,
            run.duration_s,
            fault,
            text,
            output,
            figures,
        )


async def restart(session: Session, caller: Caller) -> bool:
    """Start a new kernel in place of the old one; return whether there was one."""
    await _check_start(session, caller)
    await session.interrupt()
    async with session.turn():
        had = await session.kernel_manager.shut_down("its restart was requested")
        if not had:
            session.read()  # none is begun for another language's notebook
        # the kernel's own end had stopped it
        if session.state.stop is not None and session.state.stop.key is None:
            session.log(journal_events.Continued(at=format_now()))
        await session.kernel_manager.get_kernel(caller.environ, caller.disconnected)
        return had


async def shutdown(session: Session, why: str) -> bool:
    """Shut down the kernel; return whether there was one."""
    await session.interrupt()
    async with session.turn():
        return await session.kernel_manager.shut_down(why)


async def end_idle_kernel(session: Session, last_used: float, why: str) -> bool:
    """Shut down the kernel unless something ran after `last_used`.

    Return whether it was shut down.
    """
    async with session.turn():
        if session.last_used != last_used or not session.kernel_manager.kernel:
            return False
        return await session.kernel_manager.shut_down(why)


async def resume(session: Session, answer: str = "") -> str:
    """Resume a stopped notebook; return the context and the user's answer."""
    lifted = session.state.stop
    number = find_skipped_step(session, answer)
    if number is not None:
        reopen(session, number)
        return command_messages.format_reopen(session.name, session.state, number)
    if lifted is not None:
        session.log(journal_events.Continued(at=format_now(), answer=answer.strip()))
    known, alive = await status_queries.get_namespace(session)
    return command_messages.format_continue(
        session.name, session.state, known, alive, lifted, answer
    )


def find_skipped_step(session: Session, answer: str) -> int | None:
    """Return the skipped step that `continue step 3` reopens, or None."""
    named = STEP.fullmatch(answer.strip())
    if named is None or session.state.stop is not None:
        return None
    number = int(named[1])
    progress = session.state.progress.get(number)
    is_skipped = progress is not None and progress.status is StepStatus.SKIPPED
    return number if is_skipped else None


async def fix(session: Session, hint: str = "") -> str:
    """Resume with new retries for the failed step; return the error and the hint."""
    key, stop = find_failed_key(session), session.state.stop
    session.log(journal_events.Fixed(at=format_now(), key=key, hint=hint.strip()))
    cell = _find_cell(session, key)
    said = command_messages.format_fix(
        session.name, session.state, key, cell, session.limits().max_retries
    )
    return "\n".join([said, *command_messages.format_answer(stop, hint)])


async def skip(session: Session, reason: str) -> str:
    """Skip the failed step, or the next one, and resume; return the next step."""
    key, reason = find_failed_key(session), " ".join(reason.split())
    if session.state.stop is not None and key is None:  # no cell is to blame
        return await resume(session)
    key = (
        next((step.id for step in session.state.open_steps), None)
        if key is None
        else key
    )
    if key is not None:
        cell = _find_cell(session, key)
        session.log(journal_events.Skipped(at=format_now(), key=key, reason=reason))
        if cell is not None:
            session.file.add_tag(cell, cell_changes.SKIP_TAG)
    return command_messages.format_skip(session.name, session.state, key, reason)


def reopen(session: Session, number: int) -> responses.PlanResponse:
    """Reopen a skipped step; return the plan. Raise UsageError."""
    state = session.state
    if state.plan.find_step(number) is None:
        raise UsageError(f"there is no step {number}", _suggest_plan(session))
    if state.progress_of(number).status is not StepStatus.SKIPPED:
        raise UsageError(f"step {number} is not skipped", _suggest_plan(session))
    cell = _find_cell(session, number)
    if cell is not None:
        session.file.remove_tag(cell, cell_changes.SKIP_TAG)
    session.log(journal_events.Reopened(at=format_now(), key=number))
    return status_queries.get_plan(session)


def _suggest_plan(session: Session) -> str:
    return f"{session.state.commands.shell('plan')}  # shows the steps"


def use_kernel(session: Session, name: str, kernel: KernelMetadata) -> None:
    """Select the backend of the notebook's next kernel; raise NotebookError.

    '' selects the project's default.
    """
    made = replace(session.state.plan, kernel=name)
    session.file.write_plan(made, kernel)
    session.log(journal_events.PlanChanged(at=format_now(), plan=plan.to_json(made)))


def confirm(session: Session, words: str) -> str:
    """Mark a step done although its criterion is false; return the next step.

    Raise UsageError without a reason or such a step.
    """
    state, reason = session.state, " ".join(words.split())
    doubted = [
        step.id
        for step in state.plan.steps
        if state.status_of(step.id) is StepStatus.CRITERION_FALSE
    ]
    if not doubted:
        why = f"no step of {session.name} has a criterion that is false: there is nothing to confirm"
        raise UsageError(why, _suggest_plan(session))
    if not reason:
        raise UsageError(
            "say why the step is done although its criterion is false",
            state.commands.shell("confirm", '"REASON"'),
        )
    session.log(
        journal_events.Confirmed(at=format_now(), key=doubted[0], reason=reason)
    )
    return command_messages.format_confirm(session.name, state, doubted[0], reason)


def find_failed_key(session: Session) -> Key | None:
    """Return the step or cell that `fix` and `skip` apply to, or None."""
    state = session.state
    if state.stop is not None:
        return state.stop.key
    failing = [
        run.key
        for run in state.runs
        if state.progress_of(run.key).status is StepStatus.FAILED
    ]
    steps = [key for key in failing if isinstance(key, int)]
    loose = [
        key
        for key in failing
        if isinstance(key, str) and _find_cell(session, key) is not None
    ]
    return (steps or loose or [None])[-1]


def _find_cell(session: Session, key: Key | None) -> Cell | None:
    """Return the cell of a step or key, or None if it was removed."""
    name = None if key is None else session.state.progress_of(key).cell_id or key
    with contextlib.suppress(NotebookError):
        return (
            plan.find_cell(session.file.read().cells, name)
            if isinstance(name, str)
            else None
        )
    return None


async def change_plan(
    session: Session, change: Callable[[State], Plan]
) -> responses.PlanResponse:
    """Change the plan with a function; return it. Raise UsageError."""
    # While what was handed on runs, nobody waits for its end to plan on: file and
    # journal change in one go.
    async with (
        contextlib.nullcontext() if session.runs_in_background else session.turn()
    ):
        try:
            changed = change(session.state)
        except ValueError as error:
            raise UsageError(str(error), _suggest_plan(session)) from None
        session.log(
            journal_events.PlanChanged(at=format_now(), plan=plan.to_json(changed))
        )
        session.file.write_plan(changed)
    return status_queries.get_plan(session)
