"""Decide which runs and names are undone before a cell runs again, or after a deletion.

The kernel returns to the state that the cell saw when it ran first in this kernel: the
runs of the cell are undone, and also the runs since then of cells below it and of
deleted cells. Runs of cells above it are not undone, because the cell must see their
newer values. Only names that the cell uses are restored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache

from stepper.policy.changed_cells import INDEX_ID, hash_source
from stepper.policy.dataflow.binding_table import ResolvedUsage
from stepper.policy.dataflow.name_effects import NameUsage
from stepper.policy.journal_events import RunEnded, RunsUndone
from stepper.policy.model import Cell, Verdict
from stepper.policy.undo_model import (
    DELETED,
    MAX_CHANGES,
    NEW,
    REBOUND,
    MentionedNames,
    RestoreRequest,
)

# Builtins whose calls may read and change any name.
DYNAMIC_NAMES = frozenset({"exec", "eval", "globals", "locals", "vars", "get_ipython"})
# The kernel's name of a global state → a pattern for sources that may use this state.
GLOBAL_STATES: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern, re.MULTILINE)
    for name, pattern in {
        "random numbers": r"\brandom\b|shuffle|\bsample\b|\bchoices?\b",
        "numpy random numbers": r"rand|shuffle|sample|permut|choice|seed|split|fit",
        "environment variables": r"environ|getenv|putenv|dotenv|subprocess|^\s*[!%]",
        "working directory": r"open|[Pp]ath|chdir|cwd|glob|listdir|read_|load|save|"
        r"\bto_|subprocess|^\s*[!%]",
        "matplotlib settings": r"plt|plot|matplotlib|\bsns\b|hist|figure",
        "matplotlib figures": r"plt|plot|matplotlib|\bsns\b|hist|figure",
        "pandas options": r"\bpd\b|pandas",
        "numpy print options": r"\bnp\b|numpy",
        "numpy error settings": r"seterr|errstate",
        "warning filters": r"warn",
        "module search path": r"\bsys\b|\bsite\b|path",
        "torch random numbers": r"torch|rand",
        "command-line arguments": r"\bsys\b|argv|parse_args",
        "recursion limit": r"\bsys\b|recursionlimit",
        "limit of integer digits": r"\bsys\b|int_max_str_digits",
        "standard output": r"\bsys\b|stdout|stderr",
        "garbage collector": r"\bgc\b",
        "logging settings": r"log",
        "decimal context": r"[Dd]ecimal|context",
        "locale settings": r"locale",
        "imported modules": r"\bimport\b|__import__",
        "variable annotations": r"__annotations__",
        "running threads": r"[Tt]hread",
        "running tasks": r"asyncio|create_task",
        "time zone": r"\btime\b|tzset|localtime",
        "signal handlers": r"signal",
        "socket timeout": r"socket|requests|urllib|http",
        "IPython settings": r"get_ipython|IPython|^\s*%",
        "sklearn configuration": r"sklearn|set_config|config_context|\bfit",
        "torch settings": r"torch",
        "plotly settings": r"plotly|\bpx\b|\bgo\b|\bpio\b",
        "xarray options": r"xarray|\bxr\b",
    }.items()
}

# Returns the names that a source mentions.
ListNames = Callable[[str], MentionedNames]


def list_mentioned_names(usage: NameUsage, resolved: ResolvedUsage) -> MentionedNames:
    """Return the names of the user namespace that a source mentions.

    `resolved` is the usage with the effects of the functions of other cells.
    """
    reads_everything = not usage.python or bool(DYNAMIC_NAMES & resolved.reads)
    argument_names = set[str]()
    for call in usage.calls:
        argument_names |= call.argument_names
    methods = {name for name, _ in usage.methods}
    changes = frozenset(resolved.changes)
    calls = frozenset(usage.passed | methods | argument_names) - changes
    return MentionedNames(
        changes=changes,
        calls=calls,
        reads=frozenset(resolved.reads) - changes - calls,
        binds=frozenset(resolved.binds.keys() | usage.deletes),
        everything=reads_everything or usage.star,
        reads_everything=reads_everything,
    )


class CellPositions:
    """Finds the cell that a run belongs to, among the notebook's current cells."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._all_cells = cells
        self._cells = {cell.id: cell for cell in cells}

    @cached_property
    def _by_hash(self) -> dict[str, list[Cell]]:
        """The code cells by the hash of their source."""
        by_hash: dict[str, list[Cell]] = {}
        for cell in self._all_cells:
            if cell.is_code:
                by_hash.setdefault(hash_source(cell.source), []).append(cell)
        return by_hash

    def find_index(self, run: RunEnded) -> int | None:
        """Return the index of a run's cell, or None if the cell was deleted.

        A script may have written the notebook with other ids, and cells without a
        stored id change their ids when they move: then the source is compared.
        """
        cell = self._cells.get(run.cell_id)
        if cell is not None and INDEX_ID.fullmatch(run.cell_id) is None:
            return cell.index
        matches = self._by_hash.get(run.source_hash, [])
        if len(matches) == 1 and cell not in matches:
            return matches[0].index
        return None if cell is None else cell.index


