"""Undo before a cell runs again and after a cell was deleted: requests and results.

`policy/undo/undone_runs` selects the runs to undo. The kernel restores the values and
returns the names that it restored. Other names are treated as not restored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from stepper.common.errors import KernelError
from stepper.common.text import one_line
from stepper.messages import undo_report
from stepper.notebooks.journal_file import SyncMode
from stepper.policy import cell_directives, journal_events
from stepper.policy.dataflow import statement_flow
from stepper.policy.execution_result import Execution
from stepper.policy.model import Cell, Fault, Limits, Outcome
from stepper.policy.undo import recomputation, requested_undo, undone_runs
from stepper.policy.undo_model import (
    CHANGED,
    NEW,
    REBOUND,
    MentionedNames,
    RestoreRequest,
    RestoreResult,
    UndoFacts,
    UndoRequest,
)
from stepper.session.protocols import Kernel
from stepper.session.session import Session
from stepper.session.session_state.notebook_journal import format_now

# The time limit for the before-image of a run: from IMAGE_SECONDS to MAX_IMAGE_SECONDS.
IMAGE_SECONDS = 0.015
MAX_IMAGE_SECONDS = 0.5
IMAGE_SHARE = 0.04  # of the duration of the cell's last run
REASON_LIMIT = 100  # characters of a reason in the journal


def is_enabled(session: Session, limits: Limits) -> bool:
    """Return whether kernels keep the state before the runs of this notebook."""
    return limits.undo and session.language.is_python


def _can_undo(session: Session, kernel: Kernel, limits: Limits) -> bool:
    """Return whether a kernel keeps the state before the runs of this notebook."""
    return kernel.has_helper and is_enabled(session, limits)


def _list_names(session: Session, source: str) -> MentionedNames:
    """Return the names that a source mentions, also in functions of other cells."""
    usage = session.language.analyze_names(source)
    resolved = session.journal.run_history.table.resolve_usage(usage)
    return undone_runs.list_mentioned_names(usage, resolved)


def list_runs(session: Session, kernel_id: str) -> undone_runs.KernelRuns:
    """Return the runs in a kernel."""
    state = session.state
    return undone_runs.KernelRuns(state.runs, kernel_id, state.undone_runs)


def _select_restore(
    session: Session, runs: undone_runs.KernelRuns, cells: Sequence[Cell], cell: Cell
) -> RestoreRequest | None:
    """Return the request to undo runs before a cell runs again, or None."""
    return undone_runs.select_restore(
        cells,
        cell,
        runs,
        session.state.sources_by_hash,
        lambda source: _list_names(session, source),
        keep=cell_directives.parse(cell.source).keep,
    )


def create_request(
    session: Session,
    kernel: Kernel,
    cells: Sequence[Cell],
    cell: Cell,
    limits: Limits,
) -> UndoRequest | None:
    """Return the undo part of the next run of a cell.

    Return None if undo is off or the kernel cannot undo runs.
    """
    if not _can_undo(session, kernel, limits):
        return None
    session.journal.update_run_history()
    runs = list_runs(session, kernel.id)
    return UndoRequest(
        run=session.state.next_run,
        names=_list_names(session, cell.source),
        seconds=_get_image_seconds(runs, cell),
        memory=limits.undo_memory,
        restore=_select_restore(session, runs, cells, cell),
    )


def _get_image_seconds(runs: undone_runs.KernelRuns, cell: Cell) -> float:
    """Return the time limit for the before-image of a cell's next run, in seconds."""
    durations = (run.duration_s for run in reversed(runs.all) if run.cell_id == cell.id)
    last_duration = next(durations, 0.0)
    return min(MAX_IMAGE_SECONDS, max(IMAGE_SECONDS, IMAGE_SHARE * last_duration))


class ExpectedChanges(NamedTuple):
    """How the names in a kernel will change before a cell runs again.

    `removed` are the names that the kernel will certainly remove, with the undone runs.
    `returning` are names that may exist again.
    """

    removed: Mapping[str, Sequence[int]]
    returning: frozenset[str] = frozenset()


def find_expected_changes(
    session: Session,
    kernel: Kernel,
    cells: Sequence[Cell],
    cell: Cell,
    limits: Limits,
) -> ExpectedChanges:
    """Return how the names in a kernel will change before a cell runs again."""
    if not _can_undo(session, kernel, limits):
        return ExpectedChanges({})
    session.journal.update_run_history()
    runs = list_runs(session, kernel.id)
    request = _select_restore(session, runs, cells, cell)
    if request is None:
        return ExpectedChanges({})
    returning = undone_runs.find_returning_names(request, runs.active)
    requested = [run for run in runs.active if run.run in request.runs]
    state = session.state
    first = min(request.runs)
    # The kernel does not remove names that other code may have bound.
    has_unknown_code = state.last_run_before_unknown_code >= first
    if has_unknown_code or requested_undo.list_unreachable_runs(requested, state):
        return ExpectedChanges({}, returning)
    removed = undone_runs.find_removed_names(request, runs.active, state.undone)
    for name, last_run in state.names_bound_by_other_code.items():
        if last_run >= first:
            removed.pop(name, None)
    return ExpectedChanges(removed, returning)


