"""Data flow between cells: find stale cells and cells that used hidden state.

A cell is **stale** if a cell above it later assigned another value to a name that the
cell reads, or if a module that the cell uses changed. A cell used **hidden state** if
it read a value that the cells above it do not provide: a value from a cell below, from
a deleted cell, or from code that another client executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stepper.policy.changed_cells import INDEX_ID, hash_source, select_runnable
from stepper.policy.dataflow.binding_table import (
    BUILTIN_NAMES,
    Binding,
    BindingTable,
    Names,
    Version,
)
from stepper.policy.dataflow.name_effects import (
    IMPORT,
    NameUsage,
)
from stepper.policy.dataflow.undone_changes import UndoneChanges
from stepper.policy.journal_events import ExternalExecution, RunEnded, RunsUndone
from stepper.policy.model import Cell, Outcome
from stepper.policy.namespace_model import Namespace
from stepper.policy.reloaded_modules import SOURCE_PREFIX

# Origins of hidden state: the values of `Cause.where`.
DELETED = "gone"  # from a deleted cell
BELOW = "below"  # from a cell below
INACTIVE = "off"  # from a cell that exists but no longer runs
UNBOUND = "unbound"  # from a cell that no longer binds the name
EXTERNAL = "elsewhere"  # from code that another client executed
EARLIER_VERSION = "earlier"  # from an earlier version of the same cell
UNRESTORED = "unrestored"  # from an undone run, because the name was not restored
# Causes of stale cells, also in `Cause.where`.
MODULE = "module"  # a module that the cell used changed
UNDONE = "undone"  # a change that the cell made was undone
UNDONE_VALUE = "undone value"  # a change of another cell that the cell read was undone
UNDONE_RUN = "undone run"  # the user or an agent undid the run of the cell

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
    names are returned. `restored` are names that have another value only because they
    were restored before the run. `changed` are names whose objects the run changed in
    place, as far as the kernel knows.
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


class ChangedModule(NamedTuple):
    """A changed module that a cell used.

    `via` is the module through which the cell used the module, or an empty string if
    the cell used the module directly.
    """

    name: str
    via: str


class StarImport(NamedTuple):
    """The `from … import *` statements of a cell.

    `modules` are the imported modules, `binds` the names that the cell binds otherwise.
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
        submodule = f"{source}.{name}"
        is_submodule = submodule in project_modules
        if module == (submodule if is_submodule else source):
            return True
    return False


def get_cell_key(cell_id: str, source_hash: str) -> str:
    """Return the key of a cell: its id, or its source hash if it has no stored id."""
    return source_hash if INDEX_ID.fullmatch(cell_id) else cell_id


