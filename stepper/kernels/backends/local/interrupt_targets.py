"""The processes of a kernel's process group that an interrupt is sent to.

A signal to the whole group would also stop processes that earlier cells started in the
background, such as a server. The processes of the group are therefore listed before
each cell, which takes 0.1 ms for every 100 processes of the machine. Start times are
not precise enough to tell which cell started a process.
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
from stepper.kernels.backends.local.kernel_files import RECORD_ERRORS
from stepper.kernels.backends.local.process_identity import Identity

# The group is searched several times, because its processes may fork during a search.
PASSES = 3
PASS_SECONDS = 0.005


class ProcessGroup:
    """The process group that a kernel leads.

    `file` is the path of a file with the processes of earlier cells, which the next
    daemon reads.
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
        except RECORD_ERRORS:
            return []

    def record_earlier_processes(self) -> None:
        """Record the current processes of the group, to spare them at an interrupt.

        The processes are also written to `file`. If there are none, the file is
        removed.
        """
        pids = set(self._iterate_pids())
        earlier_pids = {process.pid for process in self.earlier}
        are_running = all(process.is_running() for process in self.earlier)
        if pids == earlier_pids and are_running:
            return  # the processes are already recorded
        self.earlier = [Identity.from_pid(pid) for pid in sorted(pids)]
        # If the file cannot be written, only this daemon knows the processes.
        with contextlib.suppress(OSError):
            if self.earlier:
                records = [asdict(process) for process in self.earlier]
                secure_files.replace(str(self.file), json.dumps(records).encode())
            else:
                secure_files.remove(str(self.file))

    def _iterate_pids(self) -> Iterator[int]:
        """Yield the pids of the group's processes, except the leader's."""
        leader_pid = self.leader.pid
        for pid in _list_all_pids():
            if pid == leader_pid:
                continue
            with contextlib.suppress(OSError):  # the process has exited
                if os.getpgid(pid) == leader_pid:
                    yield pid

    async def interrupt(self) -> None:
        """Send SIGINT to the leader and to the processes that the cell has started."""
        spared_pids = {process.pid for process in self.earlier if process.is_running()}
        if spared_pids.isdisjoint(self._iterate_pids()):
            # All processes of the group are interrupted by one signal.
            os.killpg(self.leader.pid, signal.SIGINT)
            return
        self.leader.send_signal(signal.SIGINT)
        signalled_pids: set[int] = set()
        for _ in range(PASSES):
            for pid in set(self._iterate_pids()) - signalled_pids:
                if spared_pids.isdisjoint(_list_with_ancestors(pid)):
                    _interrupt(pid)
                signalled_pids.add(pid)
            await asyncio.sleep(PASS_SECONDS)


def _interrupt(pid: int) -> None:
    """Send SIGINT to a process if it exists and belongs to the user."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGINT)


def _list_with_ancestors(pid: int) -> Iterable[int]:
    """Return the pid of a process and the pids of its ancestors."""
    pids = [pid]
    with contextlib.suppress(psutil.Error):
        pids += [parent.pid for parent in psutil.Process(pid).parents()]
    return pids


def _list_all_pids() -> Iterable[int]:
    """Return the pids of all processes of this machine.

    On Linux, /proc is read directly: psutil would also sort the pids.
    """
    try:
        return (int(name) for name in os.listdir("/proc") if name.isdecimal())
    except OSError:
        return psutil.pids()
