"""An execution in a kernel, from the request to the result.

`RunningExecution.run` returns when both the reply and the idle status have been
received. Either message may be lost, so each wait has a time limit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepper.common import dataclass_decode
from stepper.common.errors import KernelError, KernelUnreachableError
from stepper.common.text import format_count
from stepper.kernels import helper_loader
from stepper.kernels.client_base import MALFORMED_MESSAGE, Connection
from stepper.kernels.error_parsing import build_fault, clean_error, parse_stack_sample
from stepper.kernels.kernel_channels import Inbox
from stepper.kernels.kernel_process import GRACE_SECONDS, PATIENCE_SECONDS
from stepper.kernels.memory_guard import MemoryGuard
from stepper.kernels.outputs.output_area import (
    DISPLAY_TYPES,
    OUTPUT_TYPES,
    UPDATE,
    OutputArea,
)
from stepper.kernels.wake_pattern import WakeWatcher
from stepper.policy import error_classification
from stepper.policy.execution_result import Execution
from stepper.policy.model import Death, Fault, Limits, Outcome
from stepper.policy.reloaded_modules import ModuleChanges
from stepper.policy.undo_model import UndoFacts

# Between two checks for death, deadline and memory. The time between two checks may be
# twice as long.
CHECK_SECONDS = 0.12
MEMORY_GRACE_SECONDS = 1.0  # short, because memory may still grow
# How long to wait for the last message without receiving any: for the idle status after
# the reply, or for the reply after the idle status of an interrupted execution.
REPLY_SECONDS = 2.0
# How long to wait for the idle status after the reply. Earlier messages of the kernel
# must be read first.
BACKLOG_SECONDS = 60.0
# The deadline is at least this time after a reconnection, because the messages of an
# execution that has finished in the meantime must be read first.
RECONNECT_SECONDS = 2.0
MAX_SILENT_OUTPUT = 10_000  # bytes of output of stepper's own code

NO_DAEMON = "the stepper daemon was not running"
CONNECTION_LOST = "the connection was lost, or the server drops output above its limits"
NOT_RECORDED = (
    "the outcome of the run is unknown: stepper was not connected to the kernel when "
    "the cell finished, and the kernel has no record of the run"
)
OUTPUT_NOT_RECORDED = (
    "output that was printed while stepper was not connected to the kernel is missing: "
    "the kernel has no record of the run"
)
# Reason of an interrupt → outcome. Any other reason is the source of the interrupt.
INTERRUPT_OUTCOMES = {"deadline": Outcome.TIMEOUT, "memory": Outcome.MEMORY}


@dataclass
class EarlierRun:
    """An execution that started before the current connection, and its later messages.

    `request_id` is the message id of its request. `lost` is the execution if this
    daemon started it before the connection was lost, or None if an earlier daemon
    started it. `error` is the error in its messages, if any.
    """

    request_id: str
    area: OutputArea
    kernel: Connection
    lost: RunningExecution | None = None
    is_finished: bool = False
    error: dict[str, Any] | None = None

    def add_message(self, message: dict[str, Any]) -> None:
        """Add a message of the execution, and update `is_finished` and `error`."""
        if self.lost is not None:
            self.lost.handle_message(message)
            self.is_finished = self.is_finished or self.lost.is_idle
            return
        self.kernel.handle_message(message, self.area)
        is_idle = self.area.add_message(message)
        self.is_finished = is_idle or self.is_finished
        if message["msg_type"] == "error":
            self.error = clean_error(message["content"])


class ConnectionLostError(Exception):
    """The connection was lost during an execution, so its result is not known yet."""


class RunningExecution:
    """One execution of code in a kernel, with a time limit.

    The execution is interrupted after `seconds`. If `limits` is None, the code is
    stepper's own and has no memory limit. `wake` is the wake pattern, if any.
    """

    def __init__(
        self,
        kernel: Connection,
        seconds: float,
        limits: Limits | None = None,
        wake: str = "",
    ) -> None:
        self.kernel = kernel
        self.limits = limits
        self.seconds = seconds
        # `deadline` may be postponed, `original_deadline` is fixed.
        self.deadline = time.monotonic() + seconds
        self.original_deadline = self.deadline
        self.has_started = False
        self.unreachable_since = 0.0
        max_bytes = limits.max_output_bytes if limits else MAX_SILENT_OUTPUT
        self.area = OutputArea(max_bytes)
        # The outputs that went into Output widgets.
        self.captured = OutputArea(max_bytes)
        watcher = WakeWatcher(wake) if wake else None
        self.area.watch = watcher
        self.captured.watch = watcher
        self.earlier: EarlierRun | None = None
        self.has_captured_error = False
        # False for stepper's own code and for scratch executions.
        self.is_cell = False
        self.result = Execution(Outcome.OK)
        self.guard: MemoryGuard | None = None
        self.stack_sample = ""
        self.msg_id = ""
        self.is_idle = False
        self.has_repeated_interrupt = False
        self.reply: dict[str, Any] | None = None
        self.replied_at = 0.0
        self.interrupted_at = 0.0
        self.received_at = 0.0
        self.error: dict[str, Any] | None = None

    async def run(
        self,
        code: str,
        *,
        silent: bool = False,
        history: bool = False,
        request: str = "",
        metadata: Mapping[str, Any] = {},
    ) -> Execution:
        """Execute code and return the result, even if the code raises an exception.

        If `history` is true, the code is a cell and is added to the kernel's history.
        `request` is the message id to use; by default, a new one is created. Raise
        ConnectionLostError if the connection is lost, and KernelUnreachableError if the
        kernel cannot be reached for too long.
        """
        self.is_cell = history
        content = {
            "code": code,
            "silent": silent,
            "store_history": history,
            "user_expressions": {},
            "allow_stdin": False,
            # A failure must not abort the requests that are waiting behind it.
            "stop_on_error": False,
        }
        process = self.kernel.process
        disconnect_count = process.disconnect_count
        # An empty request that waits for an earlier execution starts no processes.
        if self.earlier is None:
            process.prepare_run()
        self._send_request(content, metadata, request)
        if self.limits:
            # The kernel receives the request while memory is measured.
            process.reset_oom_count()
            max_percent = self.limits.max_memory_percent
            self.guard = MemoryGuard(
                max_percent, process.get_memory_usage, process.measure_memory
            )
        await self._receive_all(disconnect_count)
        if process.disconnect_count != disconnect_count and self.result.death is None:
            raise ConnectionLostError
        return await self.finish()

    def _send_request(
        self, content: dict[str, Any], metadata: Mapping[str, Any], request: str
    ) -> None:
        """Send the execute request, and store its message id.

        `request` is the message id to use, or an empty string for a new one.
        """
        # The helper sends the environment only if its mark has changed.
        environment = self.kernel.environment
        known_mark = environment.mark if environment else None
        self.msg_id = self.kernel.channels.send(
            "execute_request",
            content,
            {"stepper_known": known_mark, **metadata},
            request,
        )

    async def _receive_all(self, disconnect_count: int) -> None:
        """Handle messages until the execution is finished.

        Return early at a limit (see `enforce_limits`), or if the connection was lost.
        `disconnect_count` is the process's count at the start of the execution. Another
        count means that the connection was lost.
        """
        process = self.kernel.process
        iopub = self.kernel.channels.iopub
        shell = self.kernel.channels.shell
        checked_at = time.monotonic()
        while not (self.is_idle and self.reply):
            inbox = shell if self.is_idle else iopub
            is_quiet = not await inbox.wait(CHECK_SECONDS)
            self.handle_messages(inbox)
            # The kernel sends the reply before the idle status.
            if self.is_idle and self.reply is None:
                self.handle_messages(shell)
            # The checks must also run during a flood of output.
            if is_quiet or time.monotonic() - checked_at > CHECK_SECONDS:
                checked_at = time.monotonic()
                process.trim_log()
                if self.reply is None and not self.is_idle:
                    self.handle_messages(shell)
                must_stop = await self.enforce_limits(checked_at, is_quiet)
                if must_stop or process.disconnect_count != disconnect_count:
                    return

    async def finish_from_record(
        self, request_id: str, facts: dict[str, Any], reason: str
    ) -> Execution:
        """Build the result of an execution from the helper's record of its messages.

        `request_id` is the message id of the execution. `facts` is the content of the
        helper's message that contains the record. `reason` says why output may be
        missing in the record.
        """
        self.is_cell = True
        self.msg_id = request_id
        self.reply = None
        self.error = None
        self.result = Execution(Outcome.OK, memory=self.result.memory)
        record = facts["record"]
        last_status_header: dict[str, Any] = {}
        lost_bytes = record["lost"]
        lost_output = format_count(lost_bytes, "byte") + " of output"
        loss_note = f"{lost_output} could not be recovered: {reason}"
        messages = helper_loader.iterate_recorded_messages(facts)
        for position, message in enumerate(messages):
            # The messages after the head were recorded after those that were lost.
            if lost_bytes and position == record.get("head"):
                content = {"name": "stderr", "text": f"… {loss_note} …\n"}
                self.handle_message(_build_message("stream", content))
            self.handle_message(message)
            if message["msg_type"] == "status":
                last_status_header = message["header"]
        has_failed = self.error is not None or "fault" in self.result.diagnosis_data
        status = "error" if has_failed else "ok"
        reply = {"status": status, "payload": record["payload"]}
        self.handle_message(_build_message("execute_reply", reply, last_status_header))
        result = await self.finish()
        if lost_bytes:
            result.notes.append(loss_note)
        return result

    async def finish_from_received(self, earlier: EarlierRun) -> Execution:
        """Build the result of an earlier run from the messages that were received.

        The first messages may be missing, so the outcome may be unknown.
        """
        self.is_cell = True
        self.area = earlier.area
        self.error = earlier.error
        status = "error" if earlier.error else "ok"
        self.reply = {"status": status, "payload": []}
        result = await self.finish()
        if not (earlier.is_finished or self.kernel.interrupt_reason):
            result.outcome = Outcome.ERROR
            label = error_classification.UNOBSERVED_RUN
            result.fault = result.fault or Fault(label, NOT_RECORDED, (label,))
        result.notes.append(OUTPUT_NOT_RECORDED)
        return result

    def handle_messages(self, inbox: Inbox) -> None:
        """Handle the waiting messages of a channel, up to the end of this execution."""
        for message in inbox.take_messages():
            request_id = message["parent_header"].get("msg_id")
            if request_id != self.msg_id:
                self._handle_other_message(message, request_id)
                continue
            self.received_at = time.monotonic()
            self.has_started = True
            self.handle_message(message)
            if self.is_idle and inbox is self.kernel.channels.iopub:
                break

    def _handle_other_message(self, message: dict[str, Any], request_id: Any) -> None:
        """Handle a message that belongs to another request.

        A message of the earlier run is added to its outputs. An output that belongs to
        no other cell is added to the outputs of this execution if it is a cell.
        """
        try:
            if self.earlier and request_id == self.earlier.request_id:
                self.earlier.add_message(message)
            elif not self.kernel.handle_message(message, self.area) and self.is_cell:
                self.area.add_message(message)
        except MALFORMED_MESSAGE as error:
            self.kernel.record_malformed_message(error)

    @property
    def was_aborted(self) -> bool:
        """Whether the kernel skipped the request because an earlier request failed."""
        if self.reply is None or self.kernel.interrupt_reason:
            return False
        return self.reply.get("status") == "aborted"

    def handle_message(self, message: dict[str, Any]) -> None:
        """Handle a message of this execution, from either channel."""
        try:
            self._dispatch_message(message["msg_type"], message["content"], message)
        except MALFORMED_MESSAGE as error:
            self.kernel.record_malformed_message(error)

    def _dispatch_message(
        self, message_type: str, content: dict[str, Any], message: dict[str, Any]
    ) -> None:
        """Handle a message according to its type."""
        if message_type in DISPLAY_TYPES:
            self.kernel.update_displays(message)
        if message_type == "execute_reply":
            self._handle_reply(content, message)
            return
        if message_type.startswith("comm_"):
            self.kernel.widgets.handle_comm(message)
            return
        if message_type == helper_loader.MESSAGE_TYPE:
            self._handle_helper_message(content, message)
            return
        is_output = message_type in OUTPUT_TYPES and message_type != UPDATE
        if is_output and self.kernel.widgets.capture(self.msg_id, message):
            self.captured.add_message(message)
            if message_type == "error":
                self.has_captured_error = True
            return
        if message_type == "error":
            self.error = clean_error(content)
        self.is_idle = self.area.add_message(message)

    def _handle_reply(self, content: dict[str, Any], message: dict[str, Any]) -> None:
        """Store the reply and its error, and add the text of a pager to the outputs."""
        self.area.add_message(message)
        payload = _list_payload(content)
        self.reply = {"status": content.get("status"), "payload": payload}
        self.replied_at = time.monotonic()
        # The `error` message on iopub may have been lost.
        if content.get("status") == "error":
            self.error = self.error or clean_error(content)
        for item in payload:
            if item.get("source") == "page" and isinstance(item.get("data"), dict):
                # The text of a pager becomes an output, as in JupyterLab.
                self.area.add_message({"msg_type": "display_data", "content": item})

    def _handle_helper_message(
        self, content: dict[str, Any], message: dict[str, Any]
    ) -> None:
        """Store the facts that the helper reports about this execution.

        Facts that are not valid are ignored, because a cell may forge the message.
        """
        self.result.diagnosis_data = content
        if "record" in content:
            self.result.diagnosis_data = {**content, "frames": message["buffers"]}
        with contextlib.suppress(*MALFORMED_MESSAGE):
            self.result.namespace = self.kernel.decode_namespace(content["namespace"])
        if "undo" in content:
            with contextlib.suppress(*MALFORMED_MESSAGE):
                facts = content["undo"]
                self.result.undo = dataclass_decode.decode(UndoFacts, facts)
        if "modules" in content:
            with contextlib.suppress(*MALFORMED_MESSAGE):
                modules = dataclass_decode.decode(ModuleChanges, content["modules"])
                self.result.module_changes = modules

    async def enforce_limits(self, now: float, is_quiet: bool) -> bool:
        """Interrupt the kernel at a limit, or record its death if this has no effect.

        Return whether to stop waiting for messages. `is_quiet` means that no message is
        waiting. Raise KernelUnreachableError if the kernel cannot be reached for too
        long.
        """
        kernel = self.kernel
        if is_quiet:  # all messages before a death have been read
            self.result.death = await kernel.check_death()
        if self.result.death is not None:
            return True
        if self._is_last_message_lost(now, is_quiet):
            return True
        if self.reply is not None:  # the limits no longer apply
            return False
        if kernel.process.unreachable_reason:
            self._handle_unreachable(now)
            return False
        self.unreachable_since = 0.0
        self._postpone_deadline_while_queued(now)
        if not kernel.interrupt_reason:
            await self._interrupt_at_limit(now)
        if kernel.interrupt_reason:
            await self._enforce_interrupt(now)
        return self.result.death is not None

    def _is_last_message_lost(self, now: float, is_quiet: bool) -> bool:
        """Return whether the reply or the idle status is lost.

        `is_quiet` means that no message is waiting.
        """
        is_silent = now - self.received_at > REPLY_SECONDS
        if self.reply is not None:
            is_lost = is_quiet and is_silent
            return is_lost or now > self.replied_at + BACKLOG_SECONDS
        # ipykernel sends no reply if it is interrupted between the end of the cell and
        # the reply.
        was_interrupted = bool(self.kernel.interrupt_reason)
        return self.is_idle and was_interrupted and is_silent

    def _postpone_deadline_while_queued(self, now: float) -> None:
        """Restart the time limit while the kernel executes another client's code.

        That code must not be interrupted because of this execution.
        """
        is_queued = not self.has_started
        if is_queued and self.kernel.external_executions.running_since:
            self.deadline = max(self.deadline, now + self.seconds)

    def _handle_unreachable(self, now: float) -> None:
        """Postpone the deadline while the kernel cannot be reached.

        The execution may continue in the kernel. Raise KernelUnreachableError if the
        kernel cannot be reached for too long.
        """
        kernel = self.kernel
        self.unreachable_since = self.unreachable_since or now
        since = self.unreachable_since
        if not kernel.interrupt_reason:
            since = max(since, self.original_deadline)
        if now > since + PATIENCE_SECONDS:
            raise KernelUnreachableError(kernel.process.unreachable_reason)
        self.deadline = max(self.deadline, now + RECONNECT_SECONDS)

    async def _interrupt_at_limit(self, now: float) -> None:
        """Interrupt the execution at the memory limit or after the deadline."""
        kernel = self.kernel
        self.result.memory = self.guard.describe_excess() if self.guard else ""
        if self.result.memory:
            await kernel.interrupt("memory")
        elif now > self.deadline:
            if kernel.has_helper:
                self.stack_sample = await kernel.process.sample_stacks()
            await kernel.interrupt("deadline")

    async def _enforce_interrupt(self, now: float) -> None:
        """Repeat the interrupt after half of the grace period.

        After the whole grace period, record that the kernel is dead; `finish` then
        kills it.
        """
        kernel = self.kernel
        self.interrupted_at = self.interrupted_at or now
        grace = MEMORY_GRACE_SECONDS if self.result.memory else GRACE_SECONDS
        is_half_over = now > self.interrupted_at + grace / 2
        if is_half_over and not self.has_repeated_interrupt:
            # Code that catches every exception, such as a destructor, may have caught
            # the first KeyboardInterrupt.
            self.has_repeated_interrupt = True
            await kernel.interrupt(kernel.interrupt_reason)
        if now > self.interrupted_at + grace:
            reason = f"killed by stepper: the interrupt had no effect for {grace:.0f} s"
            self.result.death = Death(reason, kernel.process.read_log_tail())

    async def finish(self) -> Execution:
        """Complete the result and return it. Shut down a kernel that has died."""
        result = self.result
        result.language_info = self.kernel.language_info
        reply = self.reply or {}
        payload = reply.get("payload") or []
        if result.death is None:
            await self._wait_for_exit(payload)
        if result.death is not None:
            await self._shut_down_kernel()
        self.kernel.sync_widgets()
        self._add_outputs()
        # Jupyter would put these texts of `%load` and `set_next_input` into new cells.
        result.next_inputs = [
            str(item.get("text"))
            for item in payload
            if item.get("source") == "set_next_input"
        ]
        self._add_notes()
        result.outcome = self._get_outcome(str(reply.get("status")))
        return result

    async def _shut_down_kernel(self) -> None:
        """Kill the kernel, and add a note if it may still be running."""
        try:
            await self.kernel.shutdown()
        except KernelError as error:
            note = error.message
            if error.hint:
                note += f": {error.hint}"
            self.result.notes.append(note)

    def _add_outputs(self) -> None:
        """Add the outputs, the fault and the widgets to the result."""
        result = self.result
        area = self.area
        rendered = area.render()
        result.outputs = rendered.outputs
        result.left_out = rendered.omitted
        result.displays = rendered.displays
        result.images = area.list_images()
        result.widget_outputs = self.captured.get_outputs()
        result.execution_count = area.execution_count
        result.timings = area.timings
        fault = build_fault(result.diagnosis_data, self.error, area.execution_count)
        result.fault = fault or parse_stack_sample(
            self.stack_sample, area.execution_count
        )
        if self.is_cell:
            result.widgets = self.kernel.widgets.take_state()

    async def _wait_for_exit(self, payload: list[dict[str, Any]]) -> None:
        """Record the death of the kernel if the cell called exit() or quit().

        Wait up to GRACE_SECONDS for the kernel to exit. `payload` is the payload of the
        reply, which the kernel sends before it exits.
        """
        if any(item.get("source") == "ask_exit" for item in payload):
            death = await self.kernel.wait_death()
            stderr = death.stderr if death else ""
            self.result.death = Death("ended by exit() or quit()", stderr, "SystemExit")

    def _add_notes(self) -> None:
        """Add notes on memory, the wake pattern and unreadable messages."""
        notes = self.result.notes
        if self.guard and self.guard.warning:
            notes.append(self.guard.warning)
        watch = self.area.watch
        if watch and watch.skipped_characters and not watch.matched_line:
            skipped = format_count(watch.skipped_characters, "character")
            notes.append(
                f"{skipped} of output could not be searched for the wake pattern: the "
                "output arrived too fast"
            )
        iopub = self.kernel.channels.iopub
        if iopub.unreadable_count:
            messages = format_count(iopub.unreadable_count, "message")
            notes.append(
                f"{messages} of the kernel could not be read: the output may be "
                "incomplete"
            )
            iopub.unreadable_count = 0

    def _get_outcome(self, status: str) -> Outcome:
        """Return the outcome of the execution. An interrupt takes precedence.

        `status` is the status in the reply.
        """
        if self.kernel.interrupt_reason:
            return INTERRUPT_OUTCOMES.get(
                self.kernel.interrupt_reason, Outcome.CANCELLED
            )
        if self.result.death is not None:
            return Outcome.KERNEL_DIED
        # %%capture shows an error and replies `ok`, but the helper reports the error.
        # An error in an Output widget does not fail the cell.
        has_fault = "fault" in self.result.diagnosis_data
        if self.error is None and self.has_captured_error:
            has_fault = False
        if status == "ok" and not has_fault:
            return Outcome.OK
        return Outcome.ERROR


def _list_payload(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the items of a reply's payload, without those that are not dicts."""
    payload = reply.get("payload")
    if not isinstance(payload, list):
        return []
    return [item for item in payload if isinstance(item, dict)]


def _build_message(
    message_type: str, content: dict[str, Any], header: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Return a message like those that the kernel sends."""
    return {
        "msg_type": message_type,
        "header": header,
        "parent_header": {},
        "content": content,
    }
