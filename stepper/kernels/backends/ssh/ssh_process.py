"""What a host over ssh offers of one kernel: its process there, asked by the same line that carries its messages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from stepper.common import private_files
from stepper.common.errors import KernelError, KernelUnreachableError
from stepper.kernels import kernel_records
from stepper.kernels.backend_protocols import Usage
from stepper.kernels.backends.ssh import ssh_errors
from stepper.kernels.backends.ssh.ssh_connection import Link
from stepper.kernels.error_parsing import ESCAPES
from stepper.kernels.zmq_channels import Channels
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription

# between two looks at a process whose heart does not beat: each is a command on the
# host
LOOK_SECONDS = 2.0
ANSWER_SECONDS = 8.0  # for such a look; a line that gives no answer is brought up anew
SILENT_SECONDS = 4.0  # without a sign of it nobody knows how it is
STDERR_CHARACTERS = 2000


class SshProcess:
    """A kernel's process on a host; `told` is its record. A line that is cut is no death."""

    def __init__(self, told: Mapping[str, Any], link: Link, record: str) -> None:
        self.id, self.link, self.record, self.told = (
            str(told["kernel"]),
            link,
            record,
            told,
        )
        self.far = {"kernel": self.id, "pid": int(told["pid"])}
        self.python, self.host = str(told["python"]), link.where.host
        self.log, self.stack = (
            f"{self.host}: ~/.local/state/stepper/kernels/{self.id}.stderr",
            str(told["stack"]),
        )
        self.channels = Channels(told["connection"])
        self.ended: Death | None = None
        self.left = False  # whether it may live on
        self.said = ""
        self.looks: asyncio.Task[None] | None = None
        self.looked_at = self.sign_at = time.monotonic()
        self.was_up = False

    @property
    def cuts(self) -> int:
        """How often the line was cut, and is back: what came meanwhile is lost on the way."""
        return self.link.cuts

    @property
    def away(self) -> str:
        """Why nothing reaches it now; '' where it can be reached."""
        silent = time.monotonic() - self.sign_at
        if self.ended is not None or (self.link.is_up and silent < SILENT_SECONDS):
            return ""
        down = f"the link to {self.host} has been down for {silent:.0f} s"
        unknown = "stepper does not know whether the kernel still runs"
        return "; ".join(filter(None, [down, unknown, self.link.outage_text]))

    def describe(self) -> KernelDescription:
        """Return what it is: its interpreter, with the host's name; how long the line is down."""
        why = f"on {self.host} stepper watches no memory and sees no line that runs: the host's own limits hold"
        if "curve_publickey" not in self.told["connection"]:
            why += "; who else is on the host can listen to its messages: ipykernel there does not know CurveZMQ"
        return KernelDescription(
            f"{self.host}:{self.python}",
            limitation=why,
            location=self.host,
            problem=self.away,
        )

    def begin(self) -> None:
        """Which processes there belong to which cell is not known here."""

    async def interrupt(self) -> None:
        """Interrupt it with what it started in its group: the kernel does that itself. None waits for a line."""
        if self.link.is_up:
            self.channels.send_control("interrupt_request")

    async def kill(self) -> None:
        """Kill it with what it started in its group; raise KernelError where it may live on."""
        dead, self.ended, why = (
            self.ended is not None,
            self.ended or Death("SIGKILL", self.said),
            "",
        )
        try:
            self.left = not (await self.link.ask("end", self.far, ANSWER_SECONDS)).get(
                "gone"
            )
        except KernelError as error:
            self.left, why = True, f": {error.message}"
        if self.left and not dead:
            with contextlib.suppress(OSError):
                kernel_records.write(self.record, {**self.told, "ending": True})
            pid = self.far["pid"]
            mend = f"{ssh_errors.ssh(self.link.where)} kill -9 -- -{pid}"
            raise KernelError(
                f"the kernel on {self.host} (process {pid}) was let go and may live on there{why}",
                mend,
            )
        self.left = False

    async def death(self) -> Death | None:
        """Return how it ended, or None while it lives, or nobody can know."""
        now, up = time.monotonic(), self.link.is_up
        if self.ended is None:
            self.link.keep()
            if self.channels.is_open and ssh_errors.forbids(self.link.said):
                raise KernelUnreachableError(
                    *ssh_errors.in_words(self.link.said, self.link.where, of_ssh=True)
                )
            if up and not self.was_up:
                self.sign_at = now
            if up and self.channels.is_open and self.channels.has_heartbeat():
                self.sign_at = now
            elif up and self.looks is None and now > self.looked_at + LOOK_SECONDS:
                self.looks = asyncio.create_task(self._look())
            self.was_up = up
        return self.ended

    async def _look(self) -> None:
        """See whether it lives; a line that gives no answer is given up, and brought back."""
        try:
            found = await self.link.ask("look", self.far, ANSWER_SECONDS)
        except KernelUnreachableError:
            self.link.lose()
            return
        except KernelError:  # such as an interpreter that is gone there
            return
        finally:
            self.looks, self.looked_at = None, time.monotonic()
        self.sign_at = self.looked_at
        if not found["alive"] and self.ended is None:
            self.said = ESCAPES.sub("", str(found["said"])).strip()[-STDERR_CHARACTERS:]
            anew = found["boot"] != self.told.get("boot", found["boot"])
            why = (
                f"{self.host} was started anew"
                if anew
                else f"its process on {self.host} is gone"
            )
            self.ended = Death(why, self.said, "EndedOutside" if anew else "")

    async def sample(self) -> str:
        """Nothing is known of what runs there."""
        return ""

    def last_words(self) -> str:
        """Return the last lines that it wrote to stderr, as far as they were fetched."""
        return self.said

    def suggest_fix(self, death: Death) -> str:
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
        """Remove what is on record of it, where it is gone for certain, and the line to it."""
        if not self.left:
            private_files.remove(self.record)
        self.link.close()
