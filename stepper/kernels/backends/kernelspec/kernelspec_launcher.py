"""The launcher for kernels of installed kernelspecs.

A kernelspec with a kernel provisioner is started by `ProvisionerLauncher`. Any other
kernel is started as a local process, and the local backend finds it again by its
record.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from stepper.common import secure_files
from stepper.kernels import sealed_kernel_records
from stepper.kernels.backends.kernelspec import kernelspecs
from stepper.kernels.backends.kernelspec.kernelspec_settings import (
    KIND,
    KernelspecSettings,
)
from stepper.kernels.backends.local import kernel_command
from stepper.kernels.backends.local.kernel_command import KernelCommand
from stepper.kernels.backends.local.local_launcher import LocalLauncher
from stepper.policy.model import Death
from stepper.session.protocols import Kernel, LaunchConfig, QueueStatus

if TYPE_CHECKING:
    from stepper.kernels.backends.kernelspec.provisioner_launcher import (
        ProvisionerLauncher,
    )

LOOPBACK = "127.0.0.1"


class KernelspecLauncher:
    """Starts and finds the kernel of one notebook.

    `record` is the path of the kernel's record, and `runtime` the folder of connection
    files. `parts` maps each module that the helper in the kernel may load to its
    package.
    """

    def __init__(self, record: str, runtime: str, parts: Mapping[str, str]) -> None:
        self.record = record
        self.local_launcher = LocalKernelspecLauncher(record, runtime, parts)
        self.runtime = runtime
        self.parts = parts
        # Set by `_get_provisioner_launcher`.
        self.provisioner_launcher: ProvisionerLauncher | None = None

    def _get_provisioner_launcher(self) -> ProvisionerLauncher:
        """Return the launcher for provisioners.

        The launcher is created on the first call, because jupyter_client's kernel
        manager is slow to import.
        """
        if self.provisioner_launcher is None:
            from stepper.kernels.backends.kernelspec.provisioner_launcher import (
                ProvisionerLauncher,
            )

            self.provisioner_launcher = ProvisionerLauncher(
                self.record, self.runtime, self.parts
            )
        return self.provisioner_launcher

    @property
    def queue_status(self) -> QueueStatus | None:
        """The queue status of a provisioner's start, or None if there is none."""
        if self.provisioner_launcher:
            return self.provisioner_launcher.queue_status
        return None

    async def start(self, config: LaunchConfig) -> Kernel:
        """Start a kernel and return it when it is ready.

        Raise KernelError if the kernel cannot be started.
        """
        assert config.backend is not None
        settings: KernelspecSettings = config.backend.settings
        kernelspec = kernelspecs.find_kernelspec(
            settings.kernelspec, config.environ, config.python
        )
        # The record may name a kernel that a provisioner has started.
        await self.cancel_request()
        if kernelspec.provisioner:
            launcher = self._get_provisioner_launcher()
            return await launcher.start(config, kernelspec)
        return await self.local_launcher.start(config)

    async def attach(self) -> Kernel | Death | None:
        """Return the kernel that a provisioner of an earlier daemon started.

        Return how the kernel died if it is dead, a Death with the reason if stepper
        cannot reconnect to it, or None if there is no started kernel. No request is
        sent to the kernel.
        """
        return await self._get_provisioner_launcher().attach()

    async def cancel_request(self) -> None:
        """Stop the recorded kernel if a provisioner started it.

        Raise KernelError if the kernel may still be running.
        """
        if os.path.exists(self.record) and self._has_provisioner_record():
            await self._get_provisioner_launcher().cancel_request()

    def _has_provisioner_record(self) -> bool:
        """Return whether the record is a valid record of a provisioner's kernel."""
        try:
            record = json.loads(secure_files.read(self.record))
            return record.get("kind") == KIND and sealed_kernel_records.is_sealed(
                self.record, record
            )
        except (OSError, ValueError, AttributeError, RecursionError):
            return False


class LocalKernelspecLauncher(LocalLauncher):
    """Starts the kernel of a kernelspec as a local process."""

    def _build_command(
        self, config: LaunchConfig, kernel_id: str, bundled_ipykernel: str
    ) -> KernelCommand:
        """Return the command that starts the kernel of the kernelspec.

        The kernel uses TCP ports, because few kernels of other languages support Unix
        sockets. `bundled_ipykernel` is not used. Raise KernelError if the kernelspec is
        not installed.
        """
        assert config.backend is not None
        settings: KernelspecSettings = config.backend.settings
        spec = kernelspecs.find_kernelspec(
            settings.kernelspec, config.environ, config.python
        )
        connection_file = kernel_command.get_connection_file(self.runtime, kernel_id)
        environ = kernel_command.remove_foreign_variables(config.environ)
        return KernelCommand(
            spec.build_command(connection_file, config.python),
            create_tcp_connection(kernel_command.CHANNELS),
            spec.build_environ(environ),
            spec.name,
            spec.interrupt_mode,
        )


def create_tcp_connection(channels: Sequence[str]) -> dict[str, Any]:
    """Return the connection fields for TCP ports that are currently free."""
    ports = {}
    with ExitStack() as stack:
        # Keep all sockets open until each has its own port.
        for channel in channels:
            port_socket = stack.enter_context(socket.socket())
            port_socket.bind((LOOPBACK, 0))
            ports[f"{channel}_port"] = port_socket.getsockname()[1]
    return {**ports, "transport": "tcp", "ip": LOOPBACK}
