"""Replays a copy of a notebook from the top, in a session of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepper.common.errors import KernelError, StepperError
from stepper.messages.run_report import RunSummary
from stepper.policy import cell_changes
from stepper.policy.comparison.output_comparison import CellOutputs, compare_outputs
from stepper.policy.model import Cell, Outcome, Verdict
from stepper.session import progress_events
from stepper.session.cell_run import run_cell
from stepper.session.clients import Caller
from stepper.session.protocols import CellVersion
from stepper.session.session import Session

LATE_SECONDS = 0.3  # for what threads say after the last cell's end
UNWRITTEN = "what the replay showed could not be kept"
Outputs = Sequence[dict[str, Any]]


class NullJournal:
    """A journal that stores nothing."""

    def load(self) -> tuple[list[dict[str, Any]], str]:
        """Return no events."""
        return [], ""

    def append(
        self, event: dict[str, Any], sync: bool | None = True, keep: bool = True
    ) -> None:
        """Discard the event."""


@dataclass
class ReplayResult:
    """The outputs of a replay by cell index, and the cell that failed."""

    shown: dict[int, CellOutputs] = field(default_factory=dict)
    failed: RunSummary | None = None
    # of those that failed as they had when they were recorded
    faults: dict[int, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)


async def replay(
    fresh: Session,
    recorded: Mapping[int, Outputs | None],
    last: int,
    caller: Caller,
    progress: Callable[[Cell], None],
) -> ReplayResult:
    """Replay the cells up to the index `last`, or to an unexpected failure.

    Raise StepperError if the replay was interrupted or no kernel started.
    """
    found, ran = ReplayResult(), list[Cell]()
    facts = dict[str, str]()
    async with _interrupt_on_disconnect(fresh, caller), fresh.turn(caller=caller):
        try:
            cells = fresh.read_with_unique_ids().cells
            fresh.file.clear_outputs([cell for cell in cells if cell.is_code])
            for cell in cell_changes.select_runnable(cells):
                if cell.index > last:
                    break
                progress(cell)
                ended = await run_cell(fresh, cells, cell, caller, keep_time=False)
                _raise_if_unusable(ended)
                ran.append(cell)
                facts.update(fresh.state.runs[-1].figures)
                if ended.run.verdict is not Verdict.FINE:
                    if not _failed_as_recorded(ended, recorded.get(cell.index)):
                        found.failed = ended
                        break
                    found.faults[cell.index] = ended.run.error
            if (
                kernel := fresh.kernel_manager.kernel
            ) is not None and await kernel.check_death() is None:
                await asyncio.sleep(LATE_SECONDS)
                kernel.receive_pending()
            fresh.put_late()
            if fresh.state.pending_outputs:
                why = (
                    f": {'; '.join(fresh.pending_notices.values())}"
                    if fresh.pending_notices
                    else ""
                )
                raise StepperError(UNWRITTEN + why, "df -h .stepper")
            for cell in ran:
                found.shown[cell.index] = CellOutputs(
                    fresh.file.read_outputs(CellVersion.from_cell(cell)), facts
                )
            found.packages = dict(fresh.state.packages)
        finally:
            await asyncio.shield(fresh.kernel_manager.shut_down("it was a replay's"))
    return found


@contextlib.asynccontextmanager
async def _interrupt_on_disconnect(
    fresh: Session, caller: Caller
) -> AsyncIterator[None]:
    """Interrupt the run if the caller disconnects."""

    async def watch() -> None:
        await caller.disconnected.wait()
        await fresh.cancel_for_caller(caller)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()


def _raise_if_unusable(ended: RunSummary) -> None:
    run = ended.run
    if run.verdict is Verdict.CANCELLED:
        raise StepperError(
            "interrupted: the replay was given up, and nothing is known of the notebook by it"
        )
    if not run.run and run.fault is not None:
        raise KernelError(run.fault.evalue)


def _failed_as_recorded(ended: RunSummary, recorded: Outputs | None) -> bool:
    """Whether a cell failed with the recorded error."""
    if ended.run.outcome is not Outcome.ERROR or ended.run.fault is None:
        return False
    errors = [
        output for output in recorded or () if output.get("output_type") == "error"
    ]
    failed = {
        "output_type": "error",
        "ename": ended.run.fault.ename,
        "evalue": ended.run.fault.evalue,
    }
    return any(
        compare_outputs(CellOutputs([error]), CellOutputs([failed])).verdict.reproduces
        for error in errors
    )


def create_progress_callback(
    progress: progress_events.ProgressCallback, at: list[int], of: int
) -> Callable[[Cell], None]:
    """Return a callback that reports each cell that starts."""

    def told(cell: Cell) -> None:
        at[0] += 1
        progress(
            progress_events.CellStarted(
                cell=cell.number, position=at[0], of=max(of, at[0])
            )
        )

    return told
