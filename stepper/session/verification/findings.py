"""The results of the replays of a notebook, and their comparison with the recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepper.notebooks.notebook_document import Document
from stepper.policy import changed_cells
from stepper.policy.comparison import (
    clock_values,
    recorded_results,
    thread_order,
    verify_results,
    volatile_outputs,
    widget_outputs,
)
from stepper.policy.comparison.clock_values import RunTime
from stepper.policy.comparison.nondeterminism import Sources
from stepper.policy.comparison.output_comparison import (
    Difference,
    PixelComparison,
    ReplayVerdict,
    compare_outputs,
)
from stepper.policy.comparison.output_items import CellOutputs
from stepper.policy.comparison.recorded_results import Outputs, Recording
from stepper.policy.comparison.rerun_comparison import remove_pager_text
from stepper.policy.comparison.upstream_cells import find_upstream_cells
from stepper.policy.comparison.verify_results import PackageChange
from stepper.policy.model import Cell, Outcome
from stepper.session.session import Session
from stepper.session.verification.partial_replays import FULL_REPLAY, PartialReplay
from stepper.session.verification.replay import ReplayResult

Models = widget_outputs.Models
ONLY_TIMES = "only times or durations differ, and the cell reads the clock"
ONLY_VOLATILE = "only clock values or ids differ"
ONLY_THREAD_ORDER = (
    "only the order of the lines differs, and the cell starts threads or processes"
)
DRAWN = (
    "the fresh runs agree, perhaps by chance: the cell depends on random numbers"
    " without a seed"
)
REPRODUCING = (ReplayVerdict.SAME, ReplayVerdict.CLOSE)


@dataclass
class ReplayFindings:
    """The notebook before the replay, and the results of the replays."""

    document: Document
    cells: list[Cell]
    recording: Recording
    # The notebook has outputs but no execution counts, so it is unknown whether cells
    # without outputs ran.
    lacks_execution_counts: bool
    widget_models: Models
    sources: Sources
    first: ReplayResult = field(default_factory=ReplayResult)  # of the first replay
    others: list[ReplayResult] = field(default_factory=list)  # of further replays
    partial: PartialReplay = FULL_REPLAY
    # By cell index.
    differences: dict[int, Difference] = field(default_factory=dict)

    @classmethod
    def from_document(cls, session: Session, document: Document) -> ReplayFindings:
        """Return the findings before the first replay."""
        limits = session.limits()
        cells = changed_cells.select_runnable(document.cells)
        recorded = {cell.index: document.get_recorded_outputs(cell) for cell in cells}
        deadlines = {
            cell.index: recorded_results.choose_deadline(
                cell.source, document.get_recorded_seconds(cell), limits
            )
            for cell in cells
        }
        counts = [document.get_displayed_execution_count(cell) for cell in cells]
        has_outputs = any(recorded.values())
        has_counts = any(count is not None for count in counts)
        inputs: list[set[int]] = []
        if session.language.is_python:
            usages = [session.language.analyze_names(cell.source) for cell in cells]
            inputs = find_upstream_cells(usages)
        return cls(
            document=document,
            cells=cells,
            recording=Recording(recorded, deadlines),
            lacks_execution_counts=has_outputs and not has_counts,
            widget_models=widget_outputs.get_models(document.metadata),
            sources=Sources(cells, inputs),
        )

    @property
    def replayed_cells(self) -> list[Cell]:
        """The cells that the first replay does not skip."""
        skipped = self.partial.skipped
        return [cell for cell in self.cells if cell.index not in skipped]

    def select_differing(self) -> list[Cell]:
        """Return the cells that differ from the recording for an unknown reason.

        A further replay may show that their outputs are nondeterministic. Cells that
        are already known to be nondeterministic are left out.
        """
        final_verdicts = (*REPRODUCING, ReplayVerdict.UNSTABLE)
        return [
            cell
            for cell in self.cells
            if cell.index in self.differences
            and self.differences[cell.index].verdict not in final_verdicts
        ]

    def select_doubtful(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells whose outputs in the replays so far may agree by chance."""
        return [cell for cell in cells if self._is_doubtful(cell)]

    def _is_doubtful(self, cell: Cell) -> bool:
        """Return whether another replay of a cell may change its verdict."""
        difference = self.differences[cell.index]
        if difference.is_doubtful:
            return True
        if difference.verdict is not ReplayVerdict.CHANGED:
            return False
        if self.sources.uses_drawn_values(cell):
            return True
        return self.sources.uses_sets(cell)

    def settle_doubtful(self, cells: Sequence[Cell]) -> None:
        """Judge changed cells that use random numbers as nondeterministic.

        This is for cells that need another replay if no time is left. The number of
        replays depends on the load of the machine, but the verdict must not.
        """
        for cell in cells:
            difference = self.differences[cell.index]
            is_changed = difference.verdict is ReplayVerdict.CHANGED
            if is_changed and self.sources.uses_drawn_values(cell):
                self.differences[cell.index] = replace(
                    difference, verdict=ReplayVerdict.UNSTABLE, text=DRAWN
                )

    def find_last_cell(self, unclear: Sequence[Cell]) -> Cell:
        """Return the cell up to which a replay determines the outputs of cells.

        If a cell shows widgets, cells below may change their outputs. `unclear` are the
        cells, in order.
        """
        for cell in unclear:
            outputs = self.first.shown[cell.index].outputs
            if widget_outputs.shows_widgets(outputs):
                return self.cells[-1]
        return unclear[-1]


