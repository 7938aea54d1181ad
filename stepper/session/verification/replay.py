"""Replays a copy of a notebook from the top, in a separate session."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stepper.common.errors import KernelError, StepperError
from stepper.messages.run_report import RunSummary
from stepper.notebooks.journal_file import SyncMode
from stepper.policy import changed_cells
from stepper.policy.comparison import recorded_results, widget_outputs
from stepper.policy.comparison.output_items import CellOutputs
from stepper.policy.comparison.recorded_results import Recording
from stepper.policy.model import Cell, Outcome, Verdict, parse_moment
from stepper.session import progress_events
from stepper.session.caller import Caller
from stepper.session.cells.cell_run import run_cell
from stepper.session.session import Session
from stepper.session.verification import late_outputs
from stepper.session.verification.checkpoints import load_values
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
    """The outputs, failures and durations of the replayed cells, by cell index."""

    shown: dict[int, CellOutputs] = field(default_factory=dict)
    # Runs that failed without the recorded error.
    failures: dict[int, RunSummary] = field(default_factory=dict)
    durations: dict[int, float] = field(default_factory=dict)  # in seconds
    start_times: dict[int, float] = field(default_factory=dict)  # seconds since 1970
    # The errors of cells that failed with the recorded error.
    faults: dict[int, str] = field(default_factory=dict)
    # The failed run that ended the replay, or None if no failure ended the replay.
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
    cell. `seed` is for the random generators of Python and NumPy. `partial` contains
    the cells that do not run, and the values to load instead. Raise StepperError if the
    replay was interrupted, a value could not be loaded or no kernel started.
    """
    # Each cell has its own deadline.
    caller = replace(caller)
    cell_replay = CellReplay(fresh, recording, caller, progress, partial)
    async with _interrupt_on_disconnect(fresh, caller), fresh.take_turn(caller=caller):
        try:
            cells = fresh.read_with_unique_ids().cells
            fresh.file.clear_outputs([cell for cell in cells if cell.is_code])
            kernel = await fresh.kernel_manager.get_or_start_kernel(
                caller.environ, caller.disconnected
            )
            if fresh.language.is_python:
                await seed_generators(fresh, kernel, caller, seed)
            await cell_replay.replay_cells(cells, last_index)
            await cell_replay.collect_outputs()
        finally:
            shutdown = fresh.kernel_manager.shut_down("the replay has finished")
            await asyncio.shield(shutdown)
    return cell_replay.result


class CellReplay:
    """Runs or skips the cells of a replay, and collects the result."""

    def __init__(
        self,
        fresh: Session,
        recording: Recording,
        caller: Caller,
        progress: Callable[[Cell], None],
        partial: PartialReplay,
    ) -> None:
        self.result = ReplayResult()
        self._fresh = fresh
        self._recording = recording
        self._caller = caller
        self._progress = progress
        self._partial = partial
        self._replayed_cells: list[Cell] = []
        self._figure_descriptions: dict[str, str] = {}  # by image key

    async def replay_cells(self, cells: Sequence[Cell], last_index: int) -> None:
        """Replay the cells up to `last_index`, or to the failure that ends the replay.

        `cells` are all cells of the notebook.
        """
        for cell in changed_cells.select_runnable(cells):
            if cell.index > last_index:
                return
            if cell.index in self._partial.skipped:
                await self._load_checkpoint(cell)
                continue
            summary = await self._run_cell(cells, cell)
            if summary.run.verdict is Verdict.FINE:
                continue
            self._add_failure(summary)
            if not _continues_below(summary, self._recording):
                self.result.ended_by = summary
                return

    async def _load_checkpoint(self, cell: Cell) -> None:
        """Load the values of a skipped cell, if it has a checkpoint."""
        checkpoint = self._partial.checkpoints.get(cell.index)
        if checkpoint is not None:
            await load_values(self._fresh, cell, checkpoint, self._caller)

    async def _run_cell(self, cells: Sequence[Cell], cell: Cell) -> RunSummary:
        """Run a cell; return the summary of the run.

        Raise StepperError if the run was interrupted or the kernel could not start.
        """
        fresh = self._fresh
        self._progress(cell)
        self._caller.timeout = self._recording.deadlines[cell.index]
        summary = await run_cell(fresh, cells, cell, self._caller, keep_time=False)
        _check_usable(summary)
        self._replayed_cells.append(cell)
        self.result.durations[cell.index] = summary.run.duration_s
        started_at = parse_moment(summary.run.started_at)
        self.result.start_times[cell.index] = started_at.timestamp()
        self._figure_descriptions.update(fresh.state.runs[-1].figures)
        return summary

    def _add_failure(self, summary: RunSummary) -> None:
        """Add a failed run to the result."""
        index = summary.cell.index
        if _has_recorded_error(summary, self._recording):
            self.result.faults[index] = summary.run.error
        else:
            self.result.failures[index] = summary

    async def collect_outputs(self) -> None:
        """Add the outputs, the widgets and the packages to the result.

        Raise StepperError if outputs cannot be written or read.
        """
        fresh = self._fresh
        outputs_by_index = await late_outputs.collect_outputs(
            fresh, self._replayed_cells, self._recording
        )
        for index, outputs in outputs_by_index.items():
            self.result.shown[index] = CellOutputs(outputs, self._figure_descriptions)
        metadata = fresh.file.read().metadata
        self.result.widget_models = widget_outputs.get_models(metadata)
        self.result.packages = dict(fresh.state.packages)


@contextlib.asynccontextmanager
async def _interrupt_on_disconnect(
    fresh: Session, caller: Caller
) -> AsyncIterator[None]:
    """Interrupt the run if the caller disconnects."""

    async def cancel_on_disconnect() -> None:
        """Wait until the caller disconnects, and interrupt its cell."""
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
    # A run with the number 0 did not start.
    if run.run == 0 and run.fault is not None:
        raise KernelError(run.fault.evalue)


def _has_recorded_error(summary: RunSummary, recording: Recording) -> bool:
    """Return whether a run failed with an error that the recorded outputs contain."""
    fault = summary.run.fault
    if summary.run.outcome is not Outcome.ERROR or fault is None:
        return False
    recorded = recording.outputs.get(summary.cell.index) or ()
    return recorded_results.has_recorded_error(fault, summary.outputs, recorded)


def _continues_below(summary: RunSummary, recording: Recording) -> bool:
    """Return whether a replay continues with the cells below a failed cell.

    The replay continues if cells below ran in the recorded run. It ends if the cell was
    interrupted or the kernel died, because the kernel's state then differs from the
    recorded run.
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