def _get_key(cell: Cell) -> str:
    return get_cell_key(cell.id, hash_source(cell.source))


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
    undo: UndoneChanges = field(init=False)

    def __post_init__(self) -> None:
        self.undo = UndoneChanges(self.table)

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
            new_history = History(self.analyze, runs=runs)
            self.__dict__.update(new_history.__dict__)
        for run in runs[self.run_count :]:
            self.run_count += 1
            self._record_modules(run)
            source = sources.get(run.source_hash)
            if source is None:
                continue
            if run.kernel != self.kernel:
                self.kernel = run.kernel
                self.table = BindingTable()
                self.undo.start_kernel(self.table)
            self._apply_external(external, run.run)
            self._apply_undone(undone, run.run)
            self._apply_run(run, source)
        self._apply_undone(undone)

    def _apply_run(self, run: RunEnded, source: str) -> None:
        succeeded = run.outcome is Outcome.OK
        usage = self.analyze(source)
        before = {**self.table.bindings}
        reads = self.table.apply(run.run, usage, run.bound, succeeded)
        self.undo.record(run.run, before, usage.binds)
        self.undo.record_report(run)
        unrestored = self.undo.unrestored & reads.keys()
        if succeeded:
            # A value that was computed from such a name is not better.
            self.undo.unrestored -= usage.binds.keys() - unrestored
        self.imports.update(usage.modules)
        if "*" in usage.modules:
            modules = usage.modules["*"]
            star = StarImport(modules, usage.binds.keys())
            self.star_imports[run.run] = star
        uses = set(usage.uses)
        for name, binding in reads.items():
            uses.update(self._find_modules(name, binding))
        key = get_cell_key(run.cell_id, run.source_hash)
        bound = self._find_bound_names(run.run)
        record = RunRecord(
            run.run,
            key,
            run.cell_id,
            run.number,
            run.source_hash,
            reads,
            bound,
            succeeded,
            uses,
            unrestored,
        )
        self.last_runs[key] = record
        self.records[run.run] = record

    def _apply_undone(
        self, undone: Sequence[RunsUndone], run_number: int | None = None
    ) -> None:
        """Set names back to their bindings before the runs that a kernel undid.

        Only what was undone before a run is applied, if `run_number` is given.
        """
        for event in undone[self.undo_count :]:
            if run_number is not None and event.run > run_number:
                return
            self.undo_count += 1
            if event.kernel == self.kernel:
                self.undo.apply(event)

    def find_undone_cells(self, name: str, cells: Cells) -> list[int]:
        """Return the numbers of the cells whose change of a name was undone.

        Cells that ran again since are not included.
        """
        numbers = []
        for cell in select_runnable(cells):
            record = self.last_runs.get(_get_key(cell))
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
        """Record the project's modules that changed since the previous run."""
        self.module_imports.update(run.imports)
        for name, version in run.packages.items():
            if not version.startswith(SOURCE_PREFIX):
                continue
            previous_version = self.modules.get(name, version)
            if previous_version != version:
                self.module_changes[name] = run.run
            self.modules[name] = version

    def find_changed_modules(self, record: RunRecord) -> list[ChangedModule]:
        """Return the modules that a run used and that changed after the run."""
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
        via = dict.fromkeys(used, "")
        for name in used:
            for imported in self.module_imports.get(name, ()):
                if imported not in via:
                    via[imported] = via[name] or name
                    used.append(imported)
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


def _locate_provider(provider: RunRecord, keys: Names) -> str:
    """Return the origin of hidden state: EXTERNAL, INACTIVE or DELETED.

    `provider` is the run that bound the value; its cell is not a runnable cell of the
    notebook. `keys` are the keys of all cells of the notebook.
    """
    if provider.run < 0:
        return EXTERNAL
    still_exists = provider.key in keys
    return INACTIVE if still_exists else DELETED


class Cause(NamedTuple):
    """A reason why a cell is stale or used hidden state.

    `name` is a variable, and `provider_id` and `number` are the cell that bound it. If
    the cell used hidden state, `where` is DELETED, BELOW, INACTIVE, UNBOUND, EXTERNAL,
    EARLIER_VERSION or UNRESTORED. If `where` is MODULE, `name` is a changed module, and
    `via` the module through which the cell used it. If `where` is UNDONE, the cell
    itself changed the variable, and the change was undone. If it is UNDONE_VALUE, an
    undone run of another cell changed the variable.
    """

    name: str
    provider_id: str
    number: int
    where: str = ""
    via: str = ""


class MarkedCell(NamedTuple):
    """A cell that is stale or used hidden state, with the causes."""

    cell: Cell
    causes: Sequence[Cause]


class _CellCauses(NamedTuple):
    """The reasons why a cell is stale, and why it used hidden state."""

    stale: list[Cause]
    hidden: list[Cause]


