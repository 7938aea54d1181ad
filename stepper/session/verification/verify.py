"""`stepper verify`: replays a notebook and compares the outputs.

The session of the notebook provides the recorded outputs and runs. The cells run in
separate sessions (`replay.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

from stepper.messages.run_report import RunSummary
from stepper.messages.verification import verify_report
from stepper.notebooks.journal_file import SyncMode
from stepper.notebooks.notebook_document import Document
from stepper.policy import changed_cells, journal_events
from stepper.policy.changed_cells import hash_source
from stepper.policy.comparison import (
    recorded_runs,
    verify_results,
    widget_outputs,
)
from stepper.policy.comparison.output_comparison import (
    Difference,
    PixelComparison,
    ReplayVerdict,
    compare_outputs,
)
from stepper.policy.comparison.output_items import (
    CellOutputs,
)
from stepper.policy.comparison.recorded_runs import Recording
from stepper.policy.comparison.rerun_comparison import remove_pager_text
from stepper.policy.comparison.verify_results import (
    CellVerdict,
    FileChange,
    PackageChange,
    VerifyResult,
)
from stepper.policy.model import Cell, Limits, Outcome
from stepper.session import progress_events
from stepper.session.caller import Caller
from stepper.session.session import Session
from stepper.session.session_state.notebook_journal import format_now
from stepper.session.verification import failed_cells, partial_replays
from stepper.session.verification.recorded_output_changes import DRAWING_PACKAGES
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
    for the first replay. `from_cell` is the id or the number of the cell at which a
    partial replay starts, or empty.
    """

    open_session: Callable[[int], AbstractAsyncContextManager[Session]]
    compare_pixels: PixelComparison
    once: bool = False
    where: str = ""  # the kernel backend, if it is not the notebook's own
    seed: int = 0
    from_cell: str = ""


@dataclass
class ReplayFindings:
    """The notebook before the replay, and the results of the replays."""

    document: Document
    cells: list[Cell]
    recording: Recording
    # Without execution counts it is unknown whether cells without outputs ran.
    has_no_counts: bool
    widget_models: widget_outputs.Models
    first: ReplayResult = field(default_factory=ReplayResult)
    others: list[ReplayResult] = field(default_factory=list)
    # The indexes of the cells that a partial replay skips.
    skipped: frozenset[int] = frozenset()

    @property
    def replayed_cells(self) -> list[Cell]:
        """The cells that are not skipped."""
        return [cell for cell in self.cells if cell.index not in self.skipped]

    @classmethod
    def from_document(cls, document: Document, limits: Limits) -> ReplayFindings:
        """Return the findings before the first replay."""
        cells = changed_cells.select_runnable(document.cells)
        recorded = {cell.index: document.get_recorded_outputs(cell) for cell in cells}
        deadlines = {
            cell.index: recorded_runs.choose_deadline(
                cell.source, document.get_recorded_seconds(cell), limits
            )
            for cell in cells
        }
        counts = [document.get_displayed_execution_count(cell) for cell in cells]
        has_no_counts = any(recorded.values()) and not any(
            count is not None for count in counts
        )
        recording = Recording(recorded, deadlines)
        models = widget_outputs.get_models(document.metadata)
        return cls(document, cells, recording, has_no_counts, models)


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
    findings = ReplayFindings.from_document(document, session.limits())
    if options.from_cell:
        findings.skipped = partial_replays.find_skipped(
            session, document, options.from_cell
        )
    differences = await _replay_until_clear(
        session, findings, options, caller, progress, started
    )
    # The verdicts also use the kernel of an earlier daemon.
    await session.kernel_manager.find_or_attach()
    verdicts = [
        _create_verdict(session, findings, cell, differences.get(cell.index))
        for cell in findings.cells
    ]
    file_changes = await asyncio.to_thread(list_file_changes)
    first_replay_count = 1 if findings.cells else 0
    result = VerifyResult(
        session.name,
        _do_all_reproduce(verdicts),
        verdicts,
        file_changes,
        round(time.monotonic() - started, 3),
        first_replay_count + len(findings.others),
        _find_changed_packages(session, findings),
        options.where,
        failing=_count_failing(findings, verdicts),
        open_steps=len(session.state.open_steps),
        warnings=sum(bool(difference.warnings) for difference in differences.values()),
        partial=bool(findings.skipped),
    )
    result = replace(result, text=verify_report.format_verify(result))
    if not result.partial:  # the last full verdict remains
        _record_verdict(session, document, result)
    return result


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
    started: float,
) -> dict[int, Difference]:
    """Replay the notebook; return the differences by cell index.

    If outputs differ, the notebook is replayed again, to find out whether these outputs
    are nondeterministic.
    """
    cells = findings.replayed_cells
    if not cells:
        return {}
    last_index = cells[-1].index
    replay_progress = ReplayProgress(progress)
    replay_progress.expect_cells(len(cells))
    async with options.open_session(options.seed) as fresh:
        findings.first = await replay(
            fresh,
            findings.recording,
            last_index,
            caller,
            replay_progress.report_cell,
            findings.skipped,
        )
    differences = await asyncio.to_thread(
        _compare_outputs, session, findings, options, cells
    )
    unclear = [
        cell
        for cell in cells
        if cell.index in differences and not differences[cell.index].verdict.reproduces
    ]
    replay_count = 1
    while unclear and not options.once and replay_count < MAX_REPLAYS:
        elapsed = time.monotonic() - started
        if findings.others and elapsed > EXTRA_REPLAY_SECONDS:
            break
        last_index = _find_last_cell(findings, unclear).index
        cell_count = sum(cell.index <= last_index for cell in cells)
        replay_progress.expect_cells(cell_count)
        seed = (options.seed + replay_count) % HASH_SEEDS
        async with options.open_session(seed) as fresh:
            result = await replay(
                fresh,
                findings.recording,
                last_index,
                caller,
                replay_progress.report_cell,
                findings.skipped,
            )
        findings.others.append(result)
        replay_count += 1
        differences |= await asyncio.to_thread(
            _compare_outputs, session, findings, options, unclear
        )
        unclear = [cell for cell in unclear if differences[cell.index].doubtful]
    return differences


