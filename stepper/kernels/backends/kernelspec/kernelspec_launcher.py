"""Starts the kernel of an installed kernelspec as a process of this machine.

Its record is that of a local kernel, which any local launcher finds again.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from stepper.kernels.backends.kernelspec import kernelspecs
from stepper.kernels.backends.kernelspec.kernelspec_settings import KernelspecSettings
from stepper.kernels.backends.local import kernel_command
from stepper.kernels.backends.local.kernel_command import KernelCommand
from stepper.kernels.backends.local.local_launcher import LocalLauncher
from stepper.session.protocols import LaunchConfig

LOOPBACK = "127.0.0.1"


class KernelspecLauncher(LocalLauncher):
    """Starts and finds the kernel of one notebook."""

    def _build_command(
        self, config: LaunchConfig, kernel_id: str, needs_bundled_ipykernel: bool
    ) -> KernelCommand:
        """Return the kernelspec's command; raise KernelError if it is not installed.

        The kernel gets TCP ports, because few languages' kernels support Unix sockets.
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
    """Return a connection with TCP ports of this machine that are free now."""
    ports = {}
    with ExitStack() as stack:
        # Keep all sockets open until each has its own port.
        for channel in channels:
            port_socket = stack.enter_context(socket.socket())
            port_socket.bind((LOOPBACK, 0))
            ports[f"{channel}_port"] = port_socket.getsockname()[1]
    return {**ports, "transport": "tcp", "ip": LOOPBACK}
