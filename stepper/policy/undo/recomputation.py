"""Select the cells that recompute the values that the kernel cannot restore.

A value that a failed version of a cell changed, and that has no safe copy, can only be
computed again: by the cell above that binds it, and the cells above that change it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from stepper.policy.changed_cells import hash_source, select_runnable
from stepper.policy.dataflow.binding_table import ResolvedUsage
from stepper.policy.dataflow.run_history import History, get_cell_key
from stepper.policy.journal_events import RunEnded
from stepper.policy.model import Cell
from stepper.policy.undo_model import NEW, REBOUND, MentionedNames, RestoreRequest


@dataclass(frozen=True)
class _Candidate:
    """A cell above the failed cell, with the names that it uses and changes.

    These are the names that its current source uses, and the names that its last run
    bound or changed.
    """

    cell: Cell
    usage: ResolvedUsage
    is_current: bool  # the last run succeeded, with the current source
    changed: frozenset[str]  # the names that the last run bound or changed

    def changes(self, name: str) -> bool:
        """Return whether the last run of the cell bound or changed a name."""
        return name in self.changed

    def creates(self, name: str) -> bool:
        """Return whether the cell binds a name without reading it."""
        return name in self.usage.binds and name not in self.usage.reads

    def uses_any(self, names: Collection[str]) -> bool:
        """Return whether the cell reads, changes or binds one of the names."""
        used_names = self.usage.reads | self.usage.changes | self.usage.binds.keys()
        return not used_names.isdisjoint(names)


def list_unrestorable(
    request: RestoreRequest, runs: Sequence[RunEnded], names: MentionedNames
) -> set[str]:
    """Return the names that a cell needs and that the kernel cannot restore for it.

    `runs` are the runs in the kernel that are not undone. `names` are the names that
    the cell mentions.
    """
    undone = frozenset(request.runs)
    unrestorable = set[str]()
    for run in runs:
        if run.run in undone:
            unrestorable |= run.unprotected.keys()
        else:
            # A run of a cell above bound the name again.
            unrestorable -= {
                name for name, kind in run.changes.items() if kind in (NEW, REBOUND)
            }
    if request.names is not None:
        unrestorable &= request.names
    if names.reads_everything:
        return unrestorable
    return unrestorable & (names.reads | names.changes | names.calls)


def select_cells(
    cells: Sequence[Cell], cell: Cell, names: Collection[str], history: History
) -> list[Cell] | None:
    """Return the cells above `cell` that recompute the values of names, in order.

    `cells` are all cells of the notebook. Return None if the cells above do not provide
    all of the names, or if one of the cells has failed or changed.
    """
    candidates = _list_candidates(cells, cell, history)
    selected_positions = set[int]()
    for name in names:
        creators = _find_creators(candidates, name)
        if not creators:
            return None
        selected_positions.update(creators)
    _add_undone_cells(candidates, selected_positions)
    chosen_candidates = [
        candidates[position] for position in sorted(selected_positions)
    ]
    if not all(candidate.is_current for candidate in chosen_candidates):
        return None
    return [candidate.cell for candidate in chosen_candidates]


def _list_candidates(
    cells: Sequence[Cell], cell: Cell, history: History
) -> list[_Candidate]:
    """Return the cells above a cell that have run in the current kernel."""
    candidates = []
    for other in select_runnable(cells):
        if other.index >= cell.index:
            break
        source_hash = hash_source(other.source)
        record = history.last_runs.get(get_cell_key(other.id, source_hash))
        if record is None:
            continue
        usage = history.table.resolve_usage(history.analyze(other.source))
        is_current = record.succeeded and record.source_hash == source_hash
        reported_changes = history.undo.reported.get(record.run, {})
        changed_names = frozenset(record.bound.keys() | reported_changes.keys())
        candidates.append(_Candidate(other, usage, is_current, changed_names))
    return candidates


def _find_creators(candidates: Sequence[_Candidate], name: str) -> set[int]:
    """Return the positions of the cells that compute a name.

    These are the last cell that creates the name, and the cells below it that change
    it. The set is empty if no cell creates the name.
    """
    positions = set[int]()
    for position in reversed(range(len(candidates))):
        candidate = candidates[position]
        if not candidate.changes(name):
            continue
        positions.add(position)
        if candidate.creates(name):
            return positions
    return set()


def _add_undone_cells(
    candidates: Sequence[_Candidate], selected_positions: set[int]
) -> None:
    """Add the cells whose changes are undone when a selected cell above them runs."""
    for position, candidate in enumerate(candidates):
        positions_above = [other for other in selected_positions if other < position]
        if any(
            candidates[other].uses_any(candidate.changed) for other in positions_above
        ):
            selected_positions.add(position)
