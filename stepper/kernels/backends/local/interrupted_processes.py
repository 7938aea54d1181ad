"""The process group of a kernel: the processes that an interrupt affects.

A signal to the whole group would also end processes that earlier cells started in the
background, such as a server. The processes are listed before each cell, which takes
0.1 ms for each 100 processes of the machine. Start times are too coarse to assign a
process to one of two cells.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import psutil

from stepper.common import secure_files
from stepper.kernels.backends.local.process_identity import Identity

PASSES = 3  # over the group: it may fork while it is being interrupted
PASS_SECONDS = 0.005


class ProcessGroup:
    """The group that a kernel's process leads.

    `file` has the processes of earlier cells for the next daemon, if there are any.
    """

    def __init__(self, leader: Identity, file: Path) -> None:
        self.leader = leader
        self.file = file
        self.earlier = self._read_earlier()

    def _read_earlier(self) -> list[Identity]:
        """Return the processes that an earlier daemon recorded before the last cell."""
        try:
            records = json.loads(secure_files.read(str(self.file)))
            return [Identity.from_record(record) for record in records]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []

    def begin(self) -> None:
        """Record the present processes: an interrupt of the next cell spares them."""
        pids = set(self._pids())
        earlier_pids = {process.pid for process in self.earlier}
        if pids == earlier_pids and all(process.alive() for process in self.earlier):
            return
        self.earlier = [Identity.of(pid) for pid in sorted(pids)]
        # Without the file, only this daemon knows them.
        with contextlib.suppress(OSError):
            if self.earlier:
                records = [asdict(process) for process in self.earlier]
                secure_files.replace(str(self.file), json.dumps(records).encode())
            else:
                secure_files.remove(str(self.file))

    def _pids(self) -> Iterator[int]:
        """Yield the pids in the group, without its leader."""
        leader_pid = self.leader.pid
        for pid in _list_all_pids():
            if pid == leader_pid:
                continue
            with contextlib.suppress(OSError):  # the process has exited
                if os.getpgid(pid) == leader_pid:
                    yield pid

    async def interrupt(self) -> None:
        """Send SIGINT to the leader and to processes that the cell started."""
        spared = {process.pid for process in self.earlier if process.alive()}
        if not spared & set(self._pids()):
            os.killpg(self.leader.pid, signal.SIGINT)
            return
        self.leader.send(signal.SIGINT)
        signalled = set[int]()
        for _ in range(PASSES):
            for pid in set(self._pids()) - signalled:
                if spared.isdisjoint(_list_with_ancestors(pid)):
                    _interrupt(pid)
                signalled.add(pid)
            await asyncio.sleep(PASS_SECONDS)


def _interrupt(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGINT)


def _list_with_ancestors(pid: int) -> Iterable[int]:
    """Return a pid and those of its ancestors that still exist."""
    pids = [pid]
    with contextlib.suppress(psutil.Error):
        pids += [parent.pid for parent in psutil.Process(pid).parents()]
    return pids


def _list_all_pids() -> Iterable[int]:
    """Return the pids of this machine, on Linux without psutil's sorting."""
    try:
        return (int(name) for name in os.listdir("/proc") if name.isdecimal())
    except OSError:
        return psutil.pids()
