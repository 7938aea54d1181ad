"""The process of a kernel that a kernel provisioner of jupyter_client started.

Only the provisioner knows where the kernel runs, so stepper requests the state, an
interrupt or the shutdown from it. After a restart of the daemon, a provisioner may not
know its process any more (`has_process` is False). Then stepper uses the heartbeat and
messages on the control channel.
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
from stepper.kernels.kernel_process import RemoteProcess
from stepper.kernels.zmq_channels import Channels
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription

log = logging.getLogger("stepper")
POLL_SECONDS = 0.5  # between two queries of the provisioner
QUERY_SECONDS = 0.2  # how long to wait for its answer
KILL_SECONDS = 20.0  # for the provisioner to end the kernel
SHUTDOWN_SECONDS = 5.0  # for a kernel to exit after a shutdown request
SILENT_SECONDS = 5.0  # without a heartbeat, if only that shows whether the kernel runs
STDERR_CHARACTERS = 2000


class ProvisionerProcess(RemoteProcess):
    """A kernel of a provisioner; `data` is the content of its record."""

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
        self.log = str(Path(record).with_suffix(".stderr"))
        self.channels = Channels(data["connection"])
        self.ended: Death | None = None
        self.cuts = 0
        self.away = ""
        self.may_be_running = False  # although it was killed
        self.problem = ""  # why the provisioner does not know the state
        self.query: asyncio.Task[None] | None = None
        self.queried_at = float("-inf")
        self.heartbeat_at = time.monotonic()

    @property
    def has_process(self) -> bool:
        """Whether the provisioner knows the kernel's process."""
        return self.manager.has_kernel

    def describe(self) -> KernelDescription:
        """Return the kernelspec and its provisioner."""
        limitation = (
            f"the provisioner {self.provisioner_name} runs the kernel: stepper does not"
            " limit its memory and does not see the running line"
        )
        return KernelDescription(
            f"{self.kernelspec} ({self.provisioner_name})",
            limitation=limitation,
            location=f"kernel {self.id[:6]} of {self.provisioner_name}",
            problem=self.problem,
        )

    async def interrupt(self) -> None:
        """Interrupt the kernel in the way that its kernelspec requires."""
        spec = self.manager.kernel_spec
        needs_message = spec is not None and spec.interrupt_mode == "message"
        if needs_message or not self.has_process:
            self.channels.send_control("interrupt_request")
            return
        assert self.manager.provisioner is not None
        try:
            await self.manager.provisioner.send_signal(signal.SIGINT)
        except Exception as error:
            log.warning("provisioner %s: %s", self.provisioner_name, error)
            self.channels.send_control("interrupt_request")

    async def death(self) -> Death | None:
        """Return how the kernel died, or None."""
        needs_query = time.monotonic() > self.queried_at + POLL_SECONDS
        if self.ended is None and self.query is None and needs_query:
            self.query = asyncio.create_task(self._query())
        if self.query is not None:
            await asyncio.wait({self.query}, timeout=QUERY_SECONDS)
            if self.query.done():
                self.query = None
        return self.ended

    async def _query(self) -> None:
        """Find out whether the kernel is running."""
        try:
            if self.has_process:
                await self._poll_provisioner()
            else:
                self._check_heartbeat()
        except Exception as error:
            reason = one_line(f"{type(error).__name__}: {error}", 300)
            self.problem = (
                f"the provisioner {self.provisioner_name} does not know whether the"
                f" kernel is running: {reason}"
            )
        finally:
            self.queried_at = time.monotonic()

    async def _poll_provisioner(self) -> None:
        assert self.manager.provisioner is not None
        exit_code = await self.manager.provisioner.poll()
        self.problem = ""
        if exit_code is None or self.ended is not None:
            return
        reason = f"exit code {exit_code}"
        if isinstance(exit_code, int) and exit_code < 0:
            with contextlib.suppress(ValueError):
                reason = signal.Signals(-exit_code).name
        self.ended = Death(
            f"{reason} (provisioner {self.provisioner_name})", self.last_words()
        )

    def _check_heartbeat(self) -> None:
        """Record the death of a kernel whose heartbeat stopped."""
        now = time.monotonic()
        if not self.channels.is_open or self.channels.has_heartbeat():
            self.heartbeat_at = now
        elif now > self.heartbeat_at + SILENT_SECONDS:
            self.ended = Death(
                f"it does not answer, and its provisioner {self.provisioner_name} does"
                " not know its process",
                self.last_words(),
            )

    async def kill(self) -> None:
        """End the kernel through its provisioner.

        Raise KernelError if it may still be running.
        """
        had_ended = self.ended is not None
        self.ended = self.ended or Death("stepper ended it", self.last_words())
        reason = ""
        is_stopped = False
        try:
            is_stopped = await asyncio.wait_for(self._stop(), KILL_SECONDS)
        except asyncio.TimeoutError:
            reason = f": no answer within {KILL_SECONDS:g} s"
        except Exception as error:
            reason = one_line(f": {type(error).__name__}: {error}", 300)
        # Processes of this machine are found by an environment variable, whatever the
        # provisioner knows of them.
        await asyncio.to_thread(process_identity.clear, self.id)
        self.may_be_running = not (is_stopped or had_ended)
        if not self.may_be_running:
            return
        with contextlib.suppress(OSError):
            sealed_kernel_records.write(self.record, {**self.data, "ending": True})
        raise KernelError(
            f"the provisioner {self.provisioner_name} did not end the kernel {self.id},"
            f" which may still be running{reason}"
        )

    async def _stop(self) -> bool:
        """Return whether the kernel has certainly exited."""
        provisioner = self.manager.provisioner
        assert provisioner is not None
        is_stopped = True
        if self.has_process:
            # Not `shutdown_kernel`, which also closes ZeroMQ contexts, and ignores that
            # a kernel survived.
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
        """Request the shutdown of a kernel; return whether the kernel replied.

        Its provisioner does not know its process.
        """
        if process_identity.tree(self.id):
            return True  # processes of this machine, which are killed next
        channels = Channels(self.data["connection"])  # closed ones cannot be reopened
        channels.open()
        control = channels.client.control_channel
        channels.send_control("shutdown_request", {"restart": False})
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        has_answered = False
        while time.monotonic() < deadline and not has_answered:
            await asyncio.sleep(0.05)
            has_answered = control.msg_ready()
        channels.close()
        return has_answered

    def last_words(self) -> str:
        """Return the last lines of its stderr if the provisioner wrote them here."""
        try:
            data = secure_files.read(self.log)
        except OSError:
            return ""
        end = data[-4 * STDERR_CHARACTERS :]  # a character has at most four bytes
        text = ESCAPES.sub("", end.decode("utf-8", "replace"))
        return text.strip()[-STDERR_CHARACTERS:]

    def forget(self) -> None:
        """Remove the record of a kernel that has certainly exited."""
        if not self.may_be_running:
            secure_files.remove(self.record)
