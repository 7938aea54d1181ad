"""What a Jupyter server offers of one kernel. One that the server restarts by itself is lost with its variables."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from stepper.common import private_files
from stepper.common.errors import KernelError
from stepper.kernels.backend_protocols import Usage
from stepper.kernels.backends.jupyter.server_api import GONE, Server, StoppedError
from stepper.kernels.backends.jupyter.websocket_channels import WebsocketChannels
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription

# between two questions whether the server has it still; a death it tells by itself
LOOK_SECONDS = 30.0
ANSWER_SECONDS = 5.0  # for the answer, which others wait for
# to end it: right after a restart a server's first answer is an error of its own
TRIES, AGAIN_SECONDS = 3, 0.2


class JupyterProcess:
    """A kernel of a server's; `told` is its record. A line that is cut, a server that is away: these are no death."""

    stack = ""

    def __init__(self, told: Mapping[str, Any], server: Server, record: str) -> None:
        self.id, self.server, self.record = str(told["kernel"]), server, record
        self.is_ours = not server.where.kernel_id
        self.channels = WebsocketChannels(
            server, self.id, str(told["session"]), str(told.get("life", ""))
        )
        self.ended: Death | None = None
        self.left = False  # whether it may live on
        self.looked_at = time.monotonic()
        self.log = f"the log of {server.name}"

    @property
    def cuts(self) -> int:
        """How often the line was cut."""
        return self.channels.cuts

    @property
    def away(self) -> str:
        """Why nothing reaches it now; '' where it can be reached."""
        return f"the link is down ({self.channels.away})" if self.channels.away else ""

    def describe(self) -> KernelDescription:
        """Return what it is: its kernelspec, and on which server."""
        name = self.server.name
        why = f"on {name} stepper watches no memory and sees no line that runs: the server's own limits hold"
        where = f"kernel {self.id[:6]} on {name}"
        return KernelDescription(
            f"{self.server.where.kernel} ({name})",
            limitation=why,
            is_external=not self.is_ours,
            location=where,
            problem=self.away,
            url=self.server.where.url,
        )

    def begin(self) -> None:
        """Which processes there belong to which cell is not known here."""

    async def interrupt(self) -> None:
        """Interrupt it: the server knows how."""
        with contextlib.suppress(KernelError):
            await self.server.request(f"/api/kernels/{self.id}/interrupt", "POST")

    async def kill(self) -> None:
        """End it where stepper started it; one named by its id is left. Raise KernelError where it may live on."""
        why, self.left = "", self.is_ours
        for _ in range(TRIES * self.is_ours):
            try:
                answer = await self.server.request(f"/api/kernels/{self.id}", "DELETE")
            except StoppedError:
                self.left = False
                break
            except KernelError as error:
                why = f": {error.message}"
                break
            if answer.code < 300 or answer.code in GONE:
                self.left = False
                break
            await asyncio.sleep(AGAIN_SECONDS)
        self.ended = self.ended or Death(
            "it was ended by stepper" if self.is_ours else "stepper left it"
        )
        if self.left:
            raise KernelError(
                f"the kernel {self.id} on {self.server.name} was let go and may live on there{why}"
            )

    async def death(self) -> Death | None:
        """Return how it ended, or None while it lives, or nobody can know."""
        now = time.monotonic()
        channels = self.channels
        # what keeps the line learns it first
        tells = channels.is_open and channels.line is None
        if self.ended is None and not tells and now > self.looked_at + LOOK_SECONDS:
            self.looked_at = now
            try:
                channels.gone(await self.server.lacks(self.id, ANSWER_SECONDS))
            except KernelError as error:
                channels.away = "" if channels.line else error.message
        if self.ended is None and channels.lost:
            self.ended = Death(channels.lost, cause=channels.cause)
        return self.ended

    async def sample(self) -> str:
        """Nothing is known of what runs there."""
        return ""

    def last_words(self) -> str:
        """What it wrote to stderr is in the server's log."""
        return ""

    def suggest_fix(self, death: Death) -> str:
        """Return nothing: the server starts its kernels."""
        return ""

    def memory(self) -> int:
        """Nothing is measured there."""
        return 0

    def usage(self) -> Usage:
        """Nothing is measured there: the server's own limits hold."""
        return Usage(1, 0, self.server.name)

    def rest(self) -> None:
        """Nothing is to be forgotten."""

    def trim(self) -> None:
        """What it writes is the server's."""

    def forget(self) -> None:
        """Remove what is on record of it, where it is gone for certain."""
        if not self.left:
            private_files.remove(self.record)
