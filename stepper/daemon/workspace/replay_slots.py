"""Limits how many replays run at the same time."""

from __future__ import annotations

import asyncio


class ReplaySlots:
    """Counts the replays that are running.

    Replays of a project may write the same files, so they run one after the other
    unless a request allows several.
    """

    def __init__(self) -> None:
        self._running_count = 0
        self._has_finished = asyncio.Event()

    def is_full(self, limit: int) -> bool:
        """Return whether `limit` replays are running."""
        return self._running_count >= limit

    async def acquire(self, limit: int) -> None:
        """Wait until fewer than `limit` replays are running, and count another one."""
        while self.is_full(limit):
            self._has_finished.clear()
            await self._has_finished.wait()
        self._running_count += 1

    def release(self) -> None:
        """Count a replay as finished."""
        self._running_count -= 1
        self._has_finished.set()
