"""The process of a kernel on a remote host that is reached with `ssh`.

Kernel messages and requests to `remote_launcher` use the same connection.
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

# The pause between two checks of a process without a heartbeat. Each check executes a
# command on the host.
CHECK_SECONDS = 2.0
# The time limit of a check. If it is exceeded, the connection is opened again.
RESPONSE_SECONDS = 8.0
SILENT_SECONDS = 4.0  # without heartbeat or response, the kernel is unreachable
STDERR_CHARACTERS = 2000


class SshProcess(RemoteProcess):
    """A kernel on a remote host, which keeps running if the connection is lost.

    `data` is the content of the kernel's record, and `record` its path. `link` is the
    connection to the host.
    """

    def __init__(
        self, data: Mapping[str, Any], link: SshConnection, record: str
    ) -> None:
        self.id = str(data["kernel"])
        self.link = link
        self.record = record
        self.data = data
        # Identifies the process in requests to `remote_launcher`.
        self.remote_process = {"kernel": self.id, "pid": int(data["pid"])}
        self.python = str(data["python"])
        self.host = link.settings.host
        self.machine_name = self.host
        self.log_location = (
            f"{self.host}: ~/.local/state/stepper/kernels/{self.id}.stderr"
        )
        self.stack_path = str(data["stack"])
        self.channels = Channels(data["connection"])
        self.death: Death | None = None
        self.may_be_running = False  # `kill` failed
        self.stderr = ""
        self.check_task: asyncio.Task[None] | None = None
        self.checked_at = time.monotonic()
        self.last_sign_at = self.checked_at
        self.was_up = False

    @property
    def disconnect_count(self) -> int:
        """The number of times the connection was lost.

        Messages may be missing after each loss.
        """
        return self.link.disconnect_count

    @property
    def unreachable_reason(self) -> str:
        """Why the kernel cannot be reached now, or an empty string if it can be."""
        silent_seconds = time.monotonic() - self.last_sign_at
        if self.death is not None:
            return ""
        if self.link.is_up and silent_seconds < SILENT_SECONDS:
            return ""
        reason = (
            f"the connection to {self.host} has been down for {silent_seconds:.0f} s;"
            " stepper does not know whether the kernel is still running"
        )
        if self.link.outage_text:
            reason += f"; {self.link.outage_text}"
        return reason

    def describe(self) -> KernelDescription:
        """Return the kernel's interpreter, host and connection problems."""
        limitation = (
            f"on {self.host}, stepper does not limit memory and cannot report the"
            " running line; the limits of the host apply"
        )
        if "curve_publickey" not in self.data["connection"]:
            limitation += (
                "; other users of the host can read the kernel's messages, because its"
                " ipykernel does not support CurveZMQ"
            )
        return KernelDescription(
            f"{self.host}:{self.python}",
            limitation=limitation,
            location=self.host,
            problem=self.unreachable_reason,
        )

    async def interrupt(self) -> None:
        """Send an interrupt request if the host is connected.

        The kernel then interrupts its process group.
        """
        if self.link.is_up:
            self.channels.send_control("interrupt_request")

    async def kill(self) -> None:
        """Kill the kernel and its process group.

        Raise KernelError if the kernel may still be running.
        """
        # After a failed attempt, `death` does not mean that the kernel is dead.
        was_dead = self.death is not None and not self.may_be_running
        self.death = self.death or Death("SIGKILL", self.stderr)
        reason = ""
        try:
            response = await self.link.send_request(
                "kill", self.remote_process, RESPONSE_SECONDS
            )
            self.may_be_running = not response.get("has_exited")
        except KernelError as error:
            self.may_be_running = True
            reason = f": {error.message}"
        if was_dead or not self.may_be_running:
            self.may_be_running = False
            return
        with contextlib.suppress(OSError):
            sealed_kernel_records.write(self.record, {**self.data, "ending": True})
        pid = self.remote_process["pid"]
        command = ssh_errors.format_ssh_command(self.link.settings)
        raise KernelError(
            f"it is not known whether the kernel on {self.host} (process {pid}) was"
            f" killed; it may still be running there{reason}",
            f"{command} kill -9 -- -{pid}",
        )

    async def poll(self) -> Death | None:
        """Return how the kernel died, or None if it is not known to be dead.

        Also restore a lost connection. Raise KernelUnreachableError if the host forbids
        port forwarding.
        """
        if self.death is not None:
            return self.death
        self.link.restore_if_lost()
        is_open = self.channels.is_open
        if is_open:
            self._check_forwarding()
        now = time.monotonic()
        is_up = self.link.is_up
        if is_up and not self.was_up:
            self.last_sign_at = now
        is_check_due = now > self.checked_at + CHECK_SECONDS
        if is_up and is_open and self.channels.probe_heartbeat():
            self.last_sign_at = now
        elif is_up and self.check_task is None and is_check_due:
            self.check_task = asyncio.create_task(self._update_state())
        self.was_up = is_up
        return self.death

    def _check_forwarding(self) -> None:
        """Raise KernelUnreachableError if the host forbids port forwarding."""
        output = self.link.error_output
        if ssh_errors.is_forwarding_forbidden(output):
            error = ssh_errors.explain_error(
                output, self.link.settings, is_ssh_error=True
            )
            raise KernelUnreachableError(error.message, error.hint)

    async def _update_state(self) -> None:
        """Ask the host whether the process is running, and record its death if not.

        If the host does not respond, the connection is closed and later opened again.
        """
        try:
            response = await self.link.send_request(
                "query", self.remote_process, RESPONSE_SECONDS
            )
        except KernelUnreachableError:
            self.link.kill_master()
            return
        except KernelError:  # for example, the interpreter was removed
            return
        finally:
            self.check_task = None
            self.checked_at = time.monotonic()
        self.last_sign_at = self.checked_at
        if response["alive"] or self.death is not None:
            return
        stderr = ESCAPES.sub("", str(response["stderr"])).strip()
        self.stderr = stderr[-STDERR_CHARACTERS:]
        has_rebooted = response["boot"] != self.data.get("boot", response["boot"])
        if has_rebooted:
            self.death = Death(
                f"{self.host} was restarted", self.stderr, "EndedOutside"
            )
        else:
            self.death = Death(
                f"the kernel's process on {self.host} has exited", self.stderr
            )

    def read_log_tail(self) -> str:
        """Return the last lines of the dead kernel's stderr, or an empty string."""
        return self.stderr

    def remove_record(self) -> None:
        """Disconnect, and remove the record unless the kernel may still be running."""
        self.link.close()
        if not self.may_be_running:
            secure_files.remove(self.record)
