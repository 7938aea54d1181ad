"""The process of a kernel on a Jupyter server.

If the server restarts the kernel by itself, the kernel is lost with its variables.
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

# How often to ask the server whether it has the kernel. It reports a death by itself.
CHECK_SECONDS = 30.0
RESPONSE_SECONDS = 5.0  # for the answer, because the caller waits for it
# Requests to delete a kernel: right after a restart, the first answer can be an error.
MAX_DELETE_REQUESTS = 3
DELETE_PAUSE_SECONDS = 0.2


class JupyterProcess(RemoteProcess):
    """A kernel of a server; a lost connection does not mean that it died."""

    def __init__(self, data: Mapping[str, Any], server: Server, record: str) -> None:
        """`data` is the content of the record, `record` its path."""
        self.id = str(data["kernel"])
        self.server = server
        self.machine_name = server.name
        self.record = record
        self.is_ours = not server.settings.kernel_id
        self.channels = WebsocketChannels(
            server, self.id, str(data["session"]), str(data.get("life", ""))
        )
        self.ended: Death | None = None
        self.may_be_running = False  # although it was deleted
        self.checked_at = time.monotonic()
        self.log = f"the log of {server.name}"

    @property
    def cuts(self) -> int:
        """How often the connection was lost."""
        return self.channels.cuts

    @property
    def away(self) -> str:
        """Why the kernel cannot be reached at present, or an empty string if it can."""
        if not self.channels.away:
            return ""
        return f"the link is down ({self.channels.away})"

    def describe(self) -> KernelDescription:
        """Return its kernelspec and its server."""
        name = self.server.name
        limitation = (
            f"on {name}, stepper does not limit memory and does not see the running"
            " line: only the server's own limits apply"
        )
        return KernelDescription(
            f"{self.server.settings.kernel} ({name})",
            limitation=limitation,
            is_external=not self.is_ours,
            location=f"kernel {self.id[:6]} on {name}",
            problem=self.away,
            url=self.server.settings.url,
        )

    async def interrupt(self) -> None:
        """Interrupt the kernel through the server."""
        with contextlib.suppress(KernelError):
            await self.server.request(f"/api/kernels/{self.id}/interrupt", "POST")

    async def kill(self) -> None:
        """Delete a kernel that stepper started; leave one that was chosen by its id.

        Raise KernelError if it may still be running.
        """
        if not self.is_ours:
            self.may_be_running = False
            self.ended = self.ended or Death("stepper disconnected from it")
            return
        reason = ""
        try:
            self.may_be_running = not await self._delete()
        except KernelError as error:
            self.may_be_running = True
            reason = f": {error.message}"
        self.ended = self.ended or Death("stepper ended it")
        if self.may_be_running:
            raise KernelError(
                f"stepper gave up the kernel {self.id} on {self.server.name}, which may"
                f" still be running there{reason}"
            )

    async def _delete(self) -> bool:
        """Delete the kernel; return whether the server did. Raise KernelError."""
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

    async def death(self) -> Death | None:
        """Return how the kernel died, or None."""
        if self.ended is not None:
            return self.ended
        channels = self.channels
        now = time.monotonic()
        # While the channels reconnect, they learn it first.
        is_reconnecting = channels.is_open and channels.websocket is None
        if not is_reconnecting and now > self.checked_at + CHECK_SECONDS:
            self.checked_at = now
            try:
                loss = await self.server.explain_loss(self.id, RESPONSE_SECONDS)
                channels.record_loss(loss)
            except KernelError as error:
                channels.away = "" if channels.websocket else error.message
        if channels.loss:
            self.ended = Death(channels.loss, cause=channels.cause)
        return self.ended

    def last_words(self) -> str:
        """Return '': the server's log has its stderr."""
        return ""

    def forget(self) -> None:
        """Remove the record of a kernel that certainly ended."""
        if not self.may_be_running:
            secure_files.remove(self.record)
