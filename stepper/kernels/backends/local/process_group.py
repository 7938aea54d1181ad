"""The process group of a kernel: which of its processes an interrupt is meant for.

A signal to the whole group would also end what earlier cells started in the background,
such as a server. Its processes are listed before each cell, which takes 0.1 ms for each
100 processes of the machine; start times are too coarse to tell two cells apart.
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

from stepper.common import private_files
from stepper.kernels.backends.local.process_identity import Identity

PASSES = 3  # over the group: it may fork while it is being interrupted
PASS_SECONDS = 0.005


class ProcessGroup:
    """The group that a kernel's process leads.

    `file` keeps the processes of earlier cells for the next daemon, while there are any.
    """

    def __init__(self, leader: Identity, file: Path) -> None:
        self.leader = leader
        self.file = file
        self.earlier = self._recorded()

    def _recorded(self) -> list[Identity]:
        """Return what a former daemon noted before the last cell."""
        try:
            records = json.loads(private_files.read(str(self.file)))
            return [Identity.recorded(record) for record in records]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []

    def begin(self) -> None:
        """Note which processes are there: an interrupt of the next cell spares them."""
        pids = set(self._pids())
        known = {process.pid for process in self.earlier}
        if pids == known and all(process.alive() for process in self.earlier):
            return
        self.earlier = [Identity.of(pid) for pid in sorted(pids)]
        with contextlib.suppress(OSError):  # then only this daemon knows
            if self.earlier:
                records = [asdict(process) for process in self.earlier]
                private_files.replace(str(self.file), json.dumps(records).encode())
            else:
                private_files.remove(str(self.file))

    def _pids(self) -> Iterator[int]:
        """Yield the pids in the group, without its leader."""
        for pid in _all_pids():
            with contextlib.suppress(OSError):  # it has ended
                if os.getpgid(pid) == self.leader.pid != pid:
                    yield pid

    async def interrupt(self) -> None:
        """Send SIGINT to the leader and to what was started since the cell began."""
        spared = {process.pid for process in self.earlier if process.alive()}
        if not spared & set(self._pids()):
            os.killpg(self.leader.pid, signal.SIGINT)
            return
        self.leader.send(signal.SIGINT)
        signalled = set[int]()
        for _ in range(PASSES):
            for pid in set(self._pids()) - signalled:
                if not spared.intersection(_with_ancestors(pid)):
                    _send(pid)
                signalled.add(pid)
            await asyncio.sleep(PASS_SECONDS)


def _send(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGINT)


def _with_ancestors(pid: int) -> Iterable[int]:
    """Return a pid and those of the processes above it, as far as they are known."""
    found = [pid]
    with contextlib.suppress(psutil.Error):
        found += [parent.pid for parent in psutil.Process(pid).parents()]
    return found


def _all_pids() -> Iterable[int]:
    """Return the pids of this machine, on Linux without psutil's sorting."""
    try:
        return (int(name) for name in os.listdir("/proc") if name.isdecimal())
    except OSError:
        return psutil.pids()
