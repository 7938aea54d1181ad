"""What came of a notebook's replay, as values: `stepper verify --json` prints them, key by key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stepper.policy import cell_changes
from stepper.policy.comparison.output_comparison import Sameness
from stepper.policy.model import Cell

SOURCE = "source "  # begins the version of a module of the project, a hash


@dataclass(frozen=True)
class CellVerdict:
    """What came of a cell; `lines` are some of those that differ, `- ` as recorded and `+ ` as replayed."""

    cell_id: str
    number: int
    verdict: Sameness
    difference: str = ""
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class FileChange:
    """A file that was written: `same` bytes, `changed`, `new`, `deleted`, `written` where it is too large to tell."""

    name: str
    change: str
    text: str


@dataclass(frozen=True)
class Package:
    """A package that has another version than the recorded run had."""

    name: str
    then: str
    now: str


@dataclass(frozen=True)
class Verified:
    """What came of a replay in so many fresh kernels; `where` they ran, and on what, where that is not as usual."""

    notebook: str
    reproduces: bool
    cells: Sequence[CellVerdict]
    files: Sequence[FileChange]
    duration_s: float
    kernels: int
    packages: Sequence[Package] = ()
    where: str = ""
    text: str = ""  # the same for people and agents
    failing: int = 0  # cells that fail, as recorded
    open_steps: int = 0  # steps of the plan that are neither done nor skipped

    @property
    def as_recorded(self) -> int:
        """How many cells are."""
        return sum(cell.verdict.reproduces for cell in self.cells)


def mark(cells: Iterable[Cell]) -> str:
    """Return the fingerprint of a notebook's sources, in their order: a verdict holds while it stays."""
    sources = "\n".join(
        cell_changes.source_hash(cell.source) for cell in cell_changes.runnable(cells)
    )
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


def packages(then: Mapping[str, str], now: Mapping[str, str]) -> list[Package]:
    """Return the packages that both used, in other versions."""
    return [
        Package(name, then[name], now[name])
        for name in sorted(now)
        if then.get(name, now[name]) != now[name]
    ]


def other_sources(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the modules of the project that have another source now: their version is a hash of it."""
    return [each.name for each in packages(then, now) if each.now.startswith(SOURCE)]