class KernelRuns:
    """The runs in a kernel, in chronological order.

    `all` includes runs that are undone, `active` only the others. An undone run still
    says when a cell ran first: runs of cells below may have changed other names since.
    """

    def __init__(
        self, runs: Sequence[RunEnded], kernel: str, undone: Collection[int]
    ) -> None:
        self.all = list[RunEnded]()
        for run in reversed(runs):
            if run.kernel != kernel:
                break
            self.all.append(run)
        self.all.reverse()
        self.active = [run for run in self.all if run.run not in undone]


def select_restore(
    cells: Sequence[Cell],
    cell: Cell,
    runs: KernelRuns,
    sources: Mapping[str, str],
    list_names: ListNames,
    *,
    keep: bool = False,
) -> RestoreRequest | None:
    """Return the request that undoes runs before a cell runs again, or None.

    These are the runs of the cell, and later runs of deleted cells and of cells below.
    Return None if the cell has not run, or if all these runs are undone.

    `sources` are the sources of the runs by hash. With `keep`, names that a failed
    version of the cell bound for the first time are not removed.
    """
    positions = CellPositions(cells)
    all_own_runs = [run for run in runs.all if positions.find_index(run) == cell.index]
    if not all_own_runs:
        return None
    active_numbers = {run.run for run in runs.active}
    own_runs = [run for run in all_own_runs if run.run in active_numbers]
    first_run = all_own_runs[0].run
    later_runs = select_later_runs(
        positions, runs.active, own_runs, first_run, cell.index
    )
    if not later_runs:
        return None
    names = _list_used_names(own_runs, sources, list_names)
    names |= list_names(cell.source).names
    if keep:
        names = _exclude_new_names(names, own_runs)
    used_sources = [cell.source, *_list_sources(own_runs, sources)]
    names |= _list_global_states(used_sources)
    return _make_request(later_runs, names, own_runs)


def select_deleted_runs(
    cells: Sequence[Cell], runs: KernelRuns
) -> dict[str, list[RunEnded]]:
    """Return the active runs of each deleted cell, by cell id."""
    positions = CellPositions(cells)
    deleted_runs: dict[str, list[RunEnded]] = {}
    for run in runs.active:
        if positions.find_index(run) is None:
            deleted_runs.setdefault(run.cell_id, []).append(run)
    return deleted_runs


def select_restore_after_deletion(
    cells: Sequence[Cell],
    deleted_runs: Sequence[RunEnded],
    runs: KernelRuns,
    sources: Mapping[str, str],
    list_names: ListNames,
) -> RestoreRequest:
    """Return the request that undoes the runs of a deleted cell.

    The request also undoes the later runs of cells below the deleted cell, and of other
    deleted cells. `deleted_runs` are the active runs of the cell among `runs`.
    """
    names = set[str]()
    for run in deleted_runs:
        names |= _list_written_names(run, sources, list_names)
    last_run = deleted_runs[-1]
    first_run = min(run.run for run in runs.all if run.cell_id == last_run.cell_id)
    positions = CellPositions(cells)
    position = _estimate_position(last_run, runs, positions)
    later_runs = select_later_runs(
        positions, runs.active, deleted_runs, first_run, position
    )
    # The position is not exact, so cells that were below the deleted cell when they ran
    # are also selected.
    later_runs += [
        run
        for run in runs.active
        if run.run >= first_run and run.index > last_run.index and run not in later_runs
    ]
    later_runs.sort(key=lambda run: run.run)
    return _make_request(later_runs, names, deleted_runs)


def _estimate_position(
    deleted_run: RunEnded, runs: KernelRuns, positions: CellPositions
) -> int:
    """Return the index at which a deleted cell would be among the current cells.

    This is an estimate: each other deleted cell above it has moved the cell up by one
    position, but moved and inserted cells are not taken into account.
    """
    deleted_above = {
        run.cell_id
        for run in runs.all
        if run.index < deleted_run.index and positions.find_index(run) is None
    }
    deleted_above.discard(deleted_run.cell_id)
    return deleted_run.index - len(deleted_above)


def _make_request(
    runs: Sequence[RunEnded], names: set[str], own_runs: Sequence[RunEnded]
) -> RestoreRequest:
    """Return the request that undoes the changes of names by runs.

    `runs` are in chronological order.
    """
    return RestoreRequest(
        tuple(run.run for run in reversed(runs)),
        frozenset(names),
        tuple(run.run for run in own_runs),
    )


def select_later_runs(
    positions: CellPositions,
    runs: Sequence[RunEnded],
    own_runs: Sequence[RunEnded],
    first_run: int,
    index: int,
) -> list[RunEnded]:
    """Return the runs of a cell, and later runs of deleted cells and cells below it.

    `own_runs` are the runs of the cell that are not undone, and `first_run` is the
    number of its first run. `index` is the index of the cell. If the cell is deleted,
    `index` is the index of the first cell below it.
    """
    own_numbers = {run.run for run in own_runs}
    selected_runs = []
    for run in runs:
        if run.run < first_run:
            continue
        position = positions.find_index(run)
        if run.run in own_numbers or position is None or position >= index:
            selected_runs.append(run)
    return selected_runs


