"""The process of a kernel on a remote host that is reached with `ssh`.

Kernel messages and requests such as an interrupt use the same connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from stepper.common import secure_files
from stepper.common.errors import KernelError, KernelUnreachableError
from stepper.kernels import sealed_kernel_records
from stepper.kernels.backends.ssh import ssh_errors
from stepper.kernels.backends.ssh.ssh_connection import SshConnection
from stepper.kernels.error_parsing import ESCAPES
from stepper.kernels.kernel_process import RemoteProcess
from stepper.kernels.zmq_channels import Channels
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription

# How often to check a process without a heartbeat. Each check is a command on the host.
CHECK_SECONDS = 2.0
# A connection that does not answer a check in this time is opened again.
RESPONSE_SECONDS = 8.0
SILENT_SECONDS = 4.0  # without a sign of life, the kernel counts as unreachable
STDERR_CHARACTERS = 2000


class SshProcess(RemoteProcess):
    """A kernel's process on a host; a lost connection does not mean that it died."""

    def __init__(
        self, data: Mapping[str, Any], link: SshConnection, record: str
    ) -> None:
        """`data` is the content of the record, `record` its path."""
        self.id = str(data["kernel"])
        self.link = link
        self.record = record
        self.data = data
        self.remote_process = {"kernel": self.id, "pid": int(data["pid"])}
        self.python = str(data["python"])
        self.host = link.settings.host
        self.machine_name = self.host
        self.log = f"{self.host}: ~/.local/state/stepper/kernels/{self.id}.stderr"
        self.stack = str(data["stack"])
        self.channels = Channels(data["connection"])
        self.ended: Death | None = None
        self.may_be_running = False  # although it was killed
        self.stderr = ""
        self.checking: asyncio.Task[None] | None = None
        self.checked_at = time.monotonic()
        self.last_sign_at = self.checked_at
        self.was_up = False

    @property
    def cuts(self) -> int:
        """How often the connection was lost: messages in between are lost, too."""
        return self.link.cuts

    @property
    def away(self) -> str:
        """Why the kernel cannot be reached at present, or an empty string if it can."""
        silent_seconds = time.monotonic() - self.last_sign_at
        if self.ended is not None:
            return ""
        if self.link.is_up and silent_seconds < SILENT_SECONDS:
            return ""
        down = f"the link to {self.host} has been down for {silent_seconds:.0f} s"
        unknown = "stepper does not know whether the kernel still runs"
        return "; ".join(filter(None, [down, unknown, self.link.outage_text]))

    def describe(self) -> KernelDescription:
        """Return its interpreter, its host, and the state of the connection."""
        limitation = (
            f"on {self.host}, stepper does not limit memory and does not see the"
            " running line: only the host's own limits apply"
        )
        if "curve_publickey" not in self.data["connection"]:
            limitation += (
                "; other users of the host can read its messages, because its ipykernel"
                " does not support CurveZMQ"
            )
        return KernelDescription(
            f"{self.host}:{self.python}",
            limitation=limitation,
            location=self.host,
            problem=self.away,
        )

    async def interrupt(self) -> None:
        """Interrupt the kernel and its process group, unless the connection is lost.

        The kernel itself interrupts its process group.
        """
        if self.link.is_up:
            self.channels.send_control("interrupt_request")

    async def kill(self) -> None:
        """Kill the kernel and its process group.

        Raise KernelError if it may still be running.
        """
        had_ended = self.ended is not None
        self.ended = self.ended or Death("SIGKILL", self.stderr)
        reason = ""
        try:
            response = await self.link.ask("end", self.remote_process, RESPONSE_SECONDS)
            self.may_be_running = not response.get("gone")
        except KernelError as error:
            self.may_be_running = True
            reason = f": {error.message}"
        if had_ended or not self.may_be_running:
            self.may_be_running = False
            return
        with contextlib.suppress(OSError):
            sealed_kernel_records.write(self.record, {**self.data, "ending": True})
        pid = self.remote_process["pid"]
        command = ssh_errors.format_ssh_command(self.link.settings)
        raise KernelError(
            f"stepper gave up the kernel on {self.host} (process {pid}), which may"
            f" still be running there{reason}",
            f"{command} kill -9 -- -{pid}",
        )

    async def death(self) -> Death | None:
        """Return how the kernel died, or None."""
        if self.ended is not None:
            return self.ended
        self.link.keep()
        is_open = self.channels.is_open
        if is_open and ssh_errors.is_forwarding_forbidden(self.link.error_output):
            error = ssh_errors.explain_error(
                self.link.error_output, self.link.settings, is_ssh_error=True
            )
            raise KernelUnreachableError(error.message, error.hint)
        now = time.monotonic()
        is_up = self.link.is_up
        if is_up and not self.was_up:
            self.last_sign_at = now
        if is_up and is_open and self.channels.has_heartbeat():
            self.last_sign_at = now
        elif is_up and self.checking is None and now > self.checked_at + CHECK_SECONDS:
            self.checking = asyncio.create_task(self._check())
        self.was_up = is_up
        return self.ended

    async def _check(self) -> None:
        """Ask the host whether the process is running.

        A connection that does not answer is opened again.
        """
        try:
            response = await self.link.ask(
                "look", self.remote_process, RESPONSE_SECONDS
            )
        except KernelUnreachableError:
            self.link.lose()
            return
        except KernelError:  # for example, the interpreter was removed
            return
        finally:
            self.checking = None
            self.checked_at = time.monotonic()
        self.last_sign_at = self.checked_at
        if response["alive"] or self.ended is not None:
            return
        stderr = ESCAPES.sub("", str(response["said"])).strip()
        self.stderr = stderr[-STDERR_CHARACTERS:]
        has_rebooted = response["boot"] != self.data.get("boot", response["boot"])
        if has_rebooted:
            self.ended = Death(
                f"{self.host} was restarted", self.stderr, "EndedOutside"
            )
        else:
            self.ended = Death(f"its process on {self.host} has exited", self.stderr)

    def last_words(self) -> str:
        """Return the last lines of its stderr, if they were fetched."""
        return self.stderr

    def forget(self) -> None:
        """Remove the record of a kernel that has certainly exited; disconnect."""
        if not self.may_be_running:
            secure_files.remove(self.record)
        self.link.close()
