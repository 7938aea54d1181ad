"""What a host over ssh offers of one kernel: its process there, asked by the same line that carries its messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepper.ground import private
from stepper.ground.errors import KernelError
from stepper.kernel.channels import Channels
from stepper.kernel.faults import ESCAPES
from stepper.kernel.place import Usage
from stepper.kernel.ssh.link import Link
from stepper.policy.model import Death
from stepper.session.ports import About

LOOK_SECONDS = 3.0  # between two looks at the process: each is a command on the host
STDERR_CHARACTERS = 2000
log = logging.getLogger("stepper")


class SshProcess:
    """A kernel's process on a host; `told` is its record. A line that is cut is no death."""

    def __init__(self, told: Mapping[str, Any], link: Link, record: str) -> None:
        self.id, self.link, self.record = str(told["kernel"]), link, record
        self.far = {"kernel": self.id, "pid": int(told["pid"])}
        self.python, self.host = str(told["python"]), link.where.host
        self.log, self.stack = f"{self.host}: ~/.local/state/stepper/kernels/{self.id}.stderr", str(told["stack"])
        self.channels = Channels(told["connection"])
        self.ended: Death | None = None
        self.left = False  # whether it may live on
        self.said, self.looked_at = "", time.monotonic()

    @property
    def cuts(self) -> int:
        """How often the line was cut, and is back: what came meanwhile is lost on the way."""
        return self.link.cuts

    @property
    def away(self) -> str:
        """Why nothing reaches it now; '' where it can be reached."""
        return "the link is down" if self.link.ports and not self.link.is_up else ""

    def about(self) -> About:
        """Return what it is: its interpreter, with the host's name."""
        why = f"on {self.host} stepper watches no memory and sees no line that runs: the host's own limits hold"
        return About(f"{self.host}:{self.python}", without=why)

    async def interrupt(self) -> None:
        """Interrupt it with what it started in its group: the kernel does that itself."""
        self.channels.ask("interrupt_request")

    async def kill(self) -> None:
        """Kill it with what it started in its group; where the host can't be reached it stays on record."""
        try:
            self.left = not (await self.link.ask("end", self.far)).get("gone")
        except KernelError as error:
            log.warning("the kernel on %s may live on: %s", self.host, error.message)
            self.left = self.ended is None
        self.ended = self.ended or Death("SIGKILL", self.said)

    async def death(self) -> Death | None:
        """Return how it ended, or None while it lives, or nobody can know."""
        now = time.monotonic()
        if self.ended is None and await self.link.keep() and now > self.looked_at + LOOK_SECONDS:
            self.looked_at = now
            try:
                found = await self.link.ask("look", self.far)
            except KernelError:
                return None
            if not found["alive"]:
                self.said = ESCAPES.sub("", str(found["said"])).strip()[-STDERR_CHARACTERS:]
                self.ended = Death(f"its process on {self.host} is gone", self.said)
        return self.ended

    async def sample(self) -> str:
        """Nothing is known of what runs there."""
        return ""

    def last_words(self) -> str:
        """Return the last lines that it wrote to stderr, as far as they were fetched."""
        return self.said

    def mends(self, death: Death) -> str:
        """Return nothing: the interpreter was asked before."""
        return ""

    def memory(self) -> int:
        """Nothing is measured there."""
        return 0

    def usage(self) -> Usage:
        """Nothing is measured there: the host's own limits hold."""
        return Usage(1, 0, self.host)

    def rest(self) -> None:
        """Nothing is to be forgotten."""

    def trim(self) -> None:
        """What it writes to stderr is kept on the host until its end."""

    def forget(self) -> None:
        """Remove what is on record of it, where it is gone for certain."""
        if not self.left:
            private.remove(self.record)
        for number in range(1, 6):
            Path(f"{self.link.sockets}-{number}").unlink(missing_ok=True)
        if self.link.master is not None and self.link.is_up:
            self.link.master.terminate()
        self.link.ports = []
