"""The changes of names by runs, and the changes that a kernel has undone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from stepper.policy.dataflow.binding_table import Binding, BindingTable, Names
from stepper.policy.dataflow.outside_state import PARTED_STATES, get_whole_state
from stepper.policy.journal_events import RunEnded, RunsUndone
from stepper.policy.undo_model import CHANGED


class BindingChange(NamedTuple):
    """A change of a name by the run `origin`.

    `before` is the binding before the run, or None if the name was not bound.
    `is_binding` is False if the run only changed the object in place.
    """

    origin: int
    before: Binding | None
    is_binding: bool


class FormerObject(NamedTuple):
    """An object that a name referred to until the kernel undid this before `run`.

    The values of `containers` contain the object or, if `is_class`, its instances.
    """

    run: int
    containers: frozenset[str]
    is_class: bool


Runs = Collection[int]
Changes = list[BindingChange]
Texts = Mapping[str, str]
CellIds = dict[str, str]


class UndoneChanges:
    """The changes of names in a kernel, and the changes that were undone.

    `table` contains the bindings of the names.
    """

    def __init__(self, table: BindingTable) -> None:
        self.table = table
        # The changes that are not undone, oldest first.
        self.changes: dict[str, Changes] = {}
        # Run → how it changed names, if the kernel reported it.
        self.reported: dict[int, Texts] = {}
        # The undone changes: a name and the run that changed it.
        self.undone: set[tuple[str, int]] = set()
        # Run → the names whose changes were undone, with the id of the cell that ran
        # again or was deleted. Other runs of that cell are not included.
        self.names_by_run: dict[int, CellIds] = {}
        # Runs of cells that `stepper undo` undid; the cells have not run again.
        self.undone_runs: set[int] = set()
        # Name → its former objects that other values contain.
        self.former_objects: dict[str, list[FormerObject]] = {}
        # Names that could not be restored, and that no run has bound since.
        self.unrestored: set[str] = set()

    def start_kernel(self, table: BindingTable) -> None:
        """Forget the changes in the former kernel, whose names are lost."""
        self.table = table
        self.changes = {}
        self.reported = {}
        self.former_objects = {}
        self.unrestored = set()

    def record(self, origin: int, before: Mapping[str, Binding], binds: Names) -> None:
        """Record the bindings that a run changed.

        `origin` is the run, `before` has the bindings before it, and `binds` are the
        names that it binds.
        """
        bindings = self.table.bindings
        for name in before.keys() | bindings.keys():
            binding = before.get(name)
            if bindings.get(name) is binding:
                continue
            is_binding = name in binds
            change = BindingChange(origin, binding, is_binding)
            changes = self.changes.setdefault(name, [])
            changes.append(change)

    def record_report(self, run: RunEnded) -> None:
        """Record how a run changed names, if the kernel has reported that."""
        if run.undo_reach:
            self.reported[run.run] = run.changes

    def apply(self, event: RunsUndone) -> None:
        """Apply what a kernel restored, and what it could not restore."""
        requested = {*event.runs, *event.others}
        self._add_unrestored(event.not_restored, requested)
        self._record_former_objects(event)
        if event.by_command:
            self.undone_runs.update(event.runs)
        for names in (event.restored, event.removed):
            for state, runs in names.items():
                for name in self._list_parts(state, runs):
                    self.unrestored.discard(name)
                    self._record_undone(name, runs, event)
        # The kernel reports no result for names that already had the former values.
        undone_names = event.names
        if undone_names is None:
            undone_names = tuple(self.changes)
        for state in undone_names:
            if get_whole_state(state) in event.not_restored:
                continue
            for name in self._list_parts(state, requested):
                rebound_by = self._undo(name, requested)
                self._record_undone(name, rebound_by, event)

    def _add_unrestored(self, states: Names, runs: Runs) -> None:
        """Record names whose values before the runs could not be restored."""
        for state in states:
            for name in self._list_parts(state, runs):
                if not self._is_bound_since(name, runs):
                    self.unrestored.add(name)

    def _list_parts(self, state: str, runs: Runs) -> list[str]:
        """Return the parts of a state that some of the runs changed, or only its name.

        The kernel reports all options of a package as one state.
        """
        if state not in PARTED_STATES:
            return [state]
        names = []
        for name, changes in self.changes.items():
            if get_whole_state(name) != state:
                continue
            origins = {change.origin for change in changes}
            if not origins.isdisjoint(runs):
                names.append(name)
        if not names:
            names = [state]
        return names

    def _record_former_objects(self, event: RunsUndone) -> None:
        """Record the former objects in values of other names."""
        for name, names in event.former_values.items():
            self._add_former_object(name, event.run, names, is_class=False)
        for name, names in event.former_classes.items():
            self._add_former_object(name, event.run, names, is_class=True)

    def _add_former_object(
        self,
        name: str,
        run: int,
        containers: Collection[str],
        *,
        is_class: bool,
    ) -> None:
        """Record a former object of a name; see `FormerObject`."""
        former = FormerObject(run, frozenset(containers), is_class)
        former_objects = self.former_objects.setdefault(name, [])
        former_objects.append(former)

    def _is_bound_since(self, name: str, runs: Runs) -> bool:
        """Return whether another run bound a name after the last of some runs.

        In this case, the name no longer refers to the object that was not restored.
        """
        last_run = max(runs, default=0)
        for change in self.changes.get(name, ()):
            if change.is_binding and change.origin > last_run:
                return True
        return False

    def _record_undone(self, name: str, runs: Runs, event: RunsUndone) -> None:
        """Record that changes of a name by some runs are undone.

        `names_by_run` omits the runs of the cell that runs again, unless `stepper undo`
        undid them.
        """
        for run in runs:
            self.undone.add((name, run))
            if run not in event.runs or event.by_command:
                undone_names = self.names_by_run.setdefault(run, {})
                undone_names[name] = event.cell_id

    def _undo(self, name: str, runs: Runs) -> set[int]:
        """Restore the binding that a name had before the first of the undone runs.

        Later runs that did not bind the name to another object are ignored. Return the
        numbers of the undone runs that bound the name.
        """
        changes = self.changes.get(name, [])
        first = self._find_first(name, changes, runs)
        if first is None:
            return set()
        undone = set()
        for change in changes[first:]:
            origin = change.origin
            if change.is_binding and origin in runs:
                undone.add(origin)
        binding = changes[first].before
        del changes[first:]
        if binding is None:
            self.table.bindings.pop(name, None)
        else:
            self.table.bindings[name] = binding
        return undone

    def _find_first(self, name: str, changes: Changes, runs: Runs) -> int | None:
        """Return the index of the first change by one of the runs, or None.

        If another run may have bound the name to another object, only changes after
        that run count.
        """
        first = None
        index = len(changes)
        for change in reversed(changes):
            index -= 1
            origin = change.origin
            if origin in runs:
                first = index
            elif self._may_have_rebound(origin, name):
                break
        return first

    def _may_have_rebound(self, run: int, name: str) -> bool:
        """Return whether a run may have bound a name to another object."""
        changes = self.reported.get(run)
        if changes is None:
            return True
        return changes.get(get_whole_state(name), CHANGED) != CHANGED
