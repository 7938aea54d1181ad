"""The runs and the state of a notebook, read from its growing journal.

Only the new lines are read. Views never write: they do not even move an unreadable
journal aside.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from stepper.common import secure_files
from stepper.common.errors import StepperError
from stepper.common.text import one_line
from stepper.notebooks.notebook_json import load_json_exact
from stepper.policy import journal_events, journal_reducer
from stepper.policy.model import Verdict
from stepper.policy.notebook_state import State

# How a line of a report with a warning starts. Lines that a cell printed start with `|
# `.
WARNING_PREFIXES = ("Warning: ", "Doubt: ")  # the second one in older journals
CHUNK_BYTES = 1 << 26  # of a journal, read at a time
REASON_CHARACTERS = 300
CLIENT_CHARACTERS = 10
NO_FILE = 0  # an inode
INVALID_EVENT = (KeyError, TypeError, ValueError, AttributeError, RecursionError)

RunEvent = journal_events.RunEnded | journal_events.PreflightFailed


@dataclass(frozen=True)
class PastRun:
    """A run in the timeline of the page. The page uses the same names."""

    run: int
    cell: str
    step: int | None
    at: str  # when it started
    took: float  # seconds
    outcome: str
    fine: bool
    why: str  # why it failed, or why its criterion is false
    by: str  # the client
    repeat: int  # how often stepper had repeated it
    held: bool = False  # the preflight check stopped it


class LinePosition(NamedTuple):
    """Where a line is in the journal, in bytes."""

    start: int
    size: int


class RunHistory:
    """The contents of one journal. Several threads may use it."""

    def __init__(self, path: str | Callable[[], str]) -> None:
        # The journal of a path is another one after a notebook was renamed to it.
        self._get_path = path if callable(path) else lambda: path
        self.path = self._get_path()
        self.lock = threading.RLock()
        self.changes = 0  # the number of events
        self.generation = 0  # the number of journals that the path has led to
        self._reset()

    def _reset(self) -> None:
        """Forget all events: the path leads to another journal."""
        self.generation += 1
        self.state = State()
        self.runs = list[PastRun]()
        # By run, as in its report.
        self.warnings: dict[int, list[str]] = {}
        self.kernel_at = ""  # when the present kernel was started
        # Of the events about a run, by kind of event and run.
        self.positions: dict[tuple[str, int], LinePosition] = {}
        self.read_bytes = 0
        self.inode = NO_FILE

    def refresh(self) -> bool:
        """Read the new events; return whether there were any."""
        with self.lock:
            before = self.changes, self.generation
            self._read_new_lines()
            return (self.changes, self.generation) != before

    def _read_new_lines(self) -> None:
        with contextlib.suppress(StepperError):  # the configuration is invalid
            self.path = self._get_path()
        try:
            status = os.stat(self.path)
            if self._is_current(status):
                return
            handle = secure_files.open_private(self.path, os.O_RDONLY)
        except OSError:  # there is no journal, or it can't be read
            if self.inode != NO_FILE:
                self._reset()
            return
        try:
            status = os.fstat(handle)
            if status.st_ino != self.inode or status.st_size < self.read_bytes:
                self._reset()
                self.inode = status.st_ino
            self._read_lines(handle)
        finally:
            os.close(handle)

    def _is_current(self, status: os.stat_result) -> bool:
        """Return whether the whole file has been read."""
        return status.st_ino == self.inode and status.st_size == self.read_bytes

    def _read_lines(self, handle: int) -> None:
        """Read all complete lines that are new."""
        while True:
            data = os.pread(handle, CHUNK_BYTES, self.read_bytes)
            end = data.rfind(b"\n") + 1
            if not end:
                return
            for line in data[:end].splitlines(keepends=True):
                self._apply_line(line)
                self.read_bytes += len(line)

    def _apply_line(self, line: bytes) -> None:
        try:
            event = journal_events.parse_event(load_json_exact(line))
        except INVALID_EVENT:  # another program wrote the line
            return
        if event is None:
            return
        self.changes += 1
        journal_reducer.apply(event, self.state)
        match event:
            case journal_events.RunStarted():
                self._keep_position(event.kind, event.run, line)
            case journal_events.RunReported():
                self._keep_position(event.kind, event.run, line)
                warnings = _find_warnings(event.text)
                if warnings:
                    self.warnings[event.run] = warnings
            case journal_events.KernelChanged():
                self.kernel_at = event.at if event.what == "started" else ""
            case journal_events.RunEnded() | journal_events.PreflightFailed():
                self.runs.append(_make_past_run(event))

    def _keep_position(
        self,
        kind: str,
        run: int,
        line: bytes,
    ) -> None:
        self.positions[kind, run] = LinePosition(self.read_bytes, len(line))

    def read_run(self, run: int) -> dict[str, Any]:
        """Return the source and the report of a run; both are None if unknown."""
        start = self._read_event(journal_events.RunStarted.kind, run)
        report = self._read_event(journal_events.RunReported.kind, run)
        return {"source": start.get("source"), "report": report.get("text")}

    def _read_event(self, kind: str, run: int) -> dict[str, Any]:
        """Return an event from the journal, or {}."""
        position = self.positions.get((kind, run))
        if position is None:
            return {}
        try:
            handle = secure_files.open_private(self.path, os.O_RDONLY)
        except OSError:
            return {}
        try:
            line = os.pread(handle, position.size, position.start)
            event = load_json_exact(line)
        except ValueError:
            return {}
        finally:
            os.close(handle)
        return event if isinstance(event, dict) else {}


def _find_warnings(report: str) -> list[str]:
    """Return the warnings of a report."""
    warnings = []
    for line in report.splitlines():
        for prefix in WARNING_PREFIXES:
            if line.startswith(prefix):
                warnings.append(line.removeprefix(prefix))
    return warnings


def _make_past_run(event: RunEvent) -> PastRun:
    reason = event.error if event.fault else ""
    repeat = 0
    if isinstance(event, journal_events.RunEnded):
        repeat = event.repeat
        if not event.fault:
            reason = event.unmet
    return PastRun(
        run=event.run,
        cell=event.cell_id,
        step=event.step,
        at=event.started_at,
        took=event.duration_s,
        outcome=event.outcome.value,
        fine=event.verdict is Verdict.FINE,
        why=one_line(reason, REASON_CHARACTERS),
        by=one_line(event.by, CLIENT_CHARACTERS),
        repeat=repeat,
        held=isinstance(event, journal_events.PreflightFailed),
    )
