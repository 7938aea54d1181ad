"""What each agent session read last, to name what has changed since then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MAX_OWNERS = 50


class ReadCell(NamedTuple):
    """A cell as an agent read it: the hash of its source, and its last run."""

    source_hash: str
    run: int


ReadCells = Mapping[str, ReadCell]


class Reads(NamedTuple):
    """The cells of the last two reads of an agent session."""

    last: ReadCells | None = None
    previous: ReadCells | None = None


class AgentReads:
    """The cells of the last two reads of each agent session, by cell ID.

    They are lost when the daemon exits.
    """

    def __init__(self) -> None:
        self._reads: dict[str, Reads] = {}

    def get_previous_read(self, owner: str) -> ReadCells | None:
        """Return the cells of an agent session's second-to-last read, or None."""
        reads = self._reads.get(owner, Reads())
        return reads.previous

    def record(self, owner: str, cells: ReadCells) -> None:
        """Record the cells that an agent session has read."""
        reads = self._reads.pop(owner, Reads())
        self._reads[owner] = Reads(cells, reads.last)
        while len(self._reads) > MAX_OWNERS:
            oldest = next(iter(self._reads))
            del self._reads[oldest]
