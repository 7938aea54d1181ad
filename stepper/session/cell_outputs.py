"""Writes outputs to the notebook: of a run, delayed ones and late ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stepper.common.errors import NotebookError, StepperError
from stepper.messages.run_report import format_left_out
from stepper.policy import journal_events
from stepper.policy.cell_changes import hash_source
from stepper.policy.model import Cell, Limits, Outcome
from stepper.policy.notebook_state import DisplayedOutput, State
from stepper.session.kernel_manager import format_now
from stepper.session.protocols import (
    CellVersion,
    Execution,
    Kernel,
    LateOutputs,
    NotebookFile,
    PartialOutput,
    WidgetState,
)

PUT_SHARE = 50  # how many times what a try took is waited before the next one
LATE = ("display_data", "update_display_data", "execute_result", "error")
LATE_SECONDS = 2.0  # between two writes of what comes besides a run


class OutputWriter:
    """Writes outputs to the cells of one notebook."""

    def __init__(
        self,
        file: NotebookFile,
        late: LateOutputs,
        state: State,
        limits: Callable[[], Limits],
        log: Callable[..., None],
        trouble: Callable[[str], None],
    ) -> None:
        self.file, self.late, self.state, self.log, self.add_notice = (
            file,
            late,
            state,
            log,
            trouble,
        )
        self.load_limits, self.last_limits = limits, Limits()
        # the run, and what had come of it, whose outputs were written while it ran
        self.last_written = (0, 0)
        # when late outputs, and those that wait, are written next unasked
        self.next_late_write = self.next_retry = 0.0

    def get_limits(self) -> Limits:
        """Return the limits; if the configuration is invalid, the last valid ones."""
        with contextlib.suppress(StepperError):
            self.last_limits = self.load_limits()
        return self.last_limits

    def write_outputs(
        self,
        cell: Cell,
        execution: Execution,
        step: int | None,
        run: int,
        keep_time: bool,
    ) -> list[str]:
        """Write the outputs of a run; return notes on omitted ones.

        If writing fails, the outputs wait in the journal.
        """
        limits, models = self.get_limits(), execution.widgets
        if not limits.record_timing:
            execution.timings = {}
        notes = [*execution.notes]
        if execution.left_out:
            notes.append(
                f"{format_left_out(execution.left_out)} (max_output_bytes {limits.max_output_bytes:,})"
            )
        if models is not None and models.omitted_count:
            notes.append(
                f"left out of the notebook: the state of {models.omitted_count} widgets, {models.omitted_bytes:,} bytes"
                f" (max_widget_state_bytes {models.limit:,})"
            )
        try:
            why = self.file.write_execution(cell, execution, step, keep_time)
            execution.in_notebook = not why
        except NotebookError as error:
            self.log(
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
            later = "they wait in the journal and are written when that is possible"
            why = f"the outputs could not be written ({error.message}): {later}"
        return [*notes, why] if why else notes

    def write_waiting(self) -> None:
        """Write outputs that wait in the journal, if this is possible now."""
        began = time.monotonic()
        for waiting in list(self.state.pending_outputs.values()):
            cell = Cell(waiting.cell_id, -1, waiting.number, "code", waiting.source)
            outcome = next(
                (
                    run.outcome
                    for run in reversed(self.state.runs)
                    if run.run == waiting.run
                ),
                Outcome.OK,
            )
            execution = Execution(
                outcome, waiting.outputs, waiting.execution_count, waiting.timings
            )
            try:
                # a message may be under way
                why = self.file.write_execution(
                    cell, execution, waiting.step, keep_time=True
                )
            except NotebookError:
                self.next_retry = _compute_retry_time(began)
                return
            except (AttributeError, KeyError, TypeError, ValueError):
                # somebody else wrote that line
                why = "they are no outputs"
            self.log(
                journal_events.OutputsWritten(
                    run=waiting.run, cell_id=cell.id, why_not=why
                )
            )
            told = f"were left out ({why})" if why else "are in the notebook now"
            self.add_notice(
                f"the outputs of run {waiting.run} (cell {cell.number}), which waited, {told}"
            )

    def handle_display(self, message: dict[str, Any], late: bool) -> bool:
        """Add a message to cells other than the running one.

        Return whether a cell could take it. `late` means that its request has finished.
        """
        state, running = self.state, self.state.running
        request = str(message["parent_header"].get("msg_id") or "")
        transient = message["content"].get("transient")
        mark = (
            str(transient.get("display_id") or "")
            if isinstance(transient, dict)
            else ""
        )
        own = state.cells_by_request.get(request)
        if late:
            if not request or (running and request == running.request):
                return True  # the kernel's own words; what its record holds
            last = state.runs[-1] if state.runs and not running else None
            cell_id, source = own or (
                (last.cell_id, last.source_hash) if last else ("", "")
            )
            if cell_id == (running.cell_id if running else ""):
                return False  # it can't be told apart, or would be written over
            shows = (
                cell_id in state.displayed_outputs
                and mark in state.displayed_outputs[cell_id].displays
            )
            if shows or message["msg_type"] != "update_display_data":
                self._add_late_message(CellVersion(cell_id, source), message)
            return True
        not_in = own[0] if own else running and running.cell_id
        for cell_id, shown in state.displayed_outputs.items():
            if mark and mark in shown.displays and cell_id != not_in:
                self._add_late_message(
                    CellVersion(cell_id, shown.source_hash),
                    {**message, "msg_type": "update_display_data"},
                )
        return True

    async def take_missed_messages(self, kernel: Kernel) -> None:
        """Add messages that arrived while no daemon was running."""
        last = self.state.runs[-1] if self.state.runs else None
        shown = self.state.displayed_outputs.get(last.cell_id) if last else None
        if (
            last is None
            or last.request not in self.state.cells_by_request
            or shown is None
        ):
            return
        characters, others = shown.late_characters, shown.late_others
        for message in await kernel.fetch_missed_messages(last.request):
            text = message["content"].get("text")
            if message["msg_type"] == "stream" and isinstance(text, str):
                message["content"]["text"], characters = (
                    text[characters:],
                    max(0, characters - len(text)),
                )
                if message["content"]["text"]:
                    self.handle_display(message, True)
            elif message["msg_type"] in LATE:
                if others <= 0:
                    self.handle_display(message, True)
                others -= 1

    def write_late(
        self, models: WidgetState | None, coming: PartialOutput | None = None
    ) -> None:
        """Write late outputs, widget state and outputs of the running cell.

        All are written at once; what cannot be written waits.
        """
        began, running = time.monotonic(), self.state.running
        mark = (running.run, coming.change_count) if running and coming else (0, 0)
        news = mark[1] > 0 and mark != self.last_written
        try:
            # those are written first
            if self.state.pending_outputs or not (
                self.late.has_pending or models is not None or news
            ):
                return
            so_far = dict[CellVersion, list[dict[str, Any]]]()
            if news and running and coming:
                so_far[CellVersion(running.cell_id, hash_source(running.source))] = (
                    coming.outputs()
                )
            arrived = self.late.write(models, so_far)
            self.last_written = mark if news else self.last_written
        except NotebookError:
            arrived = []
        self.next_late_write = max(
            time.monotonic() + LATE_SECONDS, _compute_retry_time(began)
        )
        for came in arrived:
            self.log(replace(came, at=format_now()), sync=False)

    def _add_late_message(self, target: CellVersion, message: dict[str, Any]) -> None:
        shown = self.state.displayed_outputs.get(target.cell_id, DisplayedOutput(""))
        waiting = self.state.pending_outputs.get(target.cell_id)
        outputs = waiting.outputs if waiting else None
        try:
            self.late.add_message(
                target,
                message,
                shown.displays,
                shown.left_out,
                self.get_limits().max_output_bytes,
                outputs,
            )
        except NotebookError as error:
            size = len(str(message["content"].get("text", "")))
            self.log(
                journal_events.LateOutput(
                    at=format_now(),
                    **vars(target),
                    characters=size,
                    shows=int(not size),
                    updates=0,
                    left_out=shown.left_out,
                    displays=shown.displays,
                    there=False,
                    why=error.message,
                ),
                sync=False,
            )


def _compute_retry_time(began: float) -> float:
    """Return when to write again, so that large files are not read often."""
    done = time.monotonic()
    return done + PUT_SHARE * (done - began)
