"""The changed and stale cells that were already reported to the agent."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from stepper.policy.changed_cells import hash_source
from stepper.policy.model import Cell


class ReportedChanges:
    """The changes that were already reported, so that each is reported once.

    `undelivered_reports` records changed cells; `stale_cells` records the causes of
    stale cells and hidden state. The record is lost when the daemon exits.
    """

    def __init__(self) -> None:
        self._source_hashes: dict[str, str] = {}  # of changed cells, by cell ID
        self._causes = frozenset[Hashable]()

    def select_unreported(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the changed cells whose current source was not reported."""
        return [
            cell
            for cell in cells
            if self._source_hashes.get(cell.id) != hash_source(cell.source)
        ]

    def add_cells(self, cells: Sequence[Cell]) -> None:
        """Record that the current sources of changed cells were reported."""
        for cell in cells:
            self._source_hashes[cell.id] = hash_source(cell.source)

    def forget_other_cells(self, changed: Sequence[Cell]) -> None:
        """Forget all reported cells except the `changed` cells."""
        changed_ids = {cell.id for cell in changed}
        for cell_id in self._source_hashes.keys() - changed_ids:
            del self._source_hashes[cell_id]

    def has_cause(self, cause: Hashable) -> bool:
        """Return whether a cause of a stale cell was already reported."""
        return cause in self._causes

    def replace_causes(self, causes: set[Hashable]) -> None:
        """Replace the set of reported causes."""
        self._causes = frozenset(causes)
