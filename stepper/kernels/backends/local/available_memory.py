"""The memory that a kernel may use: that of the machine and of its cgroups.

If memory runs out between two checks, the system kills a process: the kernel first,
which is then reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import psutil

from stepper.kernels.memory_guard import Usage

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
# Added to a kernel's out-of-memory score, in tenths of a percent of the memory.
OOM_SCORE = 300
UNLIMITED = 1 << 60  # cgroup v1 writes a huge number for "no limit"
# The files of a cgroup's limit and use, the field of the cache that can be dropped, and
# the file that counts out-of-memory kills.
V1 = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
    "memory.oom_control",
)
V2 = ("memory.max", "memory.current", "inactive_file", "memory.events")


def usage(pid: int) -> Usage:
    """Return the tightest of the machine's memory and the cgroups of a process."""
    machine = psutil.virtual_memory()
    used = machine.total - machine.available
    usages = [Usage(machine.total, used, "the machine"), *cgroups(pid)]
    return max(usages, key=lambda each: each.percent)


def cgroups(pid: int, root: Path = CGROUPS, proc: Path = PROC) -> list[Usage]:
    """Return the usage of the cgroups of a process that have a limit.

    Cache that can be dropped does not count.
    """
    usages = []
    for group in _list_groups(pid, root, proc):
        # ValueError: the limit is "max". OSError: the group is not in this namespace.
        with contextlib.suppress(OSError, ValueError):
            total = int(_read(group.maximum))
            if not 0 < total < UNLIMITED:
                continue
            used = int(_read(group.current))
            lines = _read(group.stat).splitlines()
            stat = dict(line.split(" ", 1) for line in lines)
            cached = int(stat.get(group.cache, 0))
            usages.append(Usage(total, max(0, used - cached), "its cgroup"))
    return usages


def _read(path: Path) -> str:
    """Return the text of a system file, unbuffered: each step reads several."""
    with open(path, "rb", 0) as stream:
        return stream.read().decode(errors="surrogateescape")


class _Group(NamedTuple):
    """The files of a memory cgroup, and the field of its cache."""

    maximum: Path
    current: Path
    stat: Path
    cache: str
    kills: Path


def _list_groups(pid: int, root: Path, proc: Path) -> Sequence[_Group]:
    """Return a process's memory cgroups, innermost first."""
    try:
        return _parse_groups(_read(proc / str(pid) / "cgroup"), root)
    except OSError:
        return ()


@lru_cache(64)
def _parse_groups(text: str, root: Path) -> Sequence[_Group]:
    """Return the memory cgroups in the text of /proc/PID/cgroup."""
    groups = []
    for line in text.splitlines():
        if line.count(":") < 2:
            continue
        number, controllers, path = line.split(":", 2)
        is_unified = number == "0" and not controllers
        if not is_unified and "memory" not in controllers.split(","):
            continue
        mount = root if is_unified else root / "memory"
        maximum, current, cache, kills = V2 if is_unified else V1
        # In a namespace the path may lead out of the mount ("/../other"), or not exist.
        group = mount / path.lstrip("/")
        if ".." in Path(path).parts:
            group = mount
        for level in (group, *group.parents):
            if level.is_relative_to(mount):
                stat = level / "memory.stat"
                groups.append(
                    _Group(level / maximum, level / current, stat, cache, level / kills)
                )
    return groups


def kill_first(pid: int) -> None:
    """Let the system kill a process before others if memory runs out."""
    # Not on Linux, or not allowed: the system selects the process itself.
    with contextlib.suppress(OSError, ValueError):
        own_score = int((PROC / "self/oom_score_adj").read_text())
        score = min(1000, own_score + OOM_SCORE)
        (PROC / str(pid) / "oom_score_adj").write_text(str(score))


class OomKills:
    """Distinguishes a kill because of memory from any other SIGKILL.

    The system counts these kills for the process's cgroup, else for the machine. They
    are counted from the last `forget`.
    """

    def __init__(self, pid: int, root: Path = CGROUPS, proc: Path = PROC) -> None:
        self.counters = [group.kills for group in _list_groups(pid, root, proc)]
        self.counters.append(proc / "vmstat")
        self.forget()

    def _count(self) -> int:
        for path in self.counters:
            with contextlib.suppress(OSError, ValueError):
                for line in _read(path).splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    def forget(self) -> None:
        """Count from now on."""
        self.before = self._count()

    def any(self) -> bool:
        """Return whether the system has killed a process because of memory since."""
        return self._count() > self.before
