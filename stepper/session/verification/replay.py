"""Replays a copy of a notebook from the top, in a separate session."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from stepper.common.errors import KernelError, StepperError
from stepper.messages.run_report import RunSummary
from stepper.notebooks.journal_file import SyncMode
from stepper.policy import changed_cells
from stepper.policy.comparison import recorded_runs, widget_outputs
from stepper.policy.comparison.output_items import (
    CellOutputs,
)
from stepper.policy.comparison.recorded_runs import Recording
from stepper.policy.model import Cell, Outcome, Verdict
from stepper.session import progress_events
from stepper.session.caller import Caller
from stepper.session.cells.cell_run import run_cell
from stepper.session.session import Session
from stepper.session.verification.checkpoints import load_values
from stepper.session.verification.late_outputs import collect_outputs
from stepper.session.verification.partial_replays import FULL_REPLAY, PartialReplay
from stepper.session.verification.random_seeds import seed_generators


class NullJournal:
    """A journal that stores nothing."""

    def load(self) -> tuple[list[dict[str, Any]], str]:
        """Return no events."""
        return [], ""

    def append(
        self, event: dict[str, Any], sync: SyncMode = SyncMode.WAIT, keep: bool = True
    ) -> None:
        """Discard the event."""


@dataclass
class ReplayResult:
    """The outputs of a replay and the failures in it, by cell index."""

    shown: dict[int, CellOutputs] = field(default_factory=dict)
    # Runs that failed, but not with the recorded error.
    failures: dict[int, RunSummary] = field(default_factory=dict)
    durations: dict[int, float] = field(default_factory=dict)  # in seconds
    # Errors of cells that failed as recorded.
    faults: dict[int, str] = field(default_factory=dict)
    # The run after which the replay ended, if there are cells below that cell.
    ended_by: RunSummary | None = None
    packages: dict[str, str] = field(default_factory=dict)
    widget_models: widget_outputs.Models = field(default_factory=dict)


async def replay(
    fresh: Session,
    recording: Recording,
    last_index: int,
    caller: Caller,
    progress: Callable[[Cell], None],
    seed: int = 0,
    partial: PartialReplay = FULL_REPLAY,
) -> ReplayResult:
    """Replay the cells up to `last_index`, or to the failure that ended the recording.

    `fresh` is a session on a copy of the notebook, and `progress` is called before each
    cell. `seed` is for the random generators of Python and NumPy. `partial` says which
    cells do not run, and which values are loaded instead. Raise StepperError if the
    replay was interrupted, a value could not be loaded or no kernel started.
    """
    result = ReplayResult()
    # Each cell has its own deadline.
    caller = replace(caller)
    async with _interrupt_on_disconnect(fresh, caller), fresh.take_turn(caller=caller):
        try:
            cells = fresh.read_with_unique_ids().cells
            fresh.file.clear_outputs([cell for cell in cells if cell.is_code])
            kernel = await fresh.kernel_manager.get_or_start_kernel(
                caller.environ, caller.disconnected
            )
            if fresh.language.is_python:
                await seed_generators(fresh, kernel, caller, seed)
            cells_run: list[Cell] = []
            figure_facts: dict[str, str] = {}
            for cell in changed_cells.select_runnable(cells):
                if cell.index > last_index:
                    break
                if cell.index in partial.skipped:
                    checkpoint = partial.checkpoints.get(cell.index)
                    if checkpoint is not None:
                        await load_values(fresh, cell, checkpoint, caller)
                    continue
                progress(cell)
                caller.timeout = recording.deadlines[cell.index]
                summary = await run_cell(fresh, cells, cell, caller, keep_time=False)
                _check_usable(summary)
                cells_run.append(cell)
                result.durations[cell.index] = summary.run.duration_s
                figure_facts.update(fresh.state.runs[-1].figures)
                if summary.run.verdict is Verdict.FINE:
                    continue
                if _has_recorded_error(summary, recording):
                    result.faults[cell.index] = summary.run.error
                else:
                    result.failures[cell.index] = summary
                if not _can_go_on(summary, recording):
                    result.ended_by = summary
                    break
            outputs_by_index = await collect_outputs(fresh, cells_run, recording)
            for index, outputs in outputs_by_index.items():
                result.shown[index] = CellOutputs(outputs, figure_facts)
            metadata = fresh.file.read().metadata
            result.widget_models = widget_outputs.get_models(metadata)
            result.packages = dict(fresh.state.packages)
        finally:
            shutdown = fresh.kernel_manager.shut_down("the replay has finished")
            await asyncio.shield(shutdown)
    return result


@contextlib.asynccontextmanager
async def _interrupt_on_disconnect(
    fresh: Session, caller: Caller
) -> AsyncIterator[None]:
    """Interrupt the run if the caller disconnects."""

    async def cancel_on_disconnect() -> None:
        await caller.disconnected.wait()
        await fresh.cancel_for_caller(caller)

    task = asyncio.create_task(cancel_on_disconnect())
    try:
        yield
    finally:
        task.cancel()


def _check_usable(summary: RunSummary) -> None:
    """Raise StepperError if the run was interrupted or no kernel started."""
    run = summary.run
    if run.verdict is Verdict.CANCELLED:
        raise StepperError(
            "the replay was interrupted, so the notebook was not verified"
        )
    if not run.run and run.fault is not None:
        raise KernelError(run.fault.evalue)


def _has_recorded_error(summary: RunSummary, recording: Recording) -> bool:
    """Return whether a run failed with an error that the recorded outputs contain."""
    fault = summary.run.fault
    if summary.run.outcome is not Outcome.ERROR or fault is None:
        return False
    recorded = recording.outputs.get(summary.cell.index) or ()
    return recorded_runs.has_recorded_error(fault, summary.outputs, recorded)


def _can_go_on(summary: RunSummary, recording: Recording) -> bool:
    """Return whether a replay continues below a failed cell.

    It continues if the recorded run did, but not if the cell was interrupted or the
    kernel died, because the state of the kernel then differs.
    """
    if summary.run.outcome is not Outcome.ERROR:
        return False
    return recording.has_runs_below(summary.cell.index)


class ReplayProgress:
    """Reports each cell that starts in one or more replays of a notebook."""

    def __init__(self, report: progress_events.ProgressCallback) -> None:
        self._report = report
        self._started_count = 0
        self._total = 0

    def expect_cells(self, count: int) -> None:
        """Set the total to the number of started cells plus `count`."""
        self._total = self._started_count + count

    def report_cell(self, cell: Cell) -> None:
        """Report that a cell starts."""
        self._started_count += 1
        position = self._started_count
        total = max(self._total, position)
        self._report(
            progress_events.CellStarted(cell=cell.number, position=position, of=total)
        )
