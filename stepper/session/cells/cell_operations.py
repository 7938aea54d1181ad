"""Cell operations of MCP clients: write, run, delete, move and clear cells.

The edit gate decides before anything is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from stepper.common.errors import StepperError, UsageError
from stepper.common.text import one_line
from stepper.messages import mcp_cells, run_report
from stepper.messages.marks import FAILED_MARK, OK_MARK
from stepper.messages.run_report import Report, RunSummary
from stepper.policy import cell_list_edits, changed_cells, edit_gate
from stepper.policy.changed_cells import hash_source
from stepper.policy.commands import cli_commands, mcp_cell_commands
from stepper.policy.model import Cell, Consent, Verdict
from stepper.session import responses, stale_cells, status_queries, undelivered_reports
from stepper.session.background import backgrounding
from stepper.session.background.time_limited_runs import CellRunReport, get_run_state
from stepper.session.caller import Caller
from stepper.session.cells import agent_edits
from stepper.session.cells.sequence_result import SequenceResult
from stepper.session.mcp_responses import CellChangeResponse
from stepper.session.session import Session

# Returns the new list of cells, given the current cells of the notebook.
Rearrange = Callable[[Sequence[Cell]], Sequence[Cell]]
# Returns the existing cells that a call runs if it changes no cell.
SelectExisting = Callable[[Sequence[Cell]], list[Cell]]


async def run_cell(
    session: Session,
    arguments: mcp_cell_commands.CellRun,
    caller: Caller,
    consent: Consent,
) -> Report:
    """Write, edit or replace a cell and run it, or run an existing cell.

    Raise UsageError for invalid arguments.
    """
    _check_run_arguments(arguments)
    references = cell_list_edits.CellReferences()

    def select_existing(cells: Sequence[Cell]) -> list[Cell]:
        """Return the cell that the arguments name; the list is empty for a new cell."""
        if arguments.old_string is not None:
            # The cell may be named only by the text that it contains.
            cell_id = references.resolve_id(cells, arguments.cell_id)
            cell, _ = cell_list_edits.edit_source(
                cells, cell_id, arguments.old_string, ""
            )
            return [cell]
        if arguments.cell_id is None:
            return []
        return [references.resolve(cells, arguments.cell_id)]

    def rearrange(cells: Sequence[Cell]) -> Sequence[Cell]:
        """Return the cells with the edited, replaced or new cell."""
        if arguments.cell_id is not None:
            cell = references.resolve(cells, arguments.cell_id)
            _check_source(session, cell, arguments.expected_source_hash)
        if arguments.old_string is not None:
            cell_id = references.resolve_id(cells, arguments.cell_id)
            cell, source = cell_list_edits.edit_source(
                cells, cell_id, arguments.old_string, arguments.new_string or ""
            )
            return cell_list_edits.replace_cell(
                cells, cell, source, arguments.cell_type
            )
        if arguments.cell_id is not None:
            cell = references.resolve(cells, arguments.cell_id)
            source = cell.source if arguments.source is None else arguments.source
            return cell_list_edits.replace_cell(
                cells, cell, source, arguments.cell_type
            )
        cell_type = arguments.cell_type or "code"
        new_cell = Cell(
            "", cell_list_edits.NEW_INDEX, 0, cell_type, arguments.source or ""
        )
        after = references.resolve_id(cells, arguments.after)
        index = cell_list_edits.find_insertion_index(cells, after)
        return cell_list_edits.insert_cells(cells, index, [new_cell])

    return await _write_and_run(session, rearrange, caller, consent, select_existing)


def _check_run_arguments(arguments: mcp_cell_commands.CellRun) -> None:
    """Raise UsageError if arguments of `run_cell` are missing or contradictory."""
    has_source = arguments.source is not None
    is_edit = arguments.old_string is not None
    has_cell = arguments.cell_id is not None
    if not (has_source or is_edit or has_cell):
        raise UsageError(
            "there is nothing to run: give `source`, `old_string` or `cell_id`"
        )
    if has_source and (is_edit or arguments.new_string is not None):
        raise UsageError(
            "`source` replaces the whole cell, but `old_string` and `new_string` edit"
            " a part: give either `source` or the other two"
        )
    if arguments.new_string is not None and not is_edit:
        raise UsageError(
            "`old_string` is missing: give the text that `new_string` replaces"
        )
    if is_edit and arguments.new_string is None:
        raise UsageError(
            "`new_string` is missing: give the text that replaces `old_string`"
        )
    if arguments.expected_source_hash is not None and not has_cell:
        raise UsageError(
            "`expected_source_hash` needs `cell_id`: name the cell that has this source"
        )
    if arguments.after is not None and (has_cell or is_edit):
        raise UsageError(
            "`after` is for a new cell, but `cell_id` and `old_string` change an"
            " existing cell; nothing was written",
            "give `after` and `source` for a new cell; to move a cell, use change_cells"
            " with `move`",
        )


async def add_cells(
    session: Session,
    arguments: mcp_cell_commands.CellAdd,
    caller: Caller,
    consent: Consent,
) -> Report:
    """Write new cells and run them until one fails.

    Raise UsageError for invalid arguments.
    """
    new_cells = parse_cells(arguments.cells)
    if not new_cells:
        raise UsageError("`cells` is empty: there is nothing to add")
    references = cell_list_edits.CellReferences()

    def rearrange(cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells with the new cells."""
        after = references.resolve_id(cells, arguments.after)
        index = cell_list_edits.find_insertion_index(cells, after)
        return cell_list_edits.insert_cells(cells, index, new_cells)

    return await _write_and_run(
        session, rearrange, caller, consent, lambda _: [], should_run=arguments.run
    )


