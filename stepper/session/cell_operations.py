"""Cell operations of MCP clients: write, run, delete, move and clear cells.

The edit gate is asked before anything is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from stepper.common.errors import StepperError, UsageError
from stepper.common.text import one_line
from stepper.messages import mcp_cells as words
from stepper.messages import run_report
from stepper.messages.run_report import Report, RunSummary
from stepper.policy import cell_changes, cell_list_edits, edit_gate
from stepper.policy.cell_changes import hash_source
from stepper.policy.commands import mcp_commands
from stepper.policy.model import Cell, Consent, Outcome, Verdict
from stepper.session import (
    agent_edits,
    backgrounding,
    responses,
    stale_cells,
    status_queries,
    undelivered_reports,
)
from stepper.session.cell_responses import CellChangeResponse
from stepper.session.clients import Caller
from stepper.session.run_waiting import CellRunReport
from stepper.session.session import Session

Order = Callable[[Sequence[Cell]], Sequence[Cell]]
# the cells that run again where they stay as they were
Named = Callable[[Sequence[Cell]], list[Cell]]


async def run_cell(
    session: Session, told: mcp_commands.CellRun, caller: Caller, consent: Consent
) -> Report:
    """Write, edit or replace a cell and run it, or run an existing one.

    Raise UsageError for invalid arguments.
    """

    names = cell_list_edits.CellReferences()

    def again(cells: Sequence[Cell]) -> list[Cell]:
        if told.old_string is not None:
            return [
                cell_list_edits.edit_source(
                    cells, names.resolve_id(cells, told.cell_id), told.old_string, ""
                )[0]
            ]
        return [] if told.cell_id is None else [names.resolve(cells, told.cell_id)]

    bare = told.source is None and told.old_string is None
    if bare and told.cell_id is None:
        raise UsageError(
            "there is nothing to run: neither `source`, `old_string` nor `cell_id` is given"
        )
    if told.source is not None and (told.old_string, told.new_string) != (None, None):
        raise UsageError(
            "`source` is the whole cell, `old_string` and `new_string` are an edit of it: give one of both"
        )
    if told.old_string is not None and told.new_string is None:
        raise UsageError(
            "`new_string` is missing: what takes the place of `old_string`"
        )
    if told.expected_source_hash is not None and told.cell_id is None:
        raise UsageError(
            "`expected_source_hash` needs `cell_id`: the cell whose source is expected to have it"
        )
    if told.after is not None and (
        told.cell_id is not None or told.old_string is not None
    ):
        raise UsageError(
            "`after` places a new cell, `cell_id` and `old_string` change one that is there; nothing was written",
            "give `after` and `source` for a new cell; change_cells with `move` moves a cell",
        )

    def order(cells: Sequence[Cell]) -> Sequence[Cell]:
        if told.cell_id is not None:
            _check_source(
                session, names.resolve(cells, told.cell_id), told.expected_source_hash
            )
        if told.old_string is not None:
            within = names.resolve_id(cells, told.cell_id)
            cell, source = cell_list_edits.edit_source(
                cells, within, told.old_string, told.new_string or ""
            )
            return cell_list_edits.replace_cell(cells, cell, source, told.cell_type)
        if told.cell_id is not None:
            cell = names.resolve(cells, told.cell_id)
            return cell_list_edits.replace_cell(
                cells,
                cell,
                cell.source if told.source is None else told.source,
                told.cell_type,
            )
        new = Cell(
            "",
            cell_list_edits.NEW_INDEX,
            0,
            told.cell_type or "code",
            told.source or "",
        )
        return cell_list_edits.insert_cells(
            cells,
            cell_list_edits.find_insertion_index(
                cells, names.resolve_id(cells, told.after)
            ),
            [new],
        )

    return await _write_and_run(session, order, caller, consent, again)


async def add_cells(
    session: Session, told: mcp_commands.CellAdd, caller: Caller, consent: Consent
) -> Report:
    """Write new cells and run them until one fails; raise UsageError."""
    new = parse_cells(told.cells)
    if not new:
        raise UsageError("`cells` is empty: there is nothing to add")
    names = cell_list_edits.CellReferences()

    def order(cells: Sequence[Cell]) -> list[Cell]:
        after = cell_list_edits.find_insertion_index(
            cells, names.resolve_id(cells, told.after)
        )
        return cell_list_edits.insert_cells(cells, after, new)

    return await _write_and_run(
        session, order, caller, consent, lambda _: [], runs=told.run
    )


def _check_source(session: Session, cell: Cell, expected: object) -> None:
    """Raise UsageError if a cell's source hash is not the expected one."""
    present = hash_source(cell.source)
    if expected is None or expected == present:
        return
    raise UsageError(
        words.format_unexpected_source(session.name, cell, str(expected), present)
    )


def parse_cells(cells: Sequence[object]) -> list[Cell]:
    """Return the new cells; raise UsageError if one is invalid."""
    return [_parse_cell(cell) for cell in cells]


