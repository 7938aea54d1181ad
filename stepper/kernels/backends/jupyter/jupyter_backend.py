"""The backend `jupyter`: kernels on a Jupyter server.

The launcher is imported only when a kernel is started, found or checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepper.kernels.backends.jupyter import jupyter_settings
from stepper.kernels.backends.jupyter.jupyter_settings import JupyterSettings
from stepper.kernels.kernel_backend import (
    BackendCheck,
    Environ,
    KernelBackend,
    LauncherContext,
)
from stepper.policy.model import KernelMetadata

if TYPE_CHECKING:
    from stepper.kernels.backends.jupyter.jupyter_launcher import JupyterLauncher
    from stepper.policy.configuration.kernel_config import (
        BackendConfig,
        BackendDescription,
        KeyPath,
    )


class JupyterBackend(KernelBackend):
    """The backend for kernels on a Jupyter server, a JupyterHub or a gateway."""

    def parse_settings(self, values: Any, path: KeyPath) -> JupyterSettings:
        """Return the validated settings of a backend.

        Raise BackendConfigError if they are not valid.
        """
        return jupyter_settings.parse_settings(values, path)

    def describe(self, settings: JupyterSettings) -> BackendDescription:
        """Return the description of a backend with these settings."""
        return jupyter_settings.describe_settings(settings)

    def create_launcher(self, context: LauncherContext) -> JupyterLauncher:
        """Return the launcher for one notebook's kernel."""
        from stepper.kernels.backends.jupyter.jupyter_launcher import JupyterLauncher

        return JupyterLauncher(context.record, context.parts, context.get_environ)

    async def check(
        self, backend: BackendConfig, environ: Environ, python: str
    ) -> BackendCheck:
        """Check that the server can be reached, and return its kernelspecs.

        Raise KernelError if the server cannot be reached or lacks the configured
        kernel.
        """
        from stepper.kernels.backends.jupyter import jupyter_launcher

        offers = await jupyter_launcher.check_server(backend.settings, environ)
        return BackendCheck(offers)

    async def get_metadata(
        self, backend: BackendConfig, environ: Environ, python: str
    ) -> KernelMetadata:
        """Return the metadata of the server's kernel for the notebook file.

        Raise KernelError if the server cannot be reached or lacks the kernel.
        """
        from stepper.kernels.backends.jupyter import jupyter_launcher

        return await jupyter_launcher.get_metadata(backend.settings, environ)
