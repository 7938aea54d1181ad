"""Writing of outputs to the notebook: outputs of runs, pending and late outputs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stepper.common.errors import NotebookError, StepperError
from stepper.common.text import format_count
from stepper.messages.run_report import format_left_out
from stepper.notebooks.journal_file import SyncMode
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy import journal_events
from stepper.policy.changed_cells import hash_source
from stepper.policy.execution_result import CellVersion, Execution, WidgetState
from stepper.policy.model import Cell, Limits, Outcome, Run
from stepper.policy.notebook_state import DisplayedOutput
from stepper.session.protocols import Kernel, LateOutputs, PartialOutput
from stepper.session.session_state.notebook_journal import NotebookJournal, format_now
from stepper.session.session_state.notices import Notices

# The pause after a write, relative to the duration of the write.
RETRY_FACTOR = 50
# Types of messages with outputs, except "stream".
LATE_TYPES = ("display_data", "update_display_data", "execute_result", "error")
LATE_SECONDS = 2.0  # between two writes of late outputs


class OutputWriter:
    """Writes outputs to the notebook, and stores those that could not be written.

    Pending outputs could not be written when their cell finished; the journal contains
    them until they are written. Late outputs arrive after the run of their cell.
    """

    def __init__(
        self,
        file: IpynbFile,
        late: LateOutputs,
        journal: NotebookJournal,
        notices: Notices,
        limits: Callable[[], Limits],
    ) -> None:
        self.file = file
        self.late = late
        self.journal = journal
        self.notices = notices
        self._load_limits = limits
        self._last_limits = Limits()
        # The last execution of a cell, if it failed; its outputs may be written again.
        self._failed_execution: Execution | None = None
        # The last write of a running cell's outputs: the number of the run, and the
        # number of changes of the outputs at that time.
        self._last_written = (0, 0)
        self.next_late_write = 0.0  # when to write late outputs, by time.monotonic
        self.next_retry = 0.0  # when to write pending outputs, by time.monotonic

    def load_limits(self) -> Limits:
        """Return the configured limits.

        Return the last valid limits if the configuration is invalid.
        """
        with contextlib.suppress(StepperError):
            self._last_limits = self._load_limits()
        return self._last_limits

    def write_outputs(
        self,
        cell: Cell,
        execution: Execution,
        step: int | None,
        run: int,
        *,
        keep_time: bool,
    ) -> list[str]:
        """Write the outputs of a run to its cell; return the notes for the report.

        The result contains the notes of the execution, and notes on omitted outputs and
        on a failed write. If a later attempt may succeed, the outputs become pending.
        `execution.in_notebook` is true afterwards if the outputs were written.
        `execution.timings` is cleared if the configuration turns off timings. `step` is
        the ID of the cell's plan step, and `run` the number of the run. `keep_time`
        preserves the modification time of the file.
        """
        limits = self.load_limits()
        if not limits.record_timing:
            execution.timings = {}
        notes = [*execution.notes, *_list_omissions(execution, limits)]
        try:
            problem = self.file.write_execution(cell, execution, step, keep_time)
            execution.in_notebook = not problem
        except NotebookError as error:
            self.journal.log(
                journal_events.OutputsPending(
                    run=run,
                    cell_id=cell.id,
                    number=cell.number,
                    source=cell.source,
                    step=step,
                    outputs=execution.outputs,
                    execution_count=execution.execution_count,
                    timings=execution.timings,
                )
            )
            problem = (
                f"the outputs could not be written ({error.message}): stepper keeps"
                " them in the journal and writes them as soon as possible"
            )
        if problem:
            return [*notes, problem]
        return notes

    def set_failed_execution(self, execution: Execution | None) -> None:
        """Set the last execution of a cell if it failed, or None if it did not fail."""
        self._failed_execution = execution

    @property
    def has_failed_execution(self) -> bool:
        """Whether the last run failed and its outputs are in memory."""
        return self._failed_execution is not None

    def rewrite_failed_outputs(self, cell: Cell, run: Run) -> None:
        """Write the outputs of the failed last run to its cell again."""
        execution = self._failed_execution
        if execution is not None:
            self.write_outputs(cell, execution, run.step, run.run, keep_time=True)

    def write_pending_outputs(self) -> None:
        """Write the pending outputs to the notebook.

        If a write fails, set `next_retry` and leave the remaining outputs pending.
        """
        started_at = time.monotonic()
        for pending in list(self.journal.state.pending_outputs.values()):
            try:
                problem = self._write_pending(pending)
            except NotebookError:
                self.next_retry = _compute_retry_time(started_at)
                return
            self.journal.log(
                journal_events.OutputsWritten(
                    run=pending.run, cell_id=pending.cell_id, why_not=problem
                )
            )
            result = "are in the notebook now"
            if problem:
                result = f"were not written ({problem})"
            self.notices.add(
                f"the pending outputs of run {pending.run} (cell {pending.number})"
                f" {result}"
            )

    def _write_pending(self, pending: journal_events.OutputsPending) -> str:
        """Write the pending outputs of a run to the notebook.

        Return an empty string, or the reason if the outputs can never be written. Raise
        NotebookError if the outputs cannot be written now.
        """
        unknown_index = -1  # the cell is found by its ID and source
        cell = Cell(
            pending.cell_id, unknown_index, pending.number, "code", pending.source
        )
        run = self.journal.state.find_run(pending.run)
        execution = Execution(
            outcome=run.outcome if run else Outcome.OK,
            outputs=pending.outputs,
            execution_count=pending.execution_count,
            timings=pending.timings,
        )
        try:
            # The agent may be about to edit the file. Claude Code refuses the edit if
            # the modification time has changed.
            return self.file.write_execution(
                cell, execution, pending.step, keep_time=True
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            # Another program wrote that line of the journal.
            return "the journal entry is invalid"

    def update_displays(self, message: dict[str, Any]) -> None:
        """Update the other cells that show the display of a message.

        `message` shows or updates the display. The cell of its request is not updated,
        because the message is one of its outputs.
        """
        display_id = _get_display_id(message)
        if not display_id:
            return
        state = self.journal.state
        request_id = _get_request_id(message)
        sender_id = None
        if request_id in state.cells_by_request:
            sender_id, _ = state.cells_by_request[request_id]
        elif state.running:
            sender_id = state.running.cell_id
        update = {**message, "msg_type": "update_display_data"}
        for cell_id, displayed in state.displayed_outputs.items():
            if display_id in displayed.displays and cell_id != sender_id:
                target = CellVersion(cell_id, displayed.source_hash)
                self._add_late_message(target, update)

    def add_late_output(self, message: dict[str, Any]) -> bool:
        """Add an output to the cell of its request, which has finished.

        Return False if the caller must handle the message, because the cell is running
        again or no cell has run. Return True if the message was added or can be
        ignored.
        """
        request_id = _get_request_id(message)
        running = self.journal.state.running
        if not request_id:
            return True  # the kernel itself sent the message
        if running and request_id == running.request:
            return True  # the record of the run contains the message
        sender = self._find_sender(request_id)
        if sender is None:
            return False
        if running and sender.cell_id == running.cell_id:
            return False  # the end of the run overwrites the outputs of this cell
        displayed = self.journal.state.displayed_outputs.get(sender.cell_id)
        display_id = _get_display_id(message)
        is_shown = displayed is not None and display_id in displayed.displays
        if is_shown or message["msg_type"] != "update_display_data":
            self._add_late_message(sender, message)
        return True

    def _find_sender(self, request_id: str) -> CellVersion | None:
        """Return the cell that sent a request, or None if no cell has run.

        The sender of an unknown request is the cell that ran last. While a cell is
        running, the sender is a cell that does not exist, so that the messages are
        reported as those of a deleted cell.
        """
        state = self.journal.state
        if request_id in state.cells_by_request:
            return CellVersion(*state.cells_by_request[request_id])
        if state.running:
            return CellVersion("", "")
        if not state.runs:
            return None
        last_run = state.runs[-1]
        return CellVersion(last_run.cell_id, last_run.source_hash)

    async def take_missed_messages(self, kernel: Kernel) -> None:
        """Add the last run's messages that arrived while no daemon was running."""
        state = self.journal.state
        if not state.runs:
            return
        last_run = state.runs[-1]
        displayed = state.displayed_outputs.get(last_run.cell_id)
        if displayed is None or last_run.request not in state.cells_by_request:
            return
        # Skip the late text and the other messages that the notebook already contains.
        skipped_characters = displayed.late_characters
        skipped_others = displayed.late_others
        for message in await kernel.fetch_missed_messages(last_run.request):
            text = message["content"].get("text")
            if message["msg_type"] == "stream" and isinstance(text, str):
                new_text = text[skipped_characters:]
                skipped_characters = max(0, skipped_characters - len(text))
                message["content"]["text"] = new_text
                if new_text:
                    self.add_late_output(message)
            elif message["msg_type"] in LATE_TYPES:
                if skipped_others <= 0:
                    self.add_late_output(message)
                skipped_others -= 1

    def write_late(
        self, widgets: WidgetState | None, partial: PartialOutput | None = None
    ) -> None:
        """Write late outputs, widget state and outputs of the running cell.

        `widgets` is None if the widget state has not changed, and `partial` is None if
        no long-running cell runs. If the notebook cannot be read or written, a later
        call tries again.
        """
        started_at = time.monotonic()
        try:
            has_late_outputs = self.late.collect_pending()
        except NotebookError:
            self._delay_late_write(started_at)
            return
        # Pending outputs of earlier runs must be written first.
        if self.journal.state.pending_outputs:
            return
        running = self.journal.state.running
        partial_outputs: dict[CellVersion, list[dict[str, Any]]] = {}
        version = (0, 0)
        if running and partial and partial.change_count > 0:
            version = (running.run, partial.change_count)
            if version != self._last_written:
                cell_version = CellVersion(running.cell_id, hash_source(running.source))
                partial_outputs[cell_version] = partial.get_outputs()
        has_changes = has_late_outputs or widgets is not None or partial_outputs
        if not has_changes:
            return
        late_outputs: Sequence[journal_events.LateOutput] = ()
        with contextlib.suppress(NotebookError):
            late_outputs = self.late.write(widgets, partial_outputs)
            if partial_outputs:
                self._last_written = version
        self._delay_late_write(started_at)
        for late_output in late_outputs:
            self.journal.log(replace(late_output, at=format_now()), sync=SyncMode.NONE)

    def _delay_late_write(self, started_at: float) -> None:
        """Set the time of the next write of late outputs, after a write or an attempt.

        `started_at` is the start of the write (monotonic clock).
        """
        self.next_late_write = max(
            time.monotonic() + LATE_SECONDS, _compute_retry_time(started_at)
        )

    def _add_late_message(self, target: CellVersion, message: dict[str, Any]) -> None:
        """Add a message to the late outputs of a cell.

        If the notebook cannot be read, log that the output was lost.
        """
        displayed = self.journal.state.displayed_outputs.get(
            target.cell_id, DisplayedOutput("")
        )
        pending = self.journal.state.pending_outputs.get(target.cell_id)
        pending_outputs = None
        if pending:
            pending_outputs = pending.outputs
        try:
            self.late.add_message(
                target,
                message,
                displayed.displays,
                displayed.left_out,
                self.load_limits().max_output_bytes,
                pending_outputs,
            )
        except NotebookError as error:
            character_count = len(str(message["content"].get("text", "")))
            shown_count = 0 if character_count else 1  # 1 for an output without text
            self.journal.log(
                journal_events.LateOutput(
                    at=format_now(),
                    **vars(target),
                    characters=character_count,
                    shows=shown_count,
                    updates=0,
                    left_out=displayed.left_out,
                    displays=displayed.displays,
                    there=False,
                    why=error.message,
                ),
                sync=SyncMode.NONE,
            )