def _find_last_cell(findings: ReplayFindings, unclear: Sequence[Cell]) -> Cell:
    """Return the last cell that determines the outputs of the unclear cells."""
    for cell in unclear:
        outputs = findings.first.shown[cell.index].outputs
        if widget_outputs.shows_widgets(outputs):
            return findings.cells[-1]
    return unclear[-1]


def _find_changed_packages(
    session: Session, findings: ReplayFindings
) -> list[PackageChange]:
    """Return the packages whose version in the replay differs from recorded runs."""
    return verify_results.find_changed_packages(
        session.state.packages, findings.first.packages
    )


def _count_failing(findings: ReplayFindings, verdicts: Sequence[CellVerdict]) -> int:
    """Return the number of cells that failed in the replay with the recorded error.

    Cells with the tag `raises-exception` do not count.
    """
    return sum(
        cell.index in findings.first.faults
        and verdict.verdict.reproduces
        and changed_cells.RAISES_TAG not in cell.tags
        for cell, verdict in zip(findings.cells, verdicts, strict=True)
    )


def _compare_outputs(
    session: Session,
    findings: ReplayFindings,
    options: ReplayOptions,
    cells: Sequence[Cell],
) -> dict[int, Difference]:
    """Compare the outputs of the replays with the recorded outputs.

    Return the result of the comparison by cell index. Cells that failed, did not run or
    have no recorded outputs are not compared.
    """
    package_names = {
        package.name for package in _find_changed_packages(session, findings)
    }
    is_redrawn = not package_names.isdisjoint(DRAWING_PACKAGES)
    figure_facts = _collect_figure_descriptions(session)
    differences: dict[int, Difference] = {}
    for cell in cells:
        new_outputs = findings.first.shown.get(cell.index)
        if new_outputs is None or not _is_comparable(findings, cell):
            continue
        recorded = findings.recording.outputs[cell.index]
        if recorded is None and findings.has_no_counts and not new_outputs.outputs:
            recorded = []
        if recorded is None:
            continue
        runs = [
            (result.shown.get(cell.index, CellOutputs([])), result.widget_models)
            for result in (findings.first, *findings.others)
        ]
        old, *new = _prepare_outputs(
            cell,
            (CellOutputs(recorded, figure_facts), findings.widget_models),
            runs,
        )
        differences[cell.index] = compare_outputs(
            old, new[0], new[1:], options.compare_pixels, is_redrawn
        )
    return differences