def _check_source(session: Session, cell: Cell, expected_hash: object) -> None:
    """Raise UsageError if a cell's source hash is not the expected one."""
    present_hash = hash_source(cell.source)
    if expected_hash is None or expected_hash == present_hash:
        return
    raise UsageError(
        mcp_cells.format_unexpected_source(
            session.name, cell, str(expected_hash), present_hash
        )
    )


def parse_cells(cells: Sequence[object]) -> list[Cell]:
    """Parse the new cells of a request; raise UsageError if a cell is invalid."""
    return [_parse_cell(cell) for cell in cells]


def _parse_cell(value: object) -> Cell:
    """Parse a new cell; raise UsageError if it is invalid."""
    if not isinstance(value, dict) or not isinstance(value.get("source"), str):
        raise UsageError(
            "each item of `cells` must be an object with a string `source`"
        )
    cell_type = value.get("cell_type") or "code"
    if cell_type not in cli_commands.CELL_TYPES:
        cell_types = ", ".join(cli_commands.CELL_TYPES)
        raise UsageError(f"a cell's `cell_type` must be one of {cell_types}")
    problem = changed_cells.find_encoding_problem(value["source"])
    if problem:
        raise UsageError(f"{problem}; nothing was written")
    return Cell("", cell_list_edits.NEW_INDEX, 0, cell_type, value["source"])


