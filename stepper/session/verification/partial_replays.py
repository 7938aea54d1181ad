"""Selection of the cells that `verify --from CELL` skips.

With `--checkpoint`, values of skipped cells are saved in the live kernel, and loaded in
the kernel of the replay.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from stepper.common import secure_files
from stepper.common.errors import UsageError
from stepper.common.text import one_line
from stepper.notebooks.notebook_document import Document
from stepper.policy.changed_cells import hash_source, select_runnable
from stepper.policy.dataflow import partial_replay
from stepper.policy.dataflow.partial_replay import Reads, ReplayPlan
from stepper.policy.model import Cell
from stepper.session import progress_events, stale_cells
from stepper.session.caller import Caller
from stepper.session.session import Session
from stepper.session.session_state.notebook_language import PYTHON_LANGUAGES
from stepper.session.verification import checkpoints
from stepper.session.verification.checkpoints import Checkpoint


@dataclass(frozen=True)
class PartialReplay:
    """The cells that a replay skips, and the checkpoints that it loads instead.

    Both contain cell indexes, and are empty for a full replay. `is_live_kernel_used`
    means that the live kernel executed code to save values, even if this failed.
    """

    skipped: frozenset[int] = frozenset()
    checkpoints: Mapping[int, Checkpoint] = field(default_factory=dict)
    is_live_kernel_used: bool = False

    def describe_source(self, index: int) -> str:
        """Return a text on the loaded results of a skipped cell.

        Return an empty string if no results are loaded.
        """
        checkpoint = self.checkpoints.get(index)
        if checkpoint is None:
            return ""
        names = ", ".join(f"`{name}`" for name in checkpoint.names)
        return f"{names} loaded from the live kernel"


FULL_REPLAY = PartialReplay()


def find_first_cell(session: Session, document: Document, from_cell: str) -> Cell:
    """Return the cell at which a partial replay starts.

    `from_cell` is the ID or the number of the cell. Raise UsageError if there is no
    such cell, if the cell never runs, or if the notebook is not in Python.
    """
    first = partial_replay.find_cell(document.cells, from_cell)
    if first is None:
        reason = partial_replay.explain_missing_cell(document.cells, from_cell)
        raise UsageError(f"--from: {reason}")
    is_python = document.language in PYTHON_LANGUAGES and session.language.is_python
    if not is_python:
        raise UsageError(
            "--from needs a notebook in Python: stepper cannot find the dependencies"
            " between cells in other languages"
        )
    return first


class PartialReplayPlanner:
    """Selects the cells that a partial replay skips and the values that it loads."""

    def __init__(self, session: Session, document: Document, from_cell: str) -> None:
        self.session = session
        self.cells = document.cells
        self.first = find_first_cell(session, document, from_cell)
        self.dependencies = stale_cells.update_dependencies(session, self.cells)
        self.reads = _add_reads_of_failing_cells(document, self.dependencies.reads)
        self.durations = _collect_durations(session, document)
        self.cells_by_id = {cell.id: cell for cell in select_runnable(self.cells)}
        marked = (*self.dependencies.stale, *self.dependencies.hidden)
        self.marked_ids = {entry.cell.id for entry in marked}
        # Whether the last run was in the live kernel; `plan_with_checkpoint` sets this.
        self.is_live = False
        # IDs of the cells whose values could not be saved.
        self.unsavable_ids = set[str]()
        self.is_live_kernel_used = False

    def plan(self) -> PartialReplay:
        """Return the plan without a checkpoint."""
        plan = self._plan(lambda cell_id, name: False)
        return PartialReplay(_get_indexes(plan))

    async def plan_with_checkpoint(
        self, folder: str, caller: Caller, progress: progress_events.ProgressCallback
    ) -> PartialReplay:
        """Save values of the live kernel in a folder, and return the plan.

        A cell whose values cannot be saved is replayed: this is reported to `progress`,
        and a new plan is made. Raise StepperError if there is no live kernel, or if the
        code that saves the values fails.
        """
        kernel = await checkpoints.get_live_kernel(self.session)
        self.is_live = self.session.journal.run_history.kernel == kernel.id
        secure_files.create_folder(folder)
        for attempt in itertools.count(1):
            plan = self._plan(self._has_value)
            by_cell_id: dict[str, Checkpoint] = {}
            for cell_id, names in plan.loads.items():
                path = os.path.join(folder, f"{len(by_cell_id)}-{attempt}.pickle")
                by_cell_id[cell_id] = Checkpoint(sorted(names), path)
            problems = await self._save(by_cell_id, caller)
            if not problems:
                break
            for cell_id, problem in problems.items():
                self.unsavable_ids.add(cell_id)
                label = self.cells_by_id[cell_id].label
                line = f"{label} is replayed: its values cannot be saved ({problem})"
                progress(progress_events.Waiting(line=line))
        by_index = {
            self.cells_by_id[cell_id].index: checkpoint
            for cell_id, checkpoint in by_cell_id.items()
        }
        return PartialReplay(_get_indexes(plan), by_index, self.is_live_kernel_used)

    async def _save(
        self, by_cell_id: Mapping[str, Checkpoint], caller: Caller
    ) -> dict[str, str]:
        """Save the checkpoints of cells.

        Return an error message for each cell whose values cannot be saved, by cell ID.
        """
        if not by_cell_id:
            return {}
        self.is_live_kernel_used = True
        names_by_path = {item.path: item.names for item in by_cell_id.values()}
        problems = await checkpoints.save_values(self.session, names_by_path, caller)
        return {
            cell_id: one_line(problems[checkpoint.path], 300)
            for cell_id, checkpoint in by_cell_id.items()
            if checkpoint.path in problems
        }

    def _plan(self, is_loadable: partial_replay.IsLoadable) -> ReplayPlan:
        """Return a plan that loads the values for which `is_loadable` returns True."""
        return partial_replay.plan_replay(
            self.cells,
            self.first,
            self.reads,
            self.durations,
            is_loadable,
        )

    def _has_value(self, cell_id: str, name: str) -> bool:
        """Return whether a value that a cell assigned can be saved for the replay.

        The live kernel must still have the value and be able to save the value. Return
        False if a replay could compute another value: if the cell, or a cell whose
        values it needs, is stale, used hidden state or has not run with its current
        source.
        """
        if not self.is_live or cell_id in self.unsavable_ids:
            return False
        if not name.isidentifier():
            return False  # not a variable, but for example a random generator
        history = self.session.journal.run_history
        records = {}
        for needed_id in partial_replay.find_needed_cells(self.reads, [cell_id]):
            cell = self.cells_by_id[needed_id]
            source_hash = hash_source(cell.source)
            record = partial_replay.find_current_run(history, cell, source_hash)
            if record is None or needed_id in self.marked_ids:
                return False
            records[needed_id] = record
        if not partial_replay.has_value_of_run(history, records[cell_id], name):
            return False
        return partial_replay.are_values_intact(history, [*records.values()])


def _get_indexes(plan: ReplayPlan) -> frozenset[int]:
    """Return the indexes of the cells that a plan skips."""
    return frozenset(cell.index for cell in plan.skipped)


def _add_reads_of_failing_cells(document: Document, reads: Reads) -> Reads:
    """Return `reads`, and reads from all cells above for cells with a recorded error.

    A failed cell may not have assigned all names in its source, so cells below may get
    these names from the cells above it. The added reads have artificial names, which no
    variable can have.
    """
    cells = select_runnable(document.cells)
    all_reads = dict(reads)
    for position, cell in enumerate(cells):
        outputs = document.get_recorded_outputs(cell) or ()
        if any(output.get("output_type") == "error" for output in outputs):
            above = {f"all of {other.id}": other.id for other in cells[:position]}
            all_reads[cell.id] = {**all_reads.get(cell.id, {}), **above}
    return all_reads


def _collect_durations(session: Session, document: Document) -> dict[str, float]:
    """Return the durations of cells in seconds, by cell ID.

    The duration is from the last run with the current source. If the journal has no
    such run, the duration is from the notebook file.
    """
    durations: dict[str, float] = {}
    hashes: dict[str, str] = {}
    for cell in select_runnable(document.cells):
        hashes[cell.id] = hash_source(cell.source)
        recorded_seconds = document.get_recorded_seconds(cell)
        if recorded_seconds is not None:
            durations[cell.id] = recorded_seconds
    for run in session.state.runs:
        if hashes.get(run.cell_id) == run.source_hash:
            durations[run.cell_id] = run.duration_s
    return durations
