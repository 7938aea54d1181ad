"""The memory guard: the machine's memory or, where there is one, the cgroup's, looked at while a cell runs.

What passes from little to all between two looks is the system's to kill: the kernel goes first, and that is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUPS, PROC = Path("/sys/fs/cgroup"), Path("/proc")
FIRST_TO_GO = 300  # tenths of a percent of the memory that the system adds to a kernel's own when it chooses
GROWTH = 0.05  # of the limit: how far a kernel may grow where the limit was passed before its cell began
UNLIMITED = 1 << 60  # cgroup v1 writes a huge number for "no limit"
# What tells a cgroup's limit, its use, the cache in it that can be dropped, and how often the system killed in it.
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control")
V2 = ("memory.max", "memory.current", "inactive_file", "memory.events")


@dataclass(frozen=True)
class Usage:
    """How much memory there is and how much is used, in bytes; `where` names whose."""

    total: int
    used: int
    where: str

    @property
    def percent(self) -> float:
        """How full it is."""
        return 100.0 * self.used / self.total


def usage(pid: int) -> Usage:
    """Return the tightest of the machine's memory and the cgroups of a process."""
    machine = psutil.virtual_memory()
    found = [Usage(machine.total, machine.total - machine.available, "the machine")]
    found += cgroups(pid)
    return max(found, key=lambda one: one.percent)


def cgroups(pid: int, root: Path = CGROUPS, proc: Path = PROC) -> list[Usage]:
    """Return the usage of the cgroups with a limit above a process, cache that can be dropped not counted."""
    found = []
    for level, (maximum, current, cache, _) in _groups(pid, root, proc):
        with contextlib.suppress(OSError, ValueError):  # no limit here ("max"), or no such group in this namespace
            total = int((level / maximum).read_text())
            if 0 < total < UNLIMITED:  # else the rest need not be read
                used = int((level / current).read_text())
                stat = dict(line.split(" ", 1) for line in (level / "memory.stat").read_text().splitlines())
                found.append(Usage(total, max(0, used - int(stat.get(cache, 0))), "its cgroup"))
    return found


def _groups(pid: int, root: Path, proc: Path) -> Iterator[tuple[Path, tuple[str, str, str, str]]]:
    """Yield the folders of a process's memory cgroups, innermost first, and what tells of each."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    for number, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        unified = number == "0" and not controllers
        if unified or "memory" in controllers.split(","):
            folder = root if unified else root / "memory"
            # In a namespace the path may lead out of what is mounted ("/../other"), or not be there at all.
            group = folder if ".." in Path(path).parts else folder / path.lstrip("/")
            inside = (level for level in (group, *group.parents) if level.is_relative_to(folder))
            yield from ((level, V2 if unified else V1) for level in inside)


class Guard:
    """Watches one run. `warning` is set where the limit was passed before the cell began."""

    def __init__(self, percent: float, look: Callable[[], Usage], tree: Callable[[], int]) -> None:
        self.percent, self.look, self.tree = percent, look, tree
        now = look()
        self.above = now.percent >= percent
        self.began = tree() if self.above else 0
        self.warning = (
            f"memory was at {now.percent:.0f} % of {now.where} before the cell began (the limit is {percent:g} %)"
            if self.above
            else ""
        )

    def trip(self) -> str:
        """Return what was seen where the cell must stop, else ''. With 100 % that is the system's to decide."""
        now = self.look()
        if now.percent < self.percent or self.percent >= 100:
            return ""
        share = self.tree()
        if self.above and share - self.began <= GROWTH * now.total * self.percent / 100:
            return ""
        return (
            f"memory reached {now.percent:.0f} % of {now.where} (the limit is {self.percent:g} %);"
            f" this kernel holds {share / 1e6:,.0f} MB of {now.total / 1e6:,.0f} MB"
        )


def first_to_go(pid: int) -> None:
    """Have the system kill a process, or what it starts, before others where memory runs out."""
    with contextlib.suppress(OSError, ValueError):  # no Linux, or not allowed: the system chooses alone
        own = int((PROC / "self/oom_score_adj").read_text())
        (PROC / str(pid) / "oom_score_adj").write_text(str(min(1000, own + FIRST_TO_GO)))


class OomKills:
    """Tells the system's kill for want of memory from any other SIGKILL, by the counter that it raises.

    That of the process's cgroup where there is one, else the machine's. It counts from the last `forget`.
    """

    def __init__(self, pid: int, root: Path = CGROUPS, proc: Path = PROC) -> None:
        self.counters = [*(level / kills for level, (*_, kills) in _groups(pid, root, proc)), proc / "vmstat"]
        self.forget()

    def _count(self) -> int:
        for path in self.counters:
            with contextlib.suppress(OSError, ValueError):
                for line in path.read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    def forget(self) -> None:
        """Count from now on."""
        self.before = self._count()

    def any(self) -> bool:
        """Whether the system has killed for want of memory since."""
        return self._count() > self.before
