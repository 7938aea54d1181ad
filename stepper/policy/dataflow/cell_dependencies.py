"""Data flow between cells: find stale cells and cells that used hidden state.

A cell is **stale** if a cell above it later assigned another value to a name that the
cell reads, if the cell that binds such a name is changed and has not run, or if a
module that the cell uses changed. A cell is also stale if its own binding of a name
is no longer the one in the kernel. A cell is **indirectly stale** if it reads a name
that a stale cell binds. A cell used **hidden state** if it read a value that is not
from the nearest cell above that binds the name: a value from a cell below, from a
deleted cell, from its own earlier run, or from code that another client executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from stepper.policy.changed_cells import hash_source, select_runnable
from stepper.policy.dataflow.binding_table import Binding, BindingTable, Names
from stepper.policy.dataflow.causes import (
    BELOW,
    EARLIER_VERSION,
    INDIRECT,
    ITSELF,
    MODULE,
    OVERRIDDEN,
    PENDING,
    UNBOUND,
    UNDONE,
    UNDONE_RUN,
    UNDONE_VALUE,
    UNRESTORED,
    Cause,
    make_cause,
)
from stepper.policy.dataflow.cell_flow import CellFlow, Dependencies
from stepper.policy.dataflow.name_effects import IMPORT
from stepper.policy.dataflow.outside_state import PARTED_STATES
from stepper.policy.dataflow.overwritten_bindings import add_overwritten_bindings
from stepper.policy.dataflow.run_history import (
    Cells,
    History,
    RunRecord,
    get_cell_key,
    get_key,
    locate_provider,
)
from stepper.policy.dataflow.statement_flow import find_affected_names, list_texts
from stepper.policy.dataflow.undone_changes import FormerObject
from stepper.policy.undo_model import UNKNOWN_NAMES

Item = TypeVar("Item")


def ran_in_order(cells: Cells, last_cells: Cells, history: History) -> bool:
    """Return whether all cells have run in their order, and `last_cells` as the last.

    In this case, no cell has become stale or used hidden state. The result is also True
    if cells above ran in another order, but the last search found neither stale cells
    nor hidden state. The result is False if:

    - a cell that has run was deleted or changed, or is below `last_cells`
    - one of `last_cells` read a value of another client, of its own earlier run or of
      an undone run
    - a module changed when `last_cells` ran
    """
    keys = [get_key(cell) for cell in select_runnable(cells)]
    if not history.last_runs.keys() <= {*keys}:
        return False
    records = []
    for cell in last_cells:
        record = history.last_runs.get(get_key(cell))
        if record:
            records.append(record)
    if any(_reads_other_value(record, history) for record in records):
        return False
    first_run = min((record.run for record in records), default=0)
    for changing_run in history.module_changes.values():
        if changing_run >= first_run:
            return False
    last_index = max((cell.index for cell in last_cells), default=-1)
    ordered = _list_last_runs(cells, last_index, history)
    if ordered is None:
        return False
    runs = [record.run for record in ordered]
    if runs == sorted(runs):
        return True
    checked_count = _count_equal_items(runs, history.consistent_runs)
    later_runs = [max(runs[:checked_count], default=0), *runs[checked_count:]]
    if later_runs != sorted(later_runs):
        return False
    # The cells above ran in another order, but nothing is wrong with their values.
    return all(
        _only_adds_values(record, history) and _reads_nearest_values(record, ordered)
        for record in records
    )


def _reads_other_value(record: RunRecord, history: History) -> bool:
    """Return whether a run read a value that is not from a valid run of another cell.

    The value is from another client, from an earlier run of the same cell, or from an
    undone run.
    """
    if record.unrestored:
        return True
    for binding in record.reads.values():
        origin = history.records.get(binding.origin)
        if binding.origin < 0 or (origin is not None and origin.key == record.key):
            return True
    return False


def _list_last_runs(
    cells: Cells, last_index: int, history: History
) -> list[RunRecord] | None:
    """Return the last runs of the cells up to an index, in the order of the cells.

    Return None if one of these cells has not run with its current source, or if a cell
    below the index has run.
    """
    records = []
    for cell in select_runnable(cells):
        source_hash = hash_source(cell.source)
        record = history.last_runs.get(get_cell_key(cell.id, source_hash))
        if cell.index > last_index:
            if record is not None:
                return None
            continue
        if record is None or record.source_hash != source_hash:
            return None
        records.append(record)
    return records


def _count_equal_items(runs: Sequence[int], others: Sequence[int]) -> int:
    """Return how many items are equal at the start of two sequences."""
    count = 0
    for run, other in zip(runs, others, strict=False):
        if run != other:
            break
        count += 1
    return count


def _only_adds_values(record: RunRecord, history: History) -> bool:
    """Return whether a run neither changed objects of other cells nor deleted names.

    Such a change may matter to a cell that read an equal but older object.
    """
    usage = history.analyze(history.sources[record.source_hash])
    if usage.changes or usage.deletes or record.changed:
        return False
    return record.bound.keys() <= usage.binds.keys() | usage.outside_binds.keys()


def _reads_nearest_values(record: RunRecord, ordered: Sequence[RunRecord]) -> bool:
    """Return whether a run read all values from the nearest cells that provide them.

    `ordered` are the last runs of all cells, in the order of the cells.
    """
    position = ordered.index(record)
    for name, binding in record.reads.items():
        provider = 0
        for above in reversed(ordered[:position]):
            if name in above.bound:
                provider = above.run
                break
        if provider != binding.origin:
            return False
    return True


def find_dependencies(cells: Cells, history: History) -> Dependencies:
    """Return the stale cells and the cells that used hidden state.

    Cells that were edited since they ran are not included. For `ran_in_order`, the
    result is also stored in `history.consistent_runs`.
    """
    dependencies = _DependencySearch(cells, history).search()
    history.consistent_runs = _list_consistent_runs(dependencies)
    return dependencies


def _list_consistent_runs(dependencies: Dependencies) -> list[int]:
    """Return the last runs of the first cells, in the order of the cells.

    The list ends before the first cell that has not run with its current source. It is
    empty if any cell is stale, directly or indirectly, or used hidden state.
    """
    runs: list[int] = []
    if dependencies.stale or dependencies.hidden or dependencies.indirect:
        return runs
    for flow in dependencies.flows:
        if flow.record is None or not flow.is_current:
            break
        runs.append(flow.record.run)
    return runs


def _omit_names(values: Mapping[str, Item], names: Names) -> dict[str, Item]:
    """Return a copy of a dict with names as keys, without some names."""
    return {name: value for name, value in values.items() if name not in names}


class _DependencySearch:
    """The search for cells that read other values than the cells above them provide."""

    def __init__(self, cells: Cells, history: History) -> None:
        self.history = history
        self.all_keys = {get_key(cell) for cell in cells}
        self.cells = select_runnable(cells)
        self.keys = [get_key(cell) for cell in self.cells]
        self.positions: dict[str, int] = {}
        # The keys of cells that have no id but equal sources: any of them may have run.
        self.ambiguous: set[str] = set()
        for index, key in enumerate(self.keys):
            if key in self.positions:
                self.ambiguous.add(key)
            self.positions[key] = index
        # The bindings that the cells provide from top to bottom.
        self.table = BindingTable()
        self.flows: list[CellFlow] = []
        # Name → index of the cell that will probably bind it to another value.
        self.affected: dict[str, int] = {}
        # Name → index of the cell that deletes it.
        self.deleted: dict[str, int] = {}
        # Name → names that may be bound to the same object or to one that contains it.
        self.sharing: dict[str, set[str]] = {}
        # Names whose objects a cell changes in place.
        self.changed_in_place: set[str] = set()

    def search(self) -> Dependencies:
        """Apply the cells from top to bottom, and compare each with its last run.

        Return the stale cells and the cells that used hidden state.
        """
        for index, cell in enumerate(self.cells):
            record = self._find_last_run(index)
            is_current = record is not None and self._is_current(record, index)
            usage = self.history.analyze(cell.source)
            self.flows.append(CellFlow(cell, usage, record, is_current))
            # A name may be changed before it is deleted.
            self.changed_in_place |= usage.changes | usage.deletes
            if record is not None:
                self.changed_in_place |= record.bound.keys() - usage.binds.keys()
        self._record_sharing()
        self.changed_in_place = self._find_sharing_names(self.changed_in_place)
        for flow in self.flows:
            self._add_changes_of_edited_cell(flow)
        for index, flow in enumerate(self.flows):
            self._omit_changes_of_lower_names(index, flow)
            above = self._apply(index, flow)
            if flow.record is not None and flow.is_current:
                self._add_causes(index, flow.record, above)
            self._record_affected_names(index)
        add_overwritten_bindings(self.flows, self.table, self.deleted, self.history)
        return Dependencies(self.flows)

    def _find_literals(self) -> set[str]:
        """Return the names that cells bind only to literals.

        Nothing can change such a value in place.
        """
        names = set[str]()
        others = set[str]()
        for flow in self.flows:
            names |= flow.usage.binds.keys()
            others |= flow.usage.non_literals
            if flow.record is not None:
                others |= flow.record.bound.keys() - flow.usage.binds.keys()
        return names - others

    def _record_sharing(self) -> None:
        """Record which names share objects with other names."""
        literals = self._find_literals()
        for flow in self.flows:
            for name, other_names in flow.usage.shared.items():
                if name in literals:
                    continue
                for other_name in other_names - literals:
                    self.sharing.setdefault(name, set()).add(other_name)
                    self.sharing.setdefault(other_name, set()).add(name)

    def _find_sharing_names(self, names: Names) -> set[str]:
        """Return some names and the names that share objects with them."""
        sharing_names = {*names}
        pending = [*names]
        while pending:
            new_names = self.sharing.get(pending.pop(), set()) - sharing_names
            sharing_names |= new_names
            pending += new_names
        return sharing_names

    def _add_changes_of_edited_cell(self, flow: CellFlow) -> None:
        """Add the names whose objects an edited cell probably changes as before.

        The last run changed these names, although the source only contains another name
        of their objects: after `view = df`, the cell changes `view`.
        """
        if flow.record is None or flow.is_current:
            return
        usage = flow.usage
        names = self._find_sharing_names(usage.changes - usage.binds.keys())
        names = (names & {*flow.record.changed}) - usage.binds.keys()
        if not names <= usage.changes:
            flow.usage = replace(
                usage, changes=usage.changes | names, reads=usage.reads | names
            )

    def _omit_changes_of_lower_names(self, index: int, flow: CellFlow) -> None:
        """Remove changes that a last run made because a cell below had run before.

        If a cell below had bound another name to the same object, the run also changed
        the value of that name. In notebook order, the name does not exist yet or has
        another value, unless a cell above also lets it share an object.
        """
        record = flow.record
        if record is None or not flow.is_current:
            return
        lower_names = set()
        for name in record.changed:
            binding = record.reads.get(name)
            if binding is None:
                continue
            origin = self.history.records.get(binding.origin)
            if origin is None:
                continue
            if self.positions.get(origin.key, index) > index:
                lower_names.add(name)
        if not lower_names:
            return
        usage = self.table.resolve_usage(flow.usage)
        lower_names -= usage.reads
        lower_names -= usage.changes
        lower_names -= usage.binds.keys()
        lower_names -= flow.usage.deletes
        for above in self.flows[:index]:
            shared = above.usage.shared
            lower_names -= shared.keys()
            for containers in shared.values():
                lower_names -= containers
        flow.record = record._replace(
            reads=_omit_names(record.reads, lower_names),
            bound=_omit_names(record.bound, lower_names),
            changed={*record.changed} - lower_names,
        )

    def _apply(self, index: int, flow: CellFlow) -> Mapping[str, Binding]:
        """Apply a cell to the table, and record the names that it reads and writes.

        Return the bindings that the cell reads, by name.
        """
        usage = flow.usage
        bound_before = None
        changed: Names = ()
        record = flow.record
        if record is not None and flow.is_current and record.succeeded:
            bound_before = record.bound.keys()
            changed = record.changed
            written = bound_before | usage.binds.keys()
        else:
            resolved = self.table.resolve_usage(usage)
            written = resolved.changes | resolved.binds.keys()
        above = self.table.apply(
            index, usage, bound_before=bound_before, changed=changed
        )
        for name, binding in above.items():
            flow.providers[name] = binding.origin
        written |= self.table.list_databases(written)
        written |= usage.outside_binds.keys() | usage.outside_changes
        for name in written:
            bound = self.table.bindings.get(name)
            if bound is not None and bound.origin == index:
                flow.written.add(name)
                self.deleted.pop(name, None)
        for name in usage.deletes:
            self.deleted[name] = index
        return above

    def _find_last_run(self, index: int) -> RunRecord | None:
        """Return the last run of the cell at an index, or None if it is not known."""
        key = self.keys[index]
        if key in self.ambiguous:
            return None
        return self.history.last_runs.get(key)

    def _is_current(self, record: RunRecord, index: int) -> bool:
        """Return whether the cell at an index still has the source of a run."""
        cell = self.cells[index]
        return record.source_hash == hash_source(cell.source)

    def _add_causes(
        self,
        index: int,
        record: RunRecord,
        above: Mapping[str, Binding],
    ) -> None:
        """Add the causes why the cell at an index is stale or used hidden state.

        `record` is the last run of the cell. `above` contains the bindings that the
        cells above provide for the cell, by name.
        """
        flow = self.flows[index]
        for module, via in self.history.find_changed_modules(record):
            cause = Cause(module, "", 0, MODULE, via)
            flow.stale.append(cause)
        for name in sorted(above.keys() | record.reads.keys()):
            self._compare_read(index, name, record, above.get(name))
        for name in sorted(record.unrestored):
            cause = Cause(name, "", 0, UNRESTORED)
            flow.hidden.append(cause)
        if record.run in self.history.undo.undone_runs:
            # A cell that failed must be replaced anyway.
            if record.succeeded:
                flow.stale = [Cause("", record.cell_id, 0, UNDONE_RUN)]
            return
        stale_names = {cause.name for cause in flow.stale}
        flow.stale += self._find_undone_changes(record, stale_names)

    def _compare_read(
        self,
        index: int,
        name: str,
        record: RunRecord,
        provider: Binding | None,
    ) -> None:
        """Compare the value that a cell read with the value of the nearest cell above.

        If the values differ, add a cause to the cell at the index. `record` is the last
        run of this cell. `provider` is the binding of the nearest cell above that binds
        the name, or None.
        """
        flow = self.flows[index]
        read = record.reads.get(name)
        if provider is None:
            if read:
                self._add_hidden_cause(index, name, read, None)
            return
        provider_flow = self.flows[provider.origin]
        provider_run = provider_flow.record
        is_affected = self.affected.get(name) == provider.origin
        if is_affected and not provider_flow.is_current:
            if read:
                self._add_cause_of_pending_cell(index, name, read, provider)
            return
        version = None
        if provider_run is not None:
            version = provider_run.bound.get(name)
        is_equal = read is not None and version == read.version
        if read and is_equal and self._is_replaceable(flow, name, read, provider_run):
            if is_affected:
                cause = make_cause(name, provider_flow.cell, INDIRECT)
                flow.indirect.append(cause)
            return
        ran_later = provider_run is not None and provider_run.run > record.run
        if ran_later and version is not None:
            flow.stale.append(make_cause(name, provider_flow.cell))
        elif read and self._is_undone(index, name, read):
            flow.stale.append(self._make_undone_cause(name, read))
        elif read:
            self._add_hidden_cause(index, name, read, provider)

    def _is_replaceable(
        self,
        flow: CellFlow,
        name: str,
        read: Binding,
        provider_run: RunRecord | None,
    ) -> bool:
        """Return whether an equal value can replace the value that a cell read.

        This is not possible if the cell put the object into another object, and a cell
        changes the object in place: the change must also be visible in the other
        object. This is also not possible if the cell made a value that contains an
        object from before an undo (see `_keeps_former_object`). `provider_run` is the
        last run of the cell that provides the value.
        """
        if provider_run is None or read.origin == provider_run.run:
            return True
        if name in flow.usage.shared and name in self.changed_in_place:
            return False
        last_run = provider_run.run
        return not any(
            read.origin < former.run <= last_run
            and self._keeps_former_object(flow, name, former)
            for former in self.history.undo.former_objects.get(name, ())
        )

    def _keeps_former_object(
        self, flow: CellFlow, name: str, former: FormerObject
    ) -> bool:
        """Return whether a value of a cell contains an object from before an undo.

        Return False if the difference does not matter. It matters if the object is a
        class, because the value may contain instances of the old class, or if a cell
        changes the object or its container in place.
        """
        assert flow.record is not None
        bound = flow.record.bound.keys()
        containers = former.containers
        if UNKNOWN_NAMES in containers:
            containers = containers | bound
        if containers.isdisjoint(bound):
            return False
        if former.is_class or name in self.changed_in_place:
            return True
        return not containers.isdisjoint(self.changed_in_place)

    def _add_cause_of_pending_cell(
        self,
        index: int,
        name: str,
        read: Binding,
        provider: Binding,
    ) -> None:
        """Add the cause that the cell which provides a name is new or changed.

        No cause is added if the new source binds the name to the same value, or if it
        is not known which of several equal cells without ids ran.
        """
        if isinstance(provider.version, str) and provider.version == read.version:
            return
        above = self.flows[provider.origin]
        if self.keys[provider.origin] in self.ambiguous:
            return
        cause = make_cause(name, above.cell, PENDING)
        self.flows[index].stale.append(cause)

    def _is_undone(self, index: int, name: str, read: Binding) -> bool:
        """Return whether a cell read a change of another cell that was undone.

        `read` is the binding of the name that the cell at the index read.
        """
        if (name, read.origin) not in self.history.undo.undone:
            return False
        return self.history.records[read.origin].key != self.keys[index]

    def _make_undone_cause(self, name: str, read: Binding) -> Cause:
        """Return the cause that a value which a cell read was undone.

        If the cell that provided the value was deleted, the number of the cause is 0.
        """
        origin = self.history.records[read.origin]
        number = origin.number if origin.key in self.all_keys else 0
        return Cause(name, origin.cell_id, number, UNDONE_VALUE)

    def _find_undone_changes(self, record: RunRecord, others: Names) -> list[Cause]:
        """Return the causes that changes of a run were undone.

        `others` are names for which the cell already has a cause.
        """
        causes = []
        undone_names = self.history.undo.names_by_run.get(record.run, {})
        for name, provider_id in sorted(undone_names.items()):
            if name not in others:
                causes.append(Cause(name, provider_id, 0, UNDONE))
        return causes

    def _add_hidden_cause(
        self,
        index: int,
        name: str,
        read: Binding,
        provider: Binding | None,
    ) -> None:
        """Add a cause if a cell read a value that did not come from the cells above.

        See `_find_hidden_cause` for the arguments.
        """
        cause = self._find_hidden_cause(index, name, read, provider)
        flow = self.flows[index]
        if cause is None or flow.record is None or name in flow.record.unrestored:
            return
        # Without a read in the source, the run may only have changed an object that is
        # a part of this value.
        is_read = name in self.table.resolve_usage(flow.usage).reads
        if is_read or cause.where in (ITSELF, OVERRIDDEN):
            flow.hidden.append(cause)

    def _find_hidden_cause(
        self,
        index: int,
        name: str,
        read: Binding,
        provider: Binding | None,
    ) -> Cause | None:
        """Return the cause if a value did not come from the cells above, or None.

        `read` is the binding that the cell at the index read. `provider` is the binding
        that the cells above provide, or None.
        """
        origin = self.history.records.get(read.origin)
        if origin is None or origin.key in self.ambiguous:
            return None
        if origin.key == self.keys[index]:
            if provider is not None:
                return Cause(name, origin.cell_id, origin.number, ITSELF)
            if not self._is_current(origin, index):
                return Cause(name, origin.cell_id, origin.number, EARLIER_VERSION)
            return None
        if provider is None:
            origin = self._find_binder(name, origin, index)
        position = self.positions.get(origin.key)
        if position is None:
            where = locate_provider(origin, self.all_keys)
            return Cause(name, origin.cell_id, origin.number, where)
        cell = self.cells[position]
        if position > index:
            return make_cause(name, cell, BELOW)
        if provider is not None:
            return self._find_override(name, position, provider)
        if self._is_current(origin, position):
            return None
        return make_cause(name, cell, UNBOUND)

    def _find_binder(self, name: str, origin: RunRecord, index: int) -> RunRecord:
        """Return the run that bound a name.

        If the run `origin` only changed the object of the name, search for the run that
        bound the name. The search passes only through current cells above `index`.
        """
        while True:
            position = self.positions.get(origin.key)
            if position is None or position >= index:
                return origin
            if not self._is_current(origin, position):
                return origin
            earlier = origin.reads.get(name)
            if earlier is None:
                return origin
            record = self.history.records.get(earlier.origin)
            if record is None:
                return origin
            origin = record

    def _find_override(
        self,
        name: str,
        position: int,
        provider: Binding,
    ) -> Cause | None:
        """Return the cause if a value is not from the nearest cell that binds the name.

        `position` is the index of the cell that the value is from. `provider` is the
        binding of the nearest cell. Return None if the value is not hidden state.
        """
        if name in PARTED_STATES:
            return None
        cell = self.cells[position]
        binder = self.flows[provider.origin]
        if position == provider.origin:
            return None  # the last run of this cell has failed
        if binder.record is None or name not in binder.record.bound:
            return None
        number = binder.cell.number
        return Cause(name, cell.id, cell.number, OVERRIDDEN, binder=number)

    def _record_affected_names(self, index: int) -> None:
        """Update `affected` with the names that the cell at an index binds or changes.

        A name is affected if the cell will probably bind it to another value.
        """
        flow = self.flows[index]
        usage = flow.usage
        names = self._list_names_with_other_value(flow)
        affected = set[str]()
        has_changed_module = any(cause.where == MODULE for cause in flow.stale)
        if flow.record is None or has_changed_module:
            affected = flow.written
        elif not flow.is_current:
            affected = self._find_names_of_changed_cell(flow, flow.record, names)
        elif names:
            affected = find_affected_names(usage, self.table.resolve_usage, names)
            affected |= flow.record.bound.keys() - usage.binds.keys() - usage.changes
        for name in flow.written:
            if name in affected and self.table.bindings[name].kind != IMPORT:
                self.affected[name] = index
            else:
                self.affected.pop(name, None)

    def _list_names_with_other_value(self, flow: CellFlow) -> set[str]:
        """Return the names that a cell reads and that will have other values."""
        names = flow.repairable_names
        causes = [*flow.stale, *flow.indirect]
        names.update(cause.name for cause in causes if cause.where != UNDONE)
        if not flow.is_current:
            for name, provider in flow.providers.items():
                if self.affected.get(name) == provider:
                    names.add(name)
        return names

    def _find_names_of_changed_cell(
        self, flow: CellFlow, record: RunRecord, names: Names
    ) -> set[str]:
        """Return the names that a changed cell will probably bind to other values.

        `record` is the last run of the cell. `names` are the names that the cell reads
        and that will have other values.
        """
        unchanged_texts = set[str]()
        source = self.history.sources.get(record.source_hash)
        if source is not None:
            unchanged_texts = list_texts(self.history.analyze(source))
        return find_affected_names(
            flow.usage, self.table.resolve_usage, names, unchanged_texts
        )
