"""The changed and stale cells that a report named already."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from stepper.policy.changed_cells import hash_source
from stepper.policy.model import Cell


class ReportedChanges:
    """Owns which changes the agent knows, so that a report names each one once.

    `undelivered_reports` records changed cells, `stale_cells` the causes of stale cells
    and hidden state. A new daemon reports them again.
    """

    def __init__(self) -> None:
        self._source_hashes: dict[str, str] = {}  # of changed cells, by cell ID
        self._causes = frozenset[Hashable]()

    def select_unreported(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the changed cells whose present source was not reported."""
        return [
            cell
            for cell in cells
            if self._source_hashes.get(cell.id) != hash_source(cell.source)
        ]

    def add_cells(self, cells: Sequence[Cell]) -> None:
        """Count changed cells as reported."""
        for cell in cells:
            self._source_hashes[cell.id] = hash_source(cell.source)

    def forget_other_cells(self, changed: Sequence[Cell]) -> None:
        """Forget the reported cells that are not changed any more."""
        changed_ids = {cell.id for cell in changed}
        for cell_id in self._source_hashes.keys() - changed_ids:
            del self._source_hashes[cell_id]

    def has_cause(self, cause: Hashable) -> bool:
        """Return whether the last report of stale cells named a cause."""
        return cause in self._causes

    def replace_causes(self, causes: set[Hashable]) -> None:
        """Count these causes as reported, and no others."""
        self._causes = frozenset(causes)
