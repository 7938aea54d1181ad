"""`stepper verify`: replays a notebook and compares the outputs.

The session of the notebook provides the recorded outputs and runs. The cells run in
separate sessions (`replay.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from stepper.messages.verification import verify_report
from stepper.notebooks.journal_file import SyncMode
from stepper.notebooks.notebook_document import Document
from stepper.policy import journal_events
from stepper.policy.comparison import verify_results
from stepper.policy.comparison.output_comparison import (
    PixelComparison,
    ReplayVerdict,
)
from stepper.policy.comparison.verify_results import (
    CellVerdict,
    FileChange,
    VerifyResult,
)
from stepper.policy.model import Cell
from stepper.session import progress_events
from stepper.session.caller import Caller
from stepper.session.session import Session
from stepper.session.session_state.notebook_journal import format_now
from stepper.session.verification.cell_verdicts import (
    count_failing,
    create_verdicts,
)
from stepper.session.verification.findings import (
    ReplayFindings,
    find_changed_packages,
    update_differences,
)
from stepper.session.verification.partial_replays import (
    PartialReplay,
    PartialReplayPlanner,
)
from stepper.session.verification.replay import (
    ReplayProgress,
    ReplayResult,
    replay,
)

HASH_SEEDS = 4294967296  # the number of values that PYTHONHASHSEED can have
MAX_REPLAYS = 4
# A third and a fourth replay start only within this time after the first one started.
EXTRA_REPLAY_SECONDS = 60


@dataclass(frozen=True)
class ReplayOptions:
    """The options of `verify`.

    `open_session` opens a session on a copy of the notebook, for a value of
    PYTHONHASHSEED. `compare_pixels` returns how much two images differ. With `once`,
    the notebook is replayed only once. `seed` is the value of PYTHONHASHSEED for the
    first replay. With `is_scratch`, each replay has its own copy of the folder.
    `from_cell` is the ID or the number of the cell at which a partial replay starts, or
    empty for a full replay. `checkpoint_folder` is the folder for values of the live
    kernel; if it is empty, no values are taken from the live kernel.
    """

    open_session: Callable[[int], AbstractAsyncContextManager[Session]]
    compare_pixels: PixelComparison
    once: bool = False
    where: str = ""  # the kernel backend, if it is not the notebook's own
    seed: int = 0
    is_scratch: bool = False
    from_cell: str = ""
    checkpoint_folder: str = ""


async def verify(
    session: Session,
    document: Document,
    options: ReplayOptions,
    caller: Caller,
    progress: progress_events.ProgressCallback,
    list_file_changes: Callable[[], list[FileChange]],
) -> VerifyResult:
    """Replay a notebook, compare the outputs and record the verdict.

    `list_file_changes` returns the project files that the replays changed. Raise
    StepperError if a replay was interrupted or no kernel started.
    """
    started_at = time.monotonic()
    findings = ReplayFindings.from_document(session, document)
    if options.from_cell:
        findings.partial = await _plan_partial_replay(
            session, document, options, caller, progress
        )
    replays = NotebookReplays(session, findings, options, caller, progress)
    file_changes = await replays.run(list_file_changes)
    # A verdict may mention the notebook's own kernel, also that of an earlier daemon.
    await session.kernel_manager.find_or_attach()
    original_changes: Sequence[FileChange] = file_changes
    if options.is_scratch:
        original_changes = ()  # only copies of the files were changed
    verdicts = create_verdicts(session, findings, original_changes)
    replay_count = 0
    if findings.replayed_cells:
        replay_count = 1 + len(findings.others)
    warning_count = sum(
        bool(difference.warnings) for difference in findings.differences.values()
    )
    result = VerifyResult(
        notebook=session.name,
        reproduces=_have_all_reproduced(verdicts),
        cells=verdicts,
        files=file_changes,
        duration_s=round(time.monotonic() - started_at, 3),
        kernels=replay_count,
        packages=find_changed_packages(session, findings),
        where=options.where,
        failing=count_failing(findings, verdicts),
        open_steps=len(session.state.open_steps),
        warnings=warning_count,
        partial=bool(findings.partial.skipped),
    )
    text = verify_report.format_verify(
        result, is_live_kernel_used=findings.partial.is_live_kernel_used
    )
    result = replace(result, text=text)
    if not result.partial:  # the last full verdict remains
        _record_verdict(session, document, result)
    return result


async def _plan_partial_replay(
    session: Session,
    document: Document,
    options: ReplayOptions,
    caller: Caller,
    progress: progress_events.ProgressCallback,
) -> PartialReplay:
    """Return the cells that the replays skip, and the values that they load instead."""
    planner = PartialReplayPlanner(session, document, options.from_cell)
    folder = options.checkpoint_folder
    if not folder:
        return planner.plan()
    return await planner.plan_with_checkpoint(folder, caller, progress)


def _have_all_reproduced(verdicts: Sequence[CellVerdict]) -> bool:
    """Return whether all cells reproduced, except the skipped cells."""
    return all(
        verdict.verdict.reproduces
        for verdict in verdicts
        if verdict.verdict is not ReplayVerdict.SKIPPED
    )


def _record_verdict(session: Session, document: Document, result: VerifyResult) -> None:
    """Log the verdict on the notebook and the IDs of the nondeterministic cells."""
    nondeterministic_ids = [
        cell.cell_id for cell in result.cells if cell.verdict is ReplayVerdict.UNSTABLE
    ]
    session.journal.log(
        journal_events.Verified(
            at=format_now(),
            reproduces=result.reproduces,
            sources=verify_results.hash_sources(document.cells),
            text=verify_report.format_recorded(result),
            unstable=tuple(nondeterministic_ids),
        ),
        sync=SyncMode.BACKGROUND,
    )


class NotebookReplays:
    """Replays a notebook, and compares the outputs with the recorded outputs."""

    def __init__(
        self,
        session: Session,
        findings: ReplayFindings,
        options: ReplayOptions,
        caller: Caller,
        progress: progress_events.ProgressCallback,
    ) -> None:
        self._session = session
        self._findings = findings
        self._options = options
        self._caller = caller
        self._progress = ReplayProgress(progress)
        self._started_at = time.monotonic()

    async def run(
        self, list_file_changes: Callable[[], list[FileChange]]
    ) -> list[FileChange]:
        """Add the replays to the findings; return the project files that they changed.

        If outputs differ from the recorded outputs, replay the notebook again to find
        out whether these outputs are nondeterministic.
        """
        findings = self._findings
        cells = findings.replayed_cells
        if not cells:
            return []
        findings.first = await self._replay(0, cells[-1])
        # Further replays in a copy of the folder begin with a new copy.
        file_changes = await asyncio.to_thread(list_file_changes)
        await self._compare(cells)
        unclear = findings.select_differing()
        while unclear and self._may_replay_again():
            last_cell = findings.find_last_cell(unclear)
            result = await self._replay(self._replay_count, last_cell)
            findings.others.append(result)
            await self._compare(unclear)
            unclear = findings.select_doubtful(unclear)
        if findings.others and self._replay_count < MAX_REPLAYS:
            findings.settle_doubtful(unclear)
        if self._options.is_scratch:
            return file_changes
        return await asyncio.to_thread(list_file_changes)

    def _may_replay_again(self) -> bool:
        """Return whether the options and the limits allow another replay."""
        if self._options.once or self._replay_count >= MAX_REPLAYS:
            return False
        elapsed = time.monotonic() - self._started_at
        return self._replay_count == 1 or elapsed <= EXTRA_REPLAY_SECONDS

    @property
    def _replay_count(self) -> int:
        """The number of replays so far, including the first one."""
        return 1 + len(self._findings.others)

    async def _replay(self, number: int, last_cell: Cell) -> ReplayResult:
        """Replay the notebook up to a cell; `number` counts the replays from 0."""
        findings = self._findings
        cell_count = sum(
            cell.index <= last_cell.index for cell in findings.replayed_cells
        )
        self._progress.expect_cells(cell_count)
        seed = (self._options.seed + number) % HASH_SEEDS
        async with self._options.open_session(seed) as fresh:
            return await replay(
                fresh,
                findings.recording,
                last_cell.index,
                self._caller,
                self._progress.report_cell,
                seed,
                findings.partial,
            )

    async def _compare(self, cells: Sequence[Cell]) -> None:
        """Compare the outputs of cells in all replays with the recorded outputs.

        This updates `differences` of the findings.
        """
        await asyncio.to_thread(
            update_differences,
            self._session,
            self._findings,
            self._options.compare_pixels,
            cells,
        )
