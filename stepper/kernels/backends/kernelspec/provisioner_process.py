"""The process of a kernel that a kernel provisioner of jupyter_client started.

Only the provisioner can reach the process, so stepper lets the provisioner poll,
interrupt and kill it. After a restart of the daemon, a provisioner may no longer know
the process (`has_process` is False). In this case, stepper uses the kernel's heartbeat
and control channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager

from stepper.common import secure_files
from stepper.common.errors import KernelError
from stepper.common.text import one_line
from stepper.kernels import sealed_kernel_records
from stepper.kernels.backends.kernelspec import provisioner_manager
from stepper.kernels.backends.local import process_identity
from stepper.kernels.error_parsing import ESCAPES
from stepper.kernels.kernel_process import RemoteProcess, describe_exit
from stepper.kernels.zmq_channels import Channels
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription

log = logging.getLogger("stepper")
POLL_SECONDS = 0.5  # between two queries of the provisioner
QUERY_SECONDS = 0.2  # how long to wait for the provisioner's answer
KILL_SECONDS = 20.0  # for the provisioner to stop the kernel
SHUTDOWN_SECONDS = 5.0  # for a kernel to exit after a shutdown request
SILENT_SECONDS = 5.0  # without a heartbeat, the kernel counts as dead
STDERR_CHARACTERS = 2000


class ProvisionerProcess(RemoteProcess):
    """A kernel that a provisioner started.

    `data` is the content of the kernel's record, and `record` its path.
    """

    def __init__(
        self, data: Mapping[str, Any], manager: AsyncKernelManager, record: str
    ) -> None:
        self.id = str(data["kernel"])
        self.data = data
        self.manager = manager
        self.record = record
        self.kernelspec = str(data["kernelspec"])
        self.provisioner_name = str(data["provisioner_name"])
        self.machine_name = f"provisioner {self.provisioner_name}"
        self.log_location = str(Path(record).with_suffix(".stderr"))
        self.channels = Channels(data["connection"])
        self.death: Death | None = None
        self.disconnect_count = 0
        self.unreachable_reason = ""
        self.may_be_running = False  # `kill` failed
        self.problem = ""  # why the provisioner does not know the state
        self.query_task: asyncio.Task[None] | None = None
        self.queried_at = float("-inf")
        self.heartbeat_at = time.monotonic()

    @property
    def has_process(self) -> bool:
        """Whether the provisioner knows the kernel's process."""
        return self.manager.has_kernel

    def describe(self) -> KernelDescription:
        """Return the kernel's kernelspec and provisioner."""
        limitation = (
            f"the provisioner {self.provisioner_name} runs the kernel, so stepper does"
            " not limit memory and cannot report the running line"
        )
        return KernelDescription(
            f"{self.kernelspec} ({self.provisioner_name})",
            limitation=limitation,
            location=f"kernel {self.id[:6]} of {self.provisioner_name}",
            problem=self.problem,
        )

    async def interrupt(self) -> None:
        """Interrupt the kernel by a signal or a message, as its kernelspec requires.

        If the provisioner cannot send the signal, a message is sent.
        """
        spec = self.manager.kernel_spec
        needs_message = spec is not None and spec.interrupt_mode == "message"
        if needs_message or not self.has_process:
            self.channels.send_control("interrupt_request")
            return
        assert self.manager.provisioner is not None
        try:
            await self.manager.provisioner.send_signal(signal.SIGINT)
        except Exception as error:
            log.warning(
                "provisioner %s could not interrupt the kernel: %s",
                self.provisioner_name,
                error,
            )
            self.channels.send_control("interrupt_request")

    async def poll(self) -> Death | None:
        """Return how the kernel died, or None if it is not known to be dead."""
        needs_query = time.monotonic() > self.queried_at + POLL_SECONDS
        if self.death is None and self.query_task is None and needs_query:
            self.query_task = asyncio.create_task(self._update_state())
        if self.query_task is not None:
            # Several callers may wait for the same query.
            await asyncio.wait({self.query_task}, timeout=QUERY_SECONDS)
        return self.death

    async def _update_state(self) -> None:
        """Determine whether the kernel is running, and record its death if not."""
        try:
            if self.has_process:
                await self._poll_provisioner()
            else:
                self._update_heartbeat()
        except Exception as error:
            reason = one_line(f"{type(error).__name__}: {error}", 300)
            self.problem = (
                f"the provisioner {self.provisioner_name} does not know whether the"
                f" kernel is running: {reason}"
            )
        finally:
            self.query_task = None
            self.queried_at = time.monotonic()

    async def _poll_provisioner(self) -> None:
        """Record the kernel's death if the provisioner reports an exit code."""
        assert self.manager.provisioner is not None
        exit_code = await self.manager.provisioner.poll()
        self.problem = ""
        if exit_code is None or self.death is not None:
            return
        reason = f"exit code {exit_code}"
        if isinstance(exit_code, int):  # provisioners may return other values
            reason = describe_exit(exit_code)
        self.death = Death(
            f"{reason} (provisioner {self.provisioner_name})", self.read_log_tail()
        )

    def _update_heartbeat(self) -> None:
        """Record the kernel's death if its heartbeat has stopped for SILENT_SECONDS."""
        now = time.monotonic()
        if not self.channels.is_open or self.channels.probe_heartbeat():
            self.heartbeat_at = now
        elif now > self.heartbeat_at + SILENT_SECONDS:
            self.death = Death(
                "the kernel does not respond, and the provisioner"
                f" {self.provisioner_name} does not know the kernel's process",
                self.read_log_tail(),
            )

    async def kill(self) -> None:
        """Stop the kernel through its provisioner.

        If the kernel may still be running, mark the record, so that the next start
        stops the kernel, and raise KernelError.
        """
        # After a failed attempt, `death` does not mean that the kernel is dead.
        was_dead = self.death is not None and not self.may_be_running
        self.death = self.death or Death(
            "stepper stopped the kernel", self.read_log_tail()
        )
        reason = ""
        is_stopped = False
        try:
            is_stopped = await asyncio.wait_for(self._stop(), KILL_SECONDS)
        except asyncio.TimeoutError:
            reason = f": no response within {KILL_SECONDS:g} s"
        except Exception as error:
            reason = one_line(f": {type(error).__name__}: {error}", 300)
        # The provisioner may not know all of the kernel's processes on this machine.
        await asyncio.to_thread(process_identity.kill_kernel_processes, self.id)
        self.may_be_running = not (is_stopped or was_dead)
        if not self.may_be_running:
            return
        with contextlib.suppress(OSError):
            sealed_kernel_records.write(self.record, {**self.data, "ending": True})
        raise KernelError(
            f"the provisioner {self.provisioner_name} did not stop the kernel"
            f" {self.id}, which may still be running{reason}"
        )

    async def _stop(self) -> bool:
        """Stop the kernel, and return whether this succeeded.

        If the provisioner does not know the process, a reply of the kernel to a
        shutdown request counts as success.
        """
        provisioner = self.manager.provisioner
        assert provisioner is not None
        is_stopped = True
        if self.has_process:
            # `shutdown_kernel` would also close ZeroMQ contexts, and would not notice
            # that the kernel survived.
            await provisioner.kill()
            exit_code = await provisioner.poll()
            while exit_code is None:
                await asyncio.sleep(0.05)
                exit_code = await provisioner.poll()
            await provisioner.wait()
        else:
            is_stopped = await self._request_shutdown()
        await provisioner.cleanup()
        provisioner_manager.remove_connection_file(self.manager)
        return is_stopped

    async def _request_shutdown(self) -> bool:
        """Send a shutdown request to the kernel, and return whether the kernel replied.

        The request is necessary if the provisioner does not know the process. If the
        kernel has processes on this machine, return True without a request, because the
        caller kills these processes.
        """
        if process_identity.find_kernel_processes(self.id):
            return True
        # Closed channels cannot be opened again.
        channels = Channels(self.data["connection"])
        channels.open()
        try:
            channels.send_control("shutdown_request", {"restart": False})
            deadline = time.monotonic() + SHUTDOWN_SECONDS
            while time.monotonic() < deadline:
                await asyncio.sleep(0.05)
                if channels.client.control_channel.msg_ready():
                    return True
        finally:
            channels.close()
        return False

    def read_log_tail(self) -> str:
        """Return the last lines of the kernel's stderr.

        Return an empty string if the provisioner did not redirect stderr to the file.
        """
        try:
            data = secure_files.read(self.log_location)
        except OSError:
            return ""
        end = data[-4 * STDERR_CHARACTERS :]  # a character has at most four bytes
        text = ESCAPES.sub("", end.decode("utf-8", "replace"))
        return text.strip()[-STDERR_CHARACTERS:]

    def remove_record(self) -> None:
        """Remove the record, unless the kernel may still be running."""
        if not self.may_be_running:
            secure_files.remove(self.record)
