"""Runs the cells that an agent writes: check, preflight check, run, report."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

from stepper.common.errors import KernelError, NotebookError, StepperError
from stepper.common.text import one_line
from stepper.messages import command_messages, run_report
from stepper.messages.run_report import Report, RunSummary
from stepper.notebooks.notebook_document import Document
from stepper.policy import (
    changed_cells,
    journal_events,
    plan,
    repeated_errors,
    run_decisions,
)
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.execution_result import Execution
from stepper.policy.model import (
    Cell,
    CellEdit,
    Consent,
    FileWrite,
    Outcome,
    Run,
    Verdict,
)
from stepper.session import stale_cells
from stepper.session.background import backgrounding
from stepper.session.caller import Caller
from stepper.session.cells import cell_undo
from stepper.session.cells.cell_run import create_work, run_cell, summarize_run
from stepper.session.session import Session
from stepper.session.undelivered_reports import pop_unreported_cells

STALE_LINE_LIMIT = 300  # characters of the line for the user


async def run_edited_cell(
    session: Session, edit: CellEdit, caller: Caller, is_repeated: bool = False
) -> Report | None:
    """Run a code cell that the agent inserted or replaced; return the report.

    After a deletion or an edit of a text cell, nothing runs: report the restored values
    and the stale cells. Return None if there is nothing to report. With `is_repeated`,
    the client repeats a call that an earlier daemon received. If the call was already
    handled, return its report.
    """
    if edit.mode == "delete":
        return await _report_deletion(session)
    if edit.cell_type not in (None, "code"):
        return _report_stale(session)
    caller.call_id = edit.tool_use_id
    must_wait = session.requests.is_locked
    async with _take_turn(session, caller, is_repeated=is_repeated):
        if session.journal.has_handled(edit.tool_use_id):
            if is_repeated:
                return session.journal.take_report(edit.tool_use_id)
            return None
        cells = session.read_with_unique_ids().cells
        cell = plan.find_edited_cell(cells, edit)
        if cell is None:
            missing = f"there is no cell {edit.cell_id!r}"
            if edit.cell_id is None:
                missing = "the inserted cell was not found"
            return run_report.format_not_run(
                f"{missing} in {session.name}",
                "Read the notebook again to see its cell ids",
            )
        if must_wait and edit.source and cell.source != edit.source:
            return run_report.format_not_run(
                f"{cell.label} was changed while it was queued: the call that"
                " changed it runs the new source"
            )
        new_cells = [cell] if edit.mode == "insert" else []
        report, _ = await run_cells(
            session, cells, [cell], new_cells, edit.consent, caller, is_only_cell=True
        )
        return report


def _take_turn(
    session: Session, caller: Caller, *, is_repeated: bool
) -> contextlib.AbstractAsyncContextManager[None]:
    """Return a context manager that waits for the turn of a call.

    With `is_repeated`, the client repeats a call that an earlier daemon received.
    """
    if is_repeated:
        return session.take_turn(reconnecting=caller)
    return session.take_turn(caller=caller)


def _restore_plan(session: Session, document: Document) -> Document:
    """Restore the plan if a write of the whole file removed it; return the notebook."""
    if plan.from_json(document.plan) is not None or not session.state.plan.steps:
        return document
    session.file.write_plan(session.state.plan)
    return session.read()


async def run_written_notebook(
    session: Session, write: FileWrite, caller: Caller, is_repeated: bool = False
) -> Report | None:
    """Run the new and changed code cells after the agent wrote a notebook file.

    Return the report, or None if there is nothing to report. With `is_repeated`, the
    client repeats a call that an earlier daemon received. In this case, run only the
    remaining cells, and return one report on all cells.
    """
    caller.call_id = write.tool_use_id
    if session.runs_in_background and not is_repeated:
        document = _restore_plan(session, session.read())
        if not backgrounding.list_other_pending_cells(session, document.cells):
            return None  # no cell would run, so do not wait for the background run
    async with _take_turn(session, caller, is_repeated=is_repeated):
        earlier_report = None
        if is_repeated:
            earlier_report = session.journal.take_report(write.tool_use_id)
        if session.journal.has_handled(write.tool_use_id):
            has_failed = earlier_report is not None and not earlier_report.ok
            # After a failed cell, the remaining cells of the call do not run.
            if not is_repeated or has_failed:
                return earlier_report
        last_sources = session.state.last_sources
        cells = _restore_plan(session, session.read_with_unique_ids()).cells
        to_run = changed_cells.select_not_run(cells, last_sources)
        new_cells = [cell for cell in to_run if cell.id not in last_sources]
        report, _ = await run_cells(
            session, cells, to_run, new_cells, write.consent, caller
        )
        if earlier_report and report:
            return run_report.join_reports([earlier_report, report])
        return earlier_report or report


async def run_cells(
    session: Session,
    cells: Sequence[Cell],
    to_run: Sequence[Cell],
    new_cells: Sequence[Cell],
    consent: Consent,
    caller: Caller,
    is_only_cell: bool = False,
) -> tuple[Report | None, list[RunSummary]]:
    """Run cells until one fails; return the report and the finished runs.

    Before that, undo the runs of deleted cells. `cells` are all cells of the notebook,
    and `new_cells` are the cells of `to_run` that were just inserted. `is_only_cell`
    means that the agent wrote a single cell. The report is None if there is nothing to
    report. Raise StepperError if the first cell did not run because of an error.
    """
    # The report of this call covers these cells.
    pop_unreported_cells(session, to_run)
    sentences = await cell_undo.undo_deleted_cells(
        session, cells, before_run=bool(to_run)
    )
    if to_run:
        for sentence in sentences:
            session.notices.add(sentence)
    finished: list[RunSummary] = []
    for cell in to_run:
        try:
            result = await _run_or_refuse(
                session,
                cells,
                cell,
                consent,
                caller,
                is_new=cell in new_cells,
                is_only_cell=is_only_cell,
            )
        except StepperError as error:
            if not finished and not error.accepted:
                raise
            result = run_report.format_error(error)
        if not isinstance(result, RunSummary):
            if not finished or result is None:
                return result, finished
            runs = run_report.format_runs(
                finished, len(to_run), is_next_unknown=result.is_unknown
            )
            return run_report.join_reports([runs, result]), finished
        finished.append(result)
        if result.run.verdict is not Verdict.FINE:
            break
    if not finished:
        return _report_stale(session, sentences), finished
    cells_run = [summary.cell for summary in finished]
    stale_lines = stale_cells.report_new(session, cells, cells_run)
    finished[-1] = replace(finished[-1], stale_lines=stale_lines)
    report = run_report.format_runs(finished, len(to_run))
    return session.journal.log_report(report, finished[-1]), finished


async def _report_deletion(session: Session) -> Report | None:
    """Undo the runs of deleted cells; report the restored values and the stale cells.

    While another request has the turn, nothing is undone; the next run then undoes the
    runs. Return None if there is nothing to report.
    """
    return _report_stale(session, await undo_deleted_cells_if_idle(session))


async def undo_deleted_cells_if_idle(session: Session) -> list[str]:
    """Undo the runs of deleted cells if no request has the turn.

    Return sentences on the restored values. If the notebook cannot be read, do nothing.
    """
    if session.requests.is_locked or session.kernel_manager.kernel is None:
        return []
    async with session.take_turn():
        with contextlib.suppress(NotebookError):  # the caller reports that error
            return await cell_undo.undo_deleted_cells(session, session.read().cells)
    return []


def _report_stale(session: Session, sentences: Sequence[str] = ()) -> Report | None:
    """Return a report on new stale cells after an edit that did not run a cell.

    `sentences` precede the lines on stale cells. Return None if there is nothing to
    report. The reported cells are not reported again.
    """
    stale_lines = stale_cells.report_new_after_edit(session)
    text = "\n".join(filter(None, [" ".join(sentences), stale_lines]))
    if not text:
        return None
    return Report(
        f"stepper: nothing ran. {text}",
        f"! {one_line(text, STALE_LINE_LIMIT)}",
    )


async def _run_or_refuse(
    session: Session,
    cells: Sequence[Cell],
    cell: Cell,
    consent: Consent,
    caller: Caller,
    *,
    is_new: bool,
    is_only_cell: bool,
) -> RunSummary | Report | None:
    """Run a cell if the policy allows the run; return the summary of the run.

    `is_new` means that the cell was just inserted, and `is_only_cell` that the agent
    wrote a single cell. Return a report if the cell must not run, and None if the cell
    need not run.
    """
    decision = run_decisions.decide_on_written_cell(
        session.state,
        cells,
        cell,
        consent,
        session.limits,
        is_new=is_new,
        is_only_cell=is_only_cell,
    )
    if decision.action is run_decisions.CellAction.WAIT:
        commands = CommandLines(session.name, session.state.commands.program)
        return command_messages.format_waits_for_user(
            decision.reason, commands.terminal("run")
        )
    if decision.action is run_decisions.CellAction.REFUSE:
        return run_report.format_not_run(decision.reason)
    if decision.action is not run_decisions.CellAction.RUN:
        return None
    last_run = decision.repeats
    if last_run is not None and await _would_repeat(session, last_run):
        # The edit removed the outputs of the last run.
        session.outputs.rewrite_failed_outputs(cell, last_run)
        return run_report.format_not_run(
            repeated_errors.explain_repeated_run(session.state, last_run)
        )
    if decision.needs_preflight:
        failed_check = await _run_preflight_check(session, cells, cell, caller)
        if failed_check:
            return failed_check
    return await run_cell(session, cells, cell, caller)


async def _would_repeat(session: Session, last_run: Run) -> bool:
    """Return whether a new run would certainly fail like the last run.

    Return False if this is unknown, for example because the kernel is remote.
    """
    namespace = session.namespace_tracker.current
    is_known = session.outputs.has_failed_execution and bool(namespace)
    if not is_known or session.kernel_manager.is_remote:
        return False
    has_changed = await asyncio.to_thread(
        session.language.diagnosis.has_changed_since, last_run, namespace
    )
    return not has_changed


async def _run_preflight_check(
    session: Session, cells: Sequence[Cell], cell: Cell, caller: Caller
) -> RunSummary | None:
    """Check a cell before its run; return the summary of a failed check.

    Return None if the cell may run. A failed check is logged and may stop the notebook.
    """
    try:
        kernel = await session.kernel_manager.get_or_start_kernel(
            caller.environ, caller.disconnected
        )
        namespace = await session.namespace_tracker.fetch(kernel)
    except KernelError:
        return None  # running the cell reports the error
    removed, returning = cell_undo.find_expected_changes(
        session, kernel, cells, cell, session.limits()
    )
    namespace = namespace.without_names(removed).with_names(returning)
    fault = session.language.diagnosis.check_before_run(cell, namespace)
    if fault is None:
        return None
    fault = await session.add_suggestion(fault, {}, namespace, cell, cells)
    fault = cell_undo.explain_removed_name(session, fault, removed, cell, cells)
    work = create_work(session, cells, cell)
    work = replace(work, timeout=0.0, notes=session.pop_notices())
    started = work.create_started_event(0, caller)  # the cell does not run
    run = started.create_run(Outcome.ERROR, Verdict.RECOVERABLE, fault, 0.0)
    failure = journal_events.PreflightFailed(**vars(run), at=started.at)
    decision = run_decisions.decide_after_preflight(session.state, failure, work.limits)
    session.journal.log(failure)
    summary = replace(
        summarize_run(session, work, failure, Execution(failure.outcome)),
        preflight_failed=True,
        counted=decision.counts,
    )
    if decision.action is run_decisions.NextAction.STOP:
        session.journal.stop_notebook(work.key, summary, decision.attempts)
    return summary
