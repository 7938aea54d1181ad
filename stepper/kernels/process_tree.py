"""The processes that a kernel has started, by a table of all processes that is shared for a moment.

Reading that table takes milliseconds on a machine with many processes. One request may ask about dozens of kernels.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict

import psutil

TABLE_SECONDS = 0.2  # how long a table is used


class ProcessTable:
    """The children of every process of this machine, read again once the table is too old."""

    def __init__(self) -> None:
        self._children: dict[int, list[int]] = {}
        self._expires = 0.0

    def family(self, pid: int) -> list[int]:
        """Return a process and its descendants; the process itself even if it has ended."""
        now = time.monotonic()
        if now >= self._expires:
            self._children = _read()
            self._expires = now + TABLE_SECONDS
        children = self._children
        members = [pid]
        for member in members:
            members += [
                child for child in children.get(member, ()) if child not in members
            ]
        return members


def _read() -> dict[int, list[int]]:
    children = defaultdict(list)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            children[process.ppid()].append(process.pid)
    return dict(children)


TABLE = ProcessTable()