@dataclass(eq=False, repr=False)
class Dependencies:
    """The stale cells of a notebook and the cells that used hidden state, in order."""

    stale: Sequence[MarkedCell] = ()
    hidden: Sequence[MarkedCell] = ()
    # Cell id → ids of the cells above that it reads from.
    providers: Mapping[str, set[str]] = field(default_factory=dict)
    # Cell id → name that the cell reads → id of the cell above that provides it.
    reads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def ran_in_order(cells: Cells, ran: Cells, history: History) -> bool:
    """Return whether the cells that just ran are below all other cells that have run.

    `ran` are the cells that just ran. If the result is True, no cell has become stale.
    Return False also if a cell that has run was deleted, if one of `ran` read a value
    of another client, of its earlier version or of an undone run, or if a module
    changed when they ran.
    """
    positions = {_get_key(cell): cell.index for cell in cells if cell.is_code}
    if history.last_runs.keys() - positions.keys():
        return False
    records = []
    for cell in ran:
        record = history.last_runs.get(_get_key(cell))
        if record:
            records.append(record)
    for record in records:
        if record.unrestored:
            return False
        for binding in record.reads.values():
            if binding.origin < 0:
                return False
            origin = history.records.get(binding.origin)
            if origin is not None and origin.key == record.key:
                return False
    first_run = min((record.run for record in records), default=0)
    for changing_run in history.module_changes.values():
        if changing_run >= first_run:
            return False
    first_index = min(cell.index for cell in ran)
    ran_ids = {cell.id for cell in ran}
    for key, index in positions.items():
        if index < first_index:
            continue
        record = history.last_runs.get(key)
        if record and record.cell_id not in ran_ids:
            return False
    return True


def find_dependencies(cells: Cells, history: History) -> Dependencies:
    """Return the stale cells and the cells that used hidden state.

    Cells that were edited since they ran are not included.
    """
    return _DependencySearch(cells, history).search()


