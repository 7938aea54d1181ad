"""Identification of processes, and the search for all processes of a kernel.

A process is identified by its pid and start time, because pids are reused. The
processes of a kernel are found by an environment variable, so they need not be its
children or in its process group.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psutil

# The variable with the kernel's id, in the environment of all processes of a kernel.
MARKER = "STEPPER_KERNEL"
PROC = Path("/proc")
CLEAR_SECONDS = 5.0  # for processes that keep forking
# The pause between two searches: a process that is starting has no environment yet.
POLL_SECONDS = 0.02
ENDED_STATES = (b"Z", b"X")
# Positions after the name in /proc/PID/stat: field 3 and field 22 of proc(5).
STATE_FIELD = 0
START_FIELD = 19


@dataclass(frozen=True)
class Identity:
    """The identity of a process: its pid and when it started.

    `born` consists of the boot id and the clock ticks from the boot to the start of the
    process, so it does not depend on the system clock. If `born` is empty, the process
    is identified by `created`, its start time in seconds. `born` is empty on systems
    without a boot id and in records of older versions.
    """

    pid: int
    born: str
    created: float

    @classmethod
    def from_pid(cls, pid: int) -> Identity:
        """Return the identity of a running process.

        If the process does not exist, `is_running` of the identity is always false.
        """
        try:
            created = psutil.Process(pid).create_time()
        except psutil.Error:
            return cls(pid, "gone", 0.0)  # `born` of a process is never "gone"
        return cls(pid, _get_start(pid).born, created)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Identity:
        """Return the identity in a record.

        Raise KeyError, TypeError, ValueError or OverflowError if the record is not
        valid.
        """
        born = str(record.get("born") or "")
        return cls(int(record["pid"]), born, float(record["created"]))

    def is_running(self) -> bool:
        """Return whether the process is still running. A zombie does not count."""
        try:
            if self.born:
                return _get_start(self.pid) == _Start(self.born, is_running=True)
            process = psutil.Process(self.pid)
            is_same = abs(process.create_time() - self.created) < 1.0
            return is_same and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, ValueError):  # ValueError: not a valid pid
            return False

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, or do nothing if it has exited."""
        if self.is_running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class _Start(NamedTuple):
    """When a process started, and whether it is running.

    `born` is empty if the start is unknown.
    """

    born: str
    is_running: bool


@cache
def _get_boot_id() -> str:
    """Return the id of the machine's current boot.

    Return an empty string if the machine has no boot id.
    """
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _get_start(pid: int) -> _Start:
    """Return when the process with a pid started, and whether it is running."""
    try:
        data = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return _Start("", is_running=False)
    # The name, in parentheses, may contain anything.
    fields = data.rpartition(b")")[2].split()
    is_running = fields[STATE_FIELD] not in ENDED_STATES
    boot_id = _get_boot_id()
    if not boot_id:
        return _Start("", is_running)
    return _Start(f"{boot_id}/{fields[START_FIELD].decode()}", is_running)


def find_kernel_processes(
    kernel_id: str, root: Identity | None = None
) -> list[psutil.Process]:
    """Return the processes of a kernel.

    These are the user's processes with the kernel's id in their environment, `root`
    (the kernel's own process), and all descendants. Descendants with the id of another
    kernel are excluded, and so is the current process, which a cell may have started.
    """
    scan = _scan_processes(kernel_id)
    processes = dict(scan.marked)
    if root is not None and root.is_running():
        with contextlib.suppress(psutil.Error):
            processes.setdefault(root.pid, psutil.Process(root.pid))
    # Add the descendants of these processes.
    pending_pids = list(processes)
    while pending_pids:
        for child in scan.children.get(pending_pids.pop(), ()):
            if child.pid not in processes and child.pid not in scan.excluded:
                processes[child.pid] = child
                pending_pids.append(child.pid)
    return list(processes.values())


class _Scan(NamedTuple):
    """The processes of this machine, as seen by the search for one kernel's processes.

    `marked` are the user's processes with the kernel's id, by pid. `excluded` are the
    pids that do not belong to the kernel, and `children` the children of each pid.
    """

    marked: dict[int, psutil.Process]
    excluded: set[int]
    children: dict[int, list[psutil.Process]]


def _scan_processes(kernel_id: str) -> _Scan:
    """Read the processes of this machine, to find the processes of a kernel."""
    marked: dict[int, psutil.Process] = {}
    excluded = {os.getpid()}
    children: dict[int, list[psutil.Process]] = defaultdict(list)
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):  # the process has exited
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            children[process.ppid()].append(process)
            marker = _get_marker(process)
            if marker not in ("", kernel_id):
                excluded.add(pid)
            elif marker and pid not in excluded and _is_own(process):
                marked[pid] = process
    return _Scan(marked, excluded, children)


def belongs_to_kernel(pid: int, kernel_id: str) -> bool:
    """Return whether a process runs as this user and belongs to a kernel."""
    try:
        process = psutil.Process(pid)
        return _get_marker(process) == kernel_id and _is_own(process)
    except psutil.Error:
        return False


def _is_own(process: psutil.Process) -> bool:
    """Return whether a process runs as this user."""
    return bool(process.uids().real == os.getuid())


def _get_marker(process: psutil.Process) -> str:
    """Return the id of the kernel that a process belongs to.

    Return an empty string if there is none, or if the environment is not readable.
    """
    try:
        return process.environ().get(MARKER, "")
    except (psutil.Error, OSError):
        return ""


def kill_kernel_processes(kernel_id: str, root: Identity | None = None) -> int:
    """Kill all processes of a kernel, and return how many were killed.

    `root` is the kernel's own process, if it is known. Stop after CLEAR_SECONDS if new
    processes keep appearing.
    """
    deadline = time.monotonic() + CLEAR_SECONDS
    killed_processes: set[psutil.Process] = set()
    # Processes may fork while they are being killed, so search until two searches in a
    # row find no process.
    empty_count = 0
    while empty_count < 2 and time.monotonic() < deadline:
        processes = find_kernel_processes(kernel_id, root)
        empty_count = 0 if processes else empty_count + 1
        for process in processes:
            # If the pid was reused, psutil does not send the signal.
            with contextlib.suppress(psutil.Error):
                process.kill()
                killed_processes.add(process)
        time.sleep(POLL_SECONDS)
    return len(killed_processes)
