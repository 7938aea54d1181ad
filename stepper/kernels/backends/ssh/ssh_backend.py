"""The backend `ssh`: kernels on a host that is reachable with `ssh`.

The launcher and its modules are imported when a kernel is started, found or checked.
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
    """Kernels on hosts that are reachable with `ssh`."""

    def parse_settings(self, values: Any, path: KeyPath) -> SshSettings:
        """Return the settings of a backend; raise BackendConfigError."""
        return ssh_settings.parse_settings(values, path)

    def describe(self, settings: SshSettings) -> BackendDescription:
        """Return the description of a backend."""
        return ssh_settings.describe_settings(settings)

    def create_launcher(self, context: LauncherContext) -> SshLauncher:
        """Return the launcher of one notebook's kernel."""
        from stepper.kernels.backends.ssh.ssh_launcher import SshLauncher

        return SshLauncher(context.record, context.runtime, context.parts)

    async def check(
        self, backend: BackendConfig, environ: Environ, python: str
    ) -> BackendCheck:
        """Return what the host offers; raise KernelError if it can start no kernel."""
        from stepper.kernels.backends.ssh import ssh_launcher

        return BackendCheck(await ssh_launcher.check_host(backend.settings))
