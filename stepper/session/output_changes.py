"""Compare new outputs with the recorded ones, for `run --all` and `restore`.

The recorded outputs are read before the run, because the run replaces them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from stepper.common.errors import NotebookError
from stepper.messages.run_report import RunSummary
from stepper.policy.cell_changes import hash_source
from stepper.policy.comparison import clock_values, recorded_outputs, verify_results
from stepper.policy.comparison.clock_values import RunTime
from stepper.policy.comparison.output_comparison import CellOutputs
from stepper.policy.comparison.recorded_outputs import ChangedOutput
from stepper.policy.dataflow import cell_dependencies
from stepper.policy.journal_events import RunEnded
from stepper.policy.model import Cell, Verdict, parse_moment
from stepper.session.protocols import CellVersion, Notebook
from stepper.session.replay import LATE_SECONDS
from stepper.session.session import Session

# another version of these may draw the same figure otherwise
DRAWS = ("matplotlib", "PIL", "seaborn")


class RecordedOutputs:
    """The outputs that a notebook's cells had before they ran again."""

    def __init__(
        self, session: Session, document: Notebook, cells: Sequence[Cell]
    ) -> None:
        self.session = session
        self.sources = [cell.source for cell in document.cells if cell.is_code]
        self.packages = dict(session.state.packages)
        self.recorded = dict[int, list[dict[str, Any]]]()
        # modules of the project that changed after the recorded run of one of the cells
        self.modules = _find_changed_modules(session, cells)
        verified = session.state.verified
        is_valid = (
            verified is not None
            and verified.sources == verify_results.hash_sources(document.cells)
        )
        unstable = verified.unstable if verified is not None and is_valid else ()
        ran = {run.cell_id: run.source_hash for run in session.state.runs}
        for cell in cells:
            outputs = document.get_recorded_outputs(cell)
            same_source = ran.get(cell.id, "") in ("", hash_source(cell.source))
            if outputs is not None and same_source and cell.id not in unstable:
                self.recorded[cell.index] = outputs

    def list_changed_modules(self) -> list[str]:
        """Return the project modules that changed since the recorded runs."""
        now = self.session.state.packages
        changed = verify_results.find_changed_modules(self.packages, now)
        return sorted(self.modules.union(changed))

    async def find_changed(self, ended: Sequence[RunSummary]) -> list[ChangedOutput]:
        """Return the cells whose outputs differ now, in the order of their runs."""
        compared = [
            each
            for each in ended
            if each.cell.index in self.recorded
            and each.run.verdict is Verdict.FINE
            and not (isinstance(each.run, RunEnded) and each.run.left_out)
        ]
        fresh = {each.cell.index: [*each.outputs] for each in compared}
        found = await asyncio.to_thread(self._compare, compared, fresh)
        if not found:
            return []
        # Threads and later cells add to outputs or replace them: the file has them all.
        await self._take_late_outputs()
        differing = {each.cell for each in found}
        compared = [each for each in compared if each.cell.number in differing]
        written = {each.cell.index: self._read_written(each) for each in compared}
        if all(fresh[index] == outputs for index, outputs in written.items()):
            return found
        fresh.update(written)
        return await asyncio.to_thread(self._compare, compared, fresh)

    async def _take_late_outputs(self) -> None:
        kernel = self.session.kernel_manager.kernel
        if kernel is not None and await kernel.check_death() is None:
            await asyncio.sleep(LATE_SECONDS)
            kernel.receive_pending()
        self.session.put_late()

    def _read_written(self, ended: RunSummary) -> list[Any]:
        """Return a cell's outputs from the notebook file.

        If they could not be written, return those of the run.
        """
        outputs = list[Any]()
        if ended.cell.id not in self.session.state.pending_outputs:
            with contextlib.suppress(NotebookError):
                outputs = self.session.file.read_outputs(
                    CellVersion.from_cell(ended.cell)
                )
        return outputs or [*ended.outputs]

    def _compare(
        self, compared: Sequence[RunSummary], fresh: dict[int, list[Any]]
    ) -> list[ChangedOutput]:
        state = self.session.state
        packages = verify_results.find_changed_packages(self.packages, state.packages)
        redrawn = any(package.name in DRAWS for package in packages)
        facts = {key: text for run in state.runs for key, text in run.figures.items()}
        changed = list[ChangedOutput]()
        for each in compared:
            cell = each.cell
            recorded = self.recorded[cell.index]
            shown = recorded_outputs.remove_pager_text(
                cell.source, recorded, CellOutputs(fresh[cell.index], facts)
            )
            run = RunTime(
                parse_moment(each.run.started_at).timestamp(),
                each.run.duration_s,
                clock_values.reads_clock(cell.source, self.sources),
            )
            difference = recorded_outputs.find_difference(
                CellOutputs(recorded, facts),
                shown,
                run,
                self.session.compare_pixels,
                redrawn,
            )
            if difference is not None:
                changed.append(
                    recorded_outputs.describe_changed_output(cell, difference)
                )
        return changed


def _find_changed_modules(session: Session, cells: Sequence[Cell]) -> set[str]:
    if not session.speaks_python:
        return set()
    state, past = session.state, session.run_history
    past.catch_up(state.runs, state.sources_by_hash, state.external_executions)
    runs = [
        past.last_runs.get(
            cell_dependencies.cell_key(cell.id, hash_source(cell.source))
        )
        for cell in cells
    ]
    return {name for run in runs if run for name, _ in past.modules_changed_since(run)}
