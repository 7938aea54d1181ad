"""Which cells `verify --from CELL` skips, and what `--checkpoint` loads instead."""

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
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.dataflow import partial_replay
from stepper.policy.dataflow.partial_replay import Reads, ReplayPlan
from stepper.policy.model import Cell
from stepper.session import progress_events, stale_cells
from stepper.session.caller import Caller
from stepper.session.session import Session
from stepper.session.verification import checkpoints
from stepper.session.verification.checkpoints import Checkpoint


@dataclass(frozen=True)
class PartialReplay:
    """The cells that a replay skips, by index, and the values that it loads instead.

    For a full replay, both are empty. `is_live_kernel_used` says whether the live
    kernel executed code to save values, whether or not it could save them.
    """

    skipped: frozenset[int] = frozenset()
    checkpoints: Mapping[int, Checkpoint] = field(default_factory=dict)
    is_live_kernel_used: bool = False

    def describe_source(self, index: int) -> str:
        """Return where the results of a skipped cell come from, or an empty string."""
        checkpoint = self.checkpoints.get(index)
        if checkpoint is None:
            return ""
        names = ", ".join(f"`{name}`" for name in checkpoint.names)
        return f"{names} loaded from the live kernel"


FULL_REPLAY = PartialReplay()


def find_first_cell(session: Session, document: Document, from_cell: str) -> Cell:
    """Return the cell at which a partial replay starts, by its id or its number.

    Raise UsageError if there is no such cell, or if the notebook is not in Python.
    """
    first = partial_replay.find_cell(document.cells, from_cell)
    if first is None:
        show = CommandLines(session.name).shell("show")
        raise UsageError(
            f"--from: there is no code cell {one_line(from_cell, 100)!r}",
            f"{show}  # shows the numbers and ids",
        )
    if document.language != "python" or not session.language.is_python:
        raise UsageError(
            "--from needs a notebook in Python: stepper does not know which cells need"
            " which in other languages"
        )
    return first


class PartialReplayPlanner:
    """Plans a partial replay of a notebook."""

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
        # Whether the live kernel is the one of the last run.
        self.is_live = False
        # Cells whose results can't be saved.
        self.unsaved = set[str]()
        self.is_live_kernel_used = False

    def plan(self) -> PartialReplay:
        """Return the plan without a checkpoint."""
        plan = self._plan(lambda cell_id, name: False)
        return PartialReplay(_get_indexes(plan))

    async def plan_with_checkpoint(
        self, folder: str, caller: Caller, progress: progress_events.ProgressCallback
    ) -> PartialReplay:
        """Save values of the live kernel in a folder, and return the plan.

        Cells whose values can't be saved are replayed. Raise StepperError if there is
        no live kernel.
        """
        kernel = await checkpoints.get_live_kernel(self.session)
        self.is_live = self.session.journal.run_history.kernel == kernel.id
        secure_files.create_folder(folder)
        for attempt in itertools.count(1):
            plan = self._plan(self._has_value)
            saved: dict[str, Checkpoint] = {}
            for cell_id, names in plan.loads.items():
                path = os.path.join(folder, f"{len(saved)}-{attempt}.pickle")
                saved[cell_id] = Checkpoint(sorted(names), path)
            problems = await self._save(saved, caller)
            if not problems:
                break
            for cell_id, problem in problems.items():
                self.unsaved.add(cell_id)
                label = self.cells_by_id[cell_id].label
                line = f"{label} is replayed: its values can't be saved ({problem})"
                progress(progress_events.Waiting(line=line))
        by_index = {
            self.cells_by_id[cell_id].index: checkpoint
            for cell_id, checkpoint in saved.items()
        }
        return PartialReplay(_get_indexes(plan), by_index, self.is_live_kernel_used)

    async def _save(
        self, saved: Mapping[str, Checkpoint], caller: Caller
    ) -> dict[str, str]:
        """Save the checkpoints of cells; return why some can't be saved, by cell id."""
        if not saved:
            return {}
        self.is_live_kernel_used = True
        names_by_path = {item.path: item.names for item in saved.values()}
        problems = await checkpoints.save_values(self.session, names_by_path, caller)
        return {
            cell_id: one_line(problems[item.path], 300)
            for cell_id, item in saved.items()
            if item.path in problems
        }

    def _plan(self, is_loadable: partial_replay.IsLoadable) -> ReplayPlan:
        return partial_replay.plan_replay(
            self.cells,
            self.first,
            self.reads,
            self.durations,
            is_loadable,
        )

    def _has_value(self, cell_id: str, name: str) -> bool:
        """Return whether the live kernel has the value that a cell gave a name.

        The results of all cells that the cell needs must be those of a replay.
        """
        if not self.is_live or cell_id in self.unsaved:
            return False
        if not name.isidentifier():
            return False  # state outside the variables
        history = self.session.journal.run_history
        needed = partial_replay.find_needed(self.reads, [cell_id])
        records = []
        for needed_id in needed:
            cell = self.cells_by_id[needed_id]
            source_hash = hash_source(cell.source)
            record = partial_replay.find_current_run(history, cell, source_hash)
            if record is None or needed_id in self.marked_ids:
                return False
            records.append(record)
            if needed_id == cell_id and not partial_replay.has_value_of_run(
                history, record, name
            ):
                return False
        return partial_replay.are_values_intact(history, records)


def _get_indexes(plan: ReplayPlan) -> frozenset[int]:
    return frozenset(cell.index for cell in plan.skipped)


def _add_reads_of_failing_cells(document: Document, reads: Reads) -> Reads:
    """Return the reads of cells. Cells with a recorded error read from all above.

    Such a cell did not bind all names of its source, so they may come from above. These
    reads have artificial names, which no variable can have.
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
    """Return the seconds that cells took, by cell id.

    They are those of the last run of the current source here, or else the ones that the
    file records.
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