async def _write_and_run(
    session: Session,
    rearrange: Rearrange,
    caller: Caller,
    consent: Consent,
    select_existing: SelectExisting,
    *,
    should_run: bool = True,
) -> Report:
    """Write cells if the edit gate allows it, and run the new and changed code cells.

    `rearrange` returns the new list of cells, and `select_existing` returns the cells
    to run if no cell changes. If `should_run` is false, no cell runs. Writing only
    Markdown cells does not wait for a running cell. If the call was already handled,
    return its report. Raise UsageError for an invalid reference to a cell.
    """
    if session.journal.has_handled(caller.call_id):
        async with session.take_turn(reconnecting=caller):
            report = session.journal.take_report(caller.call_id)
            return report or run_report.format_unknown(
                "stepper already handled this call, but its report was not found: the"
                " cells may have run",
                session.state.commands.shell("status"),
            )
    try:
        cells = session.read_with_unique_ids().cells
        _, selected = _rearrange_and_select(cells, rearrange, select_existing)
        runs_code = should_run and any(cell.is_code for cell in selected)
        if runs_code and backgrounding.explain_refusal(session):
            report = mcp_cells.format_refused(_describe_running(session))
            return _create_refusal(report)
        turn: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
        if runs_code:
            turn = session.take_turn(caller=caller)
        async with turn:
            return await _write_in_turn(
                session,
                rearrange,
                caller,
                consent,
                select_existing,
                should_run=should_run,
            )
    except cell_list_edits.CellReferenceError as error:
        raise UsageError(
            f"{session.name}: {error}; nothing was written",
            cell_list_edits.REFERENCE_HINT,
        ) from None


async def _write_in_turn(
    session: Session,
    rearrange: Rearrange,
    caller: Caller,
    consent: Consent,
    select_existing: SelectExisting,
    *,
    should_run: bool,
) -> CellRunReport:
    """Write cells if the edit gate allows it, and run the new and changed code cells.

    If code runs, the caller must have the turn. The parameters are those of
    `_write_and_run`.
    """
    # The notebook may have changed while the request waited for its turn.
    cells = session.read_with_unique_ids().cells
    rearranged, selected = _rearrange_and_select(cells, rearrange, select_existing)
    refusal = _explain_refusal(session, cells, rearranged, selected, consent)
    if refusal:
        is_stopped = session.state.stop is not None and consent is not Consent.WITHHELD
        state = "stopped" if is_stopped else "refused"
        return _create_refusal(mcp_cells.format_refused(refusal), state)
    has_new = any(cell.index == cell_list_edits.NEW_INDEX for cell in selected)
    has_changes = rearranged != cells
    if has_changes:
        cells, written = session.file.rearrange_cells(rearrange)
        selected = written or select_existing(cells)
    new_cells = selected if has_new else []
    return await _run_written(
        session,
        cells,
        selected,
        new_cells,
        caller,
        consent,
        should_run=should_run,
        has_changes=has_changes,
    )


def _rearrange_and_select(
    cells: Sequence[Cell], rearrange: Rearrange, select_existing: SelectExisting
) -> tuple[Sequence[Cell], list[Cell]]:
    """Return the rearranged cells, and the cells that the call selects to run.

    These are the new and changed cells or, if there are none, existing cells.
    """
    rearranged = rearrange(cells)
    changed = [cell for cell in rearranged if cell not in cells]
    return rearranged, changed or select_existing(cells)


async def _run_written(
    session: Session,
    cells: Sequence[Cell],
    written: Sequence[Cell],
    new_cells: Sequence[Cell],
    caller: Caller,
    consent: Consent,
    *,
    should_run: bool,
    has_changes: bool,
) -> CellRunReport:
    """Run the code cells among the written cells; return the report.

    `new_cells` are the inserted cells. `has_changes` means that the file was written;
    otherwise, `written` are existing cells. If `should_run` is false, no cell runs.
    """
    runnable = changed_cells.select_runnable(written)
    to_run = runnable if should_run else []
    finished: list[RunSummary] = []
    report: Report | None
    if to_run:
        try:
            report, finished = await agent_edits.run_cells(
                session,
                cells,
                to_run,
                new_cells,
                consent,
                caller,
                is_only_cell=len(written) == 1,
            )
        except StepperError as error:
            report = run_report.format_not_run(error.message, error.hint)
    else:
        undelivered_reports.pop_unreported_cells(session, runnable)
        stale_lines = stale_cells.report_new_after_edit(session)
        if has_changes:
            report = mcp_cells.format_written(written, stale_lines)
        else:
            report = mcp_cells.format_nothing_to_run(written, stale_lines)
    assert report is not None  # each cell to run is reported
    reported_cell = finished[-1].cell if finished else (to_run or written)[0]
    return CellRunReport(
        report.text,
        report.line,
        report.stop,
        report.ok,
        cell_id=reported_cell.id,
        state=_get_state(session, report, finished, to_run),
        figures=_list_saved_figures(session, finished),
        cells=[cell.id for cell in written],
    )


