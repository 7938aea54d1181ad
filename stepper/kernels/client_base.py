"""A connection to a kernel: its process, channels and widgets.

`client.KernelClient` adds the requests. Messages of the running execution are handled
by `execution.RunningExecution`, all other messages by `Connection.handle_message`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stepper.common import dataclass_decode, secure_files
from stepper.common.errors import KernelUnreachableError
from stepper.kernels.external_executions import ExternalExecutions
from stepper.kernels.kernel_process import (
    GRACE_SECONDS,
    PATIENCE_SECONDS,
    KernelProcess,
)
from stepper.kernels.outputs.output_area import (
    OUTPUT_TYPES,
    UPDATE,
    OutputArea,
    get_display_id,
)
from stepper.kernels.outputs.widgets import Widgets
from stepper.policy.model import Death
from stepper.policy.namespace_model import KernelEnvironment, Namespace

# The exceptions that are raised if a message does not follow the protocol, or if its
# JSON is nested too deeply.
MALFORMED_MESSAGE = (
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
MAX_RECEIVED = 5000  # message ids; the helper records at most this many messages
POLL_SECONDS = 0.02
log = logging.getLogger("stepper")


def _ignore_display(message: dict[str, Any]) -> None:
    """Ignore a display, until the session sets `Connection.on_display`."""


def _handle_no_output(message: dict[str, Any]) -> bool:
    """The default of `on_late_output`: return False, because no output is handled."""
    return False


class Connection:
    """A connection to one kernel on any backend.

    `parts` maps the name of each part that the helper in the kernel may load to its
    package. `folder` is the folder of the connection file for other clients.
    """

    def __init__(
        self, process: KernelProcess, parts: Mapping[str, str] = {}, folder: str = ""
    ) -> None:
        self.process = process
        self.channels = process.channels
        self.id = process.id
        self.parts = parts
        self.file = os.path.join(folder, f"k{self.id[:8]}.json") if folder else ""
        self.is_busy = False
        # These are set from the kernel_info_reply. The helper needs IPython.
        self.language = ""
        self.language_info: dict[str, Any] = {}
        self.has_helper = True
        # The outputs of the running cell so far.
        self.partial_output: OutputArea | None = None
        # Why the running cell was interrupted.
        self.interrupt_reason = ""
        # The reason of an interrupt that may not have reached the kernel, because the
        # connection was lost.
        self.pending_interrupt = ""
        # Called with each message that shows or updates a display with an ID.
        self.on_display: Callable[[dict[str, Any]], None] = _ignore_display
        # Called with each output that does not belong to the running request. Returns
        # whether the output was handled.
        self.on_late_output: Callable[[dict[str, Any]], bool] = _handle_no_output
        self.received_ids: deque[str] = deque(maxlen=MAX_RECEIVED)
        self.widgets = Widgets()
        self.describe = process.describe
        self.measure_memory = process.measure_memory
        self.check_death = process.poll
        self.take_widget_state = self.widgets.take_state
        # The helper sends the environment only when it has changed.
        self.environment: KernelEnvironment | None = None
        self.external_executions = ExternalExecutions(
            lambda: self.channels.client_session, self.decode_namespace
        )

    @property
    def unreachable_reason(self) -> str:
        """Why the kernel cannot be reached now, or an empty string if it can be."""
        return self.process.unreachable_reason

    def handle_message(
        self, message: dict[str, Any], area: OutputArea | None = None
    ) -> bool:
        """Handle a message that does not belong to the running execution.

        `area` contains the outputs of the running execution. Return False if the
        message is an output that belongs to no other cell.
        """
        try:
            message_type = message["msg_type"]
            is_external = self.external_executions.handle_message(message)
            self.received_ids.append(message["header"].get("msg_id"))
            if message_type.startswith("comm_"):
                self.widgets.handle_comm(message)
            elif message_type in OUTPUT_TYPES:
                self.update_displays(message, area)
                is_captured = False
                if message_type != UPDATE:
                    request_id = message["parent_header"].get("msg_id")
                    is_captured = self.widgets.capture(request_id, message)
                if not is_captured:
                    return is_external or self.on_late_output(message)
        except MALFORMED_MESSAGE as error:
            self.record_malformed_message(error)
        return True

    def decode_namespace(self, content: dict[str, Any]) -> Namespace:
        """Return the namespace in a message of the helper, including the environment.

        The helper sends the environment only when the environment has changed, so the
        last environment is stored. The environment is removed from `content`. Raise one
        of MALFORMED_MESSAGE if the content is not valid.
        """
        environment = content.pop("lasting", None) or {}
        # An environment that has not changed consists only of its mark.
        if len(environment) > 1:
            self.environment = dataclass_decode.decode(KernelEnvironment, environment)
        namespace = dataclass_decode.decode(Namespace, content)
        current = self.environment
        if current is None or environment.get("mark") != current.mark:
            # The builtins are missing. An empty tuple means that names are unknown.
            return replace(namespace, names=())
        names = namespace.names
        if names:
            names = (*names, *current.builtins)
        return replace(namespace, names=names, lasting=current)

    def record_malformed_message(self, error: Exception) -> None:
        """Log and count a malformed message. Any cell may send such messages."""
        log.warning("received a malformed kernel message: %s", error)
        self.channels.iopub.unreadable_count += 1

    def update_displays(
        self, message: dict[str, Any], area: OutputArea | None = None
    ) -> None:
        """Update the displays that have the display id of a message.

        These are displays in Output widgets, in `area` and in other cells. Do nothing
        if the message has no display id.
        """
        display_id = get_display_id(message)
        if not display_id:
            return
        update = {**message, "msg_type": UPDATE}
        for widget in self.widgets.output_widgets.values():
            if display_id in widget.area.displays:
                widget.area.add_message(update)
                self.widgets.changed = True
        if area and display_id in area.displays:
            area.add_message(update)
        self.on_display(message)

    def sync_widgets(self) -> None:
        """Send the captured outputs of Output widgets to the kernel.

        Do nothing if the channels are not open.
        """
        if not self.channels.is_open:
            return
        for widget in self.widgets.output_widgets.values():
            if not widget.is_synced:
                content = widget.take_update()
                self.channels.send("comm_msg", content, parent=widget.parent)

    def ensure_connection_file(self) -> str:
        """Return the path of a connection file for other clients.

        A missing file is written, and only the user can read it. Return an empty string
        if other clients cannot connect to the kernel directly.
        """
        if not self.channels.connection:
            return ""
        # The file is missing if the kernel runs on another machine, or if ipykernel has
        # removed it.
        if not os.path.exists(self.file):
            name = "python3" if self.language == "python" else self.language
            content = {**self.channels.connection, "kernel_name": name}
            secure_files.replace(self.file, json.dumps(content).encode())
        return self.file

    async def interrupt(self, reason: str) -> None:
        """Interrupt the running execution, or do nothing if there is none.

        `reason` is "deadline", "memory" or the source of the interrupt, such as "user".
        If the kernel cannot be reached, the interrupt is sent after reconnecting.
        """
        if self.is_busy:
            self.interrupt_reason = self.interrupt_reason or reason
            await self.process.interrupt()
        elif self.process.unreachable_reason:
            self.pending_interrupt = self.pending_interrupt or reason

    async def wait_until_reachable(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the kernel can be reached or is known to be dead.

        Raise KernelUnreachableError after `seconds`. After an interrupt, wait at
        most PATIENCE_SECONDS longer.
        """
        deadline = time.monotonic() + seconds
        while True:
            reason = self.process.unreachable_reason
            if not reason or await self.check_death() is not None:
                return
            if self.pending_interrupt:
                deadline = min(deadline, time.monotonic() + PATIENCE_SECONDS)
            if time.monotonic() > deadline:
                raise KernelUnreachableError(reason)
            await asyncio.sleep(POLL_SECONDS)

    async def wait_death(self) -> Death | None:
        """Wait up to GRACE_SECONDS for the kernel to exit.

        Return how the kernel died, or None if it is still running.
        """
        deadline = time.monotonic() + GRACE_SECONDS
        while True:
            death = await self.check_death()
            if death is not None or time.monotonic() >= deadline:
                return death
            await asyncio.sleep(POLL_SECONDS)

    async def shutdown(self) -> None:
        """Kill the kernel with all its processes, and remove its files.

        Raise KernelError if the kernel may still be running. In this case, its record
        may remain.
        """
        self.detach()
        try:
            await self.process.kill()
        finally:
            await self.wait_death()
            self.process.remove_record()
            if self.file:
                secure_files.remove(self.file)

    def detach(self) -> None:
        """Handle the last messages, and close the channels. The kernel keeps running.

        Do nothing if the channels are not open.
        """
        if self.channels.is_open:
            # The last messages may still be outputs of a cell.
            for message in self.channels.iopub.take_messages():
                self.handle_message(message)
            self.channels.close()