def record_restore(
    session: Session, started: journal_events.RunStarted, execution: Execution
) -> list[str]:
    """Log the runs that the kernel undid before a run; return notes for the report.

    The notes leave out names that were not restored but that the run assigned. If no
    run was undone or the kernel died, log nothing and return no notes.
    """
    runs = (*started.undoes, *started.undoes_others)
    if not runs or execution.death is not None:
        return []
    names = None
    if started.undoes_names is not None:
        names = frozenset(started.undoes_names)
    request = RestoreRequest(runs, names, started.undoes)
    facts = execution.undo or UndoFacts(started.run)
    result = complete_result(session, request, started.kernel, facts.restore)
    _log_restore(session, request, result, started.run, started.kernel, started.cell_id)
    rebound = {name for name, kind in facts.changes.items() if kind in (NEW, REBOUND)}
    if execution.undo is None and execution.outcome is Outcome.OK:
        usage = session.language.analyze_names(started.source)
        rebound = statement_flow.find_certain_rebinds(usage)
    not_restored = {}
    for name, reason in result.not_restored.items():
        if name not in rebound:
            not_restored[name] = reason
    return undo_report.format_restore(replace(result, not_restored=not_restored))


def complete_result(
    session: Session,
    request: RestoreRequest,
    kernel_id: str,
    result: RestoreResult | None,
) -> RestoreResult:
    """Return a kernel's result, with more names that count as not restored.

    These are the names that undone runs without a before-image may have changed. If
    `result` is None because the kernel reported no result, these are all names that the
    undone runs may have changed.
    """
    unknown = request.runs
    reason = undo_report.NO_REPORT
    if result is not None:
        unknown = result.unknown
        reason = undo_report.NOT_KEPT
    result = result or RestoreResult()
    if not unknown:
        return result
    session.journal.update_run_history()
    names = undone_runs.list_unknown_changes(
        request,
        unknown,
        list_runs(session, kernel_id).active,
        session.state.sources_by_hash,
        lambda source: _list_names(session, source),
    )
    names -= result.removed.keys()
    restored = {
        name: runs for name, runs in result.restored.items() if name not in names
    }
    not_restored = {**dict.fromkeys(sorted(names), reason), **result.not_restored}
    return replace(result, restored=restored, not_restored=not_restored)


def list_journaled_facts(facts: UndoFacts | None) -> dict[str, Any]:
    """Return the fields of `RunEnded` with the kernel's facts on a run."""
    if facts is None:
        return {}
    unprotected = {}
    for name, value in facts.unprotected.items():
        if value.is_changed:
            unprotected[name] = one_line(value.reason, REASON_LIMIT)
    return {
        "changes": facts.changes,
        "unprotected": unprotected,
        "undo_reach": facts.reach,
        "undo_images": facts.images,
    }


class Recomputation(NamedTuple):
    """The cells to run again because they assign values that cannot be restored.

    `names` are the names of the values. `cells` must run before the cell that needs the
    values; the list is empty if it is unknown which cells provide the values, or if the
    cells take too long. `seconds` is the duration of the last runs of `cells` or, if
    `cells` is empty, of all cells that succeeded.
    """

    names: Collection[str]
    cells: Sequence[Cell] = ()
    seconds: float = 0.0


def plan_recomputation(
    session: Session,
    kernel: Kernel,
    cells: Sequence[Cell],
    cell: Cell,
    limits: Limits,
) -> Recomputation | None:
    """Return the recomputation that a cell needs before the cell runs, or None."""
    if not _can_undo(session, kernel, limits):
        return None
    session.journal.update_run_history()
    runs = list_runs(session, kernel.id)
    request = _select_restore(session, runs, cells, cell)
    if request is None:
        return None
    mentioned = _list_names(session, cell.source)
    names = recomputation.list_unrestorable(request, runs.active, mentioned)
    if not names:
        return None
    history = session.journal.run_history
    selected = recomputation.select_cells(cells, cell, names, history)
    durations = {run.cell_id: run.duration_s for run in runs.all}
    if selected:
        seconds = sum(durations.get(other.id, 0.0) for other in selected)
        if seconds <= limits.recompute_seconds:
            return Recomputation(names, selected, seconds)
    succeeded = session.state.succeeded_sources
    seconds = sum(
        duration for cell_id, duration in durations.items() if cell_id in succeeded
    )
    return Recomputation(names, (), seconds)


def list_only_restored(facts: UndoFacts | None) -> frozenset[str]:
    """Return the names that were restored before a run and not changed by the run.

    `facts` are the kernel's facts on the run, or None if it reported none.
    """
    if facts is None or facts.restore is None:
        return frozenset()
    return frozenset(facts.restore.restored.keys() - facts.changes.keys())