def _list_saved_figures(session: Session, finished: Sequence[RunSummary]) -> list[str]:
    """Return the paths of the figures of the finished runs, in order."""
    run_numbers = [summary.run.run for summary in finished if summary.run.run]
    return [
        path
        for run_number in run_numbers
        for path in session.language.diagnosis.list_saved_figures(run_number)
    ]


def create_run_report(
    session: Session, response: responses.RunResponse, result: SequenceResult
) -> CellRunReport:
    """Return the report on the command `run` or `restore`.

    `result` contains the runs of the command.
    """
    finished = result.finished
    is_unknown = result.failure is not None and result.failure.is_unknown
    # The command raises an error of the first cell, so there was no cell to run.
    if not finished:
        default_text = (
            f"stepper: {one_line(session.name)} has no cells to run for this request."
        )
        state = "nothing to run"
        line = f"{OK_MARK} nothing to run"
        if not response.ok:  # `restore` stopped at a changed cell
            state = "not run"
            line = f"{FAILED_MARK} no cell ran"
        return CellRunReport(
            response.report or default_text,
            line,
            ok=response.ok,
            state=state,
        )
    report = run_report.format_runs(
        finished, response.cells, "code cells", is_next_unknown=is_unknown
    )
    text = report.text
    if response.report not in text:
        text = f"{text}\n{response.report}"
    last_cell = finished[-1].cell
    if response.which == "restore" and response.ok:
        state = "ok"  # even if the notebook is still stopped
    else:
        report_with_result = replace(report, ok=response.ok, is_unknown=is_unknown)
        state = _get_state(session, report_with_result, finished, [last_cell])
    stop = session.state.stop
    stop_text = stop.block if stop else ""
    return CellRunReport(
        text,
        report.line,
        stop_text,
        response.ok,
        cell_id=last_cell.id,
        state=state,
        figures=_list_saved_figures(session, finished),
        cells=[summary.cell.id for summary in finished],
    )


def _create_refusal(report: Report, state: str = "refused") -> CellRunReport:
    """Return the report on a call that wrote nothing."""
    return CellRunReport(report.text, report.line, report.stop, ok=False, state=state)


def _describe_running(session: Session) -> str:
    """Return a text on the cell that is running or waiting for the kernel."""
    queue_status = session.kernel_manager.queue_status
    if queue_status:
        return (
            f"a cell of {session.name} is waiting for its kernel ({queue_status.text})"
        )
    progress = status_queries.get_running(session)
    if progress is None:
        return "another cell is running"
    return mcp_cells.format_busy(
        session.name, progress.name, progress.seconds, progress.timeout
    )


def _get_state(
    session: Session,
    report: Report,
    finished: Sequence[RunSummary],
    to_run: Sequence[Cell],
) -> str:
    """Return the value of `CellRunResponse.state` for a report."""
    if not to_run:
        return "nothing to run"
    if report.is_unknown:
        return "unknown"
    last_run = finished[-1].run if finished else None
    is_last_fine = last_run is not None and last_run.verdict is Verdict.FINE
    if is_last_fine and not report.ok and session.state.stop is None:
        return "not run"  # a later cell did not run
    return get_run_state(last_run, is_stopped=session.state.stop is not None)


