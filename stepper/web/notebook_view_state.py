"""The state of a notebook for views, from its journal, its file and the daemon.

`refresh` runs in a thread and returns the parts of the page. All viewers of a notebook
share one `NotebookView`, which sends only one request to the daemon at a time.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import orjson

from stepper.common.errors import NotebookError
from stepper.common.text import clean, one_line
from stepper.messages import command_messages, status_text
from stepper.notebooks.notebook_document import Document
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy import plan
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.comparison import verify_results
from stepper.policy.journal_events import RunStarted
from stepper.policy.model import Cell, Plan, Step, parse_moment
from stepper.web.daemon_client import DaemonClient
from stepper.web.journal_reader import PastRun, RunHistory

# The time between two requests to the daemon, while a cell is running and otherwise.
RUNNING_SECONDS = 0.25
IDLE_SECONDS = 1.0
# The pause before stale cells are requested again, as a multiple of the duration of the
# last request.
STALE_COST_FACTOR = 10
TITLE_CHARACTERS = 300
NO_SNAPSHOT: dict[str, Any] = {
    "run": 0,
    "changes": 0,
    "outputs": None,
    "running": None,
    "waits": "",
    "kernel": {"state": "none"},
    "kernels": {},
}
Row = dict[str, Any]


class ShownCell(NamedTuple):
    """A cell, its JSON in the file, and the outputs to show.

    `cell` is None, and `raw` is empty, if the file does not contain the cell.
    """

    cell: Cell | None
    raw: Mapping[str, Any]
    outputs: Sequence[Any]


class NotebookView:
    """The state of the notebook `name`, for views.

    `get_commands` returns the suggested commands for a notebook. Its arguments are the
    names of the notebook and of the current notebook.
    """

    def __init__(
        self,
        project: str,
        name: str,
        history: RunHistory,
        daemon: DaemonClient,
        get_commands: Callable[[str, str], CommandLines],
    ) -> None:
        self.name = name
        self.history = history
        self.daemon = daemon
        self.get_commands = get_commands
        self.path = os.path.join(project, name)
        self.file = IpynbFile(self.path)
        self.document: Document | None = None
        self.file_error = ""
        # The reasons why cells are stale or have hidden state, by cell id.
        self.marks: dict[str, str] = {}
        # The reasons why other cells are only indirectly stale, by cell id.
        self.indirect_marks: dict[str, str] = {}
        self.undo_text = ""  # how far back undo reaches
        self.snapshot = dict(NO_SNAPSHOT)
        # The outputs of the running cell so far.
        self.outputs: Sequence[Mapping[str, Any]] = ()
        self.file_rows: list[Row] = []
        self.request_lock = threading.Lock()
        self.requested_at = 0.0
        self.marks_due_at = 0.0
        self.needs_marks = True
        self.last_change_count = -1
        # The numbers of documents and snapshots so far.
        self.document_count = 0
        self.snapshot_count = 0
        # The parts of the page, and the version of the state that they show.
        self.page_data_version: tuple[object, ...] = ()
        self.page_data: Row = {}

    # --- updates, in a thread

    def refresh(self, current: str) -> Row:
        """Update the state of the notebook, and return the parts of the page by name.

        Requests are sent to the daemon at most every RUNNING_SECONDS or IDLE_SECONDS.
        `current` is the name of the project's current notebook.
        """
        needs_snapshot = self._read_files()
        if needs_snapshot and self.request_lock.acquire(blocking=False):
            try:
                self._request_snapshot()
            finally:
                self.request_lock.release()
        with self.history.lock:
            version = self._get_page_data_version(current)
            if version != self.page_data_version:
                self.page_data_version = version
                self.page_data = {
                    "status": self.build_status(current),
                    "cells": self.list_cells(),
                    "live": self.build_live_state(),
                }
            return self.page_data

    def _read_files(self) -> bool:
        """Read new events from the journal, and the notebook file if it has changed.

        Return whether to request a snapshot from the daemon.
        """
        with self.history.lock:
            self.history.refresh()
            # The result of `refresh` does not show all new events, because the list of
            # notebooks refreshes the same history.
            changes = self.history.changes + self.history.generation
            has_events = changes != self.last_change_count
            self.last_change_count = changes
            has_new_file = self._read_file()
            is_idle = not self.snapshot["run"]
            if has_events or (has_new_file and is_idle):
                self.needs_marks = True
            is_running = self.history.state.running or self.snapshot["running"]
        interval = RUNNING_SECONDS if is_running else IDLE_SECONDS
        return has_events or time.monotonic() > self.requested_at + interval

    def _get_page_data_version(self, current: str) -> tuple[object, ...]:
        """Return the version of the state that `page_data` is built from.

        It changes whenever `page_data` must be built again.
        """
        return (
            self.last_change_count,
            self.document_count,
            self.file_error,
            self.snapshot_count,
            self.daemon.error,
            self.get_commands(self.name, current),
        )

    def _read_file(self) -> bool:
        """Read the notebook file.

        Return whether the document or the error has changed.
        """
        old_document = self.document
        old_error = self.file_error
        try:
            self.document = self.file.read()
            self.file_error = ""
        except NotebookError as error:
            # The view continues to show the last document or the journal's cells.
            self.file_error = error.message
        if self.document is not None and self.document is not old_document:
            self.document_count += 1
            self.file_rows = _make_file_rows(self.document)
        return self.document is not old_document or self.file_error != old_error

    def _request_snapshot(self) -> None:
        """Request the live state from the daemon, and the stale cells if necessary."""
        started_at = time.monotonic()
        requests_marks = self.needs_marks and started_at > self.marks_due_at
        snapshot = self.daemon.request_snapshot(
            self.name,
            self.snapshot["run"],
            self.snapshot["changes"],
            marks=requests_marks,
        )
        self.requested_at = time.monotonic()
        if snapshot is None:
            self.snapshot = dict(NO_SNAPSHOT)
            self.snapshot_count += 1
            self.undo_text = ""
            self.outputs = ()
            self.needs_marks = True
            return
        if snapshot["outputs"] is not None:
            self.outputs = snapshot["outputs"]
        elif not snapshot["run"]:
            self.outputs = ()
        if requests_marks:
            duration = self.requested_at - started_at
            self.needs_marks = False
            self.marks_due_at = self.requested_at + STALE_COST_FACTOR * duration
            marks = [*(snapshot["hidden"] or ()), *(snapshot["stale"] or ())]
            self.marks = {mark["cell_id"]: mark["why"] for mark in marks}
            indirect = snapshot.get("indirect") or ()
            self.indirect_marks = {mark["cell_id"]: mark["why"] for mark in indirect}
            reach = snapshot["undo"]
            self.undo_text = status_text.describe_undo(reach) if reach else ""
        self.snapshot = snapshot
        self.snapshot_count += 1

    # --- parts of the page

    def build_status(self, current: str) -> Row:
        """Return the plan, the state, the stop and the errors of the notebook.

        This also updates the state: its commands, and which cells have changed.
        """
        self._update_changed_cells()
        state = self.history.state
        state.commands = self.get_commands(self.name, current)
        title = ""
        steps: list[Row] = []
        notebook_plan = self._get_plan()
        if notebook_plan is not None:
            title = one_line(notebook_plan.problem, TITLE_CHARACTERS)
            steps = [self._build_step(step) for step in notebook_plan.steps]
        exists = os.path.exists(self.path)
        return {
            "notebook": self.name,
            "title": title,
            "state": state.status_name if exists else "gone",
            "trouble": self.file_error,
            "daemon": self.daemon.error,
            "steps": steps,
            "off_plan": [
                {"cell": cell.cell_id, "number": cell.number, "status": cell.status}
                for cell in state.open_cells
                if not cell.is_planned
            ],
            "stop": self._get_stop(),
            "lost": one_line(state.lost_reason),
            "marks": self.marks,
            "indirect": self.indirect_marks,
            "run_stale": state.commands.terminal("run --stale"),
            "verified": self._get_verification(),
            "started": self.history.kernel_at,
            "last": state.last_report,
        }

    def _get_plan(self) -> Plan | None:
        """Return the plan in the journal, or else the plan in the file, or None."""
        journal_plan = self.history.state.plan
        if journal_plan.steps:
            return journal_plan
        plan_json = None
        if self.document:
            plan_json = self.document.plan
        return plan.from_json(plan_json)

    def _update_changed_cells(self) -> None:
        """Record in the state which cells have changed since they ran.

        In the daemon, `session/undelivered_reports` records this.
        """
        if self.document is not None:
            state = self.history.state
            state.stale_ids = set(self.marks)
            state.compare_with_notebook(self.document.cells)

    def _build_step(self, step: Step) -> Row:
        """Return a step of the plan with its status and its attempts."""
        state = self.history.state
        progress = state.get_progress(step.id)
        status: str = state.get_step_status(step.id)
        cell_id = progress.cell_id
        running = state.running
        if running is not None and running.key == step.id:
            status = "running"
            cell_id = running.cell_id
        return {
            "id": step.id,
            "title": step.title,
            "criterion": step.criterion,
            "kind": step.kind,
            "long": step.long,
            "status": status,
            "attempts": progress.attempts,
            "retries": progress.retries,
            "cell": cell_id,
            "reason": one_line(progress.reason),
        }

    def _get_stop(self) -> Row | None:
        """Return the cause of the stop, and the commands that resume the notebook.

        Return None if the notebook is not stopped.
        """
        state = self.history.state
        stop = state.stop
        if stop is None:
            return None
        stop_texts = command_messages.format_stop(state, stop)
        return {
            "error": stop.error,
            "cell": stop.cell_id,
            "question": stop_texts.question,
            "ways": [
                asdict(way) for way in command_messages.list_resume_commands(state)
            ],
            "block": clean(stop.block),
        }

    def _get_verification(self) -> Row | None:
        """Return the result of the last `stepper verify`, or None if there is none.

        `holds` is false if a cell has changed since then.
        """
        verification = self.history.state.verified
        if verification is None:
            return None
        is_current = False
        if self.document is not None:
            source_hashes = verify_results.hash_sources(self.document.cells)
            is_current = source_hashes == verification.sources
        return {
            "reproduces": verification.reproduces,
            "at": verification.at,
            "text": verification.text,
            "holds": is_current,
        }

    def list_cells(self) -> list[Row]:
        """Return the cells, each with its latest run and the warnings of this run.

        Without a notebook file, the cells come from the journal.
        """
        last_runs = {run.cell: run for run in self.history.runs}
        rows = self.file_rows
        if self.document is None:
            rows = _make_journal_rows(last_runs)
        running = self.history.state.running
        cells = []
        for row in rows:
            cell_id = row["id"]
            if running is not None and running.cell_id == cell_id:
                cells.append({**row, **self._get_running_fields(running)})
                continue
            run = last_runs.get(cell_id)
            number = run.run if run else 0
            warnings = self.history.warnings.get(number, [])
            cells.append({**row, "run": number, "doubts": warnings})
        # The running cell may be missing in the file, because it was deleted or the
        # file was not read again.
        cell_ids = {row["id"] for row in rows}
        if running is not None and running.cell_id not in cell_ids:
            cells.append(
                {
                    "id": running.cell_id,
                    "number": running.number,
                    "type": "code",
                    **self._get_running_fields(running),
                }
            )
        return cells

    def _get_running_fields(self, running: RunStarted) -> Row:
        """Return the fields of the running cell that differ from those of other cells.

        Its mark changes with each new output.
        """
        mark = f"{running.run}.{self.snapshot['changes']}"
        return {"run": running.run, "doubts": [], "mark": mark}

    def build_live_state(self) -> Row:
        """Return the running cell and the state of the kernel (its memory in MB)."""
        kernel = self.snapshot["kernel"]
        rss_bytes = kernel.get("rss_bytes")
        memory_mb = None
        if rss_bytes:
            memory_mb = round(rss_bytes / 1e6)
        return {
            "running": self._get_running_cell(),
            "waits": self.snapshot["waits"],
            "state": kernel["state"],
            "pid": kernel.get("pid"),
            "memory": memory_mb,
            "python": kernel.get("python"),
            "where": kernel.get("where"),
            "left": kernel.get("left_seconds"),
            "undo": self.undo_text,
            "trouble": kernel.get("trouble"),
        }

    def _get_running_cell(self) -> Row | None:
        """Return the running cell from the daemon or the journal, or None."""
        running = self.history.state.running
        cell = self.snapshot["running"]
        if running is not None and (cell is None or cell["cell_id"] != running.cell_id):
            # The daemon is not running, or the journal is newer than the snapshot.
            cell = {
                "name": _format_run_name(running),
                "cell_id": running.cell_id,
                "timeout": running.timeout,
                "line": "",
                "left_seconds": None,
            }
        if cell is None:
            return None
        if running is not None and running.at:
            start_time = 1000 * parse_moment(running.at).timestamp()
        else:
            # Rounded to seconds, so that the part of the page changes less often.
            seconds = time.time() - cell.get("seconds", 0)
            start_time = round(1000 * seconds, -3)
        return {
            "name": cell["name"],
            "cell": cell["cell_id"],
            "timeout": cell["timeout"],
            "line": cell["line"],
            "left": cell["left_seconds"],
            "at": start_time,  # in milliseconds
        }

    def list_runs(self, start: int) -> list[Row]:
        """Return the runs of the history, starting at index `start`."""
        return [asdict(run) for run in self.history.runs[start:]]

    def get_cell(self, cell_id: str) -> ShownCell:
        """Return a cell with its outputs; for a running cell, the outputs so far."""
        cell, raw = self._find_cell(cell_id)
        outputs = raw.get("outputs")
        running = self.history.state.running
        is_running = running is not None and running.cell_id == cell_id
        if running is not None and is_running and self.snapshot["run"] == running.run:
            outputs = self.outputs
        if not isinstance(outputs, Sequence):
            outputs = ()
        return ShownCell(cell, raw, outputs)

    def _find_cell(self, cell_id: str) -> tuple[Cell | None, Mapping[str, Any]]:
        """Return a cell in the file and its JSON, or None and an empty object."""
        document = self.document  # `refresh` may replace it in another thread
        if document is not None:
            for cell in document.cells:
                if cell.id == cell_id:
                    return cell, document.raw["cells"][cell.index]
        return None, {}


def _format_run_name(running: RunStarted) -> str:
    """Return the name of the step or cell that is running, such as `step 2`."""
    if isinstance(running.key, int):
        return f"step {running.key}"
    return f"cell {running.number}"


def _make_journal_rows(last_runs: Mapping[str, PastRun]) -> list[Row]:
    """Return the cells in the journal, numbered in the order of their first runs."""
    return [
        {"id": cell_id, "number": number, "type": "code", "mark": str(run.run)}
        for number, (cell_id, run) in enumerate(last_runs.items(), 1)
    ]


def _make_file_rows(document: Document) -> list[Row]:
    """Return the cells in a file, each with a checksum of its contents as its mark."""
    rows = []
    for cell in document.cells:
        checksum = _compute_checksum(document.raw["cells"][cell.index])
        row = {
            "id": cell.id,
            "number": cell.number,
            "type": cell.type,
            "mark": f"{checksum:08x}",
        }
        rows.append(row)
    return rows


def _compute_checksum(raw: Mapping[str, Any]) -> int:
    """Return a checksum of a cell's source, outputs and execution count."""
    contents = [raw.get("source"), raw.get("outputs"), raw.get("execution_count")]
    try:
        return zlib.crc32(orjson.dumps(contents))
    except TypeError:  # lone surrogates, integers of more than 64 bits
        return zlib.crc32(repr(contents).encode("utf-8", "replace"))