def _parse_cell(told: object) -> Cell:
    if not isinstance(told, dict) or not isinstance(told.get("source"), str):
        raise UsageError("each of `cells` must be an object with a text `source`")
    kind = told.get("cell_type") or "code"
    if kind not in mcp_commands.CELL_TYPES:
        raise UsageError(
            f"a cell's `cell_type` must be one of {', '.join(mcp_commands.CELL_TYPES)}"
        )
    if why := cell_changes.find_encoding_problem(told["source"]):
        raise UsageError(f"{why}; nothing was written")
    return Cell("", cell_list_edits.NEW_INDEX, 0, kind, told["source"])


async def _write_and_run(
    session: Session,
    order: Order,
    caller: Caller,
    consent: Consent,
    again: Named,
    runs: bool = True,
) -> Report:
    """Arrange the cells if this is allowed, and run the new and changed ones.

    Markdown cells do not wait for a running cell.
    """
    if session.was_handled(caller.call_id):
        async with session.turn(caller):
            found = session.find_report(caller.call_id)
            return found or run_report.format_not_run(
                "this call was handled before; nothing is known of its run"
            )
    try:
        waits = runs and any(
            cell.is_code
            for cell in _arrange(session.read_with_unique_ids().cells, order, again)[1]
        )
        if waits and backgrounding.explain_refusal(session):
            return _create_refusal(words.format_refused(_describe_running(session)))
        async with session.turn(caller=caller) if waits else contextlib.nullcontext():
            cells = session.read_with_unique_ids().cells
            after, others = _arrange(cells, order, again)
            if why := _explain_refusal(session, cells, after, others, consent):
                stopped = (
                    session.state.stop is not None and consent is not Consent.WITHHELD
                )
                return _create_refusal(
                    words.format_refused(why), "stopped" if stopped else "refused"
                )
            new = any(cell.index == cell_list_edits.NEW_INDEX for cell in others)
            changed = after != cells
            if changed:
                cells, written = session.file.rearrange_cells(order)
                others = written or again(cells)
            return await _run_written(
                session,
                cells,
                others,
                others if new else [],
                caller,
                consent,
                runs,
                changed,
            )
    except cell_list_edits.CellReferenceError as error:
        raise UsageError(
            f"{session.name}: {error}; nothing was written",
            cell_list_edits.REFERENCE_HINT,
        ) from None


def _arrange(
    cells: Sequence[Cell], order: Order, again: Named
) -> tuple[Sequence[Cell], list[Cell]]:
    """Return the cells as arranged, and the new or changed ones among them."""
    after = order(cells)
    return after, [cell for cell in after if cell not in cells] or again(cells)


async def _run_written(
    session: Session,
    cells: Sequence[Cell],
    written: Sequence[Cell],
    new: Sequence[Cell],
    caller: Caller,
    consent: Consent,
    runs: bool,
    changed: bool,
) -> CellRunReport:
    """Run the code cells that were written; return the report."""
    to_run, ended = (
        cell_changes.select_runnable(written) if runs else [],
        list[RunSummary](),
    )
    found: Report | None
    if to_run:
        try:
            alone = len(written) == 1
            found, ended = await agent_edits.run_cells(
                session, cells, to_run, new, consent, caller, alone
            )
        except StepperError as error:
            found = run_report.format_not_run(error.message, error.hint)
    else:
        undelivered_reports.take_unreported_cells(
            session, cell_changes.select_runnable(written)
        )
        tell = words.format_written if changed else words.format_nothing_to_run
        found = tell(written, stale_cells.report_new_after_edit(session))
    assert found is not None  # each of those to run is told of
    about = ended[-1].cell if ended else (to_run or written)[0]
    figures = [
        path
        for each in ended
        if each.run.run
        for path in session.diagnosis.list_saved_figures(each.run.run)
    ]
    state, names = (
        _get_state(session, found, ended, to_run),
        [cell.id for cell in written],
    )
    return CellRunReport(
        found.text, found.line, found.stop, found.ok, about.id, state, figures, names
    )


def create_run_report(
    session: Session, done: responses.RunResponse, ended: Sequence[RunSummary]
) -> CellRunReport:
    """Return the report on a run of existing cells."""
    if not ended:
        text = (
            done.report
            or f"stepper: {one_line(session.name)} has no such cells: nothing to run."
        )
        return CellRunReport(
            text,
            "✓ nothing to run",
            ok=done.ok,
            state="nothing to run" if done.ok else "not run",
        )
    found, last, stop = (
        run_report.format_runs(ended, done.cells, "code cells"),
        ended[-1],
        session.state.stop,
    )
    text = found.text if done.report in found.text else f"{found.text}\n{done.report}"
    state = _get_state(session, replace(found, ok=done.ok), ended, [last.cell])
    if done.which == "restore" and done.ok:
        state = "ok"  # although the notebook may still be stopped
    figures = [
        path
        for each in ended
        for path in session.diagnosis.list_saved_figures(each.run.run)
    ]
    names = [each.cell.id for each in ended]
    return CellRunReport(
        text,
        found.line,
        stop.block if stop else "",
        done.ok,
        last.cell.id,
        state,
        figures,
        names,
    )