def _explain_refusal(
    session: Session,
    cells: Sequence[Cell],
    rearranged: Sequence[Cell],
    selected: Sequence[Cell],
    consent: Consent,
) -> str | None:
    """Return the reason why cells must not be written or run, or None if they may.

    Raise UsageError if a source cannot be encoded.
    """
    if consent is Consent.WITHHELD:
        return edit_gate.PLAN_MODE
    code_cells = [cell for cell in selected if cell.is_code]
    for cell in code_cells:
        problem = changed_cells.find_encoding_problem(cell.source)
        if problem:
            raise UsageError(f"{problem}; nothing was written")
    if not code_cells:
        return None
    stopped = edit_gate.check_stop(session.state)
    if stopped:
        return stopped
    new_indexes = [
        index
        for index, cell in enumerate(rearranged)
        if cell in code_cells and cell.index == cell_list_edits.NEW_INDEX
    ]
    if not new_indexes:
        return None
    failed_step = edit_gate.check_failed_step(session.state, cells, new_indexes[0])
    return failed_step or edit_gate.check_cell_count(rearranged, session.limits())


async def change_cells(
    session: Session, arguments: mcp_cell_commands.CellChange, consent: Consent
) -> CellChangeResponse:
    """Delete or move cells, or clear their outputs, even while a cell is running.

    If no cell is running, the runs of deleted cells are undone. Raise UsageError for
    invalid arguments, and StepperError in plan mode.
    """
    _check_change_arguments(arguments)
    if consent is Consent.WITHHELD:
        raise StepperError(f"nothing was changed: {edit_gate.PLAN_MODE}")
    hashes = arguments.expected_source_hashes or ()
    references = cell_list_edits.CellReferences()

    def select_cells(cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells that the arguments name, each once; check their sources."""
        selected = [references.resolve(cells, name) for name in arguments.cell_ids]
        for cell, expected_hash in zip(selected, hashes, strict=False):
            _check_source(session, cell, expected_hash)
        return list(dict.fromkeys(selected))

    def rearrange(cells: Sequence[Cell]) -> Sequence[Cell]:
        """Return the cells without the deleted cells, or with the moved cells."""
        selected = select_cells(cells)
        if arguments.action == "delete":
            return cell_list_edits.remove_cells(cells, selected)
        after = references.resolve_id(cells, arguments.after)
        return cell_list_edits.move_cells(cells, selected, after)

    try:
        cells = session.read_with_unique_ids().cells
        selected = select_cells(cells)
        rearranged = cells
        if arguments.action == "clear_output":
            session.file.clear_outputs(selected)
        else:
            rearranged = rearrange(cells)
            session.file.rearrange_cells(rearrange)
    except cell_list_edits.CellReferenceError as error:
        raise UsageError(
            f"{session.name}: {error}; nothing was changed",
            cell_list_edits.REFERENCE_HINT,
        ) from None
    cell_ids = [cell.id for cell in session.file.read_uncached().cells]
    changed_ids: list[str] = []
    sentences: list[str] = []
    if arguments.action == "delete":
        sentences = await agent_edits.undo_deleted_cells_if_idle(session)
    else:
        changed_ids = [cell_ids[rearranged.index(cell)] for cell in selected]
    stale_lines = stale_cells.report_new_after_edit(session)
    return CellChangeResponse(
        notebook=session.name,
        changed=changed_ids,
        cells=cell_ids,
        count=len(selected),
        follows="\n".join(filter(None, [*sentences, stale_lines])),
        unchanged=arguments.action == "move" and [*rearranged] == [*cells],
    )


def _check_change_arguments(arguments: mcp_cell_commands.CellChange) -> None:
    """Raise UsageError if the arguments of `change_cells` are invalid."""
    if not arguments.cell_ids:
        raise UsageError("`cell_ids` is empty: there is nothing to change")
    if arguments.after is not None and arguments.action != "move":
        raise UsageError(
            f"`after` is for `move`, not for `{arguments.action}`; nothing was changed"
        )
    hashes = arguments.expected_source_hashes
    if hashes is not None and len(hashes) != len(arguments.cell_ids):
        raise UsageError(
            "`expected_source_hashes` needs one hash for each of `cell_ids`; nothing"
            " was changed"
        )
