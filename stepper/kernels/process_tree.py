"""The processes that a kernel has started.

They are found in a table of all processes, which is used for a moment: one request may
need the processes of dozens of kernels, and on a machine with many processes it takes
milliseconds to read them.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict

import psutil

TABLE_SECONDS = 0.2  # how long a table is used


class ProcessTable:
    """The child processes of every process of this machine."""

    def __init__(self) -> None:
        self._children: dict[int, list[int]] = {}
        self._expires = 0.0

    def list_family(self, pid: int) -> list[int]:
        """Return the ids of a process and its descendants.

        The process itself is included even if it has ended.
        """
        now = time.monotonic()
        if now >= self._expires:
            self._children = _read_children()
            self._expires = now + TABLE_SECONDS
        family = [pid]
        for member in family:  # grows in the loop
            for child in self._children.get(member, ()):
                if child not in family:
                    family.append(child)
        return family


def _read_children() -> dict[int, list[int]]:
    """Return the child processes of each process."""
    children = defaultdict(list)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # the process has ended
            parent = process.ppid()
            children[parent].append(process.pid)
    return dict(children)


TABLE = ProcessTable()
