"""What each agent session read last, to name what has changed since then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MAX_OWNERS = 50


class ReadCell(NamedTuple):
    """A cell as an agent read it: the hash of its source, and its last run."""

    source_hash: str
    run: int


class AgentReads:
    """Owns the cells that each agent session read last, by cell ID.

    The record is lost when the daemon exits.
    """

    def __init__(self) -> None:
        self._reads: dict[str, Mapping[str, ReadCell]] = {}

    def get(self, owner: str) -> Mapping[str, ReadCell] | None:
        """Return the cells that an agent session read last, or None."""
        return self._reads.get(owner)

    def record(self, owner: str, cells: Mapping[str, ReadCell]) -> None:
        """Record the cells that an agent session has read."""
        self._reads.pop(owner, None)
        self._reads[owner] = cells
        while len(self._reads) > MAX_OWNERS:
            del self._reads[next(iter(self._reads))]
