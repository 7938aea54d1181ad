"""Find the bindings of cells that other cells have overwritten or removed.

The last cell that binds a name is stale if another cell has bound or deleted the name
since then: for example, a cell above that ran again.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepper.policy.dataflow.binding_table import Binding, BindingTable
from stepper.policy.dataflow.causes import OVERWRITTEN, REMOVED, Cause
from stepper.policy.dataflow.cell_flow import CellFlow
from stepper.policy.dataflow.run_history import History, RunRecord, get_key


def add_overwritten_bindings(
    flows: Sequence[CellFlow],
    table: BindingTable,
    deleted: dict[str, int],
    history: History,
) -> None:
    """Add the causes of the cells whose bindings are lost to their flows.

    `table` contains the bindings that the cells provide from top to bottom. `deleted`
    maps each name that a cell deletes, and that no cell below binds, to the index of
    the cell.
    """
    search = _OverwrittenBindings(flows, history)
    live_bindings = history.table.bindings
    last_binders = {name: binding.origin for name, binding in table.bindings.items()}
    for name, index in (deleted | last_binders).items():
        if not name.isidentifier():
            continue  # the name of state outside the variables
        live = live_bindings.get(name)
        writer = search.find_last_writer(name, index, live)
        if live is not None:
            search.add_overwritten_name(name, writer, live)
        elif name in last_binders:
            search.add_removed_name(name, writer)


def _has_succeeded(flow: CellFlow) -> bool:
    """Return whether a cell has run without an error, with its current source."""
    return flow.is_current and flow.record is not None and flow.record.succeeded


class _OverwrittenBindings:
    """The search for lost bindings."""

    def __init__(self, flows: Sequence[CellFlow], history: History) -> None:
        self.flows = flows
        self.history = history
        # The number of each cell that has run, by key.
        self.numbers: dict[str, int] = {}
        self.last_runs = set[int]()
        for flow in flows:
            if flow.record is not None:
                self.numbers[flow.record.key] = flow.cell.number
                self.last_runs.add(flow.record.run)

    def find_last_writer(self, name: str, index: int, live: Binding | None) -> int:
        """Return the index of the last cell that has written a name, from `index` up.

        The search goes up from a cell that changes the name in place, and that has
        failed or not run with its current source: the cell works on the value of the
        cell above. It stops at a cell whose run has bound the value in the kernel,
        `live`: the next run of that cell replaces the value. `live` is None if the
        kernel does not have the name.
        """
        flow = self.flows[index]
        origin = None
        if live is not None:
            origin = self.history.records.get(live.origin)
        while name in flow.providers and not _has_succeeded(flow):
            if origin is not None and origin.key == get_key(flow.cell):
                break
            index = flow.providers[name]
            flow = self.flows[index]
        return index

    def add_overwritten_name(self, name: str, index: int, live: Binding) -> None:
        """Add a cause if another cell bound a name after the cell at an index.

        The cell is the last cell that binds or deletes the name. `live` is the binding
        in the kernel.
        """
        flow = self.flows[index]
        origin = self.history.records.get(live.origin)
        if not self._is_later(origin, flow.record):
            return
        version = None
        if flow.record is not None:
            version = flow.record.bound.get(name)
        if version != live.version or version is None:
            self._add_cause(flow, name, origin, OVERWRITTEN)

    def add_removed_name(self, name: str, index: int) -> None:
        """Add a cause if another cell deleted a name after the cell at an index.

        The cell is the last cell that binds the name.
        """
        flow = self.flows[index]
        changes = self.history.undo.changes.get(name)
        if not changes or flow.record is None or name not in flow.record.bound:
            return
        deleter = self.history.records.get(changes[-1].origin)
        if self._is_later(deleter, flow.record):
            self._add_cause(flow, name, deleter, REMOVED)

    def _is_later(
        self,
        other: RunRecord | None,
        record: RunRecord | None,
    ) -> bool:
        """Return whether `other` is a later run than `record`, and of another cell.

        Return False if `record` is a run in an earlier kernel.
        """
        if other is None or record is None:
            return False
        if other.key == record.key or record.run < self.history.first_run:
            return False
        return other.run > record.run

    def _will_be_undone(self, run: RunRecord) -> bool:
        """Return whether the changes of a run are undone before its cell runs again.

        This is the case if the run failed and is the last run of its cell. If a name
        cannot be restored then, the cells that bound the name become stale.
        """
        return run.needs_retry and run.run in self.last_runs

    def _add_cause(
        self,
        flow: CellFlow,
        name: str,
        other: RunRecord | None,
        where: str,
    ) -> None:
        """Add a cause to a cell, unless the cell has a cause for the same name.

        `other` is the run that bound or deleted the name. Nothing is added if the cell
        failed or has changed, or if `other` will be undone.
        """
        if other is None or flow.record is None:
            return
        if not flow.is_current or not flow.record.succeeded:
            return
        if flow.record.run in self.history.undo.undone_runs:
            return  # the cell is stale for that reason already
        if self._will_be_undone(other):
            return
        for cause in flow.stale:
            if cause.name == name:
                return
        number = self.numbers.get(other.key, 0)
        cause = Cause(name, other.cell_id, number, where)
        flow.stale.append(cause)