def find_changed_packages(
    session: Session, findings: ReplayFindings
) -> list[PackageChange]:
    """Return the packages whose versions differ between the recorded runs and a replay.

    The versions in the replay are those of the first replay.
    """
    return verify_results.find_changed_packages(
        session.state.packages, findings.first.packages
    )


def update_differences(
    session: Session,
    findings: ReplayFindings,
    compare_pixels: PixelComparison,
    cells: Sequence[Cell],
) -> None:
    """Compare outputs of the replays with the recorded outputs.

    This sets the differences of the compared cells in `findings`. Cells that failed,
    did not run or have no recorded outputs are not compared.
    """
    packages = find_changed_packages(session, findings)
    is_redrawn = any(
        package.name in verify_results.DRAWING_PACKAGES for package in packages
    )
    figures = _collect_figure_descriptions(session)
    for cell in cells:
        recorded = _get_comparable_outputs(findings, cell)
        if recorded is not None:
            findings.differences[cell.index] = _find_difference(
                findings,
                cell,
                CellOutputs(recorded, figures),
                compare_pixels,
                is_redrawn=is_redrawn,
            )


def _get_comparable_outputs(findings: ReplayFindings, cell: Cell) -> Outputs | None:
    """Return the recorded outputs of a cell, or None if they cannot be compared."""
    new_outputs = findings.first.shown.get(cell.index)
    if new_outputs is None or not _is_comparable(findings, cell):
        return None
    recorded = findings.recording.outputs[cell.index]
    may_have_run = recorded is None and findings.lacks_execution_counts
    if may_have_run and not new_outputs.outputs:
        return []  # the cell has no outputs, as in the recording
    return recorded


def _find_difference(
    findings: ReplayFindings,
    cell: Cell,
    recorded: CellOutputs,
    compare_pixels: PixelComparison,
    *,
    is_redrawn: bool,
) -> Difference:
    """Return the difference between the recorded and the new outputs of a cell.

    `is_redrawn` means that the version of a package that draws figures has changed.
    """
    old, new, *further = _prepare_outputs(findings, cell, recorded)
    difference = compare_outputs(
        old, new, further, compare_pixels, is_redrawn=is_redrawn
    )
    if difference.verdict is ReplayVerdict.UNSTABLE and further:
        without_times = _compare_without_times(findings, cell, [old, new, *further])
        if without_times.verdict is ReplayVerdict.CHANGED:
            difference = without_times
    if difference.verdict is not ReplayVerdict.CHANGED:
        return difference
    reason = _find_volatile_reason(findings, cell, old, new)
    if not reason:
        return difference
    return replace(
        difference, verdict=ReplayVerdict.UNSTABLE, text=reason, is_doubtful=False
    )


