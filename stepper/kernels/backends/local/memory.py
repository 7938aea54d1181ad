"""The memory of this machine and of its cgroups, as far as a kernel may use it.

What passes from little to all between two looks is the system's to kill: the kernel goes first, and that is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import psutil

from stepper.kernels.backend_protocols import Usage

CGROUPS, PROC = Path("/sys/fs/cgroup"), Path("/proc")
# tenths of a percent of the memory that the system adds to a kernel's own when it
# chooses
FIRST_TO_GO = 300
UNLIMITED = 1 << 60  # cgroup v1 writes a huge number for "no limit"
# What tells a cgroup's limit, its use, the cache in it that can be dropped, and how
# often the system killed in it.
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
    found = [Usage(machine.total, machine.total - machine.available, "the machine")]
    found += cgroups(pid)
    return max(found, key=lambda one: one.percent)


def cgroups(pid: int, root: Path = CGROUPS, proc: Path = PROC) -> list[Usage]:
    """Return the usage of the cgroups with a limit above a process, cache that can be dropped not counted."""
    found = []
    for group in _groups(pid, root, proc):
        # no limit here ("max"), or no such group in this namespace
        with contextlib.suppress(OSError, ValueError):
            total = int(_read(group.maximum))
            if 0 < total < UNLIMITED:  # else the rest need not be read
                used = int(_read(group.current))
                stat = dict(
                    line.split(" ", 1) for line in _read(group.stat).splitlines()
                )
                found.append(
                    Usage(
                        total,
                        max(0, used - int(stat.get(group.cache, 0))),
                        "its cgroup",
                    )
                )
    return found


def _read(path: Path) -> str:
    """Return what stands in a file of the system's, as quickly as can be: several are read in each step."""
    with open(path, "rb", 0) as stream:
        return stream.read().decode(errors="surrogateescape")


class _Group(NamedTuple):
    """What tells a memory cgroup's limit, its use and what of that is which cache, and the system's kills in it."""

    maximum: Path
    current: Path
    stat: Path
    cache: str
    kills: Path


def _groups(pid: int, root: Path, proc: Path) -> Sequence[_Group]:
    """Return a process's memory cgroups, innermost first."""
    try:
        return _named(_read(proc / str(pid) / "cgroup"), root)
    except OSError:
        return ()


@lru_cache(64)
def _named(text: str, root: Path) -> Sequence[_Group]:
    found = []
    for number, controllers, path in (
        line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2
    ):
        unified = number == "0" and not controllers
        if unified or "memory" in controllers.split(","):
            folder = root if unified else root / "memory"
            # In a namespace the path may lead out of what is mounted ("/../other"), or
            # not be there at all.
            group = folder if ".." in Path(path).parts else folder / path.lstrip("/")
            maximum, current, cache, kills = V2 if unified else V1
            inside = (
                level
                for level in (group, *group.parents)
                if level.is_relative_to(folder)
            )
            found += [
                _Group(
                    level / maximum,
                    level / current,
                    level / "memory.stat",
                    cache,
                    level / kills,
                )
                for level in inside
            ]
    return found


def first_to_go(pid: int) -> None:
    """Have the system kill a process, or what it starts, before others where memory runs out."""
    # no Linux, or not allowed: the system chooses alone
    with contextlib.suppress(OSError, ValueError):
        own = int((PROC / "self/oom_score_adj").read_text())
        (PROC / str(pid) / "oom_score_adj").write_text(
            str(min(1000, own + FIRST_TO_GO))
        )


class OomKills:
    """Tells the system's kill for want of memory from any other SIGKILL, by the counter that it raises.

    That of the process's cgroup where there is one, else the machine's. It counts from the last `forget`.
    """

    def __init__(self, pid: int, root: Path = CGROUPS, proc: Path = PROC) -> None:
        self.counters = [
            *(group.kills for group in _groups(pid, root, proc)),
            proc / "vmstat",
        ]
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
        """Whether the system has killed for want of memory since."""
        return self._count() > self.before
