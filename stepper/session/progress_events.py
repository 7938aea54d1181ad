"""What commands tell on their way, before they answer: those that are `Told` to whoever waits at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepper.session.responses import RunningCell


@dataclass(frozen=True, kw_only=True)
class CellStarted:
    """A cell is about to run, the one at this position of those that are to."""

    cell: int
    position: int
    of: int
    what: str = "running"


@dataclass(frozen=True, kw_only=True)
class CellFinished:
    """A cell ran; `line` tells how it ended."""

    position: int
    of: int
    what: str = "ran"
    line: str


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What is asked for has to wait; `line` says for what."""

    what: str = "waits"
    line: str


@dataclass(frozen=True, kw_only=True)
class OutputPrinted:
    """What a cell that is followed has printed since: lines that stay, and one that may yet change."""

    what: str = "printed"
    lines: Sequence[str]
    last: str


@dataclass(frozen=True, kw_only=True)
class CellRunning:
    """Each second, to other agents: what runs, for how long, its last line or bar."""

    what: str = "runs"
    running: RunningCell


TerminalEvent = CellStarted | CellFinished | Waiting | OutputPrinted
ProgressCallback = Callable[[TerminalEvent | CellRunning], None]