def _create_refusal(found: Report, state: str = "refused") -> CellRunReport:
    return CellRunReport(found.text, found.line, found.stop, ok=False, state=state)


def _describe_running(session: Session) -> str:
    runs, queued = (
        status_queries.get_running(session),
        session.kernel_manager.queue_status,
    )
    if queued:
        return f"a cell of {session.name} waits for its kernel ({queued.text})"
    return (
        words.format_busy(session.name, runs.name, runs.seconds, runs.timeout)
        if runs
        else "another cell runs"
    )


def _get_state(
    session: Session, found: Report, ended: Sequence[RunSummary], to_run: Sequence[Cell]
) -> str:
    """Return the value of `CellRunResponse.state`."""
    last = ended[-1].run if ended else None
    if not to_run:
        return "nothing to run"
    if session.state.stop is not None:
        return "stopped"
    if last is None or (last.verdict is Verdict.FINE and not found.ok):
        return "not run"
    return (
        "ok"
        if last.verdict is Verdict.FINE
        else "cancelled"
        if last.outcome is Outcome.CANCELLED
        else "failed"
    )


def _explain_refusal(
    session: Session,
    cells: Sequence[Cell],
    after: Sequence[Cell],
    others: Sequence[Cell],
    consent: Consent,
) -> str | None:
    """Return why cells must not be written or run, or None.

    Raise UsageError for a source that no kernel accepts.
    """
    if consent is Consent.WITHHELD:
        return edit_gate.PLAN_MODE
    code, state = [cell for cell in others if cell.is_code], session.state
    for cell in code:
        if why := cell_changes.find_encoding_problem(cell.source):
            raise UsageError(f"{why}; nothing was written")
    if not code:
        return None
    new = [
        place
        for place, cell in enumerate(after)
        if cell in code and cell.index == cell_list_edits.NEW_INDEX
    ]
    crowded = new and (
        edit_gate.check_failed_step(state, cells, new[0])
        or edit_gate.check_cell_count(after, session.limits())
    )
    return edit_gate.check_stop(state) or crowded or None


def change_cells(
    session: Session, told: mcp_commands.CellChange, consent: Consent
) -> CellChangeResponse:
    """Delete, move or clear cells, also while a cell runs; raise UsageError."""
    if not told.cell_ids or told.action not in mcp_commands.ACTIONS:
        raise UsageError(
            "`action` and `cell_ids` are needed: what is to be done to which cells"
        )
    if told.after is not None and told.action != "move":
        raise UsageError(
            f"`after` belongs to `move`, not to `{told.action}`; nothing was changed"
        )
    if consent is Consent.WITHHELD:
        raise StepperError(f"nothing was changed: {edit_gate.PLAN_MODE}")

    hashes = told.expected_source_hashes
    if hashes is not None and len(hashes) != len(told.cell_ids):
        raise UsageError(
            "`expected_source_hashes` needs one hash for each of `cell_ids`; nothing was changed"
        )
    names = cell_list_edits.CellReferences()

    def check(cells: Sequence[Cell]) -> None:
        for name, expected in zip(told.cell_ids, hashes or (), strict=False):
            _check_source(session, names.resolve(cells, name), expected)

    def order(cells: Sequence[Cell]) -> Sequence[Cell]:
        check(cells)
        some = list(dict.fromkeys(names.resolve(cells, name) for name in told.cell_ids))
        if told.action == "delete":
            return cell_list_edits.remove_cells(cells, some)
        return cell_list_edits.move_cells(
            cells, some, names.resolve_id(cells, told.after)
        )

    try:
        before = session.read_with_unique_ids().cells
        check(before)
        some = list(
            dict.fromkeys(names.resolve(before, name) for name in told.cell_ids)
        )
        if told.action == "clear_output":
            session.file.clear_outputs(some)
        else:
            session.file.rearrange_cells(order)
        same = told.action == "move" and [*order(before)] == [*before]
        places = (
            [*map(order(before).index, some)]
            if told.action == "move"
            else [cell.index for cell in some]
        )
    except cell_list_edits.CellReferenceError as error:
        raise UsageError(
            f"{session.name}: {error}; nothing was changed",
            cell_list_edits.REFERENCE_HINT,
        ) from None
    after = [cell.id for cell in session.file.read_uncached().cells]
    changed, left = (
        [after[place] for place in places if told.action != "delete"],
        stale_cells.report_new_after_edit(session),
    )
    return CellChangeResponse(session.name, changed, after, len(some), left, same)
