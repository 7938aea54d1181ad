"""The processes that a kernel has started.

Reading all processes of a machine takes milliseconds, and one request may need the
processes of dozens of kernels. The table of processes is therefore reused for a short
time.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict

import psutil

TABLE_SECONDS = 0.2  # how long a table is reused


class ProcessTable:
    """The child processes of every process of this machine."""

    def __init__(self) -> None:
        self._children: dict[int, list[int]] = {}
        self._expires = 0.0

    def list_family(self, pid: int) -> list[int]:
        """Return the pids of a process and its descendants.

        The list always contains the process itself, even if it has exited.
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
    """Return the pids of the children of each process."""
    children = defaultdict(list)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # the process has exited
            parent = process.ppid()
            children[parent].append(process.pid)
    return dict(children)


TABLE = ProcessTable()
