"""Select the cells to run again, so that the kernel gets the notebook's values.

These are the values that a run of all cells from the top would give.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stepper.policy.dataflow.binding_table import Binding
from stepper.policy.dataflow.cell_flow import CellFlow, Dependencies
from stepper.policy.dataflow.run_history import History

# The indexes of cells.
Indexes = set[int]


def select_cells(
    dependencies: Dependencies,
    history: History,
    up_to_date: Collection[str],
    *,
    undoes_runs: bool,
    done: Collection[str] = (),
) -> set[str]:
    """Return the ids of the cells that must run again.

    These are:

    - the stale cells
    - the cells that used hidden state, if cells above can provide the values
    - the cells above that provide values for these cells, if the kernel has others

    `up_to_date` are the ids of the cells that ran in the kernel with their current
    source. `undoes_runs` says that the kernel undoes the earlier runs of a cell before
    the cell runs again. `done` are the ids of cells that have just run; if such a cell
    must run again, undo is not expected to restore its values.
    """
    undone = set()
    for flow in dependencies.flows:
        if undoes_runs and flow.cell.id not in done:
            undone.add(flow.cell.id)
    search = _RerunSearch(dependencies.flows, history, up_to_date, undone, done)
    return {dependencies.flows[index].cell.id for index in search.find()}


class _RerunSearch:
    """The search for the cells that must run again."""

    def __init__(
        self,
        flows: Sequence[CellFlow],
        history: History,
        up_to_date: Collection[str],
        undone: Collection[str],
        done: Collection[str],
    ) -> None:
        self.flows = flows
        self.history = history
        self.up_to_date = up_to_date
        # The ids of cells whose earlier runs are undone before they run again.
        self.undone = undone
        self.done = done
        # The index of each cell that has run, by key.
        self.indexes: dict[str, int] = {}
        for index, flow in enumerate(flows):
            if flow.record is not None:
                self.indexes[flow.record.key] = index
        # The first run of each cell in the current kernel, by key.
        self.first_runs: dict[str, int] = {}
        for run, record in history.records.items():
            if run >= history.first_run:
                self.first_runs.setdefault(record.key, run)

    def find(self) -> Indexes:
        """Return the indexes of the cells that must run again."""
        selected = set()
        for index, flow in enumerate(self.flows):
            if flow.stale or flow.repairable_names:
                selected.add(index)
        while True:
            missing = self._find_missing_providers(selected)
            if not missing:
                return selected
            selected |= missing

    def _find_missing_providers(self, selected: Indexes) -> Indexes:
        """Return the cells that must run, too, to provide values for selected cells."""
        missing = set()
        # Name → the cell whose value the kernel has after the cells above ran again.
        provided: dict[str, int] = {}
        for index, flow in enumerate(self.flows):
            if index not in selected:
                continue
            for name, provider in flow.providers.items():
                if provider in selected or provider in missing:
                    continue
                current = provided.get(name)
                if current is None:
                    is_available = self._is_available(name, provider, index)
                else:
                    is_available = current == provider
                if not is_available:
                    missing.add(provider)
            provided.update(dict.fromkeys(flow.written, index))
        return missing

    def _is_available(self, name: str, provider: int, reader: int) -> bool:
        """Return whether the kernel has a value when the cell that reads it runs again.

        `provider` is the index of the cell that provides the value of the name, and
        `reader` the index of the cell that reads the name.
        """
        flow = self.flows[provider]
        if flow.cell.id not in self.up_to_date:
            return False
        if name in self.history.undo.unrestored:
            return False
        live = self._predict_binding(name, reader)
        if live is None:
            return False
        if flow.record is None or name not in flow.record.bound:
            return True  # the cell ran, but its effect on the name is not known
        # If the reader has just run, an equal value was not sufficient.
        is_equal = live.version == flow.record.bound.get(name)
        if is_equal and self.flows[reader].cell.id not in self.done:
            return True
        origin = self.history.records.get(live.origin)
        return origin is not None and origin.key == flow.record.key

    def _predict_binding(self, name: str, reader: int) -> Binding | None:
        """Return the binding of a name that a cell would read if it ran now.

        `reader` is the index of the cell. Before a cell runs again, its own runs and
        later runs of cells below it are undone.
        """
        live = self.history.table.bindings.get(name)
        flow = self.flows[reader]
        record = flow.record
        if record is None or flow.cell.id not in self.undone:
            return live
        first_run = self.first_runs.get(record.key)
        if first_run is None:
            return live
        for change in reversed(self.history.undo.changes.get(name, ())):
            if change.origin < first_run:
                break
            origin = self.history.records.get(change.origin)
            if origin is None or self._is_above(origin.key, reader):
                break
            live = change.before
        return live

    def _is_above(self, key: str, reader: int) -> bool:
        """Return whether the cell with a key is above the cell at an index.

        Return False for a deleted cell.
        """
        return self.indexes.get(key, reader) < reader
