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
# The number of replays. After the second one, replays continue only if all together
# took less than EXTRA_REPLAY_SECONDS.
MAX_REPLAYS = 4
EXTRA_REPLAY_SECONDS = 60


@dataclass(frozen=True)
class ReplayOptions:
    """The options of `verify`.

    `open_session` opens a session on a copy of the notebook, for a value of
    PYTHONHASHSEED. With `once`, the notebook is replayed only once. `seed` is the value
    for the first replay. `is_scratch` says whether each replay has its own copy of the
    folder. `from_cell` is the id or the number of the cell at which a partial replay
    starts, or empty. `checkpoint_folder` is the folder for values of the live kernel;
    if it is empty, no values are taken from there.
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
    started = time.monotonic()
    findings = ReplayFindings.from_document(session, document)
    if options.from_cell:
        findings.partial = await _plan_partial_replay(
            session, document, options, caller, progress
        )
    file_changes = await _replay_until_clear(
        session, findings, options, caller, progress, list_file_changes
    )
    # The verdicts also use the kernel of an earlier daemon.
    await session.kernel_manager.find_or_attach()
    verdicts = create_verdicts(
        session, findings, () if options.is_scratch else file_changes
    )
    first_replay_count = 1 if findings.cells else 0
    differences = findings.differences.values()
    with_warnings = [difference for difference in differences if difference.warnings]
    result = VerifyResult(
        session.name,
        _do_all_reproduce(verdicts),
        verdicts,
        file_changes,
        round(time.monotonic() - started, 3),
        first_replay_count + len(findings.others),
        find_changed_packages(session, findings),
        options.where,
        failing=count_failing(findings, verdicts),
        open_steps=len(session.state.open_steps),
        warnings=len(with_warnings),
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


def _do_all_reproduce(verdicts: Sequence[CellVerdict]) -> bool:
    """Return whether all cells that were not skipped reproduce."""
    return all(
        verdict.verdict.reproduces
        for verdict in verdicts
        if verdict.verdict is not ReplayVerdict.SKIPPED
    )


def _record_verdict(session: Session, document: Document, result: VerifyResult) -> None:
    """Log the verdict on the whole notebook."""
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


async def _replay_until_clear(
    session: Session,
    findings: ReplayFindings,
    options: ReplayOptions,
    caller: Caller,
    progress: progress_events.ProgressCallback,
    list_file_changes: Callable[[], list[FileChange]],
) -> list[FileChange]:
    """Replay the notebook, and compare the outputs; return the changed files.

    If outputs differ, the notebook is replayed again, to find out whether these outputs
    are nondeterministic.
    """
    cells = findings.replayed_cells
    if not cells:
        return []
    started = time.monotonic()
    replay_progress = ReplayProgress(progress)

    async def run_replay(number: int, last_cell: Cell) -> ReplayResult:
        cell_count = sum(cell.index <= last_cell.index for cell in cells)
        replay_progress.expect_cells(cell_count)
        seed = (options.seed + number) % HASH_SEEDS
        async with options.open_session(seed) as fresh:
            return await replay(
                fresh,
                findings.recording,
                last_cell.index,
                caller,
                replay_progress.report_cell,
                seed,
                findings.partial,
            )

    async def update(compared: Sequence[Cell]) -> None:
        await asyncio.to_thread(
            update_differences, session, findings, options.compare_pixels, compared
        )

    findings.first = await run_replay(0, cells[-1])
    # Further replays in a copy of the folder begin with a new copy.
    file_changes = await asyncio.to_thread(list_file_changes)
    await update(cells)
    unclear = findings.select_differing()
    replay_count = 1
    while unclear and not options.once and replay_count < MAX_REPLAYS:
        elapsed = time.monotonic() - started
        if findings.others and elapsed > EXTRA_REPLAY_SECONDS:
            break
        last_cell = findings.find_last_cell(unclear)
        result = await run_replay(replay_count, last_cell)
        findings.others.append(result)
        replay_count += 1
        await update(unclear)
        unclear = findings.select_doubtful(unclear)
    if not options.is_scratch:
        file_changes = await asyncio.to_thread(list_file_changes)
    return file_changes