class _DependencySearch:
    """The search for cells that read other values than the cells above them provide."""

    def __init__(self, cells: Cells, history: History) -> None:
        self.history = history
        self.cells = select_runnable(cells)
        self.all_keys = {_get_key(cell) for cell in cells}
        self.keys = [_get_key(cell) for cell in self.cells]
        self.positions: dict[str, int] = {}
        # The keys of cells that have no id but equal sources: any of them may have run.
        self.ambiguous: set[str] = set()
        for index, key in enumerate(self.keys):
            if key in self.positions:
                self.ambiguous.add(key)
            self.positions[key] = index

    def search(self) -> Dependencies:
        """Apply the cells from top to bottom, and compare each with its last run."""
        table = BindingTable()
        stale = []
        hidden = []
        providers = {}
        reads = {}
        for index, cell in enumerate(self.cells):
            record = self._find_last_run(index)
            is_current = record is not None and self._is_current(record, index)
            bound_before = None
            if record is not None and is_current and record.succeeded:
                bound_before = record.bound.keys()
            usage = self.history.analyze(cell.source)
            above = table.apply(index, usage, bound_before=bound_before)
            read_from = {
                name: self.cells[binding.origin].id for name, binding in above.items()
            }
            reads[cell.id] = read_from
            providers[cell.id] = set(read_from.values())
            if record is None or not is_current:
                continue
            stale_causes, hidden_causes = self._find_causes(index, record, above)
            if stale_causes:
                marked_cell = MarkedCell(cell, stale_causes)
                stale.append(marked_cell)
            if hidden_causes:
                marked_cell = MarkedCell(cell, hidden_causes)
                hidden.append(marked_cell)
        return Dependencies(stale, hidden, providers, reads)

    def _find_last_run(self, index: int) -> RunRecord | None:
        key = self.keys[index]
        if key in self.ambiguous:
            return None
        return self.history.last_runs.get(key)

    def _is_current(self, record: RunRecord, index: int) -> bool:
        """Return whether the cell at an index still has the source of a run."""
        cell = self.cells[index]
        return record.source_hash == hash_source(cell.source)

    def _find_causes(
        self, index: int, record: RunRecord, above: Mapping[str, Binding]
    ) -> _CellCauses:
        """Return why the cell at an index is stale, and why it used hidden state.

        `record` is the last run of the cell. `above` contains the bindings that the
        cells above provide for the cell, by name.
        """
        stale = list[Cause]()
        hidden = list[Cause]()
        for module, via in self.history.find_changed_modules(record):
            cause = Cause(module, "", 0, MODULE, via)
            stale.append(cause)
        for name in sorted(above.keys() | record.reads.keys()):
            read = record.reads.get(name)
            provider = above.get(name)
            provider_run = None
            if provider is not None:
                provider_run = self._find_last_run(provider.origin)
            version = None
            ran_later = False
            if provider_run is not None:
                version = provider_run.bound.get(name)
                ran_later = provider_run.run > record.run
            if read and version == read.version:
                continue
            if provider and ran_later and version is not None:
                cell = self.cells[provider.origin]
                stale.append(Cause(name, cell.id, cell.number))
            elif read and provider and self._is_undone(index, name, read):
                stale.append(self._make_undone_cause(name, read))
            elif read:
                hidden_cause = self._find_hidden_cause(index, name, read, provider)
                if hidden_cause:
                    hidden.append(hidden_cause)
        for name in sorted(record.unrestored):
            cause = Cause(name, "", 0, UNRESTORED)
            hidden.append(cause)
        if record.run in self.history.undo.undone_runs:
            # A cell that failed must be replaced anyway.
            if record.succeeded:
                stale = [Cause("", record.cell_id, 0, UNDONE_RUN)]
            return _CellCauses(stale, hidden)
        stale_names = {cause.name for cause in stale}
        stale += self._find_undone_changes(record, stale_names)
        return _CellCauses(stale, hidden)

    def _is_undone(self, index: int, name: str, read: Binding) -> bool:
        """Return whether a value that a cell read was undone.

        `read` is the binding of the name that the cell at the index read.
        """
        if (name, read.origin) not in self.history.undo.undone:
            return False
        return self.history.records[read.origin].key != self.keys[index]

    def _make_undone_cause(self, name: str, read: Binding) -> Cause:
        """Return the cause for a value that was undone.

        If the cell that provided the value was deleted, the number of the cause is 0.
        """
        origin = self.history.records[read.origin]
        number = origin.number if origin.key in self.all_keys else 0
        return Cause(name, origin.cell_id, number, UNDONE_VALUE)

    def _find_undone_changes(self, record: RunRecord, others: Names) -> list[Cause]:
        """Return the causes for changes of a run that were undone.

        `others` are names for which the cell is stale for another reason.
        """
        causes = []
        undone_names = self.history.undo.names_by_run.get(record.run, {})
        for name, provider_id in sorted(undone_names.items()):
            if name not in others:
                causes.append(Cause(name, provider_id, 0, UNDONE))
        return causes

    def _find_hidden_cause(
        self, index: int, name: str, read: Binding, provider: Binding | None
    ) -> Cause | None:
        """Return the cause if a value did not come from the cells above, or None.

        `read` is the binding that the cell at the index read. `provider` is the binding
        that the cells above provide, or None.
        """
        origin = self.history.records.get(read.origin)
        if origin is None or origin.key in self.ambiguous:
            return None
        if origin.key == self.keys[index]:
            is_other_version = not self._is_current(origin, index)
            if provider is None and is_other_version:
                return Cause(name, origin.cell_id, origin.number, EARLIER_VERSION)
            return None
        position = self.positions.get(origin.key)
        while (
            provider is None
            and position is not None
            and position < index
            and self._is_current(origin, position)
        ):
            # That cell only changed the value in place: find the cell that bound it.
            earlier = origin.reads.get(name)
            if earlier is None:
                break
            earlier_record = self.history.records.get(earlier.origin)
            if earlier_record is None:
                break
            origin = earlier_record
            position = self.positions.get(origin.key)
        if position is None:
            where = _locate_provider(origin, self.all_keys)
            return Cause(name, origin.cell_id, origin.number, where)
        cell = self.cells[position]
        if position > index:
            return Cause(name, cell.id, cell.number, BELOW)
        if provider is not None or self._is_current(origin, position):
            return None
        return Cause(name, cell.id, cell.number, UNBOUND)


class UnresolvedName(NamedTuple):
    """A name that a cell reads and no cell above binds.

    `number` is the number of the cell that binds the name now or did before. `where` is
    BELOW, DELETED, INACTIVE or EXTERNAL.
    """

    cell: Cell
    name: str
    number: int
    where: str

    @property
    def definition(self) -> str:
        """A predicate, such as "is defined only below, in cell 3"."""
        if self.where == EXTERNAL:
            return "was defined by code that another client executed"
        if self.where == BELOW:
            return f"is defined only below, in cell {self.number}"
        reason = "was deleted" if self.where == DELETED else "no longer runs"
        return f"was defined in cell {self.number}, which {reason}"


