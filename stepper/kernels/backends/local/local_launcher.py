"""The launcher for kernels that are processes of this machine.

The modules for kernel messages (jupyter_client, pyzmq) are imported while the kernel is
starting, which takes longer than the import.
"""

from __future__ import annotations

import asyncio
import glob
import json
import logging
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from subprocess import Popen
from typing import IO, TYPE_CHECKING, Any

from stepper.common import secure_files
from stepper.common.errors import IpykernelMissingError, KernelError
from stepper.kernels.backends.local import (
    kernel_command,
    kernel_files,
    process_identity,
)
from stepper.kernels.backends.local.kernel_command import KernelCommand
from stepper.kernels.backends.local.kernel_files import RECORD_ERRORS, KernelFiles
from stepper.kernels.backends.local.process_identity import Identity
from stepper.policy.model import Death
from stepper.session.protocols import LaunchConfig, QueueStatus

if TYPE_CHECKING:
    from stepper.kernels.client import KernelClient

log = logging.getLogger("stepper")
START_SECONDS = 60.0


class LocalLauncher:
    """Starts and finds the kernel of one notebook.

    `record` is the path of the kernel's record, and `runtime` the folder of sockets.
    `parts` maps each module that the helper in the kernel may load to its package.
    """

    queue_status: QueueStatus | None = None  # this machine has no queue

    def __init__(
        self, record: str, runtime: str, parts: Mapping[str, str] = {}
    ) -> None:
        self.files = KernelFiles(record)
        self.runtime = runtime
        self.parts = parts

    async def start(self, config: LaunchConfig) -> KernelClient:
        """Start a kernel and return it when it is ready.

        If the environment lacks ipykernel, use stepper's bundled copy. Raise
        KernelError with the end of the kernel's stderr if the kernel cannot be started.
        """
        try:
            return await self._start(config)
        except IpykernelMissingError as missing:
            prefix = config.bundled_ipykernel
            copies = glob.glob(f"{glob.escape(prefix)}*") if prefix else []
            if config.backend or not copies:
                raise
            try:
                return await self._start(config, missing.hint)
            except KernelError:
                # There is no copy for this version of Python, or the project's packages
                # are not compatible with it.
                raise missing from None

    async def _start(
        self, config: LaunchConfig, install_command: str = ""
    ) -> KernelClient:
        """Start a kernel and return it when it is ready.

        If `install_command` is not empty, the environment lacks ipykernel: the kernel
        uses stepper's bundled copy, and the record contains the command that would
        install ipykernel. Raise KernelError if the kernel cannot be started.
        """
        started_at = time.monotonic()
        kernel_id = uuid.uuid4().hex
        bundled_ipykernel = config.bundled_ipykernel if install_command else ""
        command = self._build_command(config, kernel_id, bundled_ipykernel)
        with self._create_files(kernel_id) as stderr:
            try:
                child, connection = kernel_command.start_process(
                    command, config, kernel_id, self.runtime, stderr
                )
                data = _build_record(kernel_id, command, connection, install_command)
                identity = Identity.from_pid(child.pid)
                data["provisioner"] = asdict(identity)
                # The import of the client takes time, in which the kernel starts.
                kernel = self._create_client(data, identity, child)
            except OSError as error:
                await self._kill_and_remove_files(kernel_id)
                reason = error.strerror
                if error.filename:  # for example, the interpreter or the working folder
                    reason = f"{error.filename}: {reason}"
                raise KernelError(
                    f"the kernel could not be started: {reason}",
                    getattr(error, "hint", ""),
                ) from error
            except BaseException:
                await self._kill_and_remove_files(kernel_id)
                raise
        seconds = time.monotonic() - started_at
        log.info("kernel start: process %d launched after %.2f s", child.pid, seconds)
        try:
            await kernel.connect(START_SECONDS)
            os.truncate(self.files.stderr, 0)  # removes ipykernel's first messages
            self.files.write_record(data)
            # Only the user may access the sockets, as is the case for their folder.
            name = Path(connection["ip"]).name
            for path in Path(self.runtime).glob(f"{name}-*"):
                path.chmod(0o600)
        except BaseException:
            await kernel.shutdown()
            raise
        return kernel

    def _build_command(
        self, config: LaunchConfig, kernel_id: str, bundled_ipykernel: str
    ) -> KernelCommand:
        """Return the command that starts the kernel.

        `bundled_ipykernel` is the path of stepper's copies of ipykernel without the
        Python version at its end, or an empty string if the environment's own ipykernel
        is used.
        """
        return kernel_command.build_ipykernel_command(
            config, kernel_id, self.runtime, bundled_ipykernel
        )

    def _create_files(self, kernel_id: str) -> IO[bytes]:
        """Create the record and the files of the kernel, and return the stderr file.

        The record contains only the kernel's id, by which the next daemon finds the
        processes if this daemon is killed. Raise KernelError if a file cannot be
        written.
        """
        try:
            self.files.write_record({"kernel": kernel_id})
            stack_flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.close(secure_files.open_private(str(self.files.stack), stack_flags))
            # The kernel must append, because the daemon truncates a large file.
            path = self.files.stderr
            stderr = open(path, "ab", opener=secure_files.open_private)  # noqa: SIM115
            stderr.truncate(0)
        except OSError as error:
            raise KernelError(
                f"the kernel's files could not be written: {error.strerror}",
                getattr(error, "hint", ""),
            ) from error
        return stderr

    def _create_client(
        self,
        data: dict[str, Any],
        identity: Identity,
        child: Popen[bytes] | None = None,
    ) -> KernelClient:
        """Return a client for a kernel's process.

        `child` is None if an earlier daemon started the process.
        """
        from stepper.kernels.backends.local.local_process import LocalProcess
        from stepper.kernels.client import KernelClient

        process = LocalProcess(data, identity, child, self.files, self.runtime)
        return KernelClient(process, self.parts, self.runtime)

    async def _kill_and_remove_files(self, kernel_id: str) -> None:
        """Kill the processes of a kernel whose start failed, and remove its files."""
        await asyncio.to_thread(process_identity.kill_kernel_processes, kernel_id)
        kernel_files.remove_sockets(self.runtime, kernel_id)
        self.files.remove()

    async def cancel_request(self) -> None:
        """Do nothing, because local kernels do not wait in a queue."""

    def _belongs_to_project(
        self, kernel_id: str, connection: Mapping[str, Any], identity: Identity
    ) -> bool:
        """Return whether a recorded kernel is a kernel of this project.

        Its sockets must be in the project's folder, or its process must have the
        kernel's id. A kernel whose process does not exist is accepted, because stepper
        cannot connect to it.
        """
        if connection["transport"] == "ipc":
            path = kernel_files.get_socket_path(self.runtime, kernel_id)
            return bool(connection["ip"] == path)
        if (connection["transport"], connection["ip"]) != ("tcp", "127.0.0.1"):
            return False
        if not identity.is_running():
            return True
        return process_identity.belongs_to_kernel(identity.pid, kernel_id)

    async def attach(self) -> KernelClient | Death | None:
        """Return the kernel that an earlier daemon started.

        Return how the kernel died if it is dead, a Death with the reason if the record
        is not valid, or None if there was no kernel. A kernel whose start was not
        finished is killed. No request is sent to the kernel.
        """
        try:
            data = json.loads(secure_files.read(str(self.files.record)))
            data["kernel"] = uuid.UUID(data["kernel"]).hex
            if "connection" not in data:
                # The daemon was killed during the start: no cell has run.
                await self._kill_and_remove_files(data["kernel"])
                return None
            identity = Identity.from_record(data["provisioner"])
            if not self._belongs_to_project(
                data["kernel"], data["connection"], identity
            ):
                raise ValueError("the kernel does not belong to this project")
            kernel = self._create_client(data, identity)
        except FileNotFoundError:
            return None
        except RECORD_ERRORS as error:
            return Death(f"the kernel record {self.files.record} is not valid: {error}")
        death = await kernel.check_death()
        if death is None:
            return kernel
        await kernel.shutdown()
        return death


def _build_record(
    kernel_id: str,
    command: KernelCommand,
    connection: Mapping[str, Any],
    install_command: str,
) -> dict[str, Any]:
    """Return the record of a kernel, without the identity of its process.

    `install_command` installs ipykernel in the environment, or is an empty string if
    the environment has ipykernel.
    """
    record = {
        "kernel": kernel_id,
        "python": command.argv[0],
        "connection": connection,
        "lacks": install_command,
    }
    if command.interrupt_mode:
        record["interrupt"] = command.interrupt_mode
    return record
