"""`stepper undo`: restores the kernel's state before a cell, on request.

`policy/undo/requested_undo` selects the runs. The kernel restores everything that it
can, and only its report counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepper.common.errors import KernelError, StepperError, UsageError
from stepper.messages import stale_cells as stale_messages
from stepper.messages import status_text, undo_report
from stepper.notebooks.journal_file import SyncMode
from stepper.policy import edit_gate, journal_events
from stepper.policy.journal_events import RunEnded
from stepper.policy.model import Cell
from stepper.policy.undo import requested_undo
from stepper.policy.undo.undone_runs import CellPositions, KernelRuns
from stepper.policy.undo_model import RestoreRequest, UndoFacts
from stepper.session import responses, stale_cells, status_queries
from stepper.session.caller import Caller
from stepper.session.cells import cell_undo
from stepper.session.protocols import Kernel
from stepper.session.session import Session
from stepper.session.session_state.notebook_journal import format_now


async def undo(
    session: Session, cell_name: str | int | None, caller: Caller
) -> responses.UndoResponse:
    """Undo the last run, or restore the state before the first run of a cell.

    `cell_name` is the number or the ID of the cell, or None for the last run. The
    response lists the restored values. Raise StepperError, before anything is undone,
    if the undo is impossible, for example because undo is off, no kernel or a cell is
    running, or the kernel does not keep the state. Also raise StepperError if the
    kernel does not report a result.
    """
    _check_ready(session, caller)
    next_run = session.state.next_run
    async with session.take_turn(caller=caller):
        kernel = await _get_kernel(session)
        if session.state.next_run != next_run:
            raise StepperError("nothing was undone: a cell ran in the meantime")
        cells = session.read().cells
        cell = None
        if cell_name is not None:
            cell = status_queries.find_code_cell(session, str(cell_name))
        selected = _select_runs(session, kernel, cells, cell)
        facts = await _undo_runs(session, kernel, cells, selected, caller)
        return _record(session, kernel, cells, selected, facts, caller)


def _check_ready(session: Session, caller: Caller) -> None:
    """Raise StepperError if undo is off or a cell is running.

    Also raise StepperError if the agent requests the undo and the notebook is stopped.
    """
    problem = "nothing was undone"
    if not cell_undo.is_enabled(session, session.limits()):
        if not session.language.is_python:
            raise StepperError(f"{problem}: undo needs a Python kernel")
        raise StepperError(
            f"{problem}: undo is off", "set `undo: on` in .stepper/config.yaml"
        )
    running = status_queries.get_running(session)
    if running is not None:
        hint = session.state.commands.shell("interrupt")
        raise StepperError(f"{problem}: {running.name} is running", hint)
    if not caller.is_outside_agent:
        stopped = edit_gate.check_stop(session.state)
        if stopped:
            raise StepperError(f"{problem}: {stopped}")


async def _get_kernel(session: Session) -> Kernel:
    """Return the running kernel.

    Raise KernelError if no kernel is running, or if it executes code of another client.
    """
    kernel = await session.kernel_manager.find_or_attach()
    if kernel is None or await kernel.check_death() is not None:
        hint = ""
        if session.state.runs:
            hint = _get_restore_hint(session)
        raise KernelError("nothing was undone: no kernel is running", hint)
    if kernel.external_executions.running_since:
        raise KernelError(
            "nothing was undone: another client is executing code in the kernel"
        )
    return kernel


def _select_runs(
    session: Session, kernel: Kernel, cells: Sequence[Cell], cell: Cell | None
) -> list[RunEnded]:
    """Return the runs to undo, oldest first; raise StepperError if this is impossible.

    With `cell`, the state before this cell is requested.
    """
    runs = cell_undo.list_runs(session, kernel.id)
    if cell is None:
        selected = requested_undo.select_last_run(runs)
        missing = "this kernel has no run left to undo"
    else:
        selected = requested_undo.select_runs_since(cells, cell, runs)
        missing = f"{cell.label} has no run left to undo in this kernel"
    if not selected:
        raise UsageError(f"nothing was undone: {missing}")
    if requested_undo.list_unreachable_runs(selected, session.state):
        raise StepperError(
            _explain_unreachable(session, cells, runs, selected),
            _get_restore_hint(session),
        )
    return selected


def _get_restore_hint(session: Session) -> str:
    """Return the command that computes all values again."""
    command = session.state.commands.shell("restore")
    return f"{command}  # computes all values again in a new kernel"


def _explain_unreachable(
    session: Session,
    cells: Sequence[Cell],
    runs: KernelRuns,
    selected: Sequence[RunEnded],
) -> str:
    """Return the message on selected runs that cannot be undone."""
    if requested_undo.follows_lost_undo(selected[0], session.state):
        text = (
            "nothing was undone: the kernel did not report whether it carried out an"
            " earlier undo"
        )
    else:
        text = "nothing was undone: the kernel does not keep the state before that run"
    reach = requested_undo.find_reach(cells, runs, session.state)
    if reach is None:
        return text
    return f"{text}; undo reaches back to cell {reach.cell}"


async def _undo_runs(
    session: Session,
    kernel: Kernel,
    cells: Sequence[Cell],
    selected: Sequence[RunEnded],
    caller: Caller,
) -> UndoFacts:
    """Undo all changes of runs in the kernel; return the kernel's facts.

    Raise KernelError if the kernel undid nothing, or did not report a result. In the
    second case, log that the values are not known, and add a notice for the agent if
    the user requested the undo.
    """
    request = RestoreRequest(tuple(run.run for run in reversed(selected)), None)
    try:
        facts = await session.undo(kernel, request)
    except KernelError as error:
        hint = error.hint
        if await kernel.check_death() is not None:
            hint = _get_restore_hint(session)
        raise KernelError(f"nothing was undone: {error.message}", hint) from None
    if facts is None:
        unknown = cell_undo.complete_result(session, request, kernel.id, None)
        images = session.state.undo_images
        no_run = 0  # no run follows the undo
        lost_facts = UndoFacts(no_run, restore=unknown, images=images)
        _log(session, kernel, selected, lost_facts, lost=True)
        if caller.is_outside_agent:
            numbers = _list_numbers(_list_undone_cells(cells, selected))
            text = undo_report.format_lost_request(numbers)
            session.notices.add(f"at the user's request, {text}")
        raise KernelError(
            "the kernel did not report whether it undid the runs: the values of"
            " variables are not known",
            _get_restore_hint(session),
        )
    if facts.restore is None or facts.unknown:
        raise KernelError(
            "nothing was undone: the kernel does not keep the state before these runs"
        )
    return facts


def _record(
    session: Session,
    kernel: Kernel,
    cells: Sequence[Cell],
    selected: Sequence[RunEnded],
    facts: UndoFacts,
    caller: Caller,
) -> responses.UndoResponse:
    """Log the undone runs and update the stale cells; return the response.

    If the user requested the undo, also add a notice for the agent.
    """
    result = facts.restore
    assert result is not None
    state = session.state
    _log(session, kernel, selected, facts)
    undone_cells = _list_undone_cells(cells, selected)
    text = undo_report.format_requested(_list_numbers(undone_cells), result)
    if caller.is_outside_agent:
        session.notices.add(f"at the user's request, {text}")
    lines = [f"{text[0].upper()}{text[1:]}."]
    if requested_undo.has_other_code_since(selected[0].run, state):
        lines.append(undo_report.OTHER_CODE)
    dependencies = stale_cells.update_dependencies(session, cells)
    lines.append(stale_messages.format_stale(dependencies.stale, state.commands))
    reach = status_queries.find_undo_reach(session, cells)
    if reach is not None:
        lines.append(status_text.format_undo(vars(reach)))
    return responses.UndoResponse(
        notebook=session.name,
        undone=undone_cells,
        restored=[*result.restored],
        removed=[*result.removed],
        not_restored=result.not_restored,
        stale=stale_messages.format_marks(dependencies.stale, "stale"),
        undo=reach,
        text="\n".join(filter(None, lines)),
    )


def _log(
    session: Session,
    kernel: Kernel,
    selected: Sequence[RunEnded],
    facts: UndoFacts,
    lost: bool = False,
) -> None:
    """Log the runs that the kernel undid on request, and their restored names.

    `lost` means that the kernel did not report a result.
    """
    result = facts.restore
    assert result is not None
    session.journal.log(
        journal_events.RunsUndone(
            at=format_now(),
            run=session.state.next_run,
            kernel=kernel.id,
            cell_id=selected[0].cell_id,
            runs=tuple(run.run for run in reversed(selected)),
            restored=result.restored,
            removed=result.removed,
            not_restored=result.not_restored,
            former_values=result.former_values,
            former_classes=result.former_classes,
            by_command=True,
            lost=lost,
            undo_reach=facts.reach,
            undo_images=facts.images,
        ),
        sync=SyncMode.NONE,
    )


def _list_undone_cells(
    cells: Sequence[Cell], runs: Sequence[RunEnded]
) -> list[responses.UndoneCell]:
    """Return the cells of runs, with their current numbers."""
    positions = CellPositions(cells)
    numbers = {cell.index: cell.number for cell in cells}
    undone = []
    for run in runs:
        index = positions.find_index(run)
        number = 0 if index is None else numbers[index]
        undone.append(responses.UndoneCell(number, run.cell_id, run.run))
    return undone


def _list_numbers(undone: Sequence[responses.UndoneCell]) -> list[int]:
    """Return the numbers of cells in ascending order; 0 stands for deleted cells."""
    return sorted({cell.cell for cell in undone})