def _list_sources(runs: Iterable[RunEnded], sources: Mapping[str, str]) -> list[str]:
    """Return the sources of runs; unknown sources are left out."""
    return [sources[run.source_hash] for run in runs if run.source_hash in sources]


def _list_used_names(
    runs: Iterable[RunEnded], sources: Mapping[str, str], list_names: ListNames
) -> set[str]:
    """Return the names that runs read, changed or bound.

    Names that a run read dynamically, such as in `exec`, are not known. They are left
    out, because undoing all names would remove what the cells below have computed.
    """
    names = set[str]()
    for run in runs:
        source = sources.get(run.source_hash)
        if source is not None:
            names |= list_names(source).names
        names |= run.bound.keys() | run.changes.keys()
    return names


def _list_written_names(
    run: RunEnded, sources: Mapping[str, str], list_names: ListNames
) -> set[str]:
    """Return the names that a run changed or bound."""
    names = {*run.bound, *run.changes}
    source = sources.get(run.source_hash)
    if source is not None:
        mentioned_names = list_names(source)
        names |= mentioned_names.changes | mentioned_names.binds
    return names


def _list_global_states(sources: Iterable[str]) -> set[str]:
    """Return the global states that sources may use, by the kernel's names."""
    used_states = set[str]()
    for source in sources:
        used_states |= _find_global_states(source)
    return used_states


@lru_cache(maxsize=256)  # the search takes longer than the rest of `select_restore`
def _find_global_states(source: str) -> frozenset[str]:
    """Return the global states that a source may use, by the kernel's names."""
    return frozenset(
        name for name, words in GLOBAL_STATES.items() if words.search(source)
    )


def _exclude_new_names(names: set[str], own_runs: Sequence[RunEnded]) -> set[str]:
    """Return the names without those that a failed run created."""
    new_names = set[str]()
    for run in own_runs:
        if run.verdict is not Verdict.FINE:
            new_names |= {name for name, kind in run.changes.items() if kind == NEW}
    return names - new_names


def list_unknown_changes(
    request: RestoreRequest,
    unknown_runs: Collection[int],
    runs: Sequence[RunEnded],
    sources: Mapping[str, str],
    list_names: ListNames,
) -> set[str]:
    """Return the requested names whose restoration is unknown.

    `unknown_runs` are requested runs: it is not known whether the kernel undid them.
    Their names count unless a later run, which is not undone, has bound them again.
    `runs` are all runs in the kernel that were not undone before the request.
    """
    names = set[str]()
    for run in runs:
        if run.run in unknown_runs:
            names |= _list_written_names(run, sources, list_names)
        elif run.run not in request.runs:
            names -= {
                name for name, kind in run.changes.items() if kind in (NEW, REBOUND)
            }
    if request.names is not None:
        names &= request.names
    return names


def find_returning_names(
    request: RestoreRequest, runs: Iterable[RunEnded]
) -> frozenset[str]:
    """Return the names that may exist again after a request, because runs deleted them.

    `runs` are all runs in the kernel that were not undone before the request.
    """
    names = set[str]()
    for run in runs:
        if run.run in request.runs:
            names |= {name for name, kind in run.changes.items() if kind == DELETED}
    return frozenset(names)


def find_removed_names(
    request: RestoreRequest,
    runs: Sequence[RunEnded],
    earlier: Iterable[RunsUndone] = (),
) -> dict[str, tuple[int, ...]]:
    """Return the names that the kernel will certainly remove, with the undone runs.

    These are the names that did not exist before the undone runs. `runs` are all runs
    in the kernel that were not undone before the request. `earlier` are the undos
    before the request, which may have undone the changes of some names by these runs.
    The result is empty if the kernel reported only a part of the changes.
    """
    first_requested_run = min(request.runs)
    # The names whose changes by a run are undone already, by the number of the run.
    restored_names: dict[int, set[str]] = {}
    for undo in earlier:
        for name, numbers in (*undo.restored.items(), *undo.removed.items()):
            for number in numbers:
                restored_names.setdefault(number, set()).add(name)
    # The undone runs that changed a name, by name; the newest run is the first.
    undone_runs: dict[str, list[RunEnded]] = {}
    overwritten = set[str]()
    for run in reversed(runs):
        if run.run < first_requested_run:
            break
        if len(run.changes) >= MAX_CHANGES:
            return {}
        if run.run not in request.runs:
            # The kernel does not go back behind the change of another run.
            overwritten |= run.changes.keys() | run.bound.keys()
            continue
        changed_names = run.changes.keys() - restored_names.get(run.run, set())
        for name in changed_names - overwritten:
            undone_runs.setdefault(name, []).append(run)
    removed_names = {}
    for name, name_runs in undone_runs.items():
        oldest_run = name_runs[-1]
        is_new = oldest_run.changes[name] == NEW
        is_requested = request.names is None or name in request.names
        if is_requested and is_new and name not in overwritten:
            removed_names[name] = tuple(run.run for run in name_runs)
    return removed_names
