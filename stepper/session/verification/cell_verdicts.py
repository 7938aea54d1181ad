"""The verdicts of `stepper verify` on cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stepper.messages.run_report import RunSummary
from stepper.policy.changed_cells import RAISES_TAG, hash_source
from stepper.policy.comparison import nondeterminism
from stepper.policy.comparison.nondeterminism import Sources
from stepper.policy.comparison.output_comparison import (
    NONDETERMINISTIC,
    Difference,
    ReplayVerdict,
)
from stepper.policy.comparison.verify_results import CellVerdict, FileChange
from stepper.policy.model import Cell
from stepper.session.session import Session
from stepper.session.verification import failed_cells
from stepper.session.verification.findings import ReplayFindings

# Changes of files that may affect the outputs of a further replay.
CHANGES = ("changed", "new", "deleted")


def create_verdicts(
    session: Session, findings: ReplayFindings, file_changes: Iterable[FileChange]
) -> list[CellVerdict]:
    """Return the verdict on each cell.

    `file_changes` are the changes that the replays made to the original files.
    """
    names = [change.name for change in file_changes if change.change in CHANGES]
    sources = replace(findings.sources, changed_files=names)
    verdicts = []
    for cell in findings.cells:
        verdict = _create_verdict(session, findings, cell, sources)
        duration = findings.first.durations.get(cell.index)
        verdicts.append(replace(verdict, duration_s=duration))
    return verdicts


def count_failing(findings: ReplayFindings, verdicts: Sequence[CellVerdict]) -> int:
    """Return the number of cells that reproduce a recorded error.

    Cells with the tag `raises-exception` do not count.
    """
    return sum(
        cell.index in findings.first.faults
        and verdict.verdict.reproduces
        and RAISES_TAG not in cell.tags
        for cell, verdict in zip(findings.cells, verdicts, strict=True)
    )


def _create_verdict(
    session: Session, findings: ReplayFindings, cell: Cell, sources: Sources
) -> CellVerdict:
    """Return the verdict on a cell, without the duration of its run.

    `sources` contain the sources of the cells and the names of the changed files.
    """
    if cell.index in findings.partial.skipped:
        source = findings.partial.describe_source(cell.index)
        return CellVerdict(cell.id, cell.number, ReplayVerdict.SKIPPED, source)
    first = findings.first
    difference = findings.differences.get(cell.index)
    is_nondeterministic = (
        difference is not None and difference.verdict is ReplayVerdict.UNSTABLE
    )
    failed = first.failures.get(cell.index)
    if failed is not None and not is_nondeterministic:
        return _create_failure_verdict(session, findings, failed)
    is_recorded = findings.recording.outputs[cell.index] is not None
    if not is_recorded and not findings.lacks_execution_counts:
        return CellVerdict(cell.id, cell.number, ReplayVerdict.NOT_RECORDED)
    if cell.index not in first.shown and first.ended_by is not None:
        reason = failed_cells.describe_end(first.ended_by)
        return CellVerdict(cell.id, cell.number, ReplayVerdict.NOT_RUN, reason)
    if difference is None:
        return CellVerdict(cell.id, cell.number, ReplayVerdict.NOT_RECORDED)
    return CellVerdict(
        cell.id,
        cell.number,
        difference.verdict,
        _describe_difference(session, findings, cell, difference, sources),
        difference.lines,
    )


def _describe_difference(
    session: Session,
    findings: ReplayFindings,
    cell: Cell,
    difference: Difference,
    sources: Sources,
) -> str:
    """Return the text on the difference of a cell, with the reason if it is known."""
    texts = []
    recorded_error = findings.first.faults.get(cell.index)
    if recorded_error is not None:
        texts.append(f"fails, as recorded: {recorded_error}")
    text = difference.text
    if text == NONDETERMINISTIC:
        text = nondeterminism.describe_reason(
            cell, sources, is_reordered=difference.is_reordered
        )
    texts.append(text)
    if difference.verdict is ReplayVerdict.CHANGED:
        changed_input = sources.find_changed_input(cell)
        if changed_input:
            texts.append(nondeterminism.describe_changed_file(changed_input))
    if not difference.verdict.reproduces:
        texts.append(_explain_changed_source(session, findings, cell))
    return "; ".join(filter(None, texts))


def _create_failure_verdict(
    session: Session, findings: ReplayFindings, failed: RunSummary
) -> CellVerdict:
    """Return the verdict on a cell that failed without reproducing a recorded error."""
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
