"""The backend `ssh`: kernels on a host that is reachable with `ssh`.

The launcher is imported only when a kernel is started, found or checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepper.kernels.backends.ssh import ssh_settings
from stepper.kernels.backends.ssh.ssh_settings import SshSettings
from stepper.kernels.kernel_backend import (
    BackendCheck,
    Environ,
    KernelBackend,
    LauncherContext,
)

if TYPE_CHECKING:
    from stepper.kernels.backends.ssh.ssh_launcher import SshLauncher
    from stepper.policy.configuration.kernel_config import (
        BackendConfig,
        BackendDescription,
        KeyPath,
    )


class SshBackend(KernelBackend):
    """The backend for kernels on hosts that are reachable with `ssh`."""

    def parse_settings(self, values: Any, path: KeyPath) -> SshSettings:
        """Return the validated settings of a backend.

        Raise BackendConfigError if they are not valid.
        """
        return ssh_settings.parse_settings(values, path)

    def describe(self, settings: SshSettings) -> BackendDescription:
        """Return the description of a backend with these settings."""
        return ssh_settings.describe_settings(settings)

    def create_launcher(self, context: LauncherContext) -> SshLauncher:
        """Return the launcher for one notebook's kernel."""
        from stepper.kernels.backends.ssh.ssh_launcher import SshLauncher

        return SshLauncher(context.record, context.runtime, context.parts)

    async def check(
        self, backend: BackendConfig, environ: Environ, python: str
    ) -> BackendCheck:
        """Check that the host can start kernels, and describe its Python.

        Raise KernelError if the host cannot be reached or lacks ipykernel.
        """
        from stepper.kernels.backends.ssh import ssh_launcher

        return BackendCheck(await ssh_launcher.check_host(backend.settings))