def list_changed_in_place(facts: UndoFacts | None) -> list[str]:
    """Return the names whose objects a run changed in place.

    `facts` are the kernel's facts on the run, or None if it reported none.
    """
    if facts is None:
        return []
    return [name for name, change in facts.changes.items() if change == CHANGED]


def _log_restore(
    session: Session,
    request: RestoreRequest,
    result: RestoreResult,
    run: int,
    kernel: str,
    cell_id: str,
) -> None:
    """Log that the kernel undid runs.

    `run` is the number of the run that follows. Log nothing if no run was undone.
    """
    if not request.runs:
        return
    session.journal.log(
        journal_events.RunsUndone(
            at=format_now(),
            run=run,
            kernel=kernel,
            cell_id=cell_id,
            runs=request.own_runs,
            others=request.other_runs,
            names=request.sorted_names,
            restored=result.restored,
            removed=result.removed,
            not_restored=result.not_restored,
            former_values=result.former_values,
            former_classes=result.former_classes,
        ),
        sync=SyncMode.NONE,
    )


def explain_removed_name(
    session: Session,
    fault: Fault,
    removed: Mapping[str, Sequence[int]],
    cell: Cell,
    cells: Sequence[Cell],
) -> Fault:
    """Return a fault, with an explanation if an undefined name was removed or undone.

    `removed` are the names that were removed before `cell` ran, with the undone runs.
    `cells` are all cells of the notebook.
    """
    if fault.ename != "NameError":
        return fault
    name = str(fault.attributes.get("name", ""))
    # Cells below are undone again before the next version of this cell runs.
    cells_above = [other for other in cells if other.index < cell.index]
    history = session.journal.run_history
    undone_numbers = history.find_undone_cells(name, cells_above)
    if undone_numbers:
        suggestion = undo_report.format_undone_name(
            name, undone_numbers, session.state.commands
        )
        return replace(fault, suggestion=suggestion)
    if name in removed:
        first_run = min(removed[name])
        return _explain_removal(session, fault, name, first_run, cell, cells)
    cells_below = [other for other in cells if other.index > cell.index]
    numbers_below = history.find_undone_cells(name, cells_below)
    if not numbers_below:
        return fault
    suggestion = undo_report.format_removed_below(name, numbers_below[0])
    return replace(fault, suggestion=suggestion)


def _explain_removal(
    session: Session,
    fault: Fault,
    name: str,
    first_run: int,
    cell: Cell,
    cells: Sequence[Cell],
) -> Fault:
    """Return a fault, with the explanation that `name` was removed with undone runs.

    `first_run` is the number of the first of these runs. If the journal does not
    contain this run, return the fault unchanged.
    """
    binding_run = session.state.find_run(first_run)
    if binding_run is None:
        return fault
    if binding_run.cell_id == cell.id:
        sentences = [undo_report.format_removed_name(name), fault.suggestion]
        return replace(fault, suggestion="; ".join(filter(None, sentences)))
    numbers = {other.id: other.number for other in cells}
    number = numbers.get(binding_run.cell_id, 0)  # 0 for a deleted cell
    suggestion = undo_report.format_removed_below(name, number)
    return replace(fault, suggestion=suggestion)


async def undo_deleted_cells(
    session: Session, cells: Sequence[Cell], *, before_run: bool = False
) -> list[str]:
    """Undo the runs of deleted cells; return sentences on the restored values.

    `cells` are all cells of the notebook. The caller must have the turn. If the kernel
    reports no result, log nothing, so that a later call undoes the runs again. But with
    `before_run`, a cell runs next: then log that the values are not known.
    """
    kernel = session.kernel_manager.kernel
    limits = session.limits()
    if kernel is None or not _can_undo(session, kernel, limits):
        return []
    runs = list_runs(session, kernel.id)
    deleted = undone_runs.select_deleted_runs(cells, runs)
    if not deleted:
        return []
    session.journal.update_run_history()
    sentences = []
    # A cell may use values of a cell above it, so the later cell is undone first.
    first_runs = {cell_id: own_runs[0].run for cell_id, own_runs in deleted.items()}
    for cell_id in sorted(deleted, key=first_runs.__getitem__, reverse=True):
        own_runs = deleted[cell_id]
        request = undone_runs.select_restore_after_deletion(
            cells,
            own_runs,
            list_runs(session, kernel.id),
            session.state.sources_by_hash,
            lambda source: _list_names(session, source),
        )
        try:
            facts = await session.undo(kernel, request)
        except KernelError:
            break  # the next run reports the error
        number = own_runs[-1].number
        restore = facts.restore if facts else None
        if restore is None:
            text = undo_report.format_lost_deletion(number, asks_again=not before_run)
            sentences.append(text)
        if restore is not None or before_run:
            result = complete_result(session, request, kernel.id, restore)
            _log_restore(
                session, request, result, session.state.next_run, kernel.id, cell_id
            )
        if restore is None:
            break
        sentences.append(undo_report.format_deletion(number, result))
    return [sentence for sentence in sentences if sentence]