def _prepare_outputs(
    cell: Cell,
    recorded: tuple[CellOutputs, widget_outputs.Models],
    runs: Sequence[tuple[CellOutputs, widget_outputs.Models]],
) -> list[CellOutputs]:
    """Return the recorded outputs of a cell, and those of each replay.

    They include the outputs inside widgets, if all runs have the models of the widgets.
    """
    # Some programs do not record what a pager shows.
    recorded_outputs = recorded[0].outputs
    without_pager = [
        (remove_pager_text(cell.source, recorded_outputs, outputs), models)
        for outputs, models in runs
    ]
    all_runs = [recorded, *without_pager]
    if all(
        widget_outputs.has_models(shown.outputs, models) for shown, models in all_runs
    ):
        return [
            widget_outputs.add_widget_outputs(shown, models)
            for shown, models in all_runs
        ]
    return [shown for shown, _ in all_runs]


def _is_comparable(findings: ReplayFindings, cell: Cell) -> bool:
    """Return whether a cell's outputs can be compared with the recorded outputs.

    The outputs of a failed cell are comparable if the recorded error has the same
    class: its message may be nondeterministic.
    """
    failed = findings.first.failures.get(cell.index)
    if failed is None:
        return True
    fault = failed.run.fault
    if failed.run.outcome is not Outcome.ERROR or fault is None:
        return False
    recorded = findings.recording.outputs[cell.index] or ()
    return recorded_runs.has_error_of_class(fault.ename, recorded)


def _collect_figure_descriptions(session: Session) -> Mapping[str, str]:
    """Return the descriptions of the figures in the journal, by image key."""
    return {
        key: text for run in session.state.runs for key, text in run.figures.items()
    }


def _create_verdict(
    session: Session,
    findings: ReplayFindings,
    cell: Cell,
    difference: Difference | None,
) -> CellVerdict:
    """Return the verdict on a cell; `difference` is None if nothing was compared."""
    if cell.index in findings.skipped:
        return CellVerdict(cell.id, cell.number, ReplayVerdict.SKIPPED)
    first = findings.first
    failed = first.failures.get(cell.index)
    is_random = difference and difference.verdict is ReplayVerdict.UNSTABLE
    if failed is not None and not is_random:
        return _create_failure_verdict(session, findings, failed)
    is_recorded = findings.recording.outputs[cell.index] is not None
    if not is_recorded and not findings.has_no_counts:
        return CellVerdict(cell.id, cell.number, ReplayVerdict.NOT_RECORDED)
    if cell.index not in first.shown and first.ended_by is not None:
        reason = failed_cells.describe_end(first.ended_by)
        return CellVerdict(cell.id, cell.number, ReplayVerdict.NOT_RUN, reason)
    if difference is None:
        return CellVerdict(cell.id, cell.number, ReplayVerdict.NOT_RECORDED)
    texts = [difference.text]
    if not difference.verdict.reproduces:
        texts.append(_explain_changed_source(session, findings, cell))
    recorded_error = findings.first.faults.get(cell.index)
    if recorded_error is not None:
        texts.insert(0, f"fails, as recorded: {recorded_error}")
    return CellVerdict(
        cell.id,
        cell.number,
        difference.verdict,
        "; ".join(filter(None, texts)),
        difference.lines,
    )


def _create_failure_verdict(
    session: Session, findings: ReplayFindings, failed: RunSummary
) -> CellVerdict:
    """Return the verdict on a cell that failed, but not with the recorded error."""
    verdict = ReplayVerdict.FAILED
    if failed.run.outcome in failed_cells.LIMITS:
        verdict = ReplayVerdict.NOT_JUDGED
        text = failed_cells.describe_limit(failed)
    else:
        text = failed_cells.describe_failure(
            session, findings.document, failed, findings.first.failures
        )
    return CellVerdict(failed.cell.id, failed.cell.number, verdict, text)


def _explain_changed_source(
    session: Session, findings: ReplayFindings, cell: Cell
) -> str:
    """Return a text if a cell's source was changed after the recorded run.

    Otherwise return an empty string.
    """
    runs = [run for run in session.state.runs if run.cell_id == cell.id]
    count = findings.document.get_displayed_execution_count(cell)
    if not runs or count is None or runs[-1].execution_count != count:
        return ""
    if runs[-1].source_hash == hash_source(cell.source):
        return ""
    return "the source was changed after the recorded run"
