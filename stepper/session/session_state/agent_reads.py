"""The cells that each agent session read last, to name the changes since then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MAX_SESSIONS = 50  # how many agent sessions are remembered


class ReadCell(NamedTuple):
    """A cell as an agent read it: the hash of its source, and its last run.

    `run` is the number of the last run, or 0 if the cell had not run.
    """

    source_hash: str
    run: int


ReadCells = Mapping[str, ReadCell]  # by cell ID


class Reads(NamedTuple):
    """The cells of the last two reads of an agent session, or None without a read."""

    last: ReadCells | None = None
    previous: ReadCells | None = None


class AgentReads:
    """The cells of the last two reads of each agent session.

    They are lost when the daemon exits.
    """

    def __init__(self) -> None:
        self._reads: dict[str, Reads] = {}  # by session, oldest first

    def get_previous_read(self, agent_session: str) -> ReadCells | None:
        """Return the cells of an agent session's second-to-last read, or None."""
        reads = self._reads.get(agent_session, Reads())
        return reads.previous

    def record(self, agent_session: str, cells: ReadCells) -> None:
        """Record the cells that an agent session has read."""
        reads = self._reads.pop(agent_session, Reads())
        self._reads[agent_session] = Reads(cells, reads.last)
        while len(self._reads) > MAX_SESSIONS:
            oldest = next(iter(self._reads))
            del self._reads[oldest]
