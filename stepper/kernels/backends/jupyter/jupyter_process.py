"""The process of a kernel on a Jupyter server.

If the server restarts the kernel, its variables are lost, and stepper treats the kernel
as dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from stepper.common import secure_files
from stepper.common.errors import KernelError
from stepper.kernels.backends.jupyter.server_api import (
    NOT_FOUND,
    Server,
    StoppedError,
)
from stepper.kernels.backends.jupyter.websocket_channels import WebsocketChannels
from stepper.kernels.kernel_process import RemoteProcess
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription

# How often to ask the server whether it has the kernel. The server reports a death on
# iopub.
CHECK_SECONDS = 30.0
RESPONSE_SECONDS = 5.0  # time limit of this request, for which callers wait
# A request to delete a kernel may fail right after a restart of the kernel.
MAX_DELETE_REQUESTS = 3
DELETE_PAUSE_SECONDS = 0.2


class JupyterProcess(RemoteProcess):
    """A kernel on a server, which keeps running if the connection is lost.

    `data` is the content of the kernel's record, and `record` its path. `is_owned` is
    false for a running kernel to which the configuration attaches stepper.
    """

    def __init__(self, data: Mapping[str, Any], server: Server, record: str) -> None:
        self.id = str(data["kernel"])
        self.server = server
        self.machine_name = server.name
        self.record = record
        self.is_owned = not server.settings.kernel_id
        self.channels = WebsocketChannels(
            server, self.id, str(data["session"]), str(data.get("life", ""))
        )
        self.death: Death | None = None
        self.may_be_running = False  # `kill` failed
        self.checked_at = time.monotonic()
        self.log_location = f"the log of {server.name}"

    @property
    def disconnect_count(self) -> int:
        """The number of times the connection was lost."""
        return self.channels.disconnect_count

    @property
    def unreachable_reason(self) -> str:
        """Why the kernel cannot be reached now, or an empty string if it can be."""
        if not self.channels.unreachable_reason:
            return ""
        return f"the connection is down ({self.channels.unreachable_reason})"

    def describe(self) -> KernelDescription:
        """Return the kernel's kernelspec or id, its server and connection problems."""
        name = self.server.name
        kernel_name = self.server.settings.kernel
        if not self.is_owned:  # the kernelspec of a configured kernel is not known
            kernel_name = f"kernel {self.id[:6]}"
        limitation = (
            f"on {name}, stepper does not limit memory and cannot report the running"
            " line; the limits of the server apply"
        )
        return KernelDescription(
            f"{kernel_name} ({name})",
            limitation=limitation,
            is_external=not self.is_owned,
            location=f"kernel {self.id[:6]} on {name}",
            problem=self.unreachable_reason,
            url=self.server.settings.url,
        )

    async def interrupt(self) -> None:
        """Ask the server to interrupt the kernel.

        Errors are ignored: an interrupt that has no effect is repeated.
        """
        with contextlib.suppress(KernelError):
            await self.server.request(f"/api/kernels/{self.id}/interrupt", "POST")

    async def kill(self) -> None:
        """Delete the kernel if stepper started it; otherwise only disconnect.

        Raise KernelError if the kernel may still be running.
        """
        if not self.is_owned:
            self.may_be_running = False
            self.death = self.death or Death("stepper disconnected from the kernel")
            return
        reason = ""
        try:
            self.may_be_running = not await self._delete()
        except KernelError as error:
            self.may_be_running = True
            reason = f": {error.message}"
        self.death = self.death or Death("stepper deleted the kernel")
        if self.may_be_running:
            raise KernelError(
                f"it is not known whether the kernel {self.id} on {self.server.name}"
                f" was deleted; it may still be running there{reason}"
            )

    async def _delete(self) -> bool:
        """Delete the kernel, and return whether the server confirmed the deletion.

        Raise KernelError if the server cannot be reached.
        """
        for _ in range(MAX_DELETE_REQUESTS):
            try:
                response = await self.server.request(
                    f"/api/kernels/{self.id}", "DELETE"
                )
            except StoppedError:
                return True
            if response.code < 300 or response.code in NOT_FOUND:
                return True
            await asyncio.sleep(DELETE_PAUSE_SECONDS)
        return False

    async def poll(self) -> Death | None:
        """Return how the kernel died, or None if it is not known to be dead.

        From time to time, ask the server whether it still has the kernel.
        """
        if self.death is not None:
            return self.death
        channels = self.channels
        now = time.monotonic()
        # Channels that are reconnecting detect a loss earlier.
        is_reconnecting = channels.is_open and channels.websocket is None
        if not is_reconnecting and now > self.checked_at + CHECK_SECONDS:
            self.checked_at = now
            await self._check_server()
        if channels.loss:
            self.death = Death(channels.loss, cause=channels.cause)
        return self.death

    async def _check_server(self) -> None:
        """Ask the server whether it still has the kernel, and record the answer."""
        try:
            loss = await self.server.explain_loss(self.id, RESPONSE_SECONDS)
            self.channels.record_loss(loss)
        except KernelError as error:
            # With an open websocket, the kernel can be reached.
            reason = "" if self.channels.websocket else error.message
            self.channels.unreachable_reason = reason

    def read_log_tail(self) -> str:
        """Return an empty string: the kernel's stderr is in the log of the server."""
        return ""

    def remove_record(self) -> None:
        """Remove the record, unless the kernel may still be running."""
        if not self.may_be_running:
            secure_files.remove(self.record)
