"""The runs and the state of a notebook, read from its journal.

Only new lines are read. Views never write, so they don't repair a damaged journal.
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

# The prefixes of warnings in a report. Lines that a cell printed start with `| `. Older
# journals contain "Doubt: ".
WARNING_PREFIXES = ("Warning: ", "Doubt: ")
CHUNK_BYTES = 1 << 26  # the number of bytes to read at a time
REASON_CHARACTERS = 300
CLIENT_CHARACTERS = 10
NO_FILE = 0  # the inode number if there is no file
# The exceptions that the parser raises for a line that contains no valid event.
INVALID_EVENT_ERRORS = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
)

RunEvent = journal_events.RunEnded | journal_events.PreflightFailed


@dataclass(frozen=True)
class PastRun:
    """A run in the page's timeline. The field names are also used by view.js."""

    run: int
    cell: str
    step: int | None
    at: str  # the start time
    took: float  # the duration in seconds
    outcome: str
    fine: bool  # whether the verdict is FINE
    why: str  # the error, or the reason why the criterion is false
    by: str  # the client
    repeat: int  # the number of earlier attempts that stepper repeated
    held: bool = False  # whether the preflight check prevented the run


class LinePosition(NamedTuple):
    """The offset and the size of a line in the journal, in bytes."""

    start: int
    size: int


class RunHistory:
    """The runs and the state in a journal, which several threads may use.

    `path` is the journal's path, or a function that returns the path.
    """

    def __init__(self, path: str | Callable[[], str]) -> None:
        # The path of the journal changes if another notebook is renamed to this name.
        self._get_path = path if callable(path) else lambda: path
        self.path = self._get_path()
        self.lock = threading.RLock()
        self.changes = 0  # the number of events read
        self.generation = 0  # the number of journals that were read
        self._reset()

    def _reset(self) -> None:
        """Discard all events before another journal is read."""
        self.generation += 1
        self.state = State()
        self.runs = list[PastRun]()
        # The warnings in the report of each run.
        self.warnings: dict[int, list[str]] = {}
        self.kernel_at = ""  # the start time of the current kernel
        # The positions of events about runs, by kind of event and run.
        self.positions: dict[tuple[str, int], LinePosition] = {}
        self.read_bytes = 0
        self.inode = NO_FILE

    def refresh(self) -> bool:
        """Read new events from the journal, and return whether there were any."""
        with self.lock:
            old_version = (self.changes, self.generation)
            self._read_new_lines()
            return (self.changes, self.generation) != old_version

    def _read_new_lines(self) -> None:
        """Read the new lines of the journal, or all lines if the file was replaced."""
        # If the configuration is invalid, the previous path is used.
        with contextlib.suppress(StepperError):
            self.path = self._get_path()
        try:
            if self._is_up_to_date(os.stat(self.path)):
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

    def _is_up_to_date(self, status: os.stat_result) -> bool:
        """Return whether the whole journal has been read. `status` is the file's."""
        return status.st_ino == self.inode and status.st_size == self.read_bytes

    def _read_lines(self, handle: int) -> None:
        """Read the new lines, without an incomplete last line."""
        while True:
            data = os.pread(handle, CHUNK_BYTES, self.read_bytes)
            complete_lines, line_break, _ = data.rpartition(b"\n")
            if not line_break:
                return
            for line in (complete_lines + line_break).splitlines(keepends=True):
                self._apply_line(line)
                self.read_bytes += len(line)

    def _apply_line(self, line: bytes) -> None:
        """Update the state and the runs with the event in a line."""
        try:
            event = journal_events.parse_event(load_json_exact(line))
        except INVALID_EVENT_ERRORS:  # another program wrote the line
            return
        if event is None:  # an event of another version of stepper
            return
        self.changes += 1
        journal_reducer.apply(event, self.state)
        match event:
            case journal_events.RunStarted():
                self._record_position(event.kind, event.run, line)
            case journal_events.RunReported():
                self._record_position(event.kind, event.run, line)
                warnings = _find_warnings(event.text)
                if warnings:
                    self.warnings[event.run] = warnings
            case journal_events.KernelChanged():
                self.kernel_at = event.at if event.what == "started" else ""
            case journal_events.RunEnded() | journal_events.PreflightFailed():
                self.runs.append(_make_past_run(event))

    def _record_position(
        self,
        kind: str,
        run: int,
        line: bytes,
    ) -> None:
        """Record the position of the line that is being read, for `read_run`."""
        self.positions[kind, run] = LinePosition(self.read_bytes, len(line))

    def read_run(self, run: int) -> dict[str, Any]:
        """Return the `source` and the `report` of a run. Unknown values are None."""
        start = self._read_event(journal_events.RunStarted.kind, run)
        report = self._read_event(journal_events.RunReported.kind, run)
        return {"source": start.get("source"), "report": report.get("text")}

    def _read_event(self, kind: str, run: int) -> dict[str, Any]:
        """Read an event about a run from the journal.

        Return an empty dictionary if the event does not exist or can't be read.
        """
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
        if isinstance(event, dict):
            return event
        return {}


def _find_warnings(report: str) -> list[str]:
    """Return the warnings in a report, without their prefixes."""
    warnings = []
    for line in report.splitlines():
        for prefix in WARNING_PREFIXES:
            if line.startswith(prefix):
                warnings.append(line.removeprefix(prefix))
    return warnings


def _make_past_run(event: RunEvent) -> PastRun:
    """Return the run that an event finished, or that a preflight check prevented."""
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
