"""A notebook's journal as it grows: where the plan stands by it, and every run, of earlier days too.

Only what came since is read. Whoever looks on writes nothing, not even a journal that can't be read out of the way.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

from stepper.common import private_files
from stepper.common.text import one_line
from stepper.notebooks.notebook_json import load_json_exact
from stepper.policy import journal_events, journal_reducer
from stepper.policy.model import Verdict
from stepper.policy.notebook_state import State

# how a report's line on one begins; what a cell printed is behind `| `
DOUBT = "Doubt: "
AT_ONCE = 1 << 26  # bytes of a journal that are read at a time


@dataclass(frozen=True)
class PastRun:
    """A run, as the page's timeline tells of it; `why` it failed or is doubted."""

    run: int
    cell: str
    step: int | None
    at: str
    took: float
    outcome: str
    fine: bool
    why: str
    by: str
    repeat: int  # how often stepper itself had run it before
    held: bool = False  # found to fail before it ran


class Past:
    """What one journal holds."""

    def __init__(self, path: str) -> None:
        # several may look on, each in a thread
        self.path, self.lock = path, threading.RLock()
        self.changes = 0  # grows with each line
        self.lives = 0  # grows where it is another journal now
        self._forget()

    def _forget(self) -> None:
        self.lives += 1
        self.state, self.runs = State(), list[PastRun]()
        self.doubts: dict[int, list[str]] = {}  # run →, as its report tells them
        self.kernel_at = ""  # when the present kernel was started
        # of the lines that tell of a run: (event, run) →
        self.places: dict[tuple[str, int], tuple[int, int]] = {}
        self.read_to, self.file = 0, 0

    def refresh(self) -> bool:
        """Read what came since; return whether anything did."""
        with self.lock:
            return self._refresh()

    def _refresh(self) -> bool:
        before = self.changes, self.lives
        try:
            about = os.stat(self.path)
            if about.st_ino == self.file and about.st_size == self.read_to:
                return False
            handle = private_files.open_private(self.path, os.O_RDONLY)
        except OSError:  # nothing ran yet, or it is nobody's to read
            if self.file:
                self._forget()
            return (self.changes, self.lives) != before
        try:
            about = os.fstat(handle)
            if about.st_ino != self.file or about.st_size < self.read_to:
                self._forget()
                self.file = about.st_ino
            while data := os.pread(handle, AT_ONCE, self.read_to):
                whole = data.rfind(b"\n") + 1
                if not whole:
                    break
                for line in data[:whole].splitlines(keepends=True):
                    self._take(line, self.read_to)
                    self.read_to += len(line)
        finally:
            os.close(handle)
        return (self.changes, self.lives) != before

    def _take(self, line: bytes, place: int) -> None:
        try:
            event = journal_events.read(load_json_exact(line))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            # somebody else's line
            return
        if event is None:
            return
        self.changes += 1
        journal_reducer.apply(event, self.state)
        match event:
            case journal_events.Started():
                self.places[event.kind, event.run] = (place, len(line))
            case journal_events.Reported():
                self.places[event.kind, event.run] = (place, len(line))
                told = [
                    text.removeprefix(DOUBT)
                    for text in event.text.splitlines()
                    if text.startswith(DOUBT)
                ]
                self.doubts |= {event.run: told} if told else {}
            case journal_events.KernelChanged():
                self.kernel_at = event.at if event.what == "started" else ""
            case journal_events.Ran() | journal_events.Held():
                self.runs.append(_run(event))

    def told(self, run: int) -> dict[str, Any]:
        """Return what ran in a run, and what the agent read of it."""
        source, report = (
            self._line(journal_events.Started.kind, run),
            self._line(journal_events.Reported.kind, run),
        )
        return {"source": source.get("source"), "report": report.get("text")}

    def _line(self, kind: str, run: int) -> dict[str, Any]:
        place, size = self.places.get((kind, run), (0, 0))
        try:
            handle = private_files.open_private(self.path, os.O_RDONLY)
        except OSError:
            return {}
        try:
            found = load_json_exact(os.pread(handle, size, place)) if size else {}
        except ValueError:
            return {}
        finally:
            os.close(handle)
        return found if isinstance(found, dict) else {}


def _run(event: journal_events.Ran | journal_events.Held) -> PastRun:
    ran = event if isinstance(event, journal_events.Ran) else None
    return PastRun(
        run=event.run,
        cell=event.cell_id,
        step=event.step,
        at=event.started_at,
        took=event.duration_s,
        outcome=event.outcome.value,
        fine=event.verdict is Verdict.FINE,
        why=one_line(event.error if event.fault else ran.unmet if ran else "", 300),
        by=one_line(event.by, 10),
        repeat=ran.repeat if ran else 0,
        held=ran is None,
    )
