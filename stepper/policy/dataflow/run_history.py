"""The runs of a notebook's cells, with the values that each run read and bound."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stepper.policy.changed_cells import INDEX_ID, hash_source, select_runnable
from stepper.policy.dataflow.binding_table import (
    Binding,
    BindingTable,
    Names,
    Version,
)
from stepper.policy.dataflow.causes import DELETED, EXTERNAL, INACTIVE
from stepper.policy.dataflow.name_effects import IMPORT, NameUsage
from stepper.policy.dataflow.undone_changes import UndoneChanges
from stepper.policy.journal_events import ExternalExecution, RunEnded, RunsUndone
from stepper.policy.model import Cell, Outcome, Verdict
from stepper.policy.namespace_model import Namespace
from stepper.policy.reloaded_modules import SOURCE_PREFIX
from stepper.policy.undo_model import CHANGED

MAX_JOURNALED_NAMES = 100  # names with a fingerprint in the journal line of a run

AnalyzeSource = Callable[[str], NameUsage]
Cells = Sequence[Cell]


def list_reported_bindings(
    usage: NameUsage,
    namespace: Namespace,
    restored: Names = (),
    changed: Names = (),
) -> dict[str, str]:
    """Return the names that a run bound or changed, with their fingerprints.

    The fingerprint of a large value is an empty string. At most MAX_JOURNALED_NAMES
    names are returned. `usage` is the analysis of the run's source, and `namespace` the
    namespace after the run. `restored` are names that have another value only because
    they were restored before the run. `changed` are names whose objects the run changed
    in place, according to the kernel.
    """
    fingerprints = {}
    for name, variable in namespace.variables.items():
        fingerprints[name] = variable.print
    bound = {}
    for name in (*usage.binds, *usage.changes):
        fingerprint = fingerprints.get(name)
        if fingerprint:
            bound[name] = fingerprint
    for name in namespace.rebound:
        if not name.startswith("_") and name not in restored:
            bound[name] = fingerprints.get(name, "")
    for name in changed:
        # Only values: settings and counters of a module do not make its users stale.
        if name in fingerprints and name not in bound:
            bound[name] = fingerprints[name]
    names = [*bound][:MAX_JOURNALED_NAMES]
    return {name: bound[name] for name in names}


def _list_changed_names(run: RunEnded, usage: NameUsage) -> set[str]:
    """Return the names whose objects a run changed, except names that its source binds.

    Only the kernel reports such changes. Return an empty set if the run may have bound
    names that the analysis does not list.
    """
    if usage.star or "exec" in usage.reads:
        return set()
    changed = run.bound.keys() - usage.binds.keys()
    if run.undo_reach:
        changed = {name for name in changed if run.changes.get(name) == CHANGED}
    return changed


class RunRecord(NamedTuple):
    """One run of a cell, or one execution by another client.

    `key` is the key of the cell (see `get_cell_key`). `reads` are the bindings that
    were read, `bound` the versions of the names that were bound.
    """

    run: int
    key: str
    cell_id: str
    number: int
    source_hash: str
    reads: Mapping[str, Binding]
    bound: Mapping[str, Version]
    succeeded: bool
    # Modules whose names the run read, as in `NameUsage.modules`.
    uses: Names = ()
    # Names that the run read with the value of an undone run.
    unrestored: Names = ()
    # Names whose objects the run changed in place, although its source does not say so.
    changed: Names = ()
    # Whether the run failed and the cell must be replaced or run again.
    needs_retry: bool = False


class ChangedModule(NamedTuple):
    """A changed module that a cell used.

    `via` is the module through which the cell used the module, or an empty string if
    the cell used the module directly.
    """

    name: str
    via: str


class StarImport(NamedTuple):
    """The `from … import *` statements of a cell.

    `modules` are the imported modules. `binds` are the names that the cell binds in
    other statements.
    """

    modules: Names
    binds: Names


def _uses_module(imports: Names, module: str, project_modules: Names) -> bool:
    """Return whether imports, in the form of `NameUsage.modules`, use a module.

    `project_modules` decides whether `a:b` means the module `a.b` or a name in `a`.
    """
    for used in imports:
        source, _, name = used.partition(":")
        if not name:
            # `import a` also gives access to submodules: `a.b.f()`
            if module == source or module.startswith(f"{source}."):
                return True
            continue
        imported = f"{source}.{name}"
        if imported not in project_modules:
            imported = source  # `name` is a name in the module
        if module == imported:
            return True
    return False


def get_cell_key(cell_id: str, source_hash: str) -> str:
    """Return the key of a cell: its id, or its source hash if it has no stored id."""
    return source_hash if INDEX_ID.fullmatch(cell_id) else cell_id


def get_key(cell: Cell) -> str:
    """Return the key of a cell with its current source."""
    if INDEX_ID.fullmatch(cell.id):
        return hash_source(cell.source)
    return cell.id


@dataclass(eq=False, repr=False)
class History:
    """The runs of a notebook's cells in chronological order."""

    analyze: AnalyzeSource
    run_count: int = 0
    kernel: str = ""
    table: BindingTable = field(default_factory=BindingTable)
    # The last run of each cell, by the cell's key.
    last_runs: dict[str, RunRecord] = field(default_factory=dict)
    # All runs by number; executions of other clients have negative numbers.
    records: dict[int, RunRecord] = field(default_factory=dict)
    runs: Sequence[RunEnded] = ()
    external_count: int = 0
    # The first run in the current kernel.
    first_run: int = 0
    # The sources of the runs by hash.
    sources: Mapping[str, str] = field(default_factory=dict)
    # Name → the modules that it may have been imported from.
    imports: dict[str, set[str]] = field(default_factory=dict)
    # Module of the project → the source version that the last run had.
    modules: dict[str, str] = field(default_factory=dict)
    # Module of the project that changed → the first run with the new source.
    module_changes: dict[str, int] = field(default_factory=dict)
    # Module of the project → the modules of the project that it imports.
    module_imports: dict[str, Names] = field(default_factory=dict)
    # Run → its `from … import *`.
    star_imports: dict[int, StarImport] = field(default_factory=dict)
    undo_count: int = 0
    # The last runs of the first cells, in the order of the cells, at a time when the
    # search for dependencies found no stale cell and no hidden state.
    consistent_runs: Sequence[int] = ()
    undo: UndoneChanges = field(init=False)

    def __post_init__(self) -> None:
        self.undo = UndoneChanges(self.table)

    @property
    def version(self) -> tuple[int, int, int]:
        """A value that changes whenever `catch_up` applies further events."""
        return self.run_count, self.external_count, self.undo_count

    def catch_up(
        self,
        runs: Sequence[RunEnded],
        sources: Mapping[str, str],
        external: Sequence[ExternalExecution] = (),
        undone: Sequence[RunsUndone] = (),
    ) -> None:
        """Apply the runs that were added since the last call.

        If `runs` is not the list of the last call, all of its runs are applied again.
        `sources` has the sources of the runs by hash, `external` are the executions by
        other clients, and `undone` what the kernel undid.
        """
        if runs is not self.runs:
            # Start again with an empty history.
            new_history = History(self.analyze, runs=runs)
            self.__dict__.update(new_history.__dict__)
        self.sources = sources
        for run in runs[self.run_count :]:
            self.run_count += 1
            self._record_modules(run)
            source = sources.get(run.source_hash)
            if source is None:
                continue
            if run.kernel != self.kernel:
                self.kernel = run.kernel
                self.first_run = run.run
                self.consistent_runs = ()
                self.table = BindingTable()
                self.undo.start_kernel(self.table)
            self._apply_external(external, run.run)
            self._apply_undone(undone, run.run)
            self._apply_run(run, source)
        self._apply_undone(undone)

    def _apply_run(self, run: RunEnded, source: str) -> None:
        """Apply a run to the table, and add its record."""
        succeeded = run.outcome is Outcome.OK
        usage = self.analyze(source)
        before = {**self.table.bindings}
        changed = _list_changed_names(run, usage)
        reads = self.table.apply(
            run.run, usage, run.bound, succeeded=succeeded, changed=changed
        )
        self.undo.record(run.run, before, usage.binds)
        self.undo.record_report(run)
        unrestored = self.undo.unrestored & reads.keys()
        if succeeded:
            # A name that the run assigned has a correct value again, unless the run
            # computed this value from the former value of the name.
            self.undo.unrestored -= usage.binds.keys() - unrestored
        self.imports.update(usage.modules)
        if "*" in usage.modules:
            modules = usage.modules["*"]
            star = StarImport(modules, usage.binds.keys())
            self.star_imports[run.run] = star
        uses = set(usage.uses)
        for name, binding in reads.items():
            uses.update(self._find_modules(name, binding))
        record = RunRecord(
            run=run.run,
            key=get_cell_key(run.cell_id, run.source_hash),
            cell_id=run.cell_id,
            number=run.number,
            source_hash=run.source_hash,
            reads=reads,
            bound=self._find_bound_names(run.run),
            succeeded=succeeded,
            uses=uses,
            unrestored=unrestored,
            changed=changed,
            needs_retry=run.verdict is not Verdict.FINE,
        )
        self.last_runs[record.key] = record
        self.records[run.run] = record

    def _apply_undone(
        self, undone: Sequence[RunsUndone], run_number: int | None = None
    ) -> None:
        """Set names back to their bindings before the runs that a kernel undid.

        If `run_number` is given, only events before this run are applied.
        """
        for event in undone[self.undo_count :]:
            if run_number is not None and event.run > run_number:
                return
            self.undo_count += 1
            self.consistent_runs = ()
            if event.kernel == self.kernel:
                self.undo.apply(event)

    def find_undone_cells(self, name: str, cells: Cells) -> list[int]:
        """Return the numbers of the cells whose change of a name was undone.

        Cells that ran again since are not included.
        """
        numbers = []
        for cell in select_runnable(cells):
            record = self.last_runs.get(get_key(cell))
            if record and name in self.undo.names_by_run.get(record.run, ()):
                numbers.append(cell.number)
        return numbers

    def _find_bound_names(self, origin: int) -> dict[str, Version]:
        """Return the versions of the names that a run bound, by name."""
        versions = {}
        for name, binding in self.table.bindings.items():
            if binding.origin == origin:
                versions[name] = binding.version
        return versions

    def _find_modules(self, name: str, binding: Binding) -> Names:
        """Return the modules from which a name may have been imported."""
        if binding.kind == IMPORT:
            return self.imports.get(name, ())
        star = self.star_imports.get(binding.origin)
        if star is None or name in star.binds:
            return ()
        return star.modules

    def _record_modules(self, run: RunEnded) -> None:
        """Record the versions and the imports of the project's modules.

        `module_changes` gets the modules that changed since an earlier run.
        """
        self.module_imports.update(run.imports)
        for name, version in run.packages.items():
            if not version.startswith(SOURCE_PREFIX):
                continue
            previous_version = self.modules.get(name, version)
            if previous_version != version:
                self.module_changes[name] = run.run
            self.modules[name] = version

    def find_changed_modules(self, record: RunRecord) -> list[ChangedModule]:
        """Return the modules that a run used and that changed after the run.

        This includes modules that the run used through other modules.
        """
        changed = set()
        for name, first_run in self.module_changes.items():
            if first_run > record.run:
                changed.add(name)
        if not changed:
            return []
        used = []
        for name in self.modules:
            if _uses_module(record.uses, name, self.modules):
                used.append(name)
        # Each used module, with the module through which it is used.
        via = dict.fromkeys(used, "")
        pending = deque(used)
        while pending:
            name = pending.popleft()
            for imported in self.module_imports.get(name, ()):
                if imported not in via:
                    via[imported] = via[name] or name
                    pending.append(imported)
        reached = changed & via.keys()
        return [ChangedModule(name, via[name]) for name in sorted(reached)]

    def _apply_external(
        self, external: Sequence[ExternalExecution], run_number: int
    ) -> None:
        """Apply the executions by other clients that preceded a run.

        Their records have negative numbers.
        """
        for execution in external[self.external_count :]:
            if execution.after >= run_number:
                return
            self.external_count += 1
            self.consistent_runs = ()
            if execution.kernel != self.kernel:
                continue
            origin = -self.external_count
            before = {**self.table.bindings}
            self.table.apply(origin, NameUsage(), execution.bound)
            self.undo.record(origin, before, execution.bound)
            self.records[origin] = RunRecord(
                run=origin,
                key="",
                cell_id="",
                number=0,
                source_hash="",
                reads={},
                bound=self._find_bound_names(origin),
                succeeded=True,
            )


def locate_provider(provider: RunRecord, keys: Names) -> str:
    """Return the origin of hidden state: EXTERNAL, INACTIVE or DELETED.

    `provider` is the run that bound the value; its cell is not a runnable cell of the
    notebook. `keys` are the keys of all cells of the notebook.
    """
    if provider.run < 0:
        return EXTERNAL
    still_exists = provider.key in keys
    return INACTIVE if still_exists else DELETED