def _find_volatile_reason(
    findings: ReplayFindings, cell: Cell, recorded: CellOutputs, fresh: CellOutputs
) -> str:
    """Return why a difference is nondeterministic even if all fresh runs agree.

    Return an empty string if there is no such reason.
    """
    if _do_only_times_differ(findings, cell, recorded, fresh):
        return ONLY_TIMES
    above = [other.source for other in findings.cells if other.index < cell.index]
    if volatile_outputs.differ_only_in_volatile_values(
        cell.source, above, recorded, fresh
    ):
        return ONLY_VOLATILE
    if thread_order.differ_in_thread_order(cell.source, recorded, fresh):
        return ONLY_THREAD_ORDER
    return ""


def _do_only_times_differ(
    findings: ReplayFindings, cell: Cell, recorded: CellOutputs, fresh: CellOutputs
) -> bool:
    """Return whether outputs of a cell that reads the clock differ only in times.

    Return False for a cell that does not read the clock. Two fresh runs may show the
    same date, so a comparison of fresh runs does not reveal such differences.
    """
    restored = _restore_times(findings, cell, recorded, fresh, findings.first)
    if restored.outputs == fresh.outputs:
        return False
    return compare_outputs(recorded, restored).verdict.reproduces


def _compare_without_times(
    findings: ReplayFindings, cell: Cell, all_outputs: Sequence[CellOutputs]
) -> Difference:
    """Compare outputs of a cell, but not the times and durations in them.

    A line with a duration differs in each run. This comparison finds other changes in
    such a line. `all_outputs` are the recorded outputs and those of each replay.
    """
    recorded, *all_fresh = all_outputs
    results = [
        result
        for result in (findings.first, *findings.others)
        if cell.index in result.shown
    ]
    first, *further = [
        _restore_times(findings, cell, recorded, fresh, result)
        for fresh, result in zip(all_fresh, results, strict=True)
    ]
    difference = compare_outputs(recorded, first, further)
    # What remains in such a line may also depend on the clock.
    return replace(difference, is_doubtful=True)


def _restore_times(
    findings: ReplayFindings,
    cell: Cell,
    recorded: CellOutputs,
    fresh: CellOutputs,
    result: ReplayResult,
) -> CellOutputs:
    """Return the outputs of a replay of a cell, with the recorded times and durations.

    The outputs of a cell that does not read the clock are returned as they are: a date
    may be part of the data.
    """
    sources = [other.source for other in findings.cells]
    if not clock_values.reads_clock(cell.source, sources):
        return fresh
    run = RunTime(
        result.start_times[cell.index],
        result.durations[cell.index],
        reads_clock=True,
    )
    outputs = clock_values.restore_recorded_values(recorded.outputs, fresh.outputs, run)
    return replace(fresh, outputs=outputs)


def _prepare_outputs(
    findings: ReplayFindings, cell: Cell, recorded: CellOutputs
) -> list[CellOutputs]:
    """Return the recorded outputs of a cell, and its outputs in each replay.

    Replays that did not run the cell are left out. The outputs inside widgets are
    included if the notebook and all replays have the models of the widgets.
    """
    all_outputs = [recorded]
    all_models = [findings.widget_models]
    for result in (findings.first, *findings.others):
        shown = result.shown.get(cell.index)
        if shown is not None:
            # Some programs do not record the text of a pager.
            outputs = remove_pager_text(cell.source, recorded.outputs, shown)
            all_outputs.append(outputs)
            all_models.append(result.widget_models)
    pairs = [*zip(all_outputs, all_models, strict=True)]
    if all(widget_outputs.has_models(shown.outputs, models) for shown, models in pairs):
        return [
            widget_outputs.add_widget_outputs(shown, models) for shown, models in pairs
        ]
    return all_outputs


def _is_comparable(findings: ReplayFindings, cell: Cell) -> bool:
    """Return whether a cell's outputs can be compared with the recorded outputs.

    The outputs of a failed cell are comparable if the recorded outputs contain an error
    of the same class. The messages of the errors may differ.
    """
    failed = findings.first.failures.get(cell.index)
    if failed is None:
        return True
    fault = failed.run.fault
    if failed.run.outcome is not Outcome.ERROR or fault is None:
        return False
    recorded = findings.recording.outputs[cell.index] or ()
    return recorded_results.has_error_of_class(fault.ename, recorded)


def _collect_figure_descriptions(session: Session) -> Mapping[str, str]:
    """Return the descriptions of the figures in the journal, by image key."""
    return {
        key: text for run in session.state.runs for key, text in run.figures.items()
    }