class _UndefinedNames(NamedTuple):
    """The names that a cell reads and no cell above binds, in alphabetical order."""

    cell: Cell
    names: Sequence[str]


def _find_undefined_names(cells: Cells, history: History) -> list[_UndefinedNames]:
    """Return the names that are undefined if the cells run in this order."""
    table = BindingTable()
    undefined = []
    for index, cell in enumerate(cells):
        usage = history.analyze(cell.source)
        resolved = table.resolve_usage(usage)
        providers = table.apply(index, usage)
        names = resolved.reads - providers.keys() - BUILTIN_NAMES
        undefined.append(_UndefinedNames(cell, sorted(names)))
    return undefined


def _find_first_binders(cells: Cells, history: History) -> dict[str, Cell]:
    """Return the first cell that binds a name, by name."""
    binders: dict[str, Cell] = {}
    for cell in cells:
        usage = history.analyze(cell.source)
        for name in usage.binds:
            binders.setdefault(name, cell)
    return binders


def _find_former_binders(cells: Cells, history: History) -> dict[str, RunRecord]:
    """Return the last run of another cell that bound a name, by name."""
    keys = {_get_key(cell) for cell in cells}
    binders: dict[str, RunRecord] = {}
    for record in history.records.values():
        if record.key not in keys:
            names = dict.fromkeys(record.bound, record)
            binders.update(names)
    return binders


def find_unresolved_names(cells: Cells, history: History) -> list[UnresolvedName]:
    """Return the names that are undefined if the cells run from top to bottom.

    Only names that a cell below, a former cell or another client bound are included.
    """
    run_cells = select_runnable(cells)
    all_keys = {_get_key(cell) for cell in cells}
    first_binders = _find_first_binders(run_cells, history)
    former_binders = _find_former_binders(run_cells, history)
    unresolved = []
    for cell, names in _find_undefined_names(run_cells, history):
        for name in names:
            binder = first_binders.get(name)
            former = former_binders.get(name)
            if binder is None and former is not None:
                where = _locate_provider(former, all_keys)
                entry = UnresolvedName(cell, name, former.number, where)
                unresolved.append(entry)
            elif binder is not None and binder.number > cell.number:
                entry = UnresolvedName(cell, name, binder.number, BELOW)
                unresolved.append(entry)
    return unresolved


class UnboundName(NamedTuple):
    """A name that a cell reads and no cell binds."""

    cell: Cell
    name: str


def find_unbound_names(cells: Cells, history: History) -> list[UnboundName]:
    """Return the names that cells read and no cell binds.

    The kernel may still define these names, because an earlier version of a cell bound
    them.
    """
    run_cells = select_runnable(cells)
    binders = _find_first_binders(run_cells, history)
    unbound = []
    for cell, names in _find_undefined_names(run_cells, history):
        for name in names:
            if name not in binders:
                unbound.append(UnboundName(cell, name))
    return unbound


def describe_former_binding(
    name: str, reader_id: str, cells: Cells, history: History
) -> str:
    """Return a clause about the cell that defines or defined a name.

    `reader_id` is the id of a cell that failed because the name is not defined. Return
    an empty string if no cell is known to have defined the name.
    """
    for unresolved in find_unresolved_names(cells, history):
        is_reader = unresolved.cell.id == reader_id
        if is_reader and unresolved.name == name:
            return f"`{name}` {unresolved.definition}"
    current = {_get_key(cell): cell for cell in select_runnable(cells)}
    changed_numbers = []
    for record in history.records.values():
        cell = current.get(record.key)
        if cell is None or name not in record.bound:
            continue
        if record.source_hash != hash_source(cell.source):
            changed_numbers.append(cell.number)
    if not changed_numbers:
        return ""
    return f"`{name}` was defined in an earlier version of cell {changed_numbers[-1]}"
