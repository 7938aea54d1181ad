"""Progress events that a command sends before its response.

`TerminalEvent`s are printed in a terminal. `CellRunning` is sent to MCP clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepper.session.responses import RunningCell


@dataclass(frozen=True, kw_only=True)
class CellStarted:
    """A cell is about to run; `position` counts from 1 to `of`."""

    cell: int
    position: int
    of: int
    what: str = "running"


@dataclass(frozen=True, kw_only=True)
class CellFinished:
    """A cell finished; `line` is the report on its run in one line."""

    position: int
    of: int
    what: str = "ran"
    line: str


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """The command is waiting; `line` gives the reason."""

    what: str = "waits"
    line: str


@dataclass(frozen=True, kw_only=True)
class OutputPrinted:
    """New output lines of a followed cell; `last` is a line that may still change."""

    what: str = "printed"
    lines: Sequence[str]
    last: str


@dataclass(frozen=True, kw_only=True)
class CellRunning:
    """The running cell, its duration and last output line; sent every second."""

    what: str = "runs"
    running: RunningCell


TerminalEvent = CellStarted | CellFinished | Waiting | OutputPrinted
ProgressCallback = Callable[[TerminalEvent | CellRunning], None]
