"""The memory that is available to a local kernel on the machine and in its cgroups.

The memory limit is checked from time to time. If memory runs out between two checks,
the operating system kills a process. The kernel's out-of-memory score is raised, so
that the kernel is killed first, and its death is reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import psutil

from stepper.kernels.memory_guard import MemoryUsage

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
# Added to a kernel's out-of-memory score, in tenths of a percent of the memory.
OOM_SCORE = 300
UNLIMITED = 1 << 60  # cgroup v1 writes a huge number for "no limit"


class _FileNames(NamedTuple):
    """The names of a cgroup's files, and the field of the cache that can be dropped.

    The files contain the memory limit, the memory use, and the out-of-memory kills.
    """

    maximum: str
    current: str
    kills: str
    cache: str


V1 = _FileNames(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.oom_control",
    cache="total_inactive_file",
)
V2 = _FileNames("memory.max", "memory.current", "memory.events", cache="inactive_file")


def get_memory_usage(pid: int) -> MemoryUsage:
    """Return the memory usage of the machine or of a cgroup, whichever is higher.

    Only the cgroups of the process with this pid are considered.
    """
    machine = psutil.virtual_memory()
    used = machine.total - machine.available
    usages = [MemoryUsage(machine.total, used, "the machine"), *list_cgroup_usages(pid)]
    return max(usages, key=lambda usage: usage.percent)


def list_cgroup_usages(
    pid: int, root: Path = CGROUPS, proc: Path = PROC
) -> list[MemoryUsage]:
    """Return the memory usage of each cgroup of a process that has a limit.

    Cache that the system can drop is not counted as used.
    """
    usages = []
    for group in _list_groups(pid, root, proc):
        # ValueError: the limit is "max". OSError: the group is not in this namespace.
        with contextlib.suppress(OSError, ValueError):
            usage = _read_usage(group)
            if usage is not None:
                usages.append(usage)
    return usages


def _read_usage(group: _Group) -> MemoryUsage | None:
    """Return the memory usage of a cgroup, or None if its limit is too high to matter.

    Raise OSError if a file of the cgroup cannot be read, and ValueError if the cgroup
    has no limit.
    """
    total = int(_read(group.maximum))
    if not 0 < total < UNLIMITED:
        return None
    used = int(_read(group.current))
    lines = _read(group.stat).splitlines()
    stat = dict(line.split(" ", 1) for line in lines)
    cached = int(stat.get(group.cache, 0))
    return MemoryUsage(total, max(0, used - cached), "the kernel's cgroup")


def _read(path: Path) -> str:
    """Return the content of a system file."""
    with open(path, "rb", buffering=0) as stream:  # reading without a buffer is faster
        return stream.read().decode(errors="surrogateescape")


class _Group(NamedTuple):
    """The paths of a memory cgroup's files, and the name of the cache field."""

    maximum: Path
    current: Path
    stat: Path
    cache: str
    kills: Path


def _list_groups(pid: int, root: Path, proc: Path) -> Sequence[_Group]:
    """Return a process's memory cgroups, innermost first.

    Return an empty sequence if they are unknown.
    """
    try:
        return _parse_groups(_read(proc / str(pid) / "cgroup"), root)
    except OSError:
        return ()


@lru_cache(64)
def _parse_groups(text: str, root: Path) -> Sequence[_Group]:
    """Return the memory cgroups in the content of /proc/PID/cgroup."""
    groups = []
    for line in text.splitlines():
        if line.count(":") < 2:
            continue
        number, controllers, path = line.split(":", 2)
        is_unified = number == "0" and not controllers
        if not is_unified and "memory" not in controllers.split(","):
            continue
        mount = root if is_unified else root / "memory"
        names = V2 if is_unified else V1
        # In a namespace, the path may lead out of the mount ("/../other").
        group = mount / path.lstrip("/")
        if ".." in Path(path).parts:
            group = mount
        for level in (group, *group.parents):
            if level.is_relative_to(mount):
                groups.append(_build_group(level, names))
    return groups


def _build_group(folder: Path, names: _FileNames) -> _Group:
    """Return the cgroup with this folder."""
    return _Group(
        maximum=folder / names.maximum,
        current=folder / names.current,
        stat=folder / "memory.stat",
        cache=names.cache,
        kills=folder / names.kills,
    )


def raise_oom_score(pid: int) -> None:
    """Make the system kill a process before others if memory runs out.

    Do nothing if the system does not support or allow this.
    """
    with contextlib.suppress(OSError, ValueError):
        own_score = int((PROC / "self/oom_score_adj").read_text())
        score = min(1000, own_score + OOM_SCORE)
        (PROC / str(pid) / "oom_score_adj").write_text(str(score))


class OomKills:
    """Detects whether the system killed a process because memory ran out.

    The system counts these kills for each cgroup and for the machine. The kills since
    the last `reset` are considered.
    """

    def __init__(self, pid: int, root: Path = CGROUPS, proc: Path = PROC) -> None:
        self.counters = [group.kills for group in _list_groups(pid, root, proc)]
        self.counters.append(proc / "vmstat")
        self.reset()

    def _count(self) -> int:
        """Return the number of kills so far, or 0 if the number is unknown.

        The kills are those in the innermost cgroup that counts them, or else on the
        machine.
        """
        for path in self.counters:
            with contextlib.suppress(OSError, ValueError):
                for line in _read(path).splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    def reset(self) -> None:
        """Ignore the kills so far."""
        self.initial_count = self._count()

    def has_increased(self) -> bool:
        """Return whether a process ran out of memory and was killed since `reset`."""
        return self._count() > self.initial_count
