"""Queries on a notebook: status, plan, history, reports, outputs, context.

They change nothing.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import datetime, timezone

from stepper.common.errors import KernelError, NotebookError, UsageError
from stepper.common.text import clean, format_count, one_line
from stepper.messages import command_messages
from stepper.messages import run_report as reports
from stepper.messages.background_runs import format_queue_state
from stepper.messages.quoted_output import format_location, split_pages
from stepper.messages.quoted_output import format_running as told_of
from stepper.messages.run_report import format_step
from stepper.messages.stale_cells import Mark
from stepper.policy import cell_changes, cell_list_edits, journal_reducer, plan
from stepper.policy.kernel_namespace import UNKNOWN_NAMESPACE, Namespace
from stepper.policy.model import Cell, Limits, Step, StepStatus, parse_moment
from stepper.session import responses, stale_cells, undelivered_reports
from stepper.session.protocols import CellVersion
from stepper.session.session import LANGUAGES, SHOWN_SECONDS, Session

LINE = 200  # characters of what a cell printed last
NOTICE_SECONDS = 5.0  # for which Claude Code shows a notice


async def get_status(session: Session) -> responses.StatusResponse:
    """Return the status of notebook, plan and kernel. Takes no lock."""
    await session.handle_idle_death()
    steps, cells = list[responses.StepStatus](), list[responses.CellStatus]()
    stale, hidden = list[Mark](), list[Mark]()
    off_plan = list[responses.CellStatus]()
    with contextlib.suppress(NotebookError):  # whoever works on it is told
        steps, cells = _list_statuses(session)
        document = session.file.read_uncached()
        stale, hidden = (
            stale_cells.format_marks(session, document.cells)
            if document.language in LANGUAGES
            else (stale, hidden)
        )
        if session.can_run(document):
            session.state.compare_with_notebook(document.cells)
        titles = {cell.id: one_line(cell.source, 100) for cell in document.cells}
        off_plan = [
            responses.CellStatus(
                cell.number, cell.cell_id, titles.get(cell.cell_id, ""), cell.status
            )
            for cell in session.state.open_cells
        ]
    state, stop = session.state, session.state.stop
    told = (
        responses.StopDetails(
            stop.error,
            stop.cell_id or None,
            *command_messages.format_stop(state, stop),
        )
        if stop
        else None
    )
    kernel, missed = (
        await session.kernel_manager.get_status(),
        "\n".join(each.text for each in state.undelivered),
    )
    kernel = replace(kernel, trouble=kernel.trouble or _explain_start_problem(session))
    return responses.StatusResponse(
        session.name,
        state.status_name,
        steps,
        get_running(session),
        kernel,
        cells=cells,
        stop=told,
        lost=state.lost_reason,
        unheard=missed,
        verified=get_last_verification(session),
        stale=stale,
        hidden=hidden,
        off_plan=off_plan,
    )


def get_last_verification(session: Session) -> responses.LastVerification | None:
    """Return the result of the last `verify`, or None."""
    last = session.state.verified
    if last is None:
        return None
    from stepper.messages import verify_report
    from stepper.policy.comparison import verify_results

    try:
        holds = (
            verify_results.hash_sources(session.file.read_uncached().cells)
            == last.sources
        )
    except NotebookError:
        return None
    seconds = max(
        0.0, (datetime.now(timezone.utc) - parse_moment(last.at)).total_seconds()
    )
    text = verify_report.format_last_verdict(last.reproduces, last.text, seconds, holds)
    return responses.LastVerification(last.reproduces, last.at, holds, text)


def _explain_start_problem(session: Session) -> str:
    """Return why the next kernel cannot start on its backend, or ''."""
    named = session.state.plan.kernel
    try:
        if (named or session.limits().kernel) != Limits.kernel:
            session.kernel_manager.get_launch_config({}, named)
    except (KernelError, UsageError) as error:
        return f"its next kernel can't start: {error.message} ({error.hint})"
    return ""


def get_running(session: Session) -> responses.RunningCell | None:
    """Return the running cell and its progress, or None."""
    begun, kernel = (
        session.state.running or session.scratch_run,
        session.kernel_manager.kernel,
    )
    if begun is None:
        return None
    step = begun.key if isinstance(begun.key, int) else None
    name = (
        f"step {step}"
        if step is not None
        else f"cell {begun.number}"
        if begun.number
        else begun.cell_id
    )
    seconds = max(
        0.0, (datetime.now(timezone.utc) - parse_moment(begun.at)).total_seconds()
    )
    coming = kernel.partial_output if kernel else None
    line = one_line(coming.last_line(), LINE) if coming else ""
    left = session.estimate.update(seconds, coming.last_lines()) if coming else None
    cell_id, took = begun.cell_id if session.state.running else None, round(seconds, 1)
    return responses.RunningCell(
        name,
        step,
        cell_id,
        took,
        begun.timeout,
        line,
        session.state.runs_in_background,
        left and round(left),
    )


def format_running(session: Session) -> str:
    """Return a line on a long-running cell for viewers, or ''."""
    now, plan = get_running(session), session.state.plan
    if queued := session.kernel_manager.queue_status:
        return format_queue_state(queued.text, queued.until)
    if now is None or now.seconds < SHOWN_SECONDS:
        return ""
    step = plan.find_step(now.step)
    name = format_step(plan, step) if step else now.name
    about = (
        session.kernel_manager.kernel.describe()
        if session.kernel_manager.kernel
        else None
    )
    where = (
        format_location(about.location, about.walltime_left, about.problem)
        if about
        else ""
    )
    return told_of(name, now.seconds, now.timeout, now.line, now.left_seconds, where)


def ends_soon(session: Session) -> bool:
    """Return whether the cell will probably finish before a notice disappears."""
    now = get_running(session)
    return (
        now is not None
        and now.left_seconds is not None
        and now.left_seconds < NOTICE_SECONDS
    )


def explain_wait(session: Session) -> str:
    """Return what a request to this notebook waits for, or ''."""
    now, name = get_running(session), one_line(session.name)
    if not session.lock.locked():
        return ""
    if queued := session.kernel_manager.queue_status:
        return f"waiting for the kernel of {name}: {queued.text}"
    return (
        f"waiting for {now.name} of {name}, running for {now.seconds:.0f} s"
        if now
        else f"waiting for {name}"
    )


async def get_entry(
    session: Session, current: bool, age: float
) -> responses.NotebookEntry:
    """Return the entry of a notebook in the list of notebooks."""
    await session.kernel_manager.find()
    stands = list[responses.StepStatus | responses.CellStatus]()
    what = "steps"
    try:
        steps, cells = _list_statuses(session)
        name = session.state.status_name
        stands, what = [*steps, *cells], "steps" if steps else "cells"
    except NotebookError:
        name = "unreadable"
    done = sum(each.status == StepStatus.DONE for each in stands)
    skipped = sum(each.status == StepStatus.SKIPPED for each in stands)
    progress = responses.StepProgress(done, len(stands), what, skipped)
    return responses.NotebookEntry(
        session.name,
        current,
        name,
        progress,
        await session.kernel_manager.get_status(),
        age,
    )


def _list_statuses(
    session: Session,
) -> tuple[list[responses.StepStatus], list[responses.CellStatus]]:
    """Return the statuses of the steps, or of the cells without a plan.

    Raise NotebookError.
    """
    if session.state.plan.steps:
        _refresh_statuses(session)
        return [
            _get_step_status(session, step) for step in session.state.plan.steps
        ], []
    document, _ = undelivered_reports.compare_with_runs(session)
    told = plan.from_json(document.plan)  # which the journal does not know yet
    steps = [_get_step_status(session, step) for step in told.steps] if told else []
    return steps, [] if steps else [
        get_cell_status(session, cell) for cell in document.cells if cell.is_code
    ]


def _refresh_statuses(session: Session) -> None:
    """Update the statuses of cells that changed since they ran."""
    with contextlib.suppress(NotebookError):  # whoever works on it is told
        undelivered_reports.compare_with_runs(session)


def get_cell_status(session: Session, cell: Cell) -> responses.CellStatus:
    """Return the status of a code cell."""
    state, status, source = (
        session.state,
        StepStatus.PENDING,
        cell_changes.hash_source(cell.source),
    )
    key = next(
        (
            key
            for key, progress in state.progress.items()
            if progress.cell_id == cell.id
        ),
        None,
    )
    if state.running is not None and state.running.cell_id == cell.id:
        status = StepStatus.RUNNING
    elif cell_changes.SKIP_TAG in cell.tags:
        status = StepStatus.SKIPPED
    elif key is not None and source in (
        state.last_sources.get(cell.id),
        state.progress_of(key).preflight_hash,
    ):
        status = state.status_of(key)
    elif cell.id in state.last_sources:
        status = StepStatus.CHANGED
    return responses.CellStatus(
        cell.number, cell.id, one_line(cell.source, 100), status.value
    )


def _get_step_status(session: Session, step: Step) -> responses.StepStatus:
    progress = session.state.progress_of(step.id)
    running = session.state.running is not None and session.state.running.key == step.id
    status = "running" if running else session.state.status_of(step.id).value
    return responses.StepStatus(
        step.id,
        step.title,
        status,
        progress.cell_id,
        progress.attempts,
        progress.retries,
    )


def get_plan(session: Session) -> responses.PlanResponse:
    """Return the plan with the status of each step."""
    _refresh_statuses(session)
    state = session.state
    steps = [
        responses.PlannedStep(
            step.id,
            step.title,
            step.criterion,
            step.kind,
            state.status_of(step.id),
            state.progress_of(step.id).reason,
            step.long,
        )
        for step in state.plan.steps
    ]
    return responses.PlanResponse(session.name, steps)


def list_history(session: Session) -> list[responses.HistoryEntry]:
    """Return all runs, and executions of other clients, oldest first."""
    name = session.name
    runs = [
        (
            run.run,
            responses.HistoryEntry(
                name,
                run.run,
                run.cell_id,
                run.step,
                run.started_at,
                run.duration_s,
                run.outcome.value,
                run.by,
            ),
        )
        for run in session.state.runs
    ]
    others = [
        (
            each.after,
            responses.HistoryEntry(
                name,
                0,
                "",
                None,
                each.at,
                each.duration_s,
                "error" if each.error else "ok",
                "elsewhere",
                each.code,
                [*each.bound],
            ),
        )
        for each in session.state.external_executions
    ]
    return [row for _, row in sorted([*runs, *others], key=lambda each: each[0])]


def get_report(session: Session, number: int | None) -> responses.ReportResponse:
    """Return a run with its report, by default the last; raise UsageError."""
    state = session.state
    number = state.last_report if number is None else number
    if number and number not in state.reports:  # an old one: the journal has it
        state = journal_reducer.replay(
            event for event in session.journal.load()[0] if event.get("run") == number
        )
    run = next((run for run in state.runs if run.run == number), None)
    if run is None and (number is None or number not in state.reports):
        raise UsageError(
            f"{session.name} has no run {number}"
            if number
            else f"no cell of {session.name} has run here"
        )
    text = reports.limit_report(clean(state.reports.get(number or 0, "")))
    known = {
        key: getattr(run, key, None)
        for key in ("run", "cell_id", "step", "outcome", "fault")
    }
    return responses.ReportResponse(**known, text=text)


def find_code_cell(session: Session, name: str) -> Cell:
    """Return the code cell with an ID or number; raise UsageError."""
    found = cell_list_edits.find_referenced_cell(session.file.read().cells, name)
    if found is None or not found.is_code:
        raise UsageError(
            f"{session.name} has no code cell {name!r}", cell_list_edits.REFERENCE_HINT
        )
    return found


def get_output(session: Session, name: str, page: int) -> responses.OutputPage:
    """Return a page of a cell's text output; raise UsageError."""
    cell = find_code_cell(session, name)
    pages = split_pages(session.file.read_outputs(CellVersion.from_cell(cell)))
    if not 1 <= page <= len(pages):
        raise UsageError(
            f"the output of {cell.label} has {format_count(len(pages), 'page')}"
        )
    return responses.OutputPage(
        session.name, cell.id, page, len(pages), pages[page - 1]
    )


