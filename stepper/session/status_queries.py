"""Queries on a notebook: status, plan, history, reports, outputs, context.

They change neither the notebook nor its plan.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from stepper.common.errors import KernelError, NotebookError, UsageError
from stepper.common.text import clean, format_count, one_line
from stepper.messages import command_messages, quoted_output, run_report
from stepper.messages.background_runs import format_queue_state
from stepper.messages.quoted_output import format_location, split_pages
from stepper.messages.run_report import format_step
from stepper.messages.stale_cells import Mark
from stepper.notebooks.notebook_document import Document
from stepper.policy import cell_list_edits, changed_cells, journal_reducer, plan
from stepper.policy.execution_result import CellVersion
from stepper.policy.journal_events import ExternalExecution, RunStarted
from stepper.policy.model import Cell, Limits, Run, Step, StepStatus, parse_moment
from stepper.policy.namespace_model import UNKNOWN_NAMESPACE, Namespace
from stepper.policy.notebook_state import State
from stepper.policy.undo.requested_undo import UndoReach, find_reach
from stepper.policy.undo.undone_runs import KernelRuns
from stepper.session import responses, stale_cells, undelivered_reports
from stepper.session.session import SHOWN_SECONDS, Session
from stepper.session.session_state.notebook_language import PYTHON_LANGUAGES

TITLE_LIMIT = 100  # characters of a cell's source
LINE_LIMIT = 200  # characters of the last line that a cell printed
NOTICE_SECONDS = 5.0  # how long Claude Code shows a notice


async def get_status(
    session: Session, document: Document | None = None
) -> responses.StatusResponse:
    """Return the status of a notebook, its plan and its kernel.

    Also record the changed and the stale cells. This does not wait for a running cell.
    Pass `document` to avoid reading the file again.
    """
    await session.handle_idle_death()
    steps: list[responses.StepStatus] = []
    cells: list[responses.CellStatus] = []
    off_plan: list[responses.CellStatus] = []
    stale: list[Mark] = []
    hidden: list[Mark] = []
    undo: UndoReach | None = None
    indirect: list[Mark] = []
    # The next edit or run reports a notebook that cannot be read.
    with contextlib.suppress(NotebookError):
        steps, cells = _list_statuses(session, document)
        document = document or session.file.read_uncached()
        if document.language in PYTHON_LANGUAGES:
            stale, hidden, indirect = stale_cells.collect_marks(session, document.cells)
        if session.can_run(document):
            # The open cells include stale cells, which are known only now.
            session.journal.compare_with_notebook(document.cells)
        off_plan = _list_off_plan(session, document.cells)
        undo = find_undo_reach(session, document.cells)
    state = session.state
    kernel = await session.kernel_manager.get_status()
    kernel = replace(kernel, trouble=kernel.trouble or _explain_start_problem(session))
    return responses.StatusResponse(
        notebook=session.name,
        state=state.status_name,
        steps=steps,
        running=get_running(session),
        kernel=kernel,
        cells=cells,
        stop=_get_stop_details(session),
        lost=state.lost_reason,
        unheard="\n".join(report.text for report in state.undelivered),
        verified=get_last_verification(session, document),
        stale=stale,
        hidden=hidden,
        indirect=indirect,
        off_plan=off_plan,
        undo=undo,
    )


def _get_stop_details(session: Session) -> responses.StopDetails | None:
    """Return the details of the stop, or None if the notebook is not stopped."""
    stop = session.state.stop
    if stop is None:
        return None
    texts = command_messages.format_stop(session.state, stop)
    return responses.StopDetails(
        error=stop.error,
        cell_id=stop.cell_id or None,
        question=texts.question,
        ways=texts.commands,
        text=texts.text,
    )


def find_undo_reach(session: Session, cells: Sequence[Cell]) -> UndoReach | None:
    """Return the reach of undo, or None if the kernel cannot undo any run.

    `cells` are all cells of the notebook.
    """
    kernel = session.kernel_manager.kernel
    state = session.state
    if kernel is None or not session.limits().undo:
        return None
    runs = KernelRuns(state.runs, kernel.id, state.undone_runs)
    return find_reach(cells, runs, state)


def _list_off_plan(
    session: Session, cells: Sequence[Cell]
) -> list[responses.CellStatus]:
    """Return the statuses of the open cells that do not belong to a step."""
    titles = {cell.id: one_line(cell.source, TITLE_LIMIT) for cell in cells}
    return [
        responses.CellStatus(
            cell=open_cell.number,
            cell_id=open_cell.cell_id,
            title=titles.get(open_cell.cell_id, ""),
            status=open_cell.status,
        )
        for open_cell in session.state.open_cells
        if not open_cell.is_planned
    ]


def get_last_verification(
    session: Session, document: Document | None = None
) -> responses.LastVerification | None:
    """Return the result of the last `verify`.

    Return None if the notebook was never verified or cannot be read. Pass `document` to
    avoid reading the file again.
    """
    last = session.state.verified
    if last is None:
        return None
    # Imported here because only notebooks that were verified need these modules.
    from stepper.messages.verification import verify_report
    from stepper.policy.comparison import verify_results

    try:
        document = document or session.file.read_uncached()
    except NotebookError:
        return None
    is_current = verify_results.hash_sources(document.cells) == last.sources
    text = verify_report.format_last_verdict(
        last.reproduces, last.text, _compute_age(last.at), is_current
    )
    return responses.LastVerification(
        reproduces=last.reproduces, at=last.at, holds=is_current, text=text
    )


def _compute_age(moment: str) -> float:
    """Return the seconds since a time in ISO 8601 format, at least 0."""
    age = datetime.now(timezone.utc) - parse_moment(moment)
    return max(0.0, age.total_seconds())


def _explain_start_problem(session: Session) -> str:
    """Return a text if the next kernel cannot start, or else an empty string.

    This checks only the configuration of the kernel backend.
    """
    backend_name = session.state.plan.kernel
    try:
        # The default backend needs no configuration.
        if (backend_name or session.limits().kernel) != Limits.kernel:
            session.kernel_manager.get_launch_config({}, backend_name)
    except (KernelError, UsageError) as error:
        hint = f" ({error.hint})" if error.hint else ""
        return f"the next kernel cannot start: {error.message}{hint}"
    return ""


def get_running(session: Session) -> responses.RunningCell | None:
    """Return the running code and its progress, or None if no code is running.

    Code that another client executes does not count.
    """
    started = session.state.running or session.requests.scratch_run
    if started is None:
        return None
    seconds = _compute_age(started.at)
    kernel = session.kernel_manager.kernel
    partial_output = None
    if kernel:
        partial_output = kernel.partial_output
    last_line = ""
    left_seconds = None
    if partial_output:
        last_line = one_line(partial_output.get_last_line(), LINE_LIMIT)
        left_seconds = session.requests.estimate_remaining(
            seconds, partial_output.get_last_lines()
        )
    if left_seconds is not None:
        left_seconds = round(left_seconds)
    step = None
    if isinstance(started.key, int):
        step = started.key
    cell_id = None
    if session.state.running:
        cell_id = started.cell_id
    return responses.RunningCell(
        name=_get_run_name(started),
        step=step,
        cell_id=cell_id,
        seconds=round(seconds, 1),
        timeout=started.timeout,
        line=last_line,
        handed_on=session.state.runs_in_background,
        left_seconds=left_seconds,
    )


def _get_run_name(started: RunStarted) -> str:
    """Return the name of running code for messages, such as "step 3" or "eval"."""
    if isinstance(started.key, int):
        return f"step {started.key}"
    if started.number:
        return f"cell {started.number}"
    return started.cell_id


def format_running(session: Session) -> str:
    """Return a line on the queued kernel or the long-running cell, for viewers.

    Return an empty string if there is neither.
    """
    queue_status = session.kernel_manager.queue_status
    if queue_status:
        return format_queue_state(queue_status.text, queue_status.until)
    progress = get_running(session)
    if progress is None or progress.seconds < SHOWN_SECONDS:
        return ""
    notebook_plan = session.state.plan
    step = notebook_plan.find_step(progress.step)
    name = format_step(notebook_plan, step) if step else progress.name
    location = ""
    kernel = session.kernel_manager.kernel
    if kernel:
        description = kernel.describe()
        location = format_location(
            description.location, description.walltime_left, description.problem
        )
    return quoted_output.format_running(
        name,
        progress.seconds,
        progress.timeout,
        progress.line,
        progress.left_seconds,
        location,
    )


def is_finishing_soon(session: Session) -> bool:
    """Return whether the running cell will probably finish before a notice disappears.

    Return False if there is no estimate.
    """
    progress = get_running(session)
    if progress is None or progress.left_seconds is None:
        return False
    return progress.left_seconds < NOTICE_SECONDS


def explain_wait(session: Session) -> str:
    """Return a text on why a request to the notebook must wait.

    Return an empty string if the request would not wait.
    """
    if not session.requests.is_locked:
        return ""
    name = one_line(session.name)
    queue_status = session.kernel_manager.queue_status
    if queue_status:
        return f"waiting for the kernel of {name}: {queue_status.text}"
    progress = get_running(session)
    if progress is None:
        return f"waiting for another request to {name}"
    return (
        f"waiting for {progress.name} of {name}, which has been running for"
        f" {progress.seconds:.0f} s"
    )


async def get_entry(
    session: Session, is_current: bool, age: float
) -> responses.NotebookEntry:
    """Return the entry of a notebook in the list of notebooks.

    `is_current` is true for the current notebook. `age` is the time in seconds since
    the last change of the notebook. Also record the changed and deleted cells.
    """
    kernel_status = await _get_kernel_status(session)
    statuses: list[responses.StepStatus | responses.CellStatus] = []
    unit = "steps"
    try:
        steps, cells = _list_statuses(session)
        status_name = session.state.status_name
        statuses = [*steps, *cells]
        unit = "steps" if steps else "cells"
    except NotebookError:
        status_name = "unreadable"
    done_count = sum(entry.status == StepStatus.DONE for entry in statuses)
    skipped_count = sum(entry.status == StepStatus.SKIPPED for entry in statuses)
    progress = responses.StepProgress(
        done=done_count, of=len(statuses), what=unit, skipped=skipped_count
    )
    return responses.NotebookEntry(
        notebook=session.name,
        current=is_current,
        state=status_name,
        progress=progress,
        kernel=kernel_status,
        age_s=age,
    )


async def _get_kernel_status(session: Session) -> responses.KernelStatus:
    """Return the status of the kernel, after attaching to a kernel that is running.

    If the kernel can't be reached, the state is "none", and `trouble` is the reason.
    """
    try:
        await session.kernel_manager.find_or_attach()
        return await session.kernel_manager.get_status()
    except KernelError as error:
        return responses.KernelStatus(state="none", trouble=error.message)


def _list_statuses(
    session: Session,
    document: Document | None = None,
) -> tuple[list[responses.StepStatus], list[responses.CellStatus]]:
    """Return the statuses of the steps, or of the code cells if there is no plan.

    The unused list is empty. Also record the changed and deleted cells. Raise
    NotebookError if there is no plan and the notebook cannot be read.
    """
    journal_plan = session.state.plan
    if journal_plan.steps:
        _update_changed_cells(session, document)
        return [_get_step_status(session, step) for step in journal_plan.steps], []
    document = undelivered_reports.update_changed_cells(session, document).document
    # The file may have a plan that is not in the journal yet.
    file_plan = plan.from_json(document.plan)
    if file_plan and file_plan.steps:
        return [_get_step_status(session, step) for step in file_plan.steps], []
    code_cells = [cell for cell in document.cells if cell.is_code]
    return [], [get_cell_status(session, cell) for cell in code_cells]


def _update_changed_cells(session: Session, document: Document | None = None) -> None:
    """Record the changed and deleted cells, if the notebook can be read."""
    # The next edit or run reports a notebook that cannot be read.
    with contextlib.suppress(NotebookError):
        undelivered_reports.update_changed_cells(session, document)


def get_cell_status(session: Session, cell: Cell) -> responses.CellStatus:
    """Return the status of a code cell."""
    return responses.CellStatus(
        cell=cell.number,
        cell_id=cell.id,
        title=one_line(cell.source, TITLE_LIMIT),
        status=_determine_cell_status(session, cell).value,
    )


def _determine_cell_status(session: Session, cell: Cell) -> StepStatus:
    """Return the status of a code cell, with the names of step statuses."""
    state = session.state
    if state.running is not None and state.running.cell_id == cell.id:
        return StepStatus.RUNNING
    if changed_cells.SKIP_TAG in cell.tags:
        return StepStatus.SKIPPED
    last_hash = state.last_sources.get(cell.id)
    key = state.find_cell_key(cell.id)
    if key is not None:
        source_hash = changed_cells.hash_source(cell.source)
        preflight_hash = state.get_progress(key).preflight_hash
        if source_hash in (last_hash, preflight_hash):
            return state.get_step_status(key)
    if last_hash is None:
        return StepStatus.PENDING
    return StepStatus.CHANGED


def _get_step_status(session: Session, step: Step) -> responses.StepStatus:
    """Return the status of a plan step, and the counts of its attempts."""
    state = session.state
    progress = state.get_progress(step.id)
    status = state.get_step_status(step.id).value
    if state.running is not None and state.running.key == step.id:
        status = StepStatus.RUNNING.value
    return responses.StepStatus(
        id=step.id,
        title=step.title,
        status=status,
        cell_id=progress.cell_id,
        attempts=progress.attempts,
        retries=progress.retries,
    )


def get_plan(session: Session) -> responses.PlanResponse:
    """Return the plan with the status of each step.

    Also record the changed and deleted cells, if the notebook can be read.
    """
    _update_changed_cells(session)
    state = session.state
    steps = [
        responses.PlannedStep(
            id=step.id,
            title=step.title,
            criterion=step.criterion,
            kind=step.kind,
            status=state.get_step_status(step.id),
            reason=state.get_progress(step.id).reason,
            long=step.long,
        )
        for step in state.plan.steps
    ]
    return responses.PlanResponse(session.name, steps)


def list_history(session: Session) -> list[responses.HistoryEntry]:
    """Return all runs and all executions of other clients, oldest first."""
    # The number of the run, or of the run before the external execution, and the entry.
    rows: list[tuple[int, responses.HistoryEntry]] = []
    not_restored = _list_not_restored(session.state)
    for run in session.state.runs:
        entry = _create_run_entry(session, run)
        names = not_restored.get(run.run)
        if names is not None:
            entry = replace(entry, undone=True, not_restored=sorted(names))
        rows.append((run.run, entry))
    for execution in session.state.external_executions:
        rows.append((execution.after, _create_external_entry(session, execution)))
    rows.sort(key=operator.itemgetter(0))
    return [entry for _, entry in rows]


def _create_run_entry(session: Session, run: Run) -> responses.HistoryEntry:
    """Return the history entry of a run."""
    return responses.HistoryEntry(
        notebook=session.name,
        run=run.run,
        cell_id=run.cell_id,
        step=run.step,
        started_at=run.started_at,
        duration_s=run.duration_s,
        outcome=run.outcome.value,
        by=run.by,
    )


def _create_external_entry(
    session: Session, execution: ExternalExecution
) -> responses.HistoryEntry:
    """Return the history entry of an execution of another client."""
    outcome = "error" if execution.error else "ok"
    return responses.HistoryEntry(
        notebook=session.name,
        run=0,
        cell_id="",
        step=None,
        started_at=execution.at,
        duration_s=execution.duration_s,
        outcome=outcome,
        by="elsewhere",
        source=execution.code,
        bound=[*execution.bound],
    )


def _list_not_restored(state: State) -> dict[int, set[str]]:
    """Return the names that were not restored, by the number of each undone run.

    A run that was undone completely has an empty set.
    """
    changed = {run.run: run.bound.keys() | run.changes.keys() for run in state.runs}
    names_by_run: dict[int, set[str]] = {}
    for event in state.undone:
        not_restored = event.not_restored.keys()
        changed_by_any = set[str]()
        for number in (*event.runs, *event.others):
            changed_by_any |= changed.get(number, set())
        # No run reported these names. Any of the runs may have changed them.
        unattributed = not_restored - changed_by_any
        for number in event.runs:
            names = names_by_run.setdefault(number, set())
            names |= not_restored & changed.get(number, set())
            names |= unattributed
    return names_by_run


def get_report(session: Session, number: int | None) -> responses.ReportResponse:
    """Return the report on the run with a number, or the last report.

    The report on a cell that did not run has the number 0. Raise UsageError if there is
    no such report.
    """
    state = session.state
    if number is None:
        number = state.last_report
    if number is None:
        raise UsageError(f"{session.name} has no runs yet")
    if number and number not in state.reports:
        # Only the journal has the reports of old runs.
        events = session.journal.load_events()
        state = journal_reducer.replay(
            event for event in events if event.get("run") == number
        )
    run = state.find_run(number)
    if run is None and number not in state.reports:
        if number:
            raise UsageError(f"{session.name} has no run {number}")
        raise UsageError(f"{session.name} has no runs yet")
    report = state.reports.get(number, "")
    text = run_report.limit_report(clean(report))
    if run is None:
        return responses.ReportResponse(
            run=None, cell_id=None, step=None, outcome=None, fault=None, text=text
        )
    return responses.ReportResponse(
        run=run.run,
        cell_id=run.cell_id,
        step=run.step,
        outcome=run.outcome,
        fault=run.fault,
        text=text,
    )


def find_code_cell(session: Session, name: str) -> Cell:
    """Return the code cell that `name` refers to by ID or number.

    Raise UsageError if there is no such cell.
    """
    cell = cell_list_edits.find_referenced_cell(session.file.read().cells, name)
    if cell is None or not cell.is_code:
        raise UsageError(
            f"{session.name} has no code cell {name!r}", cell_list_edits.REFERENCE_HINT
        )
    return cell


def get_output(session: Session, name: str, page: int) -> responses.OutputPage:
    """Return a page of a cell's text output.

    Raise UsageError if the cell or the page does not exist.
    """
    cell = find_code_cell(session, name)
    pages = split_pages(session.file.read_outputs(CellVersion.from_cell(cell)))
    if not 1 <= page <= len(pages):
        count = format_count(len(pages), "page")
        raise UsageError(
            f"there is no page {page}: the output of {cell.label} has {count}"
        )
    return responses.OutputPage(
        notebook=session.name,
        cell_id=cell.id,
        page=page,
        pages=len(pages),
        text=pages[page - 1],
    )


async def get_context(
    session: Session, has_seen_notebook: bool = False
) -> responses.ContextResponse:
    """Return the plan, the names in the kernel and a text for an agent.

    With this context, another agent can continue the work. If the agent
    `has_seen_notebook` before, the text does not contain the plan.
    """
    await session.handle_idle_death()
    namespace, is_alive = await fetch_namespace(session)
    steps = get_plan(session).steps
    text = command_messages.format_context(
        session.name,
        session.state,
        namespace,
        is_alive=is_alive,
        has_seen_notebook=has_seen_notebook,
    )
    summary = _summarize_namespace(session, namespace)
    return responses.ContextResponse(**vars(summary), plan=steps, text=text)


async def get_namespace_summary(session: Session) -> responses.NamespaceSummary:
    """Return a summary of the names in the kernel.

    This does not wait for a running cell.
    """
    namespace, _ = await fetch_namespace(session)
    return _summarize_namespace(session, namespace)


def _summarize_namespace(
    session: Session, namespace: Namespace
) -> responses.NamespaceSummary:
    """Return the names in a namespace, with a short description of each."""
    variables = {
        name: command_messages.describe_variable(variable)
        for name, variable in namespace.variables.items()
    }
    return responses.NamespaceSummary(
        session.name, namespace.modules, namespace.functions, variables
    )


async def fetch_namespace(session: Session) -> tuple[Namespace, bool]:
    """Return the kernel's namespace and whether the kernel is alive.

    If the namespace is unknown, request the namespace from the kernel, unless another
    request has the turn.
    """
    kernel = await session.kernel_manager.find_or_attach()
    if kernel is None or await kernel.check_death() is not None:
        return UNKNOWN_NAMESPACE, False
    if not session.namespace_tracker.current and not session.requests.is_locked:
        async with session.take_turn():
            kernel = session.kernel_manager.kernel
            if kernel is not None:
                await session.namespace_tracker.fetch(kernel)
    return session.namespace_tracker.current, kernel is not None
