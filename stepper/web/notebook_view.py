"""What is shown of one notebook: its journal, its file and what the daemon tells, brought together."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from stepper.common.errors import NotebookError
from stepper.common.text import clean, one_line
from stepper.messages import command_messages
from stepper.notebooks.document import Document
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy import plan
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.comparison import verify_results
from stepper.policy.model import Cell, Step, instant
from stepper.web.daemon_client import Daemon
from stepper.web.run_history import Past

# between two questions to the daemon, while a cell runs and else
RUNS_SECONDS, RESTS_SECONDS = 0.25, 1.0
# how many times what a look for stale cells took is waited before the next one
COST = 10
NOTHING: dict[str, Any] = {
    "run": 0,
    "changes": 0,
    "outputs": None,
    "running": None,
    "waits": "",
    "kernel": {"state": "none"},
    "kernels": {},
}
Row = dict[str, Any]


class Book:
    """One notebook, by its name in the project."""

    def __init__(
        self,
        project: str,
        name: str,
        past: Past,
        daemon: Daemon,
        commands: Callable[[str, str], CommandLines],
    ) -> None:
        self.name, self.past, self.daemon = name, past, daemon
        # a notebook's name and the current one's → how commands for it are written
        self.commands = commands
        self.path = os.path.join(project, name)
        self.file = IpynbFile(self.path)
        self.document: Document | None = None
        self.trouble = ""  # what is wrong with the file
        # cell id → why it is stale, or holds hidden state
        self.marks: dict[str, str] = {}
        self.live = dict(NOTHING)
        # of the run that is under way, so far
        self.outputs: Sequence[Mapping[str, Any]] = ()
        self.versions: list[Row] = []
        self.asked_at = self.marks_at = 0.0
        self.seen, self.asking = -1, threading.Lock()
        self.stamp: tuple[object, ...] = ()
        self.parts: Row = {}
        self.wants_marks = True

    # --- brought up to date, in a thread
    # ------------------------------------------------------------------------

    def look(self, current: str) -> Row:
        """Look at the files, ask the daemon where it is time to, and return what is shown, by its parts."""
        with self.past.lock:
            self.past.refresh()
            seen = self.past.changes + self.past.lives
            # who looks at all may have read it
            news, self.seen = seen != self.seen, seen
            read = self._read()
            self.wants_marks = (
                self.wants_marks or news or (read and not self.live["run"])
            )
            running = self.past.state.running is not None or self.live["running"]
        due = news or time.monotonic() > self.asked_at + (
            RUNS_SECONDS if running else RESTS_SECONDS
        )
        if due and self.asking.acquire(blocking=False):  # one asks for all who look on
            try:
                self._ask()
            finally:
                self.asking.release()
        with self.past.lock:
            stamp = (
                self.seen,
                id(self.document),
                self.trouble,
                id(self.live),
                self.daemon.trouble,
                self.commands(self.name, current),
            )
            if stamp != self.stamp:
                self.stamp = stamp
                self.parts = {
                    "status": self.status(current),
                    "cells": self.cells(),
                    "live": self.now(),
                }
            return self.parts

    def _read(self) -> bool:
        before, trouble = self.document, self.trouble
        try:
            self.document, self.trouble = self.file.read(), ""
        except NotebookError as error:
            # what was read last is shown on, or the journal's
            self.trouble = error.message
        if self.document is before and self.trouble == trouble:
            return False
        if self.document is not None and self.document is not before:
            self.versions = [
                _row(cell, raw)
                for cell, raw in zip(
                    self.document.cells, self.document.raw["cells"], strict=True
                )
            ]
        return True

    def _ask(self) -> None:
        began = time.monotonic()
        marks = self.wants_marks and began > self.marks_at
        found = self.daemon.look(
            self.name, self.live["run"], self.live["changes"], marks
        )
        self.asked_at = time.monotonic()
        if found is None:
            self.live, self.outputs = dict(NOTHING), ()
            self.wants_marks = True
            return
        if found["outputs"] is not None:
            self.outputs = found["outputs"]
        elif not found["run"]:
            self.outputs = ()
        if marks:
            self.wants_marks, self.marks_at = (
                False,
                self.asked_at + COST * (self.asked_at - began),
            )
            told = [*(found["hidden"] or ()), *(found["stale"] or ())]
            self.marks = {mark["cell_id"]: mark["why"] for mark in told}
        self.live = found

    # --- what is shown
    # ------------------------------------------------------------------------------------------

    def status(self, current: str) -> Row:
        """Return where the notebook stands by its journal, and its file where no journal knows its plan."""
        self._compare()
        state = self.past.state
        state.commands = self.commands(self.name, current)
        planned = (
            state.plan
            if state.plan.steps
            else plan.from_json(self.document.plan if self.document else None)
        )
        steps = planned.steps if planned else ()
        return {
            "notebook": self.name,
            "title": one_line(planned.problem, 300) if planned else "",
            "state": "gone" if not os.path.exists(self.path) else state.name,
            "trouble": self.trouble,
            "daemon": self.daemon.trouble,
            "steps": [self._step(step) for step in steps],
            "off_plan": [
                {"cell": cell.cell_id, "number": cell.number, "status": cell.status}
                for cell in state.open_cells
            ],
            "stop": self._stop(),
            "lost": one_line(state.lost),
            "marks": self.marks,
            "run_stale": state.commands.terminal("run --stale"),
            "verified": self._verified(),
            "started": self.past.kernel_at,
            "last": state.last_report,
        }

    def _compare(self) -> None:
        """See which cells were changed since they ran, as `session/undelivered_reports` does."""
        if self.document is not None:
            self.past.state.stale = set(self.marks)
            self.past.state.compare(self.document.cells)

    def _step(self, step: Step) -> Row:
        state, progress = self.past.state, self.past.state.of(step.id)
        runs = state.running is not None and state.running.key == step.id
        return {
            "id": step.id,
            "title": step.title,
            "criterion": step.criterion,
            "kind": step.kind,
            "long": step.long,
            "status": "running" if runs else state.standing(step.id),
            "attempts": progress.attempts,
            "retries": progress.retries,
            "cell": state.running.cell_id
            if runs and state.running
            else progress.cell_id,
            "reason": one_line(progress.reason),
        }

    def _stop(self) -> Row | None:
        state, stop = self.past.state, self.past.state.stop
        if stop is None:
            return None
        question, _, _ = command_messages.stopped(state, stop)
        return {
            "error": stop.error,
            "cell": stop.cell_id,
            "question": question,
            "ways": [asdict(way) for way in command_messages.ways(state)],
            "block": clean(stop.block),
        }

    def _verified(self) -> Row | None:
        last = self.past.state.verified
        if last is None:
            return None
        holds = (
            self.document is not None
            and verify_results.hash_sources(self.document.cells) == last.sources
        )
        return {
            "reproduces": last.reproduces,
            "at": last.at,
            "text": last.text,
            "holds": holds,
        }

    def cells(self) -> list[Row]:
        """Return the cells, each with what tells one state of it from another; the journal's where no file is there."""
        last = {run.cell: run for run in self.past.runs}
        rows = self.versions or [
            {"id": name, "number": number, "type": "code", "mark": str(run.run)}
            for number, (name, run) in enumerate(last.items(), 1)
        ]
        running = self.past.state.running
        ids = {row["id"] for row in rows}
        told = []
        for row in rows:
            run = last.get(row["id"])
            doubts = self.past.doubts.get(run.run, []) if run else []
            more: Row = {"run": run.run if run else 0, "doubts": doubts}
            if running is not None and running.cell_id == row["id"]:
                more = {
                    "run": running.run,
                    "doubts": [],
                    "mark": f"{running.run}.{self.live['changes']}",
                }
            told.append({**row, **more})
        # a file that lost it, or an edit not yet seen
        if running is not None and running.cell_id not in ids:
            mark = f"{running.run}.{self.live['changes']}"
            told.append(
                {
                    "id": running.cell_id,
                    "number": running.number,
                    "type": "code",
                    "mark": mark,
                    "run": running.run,
                    "doubts": [],
                }
            )
        return told

    def now(self) -> Row:
        """Return what runs, and how the kernel is."""
        kernel, begun = self.live["kernel"], self.past.state.running
        running = self.live["running"]
        # the daemon is away
        if begun is not None and not (running and running["cell_id"] == begun.cell_id):
            name = (
                f"step {begun.key}"
                if isinstance(begun.key, int)
                else f"cell {begun.number}"
            )
            running = {
                "name": name,
                "cell_id": begun.cell_id,
                "timeout": begun.timeout,
                "line": "",
                "left_seconds": None,
            }
        if running is not None:
            at = begun.at if begun else ""
            seconds = running.get("seconds", 0)
            running = {
                "name": running["name"],
                "cell": running["cell_id"],
                "timeout": running["timeout"],
                "line": running["line"],
                "left": running["left_seconds"],
                "at": 1000 * instant(at).timestamp()
                if at
                else round(1000 * (time.time() - seconds), -3),
            }
        rss = kernel.get("rss_bytes")
        return {
            "running": running,
            "waits": self.live["waits"],
            "state": kernel["state"],
            "pid": kernel.get("pid"),
            "memory": rss and round(rss / 1e6),
            "python": kernel.get("python"),
            "where": kernel.get("where"),
            "left": kernel.get("left_seconds"),
            "trouble": kernel.get("trouble"),
        }

    def runs(self, after: int) -> list[Row]:
        """Return the runs from that place in the list on."""
        return [asdict(run) for run in self.past.runs[after:]]

    def raw(self, cell: str) -> tuple[Cell | None, Mapping[str, Any], Sequence[Any]]:
        """Return a cell, as the file has it, and its outputs: of one that runs what came of it so far."""
        found: tuple[Cell | None, Mapping[str, Any]] = (None, {})
        if self.document is not None:
            pairs = zip(self.document.cells, self.document.raw["cells"], strict=True)
            found = next(((each, raw) for each, raw in pairs if each.id == cell), found)
        begun = self.past.state.running
        outputs = found[1].get("outputs")
        if (
            begun is not None
            and begun.cell_id == cell
            and self.live["run"] == begun.run
        ):
            outputs = self.outputs
        return *found, outputs if isinstance(outputs, Sequence) else ()


def _row(cell: Cell, raw: Mapping[str, Any]) -> Row:
    try:
        mark = zlib.crc32(
            orjson.dumps(
                [raw.get("source"), raw.get("outputs"), raw.get("execution_count")]
            )
        )
    except TypeError:  # no UTF-8, large integers
        mark = zlib.crc32(repr(raw).encode("utf-8", "replace"))
    return {
        "id": cell.id,
        "number": cell.number,
        "type": cell.type,
        "mark": f"{mark:08x}",
    }