async def get_context(session: Session) -> responses.ContextResponse:
    """Return what another agent needs to continue the work."""
    await session.handle_idle_death()
    known, alive = await get_namespace(session)
    steps = get_plan(session).steps
    text = command_messages.format_context(session.name, session.state, known, alive)
    return responses.ContextResponse(
        **vars(_summarize_namespace(session, known)), plan=steps, text=text
    )


async def get_namespace_summary(session: Session) -> responses.NamespaceSummary:
    """Return the names in the kernel. Does not wait for a running cell."""
    return _summarize_namespace(session, (await get_namespace(session))[0])


def _summarize_namespace(
    session: Session, known: Namespace
) -> responses.NamespaceSummary:
    variables = {
        name: command_messages.describe_variable(variable)
        for name, variable in known.variables.items()
    }
    return responses.NamespaceSummary(
        session.name, known.modules, known.functions, variables
    )


async def get_namespace(session: Session) -> tuple[Namespace, bool]:
    """Return the kernel's namespace and whether the kernel is alive."""
    kernel = await session.kernel_manager.find()
    if kernel is None or await kernel.check_death() is not None:
        return UNKNOWN_NAMESPACE, False
    if not session.namespace and not session.lock.locked():
        async with session.turn():
            kernel = session.kernel_manager.kernel
            if kernel is not None:
                await session.get_namespace(kernel)
    return session.namespace, kernel is not None
