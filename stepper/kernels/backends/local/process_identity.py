"""A process told from any other that gets its pid; all processes of a kernel, whatever their parent or group."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

# in the environment of a kernel and of all that it starts: the kernel's id
MARKER = "STEPPER_KERNEL"
PROC = Path("/proc")
CLEAR_SECONDS = 5.0  # for a tree that goes on forking
# between two looks: a process that is just being started shows no environment
LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Identity:
    """A process: its pid and when it began, because the system gives a pid to another one later.

    `born` is the boot and the clock ticks since then, which setting the clock does not change; '' where the system does
    not tell, and in records of older versions: there `created` counts, in seconds of the clock.
    """

    pid: int
    born: str
    created: float

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Return the identity of a process that runs now."""
        try:
            return cls(pid, _now(pid)[0], psutil.Process(pid).create_time())
        except psutil.Error:
            return cls(pid, "gone", 0.0)

    @classmethod
    def recorded(cls, told: Mapping[str, Any]) -> Identity:
        """Return the identity that a record tells of; raise KeyError, TypeError or ValueError where it tells none."""
        return cls(
            int(told["pid"]), str(told.get("born") or ""), float(told["created"])
        )

    def alive(self) -> bool:
        """Whether that very process still runs; one that ended and waits for its parent does not."""
        try:
            if self.born:
                return _now(self.pid) == (self.born, True)
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < 1.0
            return same and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, ValueError):  # psutil's word for a pid that can't be one
            return False

    def send(self, number: int) -> None:
        """Signal that very process; do nothing where it is gone."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


@cache
def _boot() -> str:
    """Return the id of the machine's present boot; '' where the system has none."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _now(pid: int) -> tuple[str, bool]:
    """Return when the process with that pid was born, and whether it runs; '' where the system does not tell."""
    try:
        # proc(5): the name, in parentheses, may hold anything; state is field 3, the
        # time of the start field 22
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return "", False
    return (f"{_boot()}/{fields[19].decode()}" if _boot() else ""), fields[0] not in (
        b"Z",
        b"X",
    )


def tree(kernel: str, root: Identity | None = None) -> list[psutil.Process]:
    """Return the processes of a kernel: `root` with its descendants, and all of this user that hold the kernel's id.

    A descendant with another kernel's id belongs to that one; this process, which a cell may have started, is none.
    """
    found: dict[int, psutil.Process] = {}
    spared, children = {os.getpid()}, defaultdict[int, list[psutil.Process]](list)
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            children[process.ppid()].append(process)
            holds = _marker(process)
            if holds not in ("", kernel):
                spared.add(pid)
            elif holds and process.uids().real == os.getuid() and pid not in spared:
                found[pid] = process
    if root is not None and root.alive():
        with contextlib.suppress(psutil.Error):
            found.setdefault(root.pid, psutil.Process(root.pid))
    waiting = list(found)
    while waiting:
        for child in children[waiting.pop()]:
            if child.pid not in found and child.pid not in spared:
                found[child.pid] = child
                waiting.append(child.pid)
    return list(found.values())


def holds(pid: int, kernel: str) -> bool:
    """Whether a process is a kernel's of that id, of this user."""
    try:
        found = psutil.Process(pid)
        return _marker(found) == kernel and found.uids().real == os.getuid()
    except psutil.Error:
        return False


def _marker(process: psutil.Process) -> str:
    """Return the id of the kernel to which a process belongs; '' for none, or another user's process."""
    try:
        return process.environ().get(MARKER, "")
    except (psutil.Error, OSError):
        return ""


def clear(
    kernel: str, root: Identity | None = None, seconds: float = CLEAR_SECONDS
) -> int:
    """Kill all processes of a kernel, looked for again until none is left; return how many were killed."""
    until, quiet = time.monotonic() + seconds, 0
    killed: set[psutil.Process] = set()
    # they fork on while they are being killed
    while quiet < 2 and time.monotonic() < until:
        found = tree(kernel, root)
        quiet = 0 if found else quiet + 1
        for process in found:
            # gone already; psutil signals no reused pid
            with contextlib.suppress(psutil.Error):
                process.kill()
                killed.add(process)
        time.sleep(LOOK_SECONDS)
    return len(killed)
