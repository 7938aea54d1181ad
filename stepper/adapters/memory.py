"""The memory guard: the machine's memory or, where there is one, the cgroup's, looked at while a cell runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
GROWTH = 0.05  # of the limit: how far a kernel may grow where the limit was passed before its cell began
UNLIMITED = 1 << 60  # cgroup v1 writes a huge number for "no limit"


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


def cgroups(pid: int, root: Path = CGROUPS, proc: Path = Path("/proc")) -> list[Usage]:
    """Return the usage of the cgroups with a limit above a process, cache that can be dropped not counted."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for number, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if number == "0" and not controllers:
            folder, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            folder = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a namespace the path may lead out of what is mounted ("/../other"), or not be there at all.
        group = folder if ".." in Path(path).parts else folder / path.lstrip("/")
        for level in (group, *group.parents):
            if level == folder.parent:
                break
            found += _level(level, *names)
    return found


def _level(folder: Path, maximum: str, current: str, cache: str) -> list[Usage]:
    try:
        total = int((folder / maximum).read_text())
        used = int((folder / current).read_text())
        stat = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
        idle = int(stat.get(cache, 0))
    except (OSError, ValueError):  # no limit here ("max"), or no such group in this namespace
        return []
    if total <= 0 or total >= UNLIMITED:
        return []
    return [Usage(total, max(0, used - idle), "its cgroup")]


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
        """Return what was seen where the cell must stop, else ''."""
        now = self.look()
        if now.percent < self.percent:
            return ""
        share = self.tree()
        if self.above and share - self.began <= GROWTH * now.total * self.percent / 100:
            return ""
        return (
            f"memory reached {now.percent:.0f} % of {now.where} (the limit is {self.percent:g} %);"
            f" this kernel holds {share / 1e6:,.0f} MB of {now.total / 1e6:,.0f} MB"
        )
