"""Plan a partial replay: a cell, the cells below it, and the cells that these need.

Other cells above are skipped if they took QUICK_SECONDS or longer. Quick cells are
replayed, because they may set options or seeds, which the sources of other cells do not
mention. With a checkpoint, values that would take long to compute are loaded from the
live kernel instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stepper.common.text import format_count, one_line
from stepper.policy.changed_cells import SKIP_TAG, select_runnable
from stepper.policy.dataflow.name_effects import VALUE
from stepper.policy.dataflow.run_history import History, RunRecord, get_cell_key
from stepper.policy.model import Cell

QUICK_SECONDS = 1.0
# Cell id → name that the cell reads → id of the cell above that provides it.
Reads = Mapping[str, Mapping[str, str]]
# Cell id → seconds of its last run, as far as they are known.
Durations = Mapping[str, float]
# Called with the id of a cell and a name. Returns whether the value that the cell gave
# the name can be loaded from the live kernel.
IsLoadable = Callable[[str, str], bool]


@dataclass(frozen=True)
class ReplayPlan:
    """The cells that a partial replay skips, in order.

    `loads` maps the id of a skipped cell to the names whose values are loaded in place
    of running the cell.
    """

    skipped: Sequence[Cell]
    loads: Mapping[str, set[str]] = field(default_factory=dict)


def plan_replay(
    cells: Sequence[Cell],
    first: Cell,
    reads: Reads,
    durations: Durations,
    is_loadable: IsLoadable = lambda cell_id, name: False,
) -> ReplayPlan:
    """Return the plan of a partial replay that starts at the cell `first`.

    By default, no value is loaded.
    """
    return _Planner(cells, first, reads, durations, is_loadable).plan()


class _Planner:
    """Finds the cells to replay and the names to load."""

    def __init__(
        self,
        cells: Sequence[Cell],
        first: Cell,
        reads: Reads,
        durations: Durations,
        is_loadable: IsLoadable,
    ) -> None:
        runnable = select_runnable(cells)
        self.above = [cell for cell in runnable if cell.index < first.index]
        self.replayed = {cell.id for cell in runnable if cell.index >= first.index}
        self.reads = reads
        self.durations = durations
        self.is_loadable = is_loadable
        self.loads: dict[str, set[str]] = {}

    def plan(self) -> ReplayPlan:
        """Return the cells to skip and the names to load."""
        self._add_needed_cells()
        skipped = []
        for cell in self.above:
            if cell.id in self.replayed:
                continue
            if self._is_quick(cell.id) and self._is_complete(cell.id):
                self.replayed.add(cell.id)
            else:
                skipped.append(cell)
        return ReplayPlan(skipped, self.loads)

    def _add_needed_cells(self) -> None:
        """Add the cells that the replayed cells need, or the names to load instead."""
        pending = [*self.replayed]
        while pending:
            for name, provider in self._get_reads(pending.pop()).items():
                if provider in self.replayed:
                    continue
                is_quick = self._sum_durations(provider) < QUICK_SECONDS
                if not is_quick and self.is_loadable(provider, name):
                    self.loads.setdefault(provider, set()).add(name)
                else:
                    self.replayed.add(provider)
                    pending.append(provider)
        for cell_id in self.replayed:
            self.loads.pop(cell_id, None)

    def _get_reads(self, cell_id: str) -> Mapping[str, str]:
        """Return the names that a cell reads, with the ids of the providing cells."""
        return self.reads.get(cell_id, {})

    def _is_quick(self, cell_id: str) -> bool:
        """Return whether the last run of a cell is known to be quick."""
        return self.durations.get(cell_id, QUICK_SECONDS) < QUICK_SECONDS

    def _is_complete(self, cell_id: str) -> bool:
        """Return whether a cell can run: the replay provides all names that it reads.

        Return False for a cell whose values are loaded.
        """
        if cell_id in self.loads:
            return False
        return all(
            provider in self.replayed or name in self.loads.get(provider, ())
            for name, provider in self._get_reads(cell_id).items()
        )

    def _sum_durations(self, cell_id: str) -> float:
        """Return the seconds that a cell and all cells that it needs take together.

        An unknown duration counts as QUICK_SECONDS.
        """
        needed = find_needed_cells(self.reads, [cell_id])
        return sum(self.durations.get(other, QUICK_SECONDS) for other in needed)


def find_needed_cells(reads: Reads, cell_ids: Iterable[str]) -> set[str]:
    """Return the given ids, and the ids of all cells that these cells need."""
    needed = {*cell_ids}
    pending = [*needed]
    while pending:
        providers = {*reads.get(pending.pop(), {}).values()} - needed
        needed |= providers
        pending += providers
    return needed


def find_current_run(
    history: History, cell: Cell, source_hash: str
) -> RunRecord | None:
    """Return the last run of a cell if it succeeded and had the current source.

    `source_hash` is the hash of the current source.
    """
    record = history.last_runs.get(get_cell_key(cell.id, source_hash))
    if record is None or not record.succeeded:
        return None
    return record if record.source_hash == source_hash else None


def has_value_of_run(history: History, record: RunRecord, name: str) -> bool:
    """Return whether a name in the live kernel still has the value that a run gave it.

    Return False for modules, functions and classes, which are not saved by value.
    """
    binding = history.table.bindings.get(name)
    if binding is None:
        return False
    return binding.kind == VALUE and binding.origin == record.run


def are_values_intact(history: History, records: Sequence[RunRecord]) -> bool:
    """Return whether no other run changed values that these runs bound.

    A change of one value may also have changed other values, which share objects with
    it. A run that bound a name to another value did not change the former value.
    """
    runs = {record.run for record in records}
    for record in records:
        for name in record.bound:
            binding = history.table.bindings.get(name)
            if binding is None or binding.origin in runs:
                continue
            changed_by = history.records.get(binding.origin)
            if changed_by is None or name in changed_by.reads:
                return False
    return True


def find_cell(cells: Sequence[Cell], selection: str) -> Cell | None:
    """Return the runnable cell that `selection` names, or None.

    `selection` is a cell id, or the number of a code cell. An id takes precedence.
    """
    runnable = select_runnable(cells)
    for cell in runnable:
        if cell.id == selection:
            return cell
    for cell in runnable:
        if str(cell.number) == selection:
            return cell
    return None


def explain_missing_cell(cells: Sequence[Cell], selection: str) -> str:
    """Return the reason why `find_cell` finds no cell."""
    code_cells = [cell for cell in cells if cell.is_code]
    for cell in code_cells:
        if selection in (cell.id, str(cell.number)):
            return f"code cell {cell.number} is empty or tagged `{SKIP_TAG}`"
    name = one_line(selection, 100)
    count = format_count(len(code_cells), "code cell")
    return f"there is no code cell {name!r}; the notebook has {count}"
