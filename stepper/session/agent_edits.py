"""Runs the cells that Claude Code writes: check, preflight, run, report."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from stepper.common.errors import KernelError, StepperError
from stepper.common.text import one_line
from stepper.messages import command_messages, run_report
from stepper.messages.run_report import Report, RunSummary
from stepper.policy import (
    cell_changes,
    journal_events,
    plan,
    repeated_errors,
    run_decisions,
)
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.model import (
    Cell,
    CellEdit,
    Consent,
    FileWrite,
    Outcome,
    Run,
    Verdict,
)
from stepper.session import backgrounding, stale_cells
from stepper.session.cell_run import create_work, run_cell, summarize_run
from stepper.session.clients import Caller
from stepper.session.protocols import Execution, Notebook
from stepper.session.session import Session
from stepper.session.undelivered_reports import take_unreported_cells


async def run_edited_cell(
    session: Session, edit: CellEdit, caller: Caller, again: bool = False
) -> Report | None:
    """Run a code cell that was inserted or replaced; None if nothing ran.

    `again` means that the first daemon exited; the report on that call is returned.
    """
    if edit.mode == "delete" or edit.cell_type not in (None, "code"):
        return _report_stale(session)
    caller.call_id, waits = edit.tool_use_id, session.lock.locked()
    async with session.turn(caller if again else None, None if again else caller):
        if session.was_handled(edit.tool_use_id):
            return session.find_report(edit.tool_use_id) if again else None
        cells = session.read_with_unique_ids().cells
        cell = plan.find_edited_cell(cells, edit)
        if cell is None:
            return run_report.format_not_run(
                f"no cell {edit.cell_id!r} in {session.name}",
                "Read the notebook again: its cell ids are shown there",
            )
        if waits and edit.source and cell.source != edit.source:
            return run_report.format_not_run(
                f"{cell.label} was replaced while it waited in line: its new source runs in its turn"
            )
        new = [cell] if edit.mode == "insert" else []
        return (
            await run_cells(
                session, cells, [cell], new, edit.consent, caller, alone=True
            )
        )[0]


def _restore_plan(session: Session, document: Notebook) -> Notebook:
    """Restore the plan if a write of the whole file removed it."""
    if plan.from_json(document.plan) is not None or not session.state.plan.steps:
        return document
    session.file.write_plan(session.state.plan)
    return session.read()


async def run_written_notebook(
    session: Session, write: FileWrite, caller: Caller, again: bool = False
) -> Report | None:
    """Run the new and changed code cells of a notebook that was written.

    `again` means that the first daemon exited; the remaining cells run.
    """
    caller.call_id = write.tool_use_id
    if (
        session.runs_in_background
        and not again
        and not backgrounding.list_other_pending_cells(
            session, _restore_plan(session, session.read()).cells
        )
    ):
        return None  # nothing of it would run: it does not wait for what was handed on
    async with session.turn(caller if again else None, None if again else caller):
        before = session.find_report(write.tool_use_id) if again else None
        if session.was_handled(write.tool_use_id) and (
            not again or (before is not None and not before.ok)
        ):
            return before
        ran_ever, cells = (
            session.state.last_sources,
            _restore_plan(session, session.read_with_unique_ids()).cells,
        )
        to_run = cell_changes.select_not_run(cells, ran_ever)
        new = [cell for cell in to_run if cell.id not in ran_ever]
        found, _ = await run_cells(session, cells, to_run, new, write.consent, caller)
        return (
            run_report.join_reports([before, found])
            if before and found
            else before or found
        )


async def run_cells(
    session: Session,
    cells: Sequence[Cell],
    to_run: Sequence[Cell],
    new: Sequence[Cell],
    consent: Consent,
    caller: Caller,
    alone: bool = False,
) -> tuple[Report | None, list[RunSummary]]:
    """Run cells until one fails; return the report and the finished cells."""
    take_unreported_cells(session, to_run)  # whatever comes of them is reported
    ended: list[RunSummary] = []
    for cell in to_run:
        try:
            found = await _run_or_refuse(
                session, cells, cell, consent, cell in new, caller, alone
            )
        except StepperError as error:
            if not ended and not error.accepted:
                raise
            found = (
                run_report.format_unknown
                if error.accepted
                else run_report.format_not_run
            )(error.message, error.hint)
        if not isinstance(found, RunSummary):
            told = (
                run_report.join_reports(
                    [run_report.format_runs(ended, len(to_run)), found]
                )
                if ended and found
                else found
            )
            return told, ended
        ended.append(found)
        if found.run.verdict is not Verdict.FINE:
            break
    if not ended:
        return _report_stale(session), ended
    ended[-1] = replace(
        ended[-1],
        stale_lines=stale_cells.report_new(
            session, cells, [each.cell for each in ended]
        ),
    )
    return session.record_report(
        run_report.format_runs(ended, len(to_run)), ended[-1]
    ), ended


def _report_stale(session: Session) -> Report | None:
    """Return a report on stale cells after an edit that ran nothing, or None."""
    told = stale_cells.report_new_after_edit(session)
    return (
        Report(f"stepper: nothing ran. {told}", f"! {one_line(told, 300)}")
        if told
        else None
    )


async def _run_or_refuse(
    session: Session,
    cells: Sequence[Cell],
    cell: Cell,
    consent: Consent,
    new: bool,
    caller: Caller,
    alone: bool,
) -> RunSummary | Report | None:
    """Run a cell, or return why it does not run."""
    decided = run_decisions.decide_on_written_cell(
        session.state, cells, cell, consent, session.limits, new, alone
    )
    if decided.action is run_decisions.CellAction.WAIT:
        commands = CommandLines(session.name, session.state.commands.program)
        return command_messages.format_waits_for_user(
            decided.reason, commands.terminal("run")
        )
    if decided.action is not run_decisions.CellAction.RUN:
        return (
            run_report.format_not_run(decided.reason)
            if decided.action is run_decisions.CellAction.REFUSE
            else None
        )
    if decided.repeats is not None and await _would_repeat(
        session, cell, decided.repeats
    ):
        return run_report.format_not_run(
            repeated_errors.explain_repeated_run(session.state, decided.repeats)
        )
    held = (
        await _preflight(session, cells, cell, caller)
        if decided.needs_preflight
        else None
    )
    return held or await run_cell(session, cells, cell, caller)


async def _would_repeat(session: Session, cell: Cell, last: Run) -> bool:
    """Whether a cell would certainly repeat its last result.

    The outputs, which the edit removed, are written again.
    """
    # in doubt it runs
    if (
        session.last_failed_execution is None
        or not session.namespace
        or session.kernel_manager.is_remote
    ):
        return False
    if await asyncio.to_thread(
        session.diagnosis.has_changed_since, last, session.namespace
    ):
        return False
    session.outputs.write_outputs(
        cell, session.last_failed_execution, last.step, last.run, keep_time=True
    )
    return True


async def _preflight(
    session: Session, cells: Sequence[Cell], cell: Cell, caller: Caller
) -> RunSummary | None:
    """Return the result of the preflight check, None if the cell may run."""
    try:
        known = await session.get_namespace(
            await session.kernel_manager.get_kernel(caller.environ, caller.disconnected)
        )
    except KernelError:
        return None  # running it tells
    fault = session.diagnosis.check_before_run(cell, known)
    if fault is None:
        return None
    fault = await session.add_suggestion(fault, {}, known, cell, cells)
    work = replace(
        create_work(session, cells, cell), timeout=0.0, notes=session.take_notices()
    )
    begun = work.create_started_event(0, caller)
    found = journal_events.PreflightFailed(
        **vars(begun.create_run(Outcome.ERROR, Verdict.RECOVERABLE, fault, 0.0)),
        at=begun.at,
    )
    follows = run_decisions.decide_after_preflight(session.state, found, work.limits)
    session.log(found)
    ended = replace(
        summarize_run(session, work, found, Execution(found.outcome)),
        preflight_failed=True,
        counted=follows.counts,
    )
    if follows.action is run_decisions.NextAction.STOP:
        session.stop_notebook(work.key, ended, follows.attempts)
    return ended