def _get_request_id(message: dict[str, Any]) -> str:
    """Return the ID of the request that a message belongs to, or an empty string."""
    return str(message["parent_header"].get("msg_id") or "")


def _get_display_id(message: dict[str, Any]) -> str:
    """Return the display ID in a message, or an empty string."""
    transient = message["content"].get("transient")
    if not isinstance(transient, dict):
        return ""
    return str(transient.get("display_id") or "")


def _list_omissions(execution: Execution, limits: Limits) -> list[str]:
    """Return the notes on outputs and widgets that exceed a limit."""
    notes = []
    if execution.left_out:
        notes.append(
            f"{format_left_out(execution.left_out)}"
            f" (max_output_bytes {limits.max_output_bytes:,})"
        )
    widgets = execution.widgets
    if widgets is not None and widgets.omitted_count:
        omitted = format_count(widgets.omitted_count, "widget")
        notes.append(
            f"left out of the notebook: the state of {omitted},"
            f" {widgets.omitted_bytes:,} bytes"
            f" (max_widget_state_bytes {widgets.limit:,})"
        )
    return notes


def _compute_retry_time(started_at: float) -> float:
    """Return the time of the next write, after a write that started at `started_at`.

    Both times are of the monotonic clock. The pause is RETRY_FACTOR times as long as
    the write.
    """
    now = time.monotonic()
    return now + RETRY_FACTOR * (now - started_at)
