"""Compares new outputs with recorded outputs, for `run --all` and `restore`.

The recorded outputs are read before the run, because the run replaces them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from typing import Any

from stepper.common.errors import NotebookError
from stepper.messages.run_report import RunSummary
from stepper.notebooks.notebook_document import Document
from stepper.policy.changed_cells import hash_source
from stepper.policy.comparison import clock_values, rerun_comparison, verify_results
from stepper.policy.comparison.clock_values import RunTime
from stepper.policy.comparison.output_items import CellOutputs
from stepper.policy.comparison.rerun_comparison import ChangedOutput
from stepper.policy.dataflow import run_history
from stepper.policy.execution_result import CellVersion
from stepper.policy.journal_events import RunEnded
from stepper.policy.model import Cell, Verdict, parse_moment
from stepper.session.session import Session
from stepper.session.verification.late_outputs import LATE_SECONDS


class RecordedOutputs:
    """The outputs that a notebook's cells had before they were rerun."""

    def __init__(
        self, session: Session, document: Document, cells: Sequence[Cell]
    ) -> None:
        self.session = session
        self.sources = [cell.source for cell in document.cells if cell.is_code]
        self.packages = dict(session.state.packages)
        # Project modules that changed after the recorded run of one of the cells.
        self.modules = _find_changed_modules(session, cells)
        # Only of cells whose outputs can be compared, by cell index.
        self.recorded: dict[int, list[dict[str, Any]]] = {}
        nondeterministic_ids = _get_nondeterministic_ids(session, document)
        last_hashes = {run.cell_id: run.source_hash for run in session.state.runs}
        for cell in cells:
            if cell.id in nondeterministic_ids:
                continue
            source_hash = hash_source(cell.source)
            if last_hashes.get(cell.id, source_hash) != source_hash:
                continue  # the recorded outputs are of another source
            outputs = document.get_recorded_outputs(cell)
            if outputs is not None:
                self.recorded[cell.index] = outputs

    def list_changed_modules(self) -> list[str]:
        """Return the names of project modules that changed since the recorded runs."""
        current_packages = self.session.state.packages
        changed = verify_results.find_changed_modules(self.packages, current_packages)
        return sorted(self.modules.union(changed))

    async def find_changed(self, finished: Sequence[RunSummary]) -> list[ChangedOutput]:
        """Return the outputs that differ from the recorded outputs, in order.

        `finished` are the runs to compare. If outputs differ, also wait for late
        outputs and write them to the notebook.
        """
        compared = list(filter(self._is_comparable, finished))
        outputs = {summary.cell.index: [*summary.outputs] for summary in compared}
        changed = await asyncio.to_thread(self._compare, compared, outputs)
        if not changed:
            return []
        # Threads and later cells may add or replace outputs. Only the file contains the
        # final outputs.
        await self._write_late_outputs()
        changed_numbers = {change.cell for change in changed}
        recompared = [
            summary for summary in compared if summary.cell.number in changed_numbers
        ]
        final_outputs = {
            summary.cell.index: self._read_outputs(summary) for summary in recompared
        }
        return await asyncio.to_thread(self._compare, recompared, final_outputs)

    def _is_comparable(self, summary: RunSummary) -> bool:
        """Return whether the outputs of a run can be compared with recorded outputs.

        The run must have succeeded, without omitted outputs.
        """
        run = summary.run
        if summary.cell.index not in self.recorded:
            return False
        if run.verdict is not Verdict.FINE:
            return False
        has_omitted_outputs = isinstance(run, RunEnded) and bool(run.left_out)
        return not has_omitted_outputs

    async def _write_late_outputs(self) -> None:
        """Wait for late outputs and write them to the notebook."""
        kernel = self.session.kernel_manager.kernel
        if kernel is not None and await kernel.check_death() is None:
            await asyncio.sleep(LATE_SECONDS)
            kernel.receive_pending()
        self.session.write_late_outputs()

    def _read_outputs(self, summary: RunSummary) -> list[Any]:
        """Return a cell's outputs in the notebook file.

        If the file does not contain them, return the outputs of the run.
        """
        cell = summary.cell
        outputs: list[Any] = []
        if cell.id not in self.session.state.pending_outputs:
            version = CellVersion.from_cell(cell)
            with contextlib.suppress(NotebookError):
                outputs = self.session.file.read_outputs(version)
        if outputs:
            return outputs
        return [*summary.outputs]

    def _compare(
        self, compared: Sequence[RunSummary], outputs: dict[int, list[Any]]
    ) -> list[ChangedOutput]:
        """Return the new outputs of runs that differ from the recorded outputs.

        `outputs` are the new outputs by cell index.
        """
        state = self.session.state
        packages = verify_results.find_changed_packages(self.packages, state.packages)
        is_redrawn = any(
            package.name in verify_results.DRAWING_PACKAGES for package in packages
        )
        facts = {key: text for run in state.runs for key, text in run.figures.items()}
        changed = []
        for summary in compared:
            cell = summary.cell
            recorded = self.recorded[cell.index]
            new_outputs = rerun_comparison.remove_pager_text(
                cell.source, recorded, CellOutputs(outputs[cell.index], facts)
            )
            difference = rerun_comparison.find_difference(
                CellOutputs(recorded, facts),
                new_outputs,
                self._get_run_time(summary),
                self.session.compare_pixels,
                is_redrawn=is_redrawn,
            )
            if difference is None:
                continue
            changed_output = rerun_comparison.describe_changed_output(cell, difference)
            changed.append(changed_output)
        return changed

    def _get_run_time(self, summary: RunSummary) -> RunTime:
        """Return the time of a run, for comparing the times in its outputs."""
        started_at = parse_moment(summary.run.started_at)
        reads_clock = clock_values.reads_clock(summary.cell.source, self.sources)
        return RunTime(started_at.timestamp(), summary.run.duration_s, reads_clock)


def _get_nondeterministic_ids(session: Session, document: Document) -> Collection[str]:
    """Return the IDs of the cells whose outputs differed between replays of `verify`.

    The result is empty if the notebook was changed since the last `verify`.
    """
    verified = session.state.verified
    if verified is None:
        return ()
    is_current = verified.sources == verify_results.hash_sources(document.cells)
    if is_current:
        return verified.unstable
    return ()


def _find_changed_modules(session: Session, cells: Sequence[Cell]) -> set[str]:
    """Return the project modules that changed since the last runs of the cells."""
    if not session.language.is_python:
        return set()
    session.journal.update_run_history()
    history = session.journal.run_history
    names: set[str] = set()
    for cell in cells:
        key = run_history.get_cell_key(cell.id, hash_source(cell.source))
        run = history.last_runs.get(key)
        if run:
            names.update(name for name, _ in history.find_changed_modules(run))
    return names
