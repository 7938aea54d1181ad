"""One execution in a kernel: request, messages, reply, deadline, interrupt and death.

`Running.run` returns once the reply and the idle status were received. Every wait has a
limit, because either may be lost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepper.common import json_decode
from stepper.common.errors import KernelError, KernelUnreachableError
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
from stepper.policy.model import Death, Fault, Limits, Outcome
from stepper.policy.module_changes import ModuleChanges
from stepper.session.protocols import Execution

# Between two checks of death, deadline and memory: twice that is below 250 ms.
CHECK_SECONDS = 0.12
MEMORY_GRACE_SECONDS = 1.0  # memory may grow on during the grace period
# Without a message, after a reply without an idle status, or after the idle status of
# an interrupted execution without a reply.
REPLY_SECONDS = 2.0
# After the reply: it may take so long to read what the kernel sent before it.
BACKLOG_SECONDS = 60.0
# After a lost connection: the execution may have finished long ago, and its messages
# are read before the deadline counts.
RECONNECT_SECONDS = 2.0
MAX_SILENT_OUTPUT = 10_000  # bytes of output of stepper's own code

NO_DAEMON = "the stepper daemon was not running"
CONNECTION_LOST = "the connection was lost, or the server drops output above its limits"
NOT_RECORDED = (
    "the cell ran while the stepper daemon was not running, and the kernel has no "
    "record of the run: its outcome is unknown"
)
OUTPUT_NOT_RECORDED = (
    "output from the time when the stepper daemon was not running is missing: the "
    "kernel has no record of the run"
)
# Reason of an interrupt → outcome. All others mean that the user interrupted.
INTERRUPT_OUTCOMES = {"deadline": Outcome.TIMEOUT, "memory": Outcome.MEMORY}


@dataclass
class EarlierRun:
    """An execution that began earlier, and what is received of it from now on.

    A former daemon started it, or this one as `lost` before its connection was lost.
    """

    request: str
    area: OutputArea
    kernel: Connection
    lost: Running | None = None
    over: bool = False
    error: dict[str, Any] | None = None

    def take(self, message: dict[str, Any]) -> None:
        """Add one of its messages."""
        if self.lost is not None:
            self.lost.take(message)
            self.over = self.over or self.lost.idle
            return
        self.kernel.handle_message(message, self.area)
        is_idle = self.area.take(message)
        self.over = is_idle or self.over
        if message["msg_type"] == "error":
            self.error = clean_error(message["content"])


class ConnectionLostError(Exception):
    """The connection was lost during an execution, whose result is not known here."""


class Running:
    """One execution, with a deadline in seconds from now.

    Without `limits` it is code of stepper's own, without memory limit or wake pattern.
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
        # `deadline` moves while the kernel cannot be reached, `original_deadline` not.
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
        # False for code of stepper's own and for scratch executions.
        self.is_cell = False
        self.result = Execution(Outcome.OK)
        self.guard: MemoryGuard | None = None
        self.stack = ""
        self.msg_id = ""
        self.idle = False
        self.has_repeated_interrupt = False
        self.reply: dict[str, Any] | None = None
        self.replied_at = 0.0
        self.interrupted_at = 0.0
        self.received_at = 0.0
        self.error: dict[str, Any] | None = None

    async def run(
        self,
        code: str,
        silent: bool = False,
        history: bool = False,
        request: str = "",
        metadata: Mapping[str, Any] = {},
    ) -> Execution:
        """Execute code and return the result; exceptions of the code are not raised.

        `request` is the message id if the caller chose one.
        """
        self.is_cell = history
        content = {
            "code": code,
            "silent": silent,
            "store_history": history,
            "user_expressions": {},
            "allow_stdin": False,
            # Otherwise, a failure aborts the requests that are waiting behind it.
            "stop_on_error": False,
        }
        environment = self.kernel.environment
        known_mark = environment.mark if environment else None
        channels = self.kernel.channels
        process = self.kernel.process
        cuts = process.cuts
        if self.earlier is None:  # otherwise, it has begun already
            process.begin()
        self.msg_id = channels.send(
            "execute_request",
            content,
            {"stepper_known": known_mark, **metadata},
            request,
        )
        if self.limits:
            # The kernel receives the request while memory is measured.
            process.rest()
            max_percent = self.limits.max_memory_percent
            self.guard = MemoryGuard(max_percent, process.usage, process.memory)
        await self._receive_all(cuts)
        if process.cuts != cuts and self.result.death is None:
            raise ConnectionLostError
        return await self.finish()

    async def _receive_all(self, cuts: int) -> None:
        """Handle messages until reply and idle status are there, or nothing will come.

        Also returns if the connection is lost, which `cuts` counts.
        """
        process = self.kernel.process
        iopub = self.kernel.channels.iopub
        shell = self.kernel.channels.shell
        checked_at = time.monotonic()
        while not (self.idle and self.reply):
            inbox = shell if self.idle else iopub
            is_quiet = not await inbox.ready(CHECK_SECONDS)
            self.take_all(inbox)
            # The kernel sends the reply before the idle status.
            if self.idle and self.reply is None:
                self.take_all(shell)
            # A flood of output must not hide the deadline, nor silence a death.
            if is_quiet or time.monotonic() - checked_at > CHECK_SECONDS:
                checked_at = time.monotonic()
                process.trim()
                if self.reply is None and not self.idle:
                    self.take_all(shell)
                must_stop = await self.enforce_limits(checked_at, is_quiet)
                if must_stop or process.cuts != cuts:
                    return

    async def finish_from_record(
        self, request: str, facts: dict[str, Any], reason: str
    ) -> Execution:
        """Return the result of an execution from the helper's record of its messages.

        `reason` says why messages are missing in it.
        """
        self.is_cell = True
        self.msg_id = request
        self.reply = None
        self.error = None
        self.result = Execution(Outcome.OK, memory=self.result.memory)
        record = facts["record"]
        last_status_header = dict[str, Any]()
        missing = f"{record['lost']:,} bytes of its output are missing: {reason}"
        messages = helper_loader.iterate_recorded_messages(facts)
        for position, message in enumerate(messages):
            if record["lost"] and position == record.get("head"):
                content = {"name": "stderr", "text": f"… {missing} …\n"}
                self.take(_build_message("stream", content))
            self.take(message)
            if message["msg_type"] == "status":
                last_status_header = message["header"]
        has_failed = self.error is not None or "fault" in self.result.diagnosis_data
        reply = {
            "status": "error" if has_failed else "ok",
            "payload": record["payload"],
        }
        self.take(_build_message("execute_reply", reply, last_status_header))
        result = await self.finish()
        if record["lost"]:
            result.notes.append(missing)
        return result

    async def finish_from_received(self, earlier: EarlierRun) -> Execution:
        """Return the result of an execution that was received in part."""
        self.is_cell = True
        self.area = earlier.area
        self.error = earlier.error
        self.reply = {"status": "error" if earlier.error else "ok", "payload": []}
        result = await self.finish()
        if not (earlier.over or self.kernel.interrupted):
            result.outcome = Outcome.ERROR
            label = error_classification.UNOBSERVED_RUN
            result.fault = result.fault or Fault(label, NOT_RECORDED, (label,))
        result.notes.append(OUTPUT_NOT_RECORDED)
        return result

    def take_all(self, inbox: Inbox) -> None:
        """Handle the messages in a channel, up to the last of this execution."""
        for message in inbox.messages():
            request = message["parent_header"].get("msg_id")
            if request == self.msg_id:
                self.received_at = time.monotonic()
                self.has_started = True
                self.take(message)
                if self.idle and inbox is self.kernel.channels.iopub:
                    break
            elif self.earlier and request == self.earlier.request:
                self.earlier.take(message)
            elif not self.kernel.handle_message(message, self.area) and self.is_cell:
                self.area.take(message)

    @property
    def aborted(self) -> bool:
        """Whether the kernel skipped the request, because an earlier one failed."""
        if self.reply is None or self.kernel.interrupted:
            return False
        return self.reply.get("status") == "aborted"

    def take(self, message: dict[str, Any]) -> None:
        """Handle one message of this execution, from either channel."""
        try:
            self._take(message["msg_type"], message["content"], message)
        except MALFORMED_MESSAGE as error:
            self.kernel.count_malformed(error)

    def _take(
        self, message_type: str, content: dict[str, Any], message: dict[str, Any]
    ) -> None:
        if message_type in DISPLAY_TYPES:
            self.kernel.update_displays(message)
        if message_type == "execute_reply":
            self._take_reply(content, message)
            return
        if message_type.startswith("comm_"):
            self.kernel.widgets.handle_comm(message)
            return
        if message_type == helper_loader.MESSAGE_TYPE:
            self._take_facts(content, message)
            return
        if message_type in OUTPUT_TYPES and message_type != UPDATE:
            widget = self.kernel.widgets.find_capturing(self.msg_id)
            if widget:
                widget.take(message)
                self.captured.take(message)
                if message_type == "error":
                    self.has_captured_error = True
                return
        if message_type == "error":
            self.error = clean_error(content)
        self.idle = self.area.take(message)

    def _take_reply(self, content: dict[str, Any], message: dict[str, Any]) -> None:
        self.area.take(message)
        self.reply = {name: content.get(name) for name in ("status", "payload")}
        self.replied_at = time.monotonic()
        # The `error` message on iopub may have been lost.
        if content.get("status") == "error":
            self.error = self.error or clean_error(content)
        for item in content.get("payload") or []:
            if item.get("source") == "page" and isinstance(item.get("data"), dict):
                # The text of a pager becomes an output, as in JupyterLab.
                self.area.take({"msg_type": "display_data", "content": item})

    def _take_facts(self, content: dict[str, Any], message: dict[str, Any]) -> None:
        """Handle the helper's message.

        A cell may have forged it, so errors are ignored.
        """
        self.result.diagnosis_data = content
        if "record" in content:
            self.result.diagnosis_data = {**content, "frames": message["buffers"]}
        with contextlib.suppress(*MALFORMED_MESSAGE, LookupError, RecursionError):
            self.result.namespace = self.kernel.decode_namespace(content["namespace"])
        if "modules" in content:
            with contextlib.suppress(*MALFORMED_MESSAGE, LookupError, RecursionError):
                modules = json_decode.decode(ModuleChanges, content["modules"])
                self.result.module_changes = modules

    async def enforce_limits(self, now: float, is_quiet: bool) -> bool:
        """Interrupt the kernel at a limit, and kill it if that has no effect.

        Return whether to stop waiting. `is_quiet` means that no message is waiting.
        Raise KernelUnreachableError.
        """
        kernel = self.kernel
        if is_quiet:  # all messages before a death have been read
            self.result.death = await kernel.check_death()
        if self.result.death is not None:
            return True
        silence = now - self.received_at
        if self.reply is not None:  # the deadline no longer counts
            is_lost = is_quiet and silence > REPLY_SECONDS
            return is_lost or now > self.replied_at + BACKLOG_SECONDS
        if self.idle and kernel.interrupted and silence > REPLY_SECONDS:
            # ipykernel sends no reply if it is interrupted between the end of the cell
            # and the reply.
            return True
        if kernel.process.away:
            self._check_unreachable(now)
            return False
        self.unreachable_since = 0.0
        # The request is waiting for another client's, which must not be interrupted.
        if not self.has_started and kernel.external_executions.running_since:
            self.deadline = max(self.deadline, now + self.seconds)
        if not kernel.interrupted:
            await self._check_limits(now)
        if kernel.interrupted:
            await self._check_interrupt(now)
        return self.result.death is not None

    def _check_unreachable(self, now: float) -> None:
        """Raise KernelUnreachableError if the kernel cannot be reached for too long.

        The execution continues in the kernel, so the deadline moves on.
        """
        kernel = self.kernel
        self.unreachable_since = self.unreachable_since or now
        since = self.unreachable_since
        if not kernel.interrupted:
            since = max(since, self.original_deadline)
        if now > since + PATIENCE_SECONDS:
            raise KernelUnreachableError(kernel.process.away)
        self.deadline = max(self.deadline, now + RECONNECT_SECONDS)

    async def _check_limits(self, now: float) -> None:
        """Interrupt the execution at the memory limit or the deadline."""
        kernel = self.kernel
        self.result.memory = self.guard.check() if self.guard else ""
        if self.result.memory:
            await kernel.interrupt("memory")
        elif now > self.deadline:
            if kernel.has_helper:
                self.stack = await kernel.process.sample()
            await kernel.interrupt("deadline")

    async def _check_interrupt(self, now: float) -> None:
        """Interrupt again after half of the grace period, and give up after it."""
        kernel = self.kernel
        self.interrupted_at = self.interrupted_at or now
        grace = MEMORY_GRACE_SECONDS if self.result.memory else GRACE_SECONDS
        is_half_over = now > self.interrupted_at + grace / 2
        if is_half_over and not self.has_repeated_interrupt:
            # Code that catches every exception, such as a destructor, may have caught
            # the first one.
            self.has_repeated_interrupt = True
            await kernel.interrupt(kernel.interrupted)
        if now > self.interrupted_at + grace:
            how = f"killed by stepper: the interrupt had no effect for {grace:.0f} s"
            self.result.death = Death(how, kernel.process.last_words())

    async def finish(self) -> Execution:
        """Return the result; if the kernel is dead, remove what is left of it."""
        result = self.result
        kernel = self.kernel
        area = self.area
        reply = self.reply or {}
        payload = reply.get("payload") or []
        if result.death is None:
            await self._check_exit(payload)
        if result.death is not None:
            try:
                await kernel.shutdown()
            except KernelError as error:
                texts = (error.message, error.hint)
                result.notes.append(": ".join(filter(None, texts)))
        kernel.sync_widgets()
        rendered = area.render()
        result.outputs = rendered.outputs
        result.left_out = rendered.omitted
        result.displays = rendered.displays
        result.images = area.list_images()
        result.widget_outputs = self.captured.get_outputs()
        result.execution_count = area.execution_count
        result.timings = area.timings
        fault = build_fault(result.diagnosis_data, self.error, area.execution_count)
        result.fault = fault or parse_stack_sample(self.stack, area.execution_count)
        result.widgets = kernel.widgets.take_state() if self.is_cell else None
        # Jupyter would put these texts of `%load` and `set_next_input` into new cells.
        result.next_inputs = [
            str(item.get("text"))
            for item in payload
            if item.get("source") == "set_next_input"
        ]
        self._add_notes()
        result.outcome = self._get_outcome(str(reply.get("status")))
        return result

    async def _check_exit(self, payload: list[dict[str, Any]]) -> None:
        """Wait for the death of the kernel after exit() or quit(), which reply `ok`."""
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
        if watch and watch.skipped and not watch.matched:
            notes.append(
                f"{watch.skipped:,} characters of output arrived too fast to search "
                "them for the wake pattern"
            )
        iopub = self.kernel.channels.iopub
        if iopub.unread:
            notes.append(
                f"{iopub.unread} message(s) of the kernel could not be read: "
                "the output may be incomplete"
            )
            iopub.unread = 0

    def _get_outcome(self, status: str) -> Outcome:
        """Return the outcome; an interrupt explains all that followed it."""
        if self.kernel.interrupted:
            return INTERRUPT_OUTCOMES.get(self.kernel.interrupted, Outcome.CANCELLED)
        if self.result.death is not None:
            return Outcome.KERNEL_DIED
        # %%capture shows an error and replies `ok`, but the helper reports the error.
        # An error in an Output widget does not fail the cell.
        has_fault = "fault" in self.result.diagnosis_data
        if self.error is None and self.has_captured_error:
            has_fault = False
        return Outcome.OK if status == "ok" and not has_fault else Outcome.ERROR


def _build_message(
    message_type: str, content: dict[str, Any], header: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Return a message as if the kernel had sent it."""
    return {
        "msg_type": message_type,
        "header": header,
        "parent_header": {},
        "content": content,
    }
