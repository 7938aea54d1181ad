"""The backend `jupyter`: kernels on a Jupyter server.

The launcher and its modules are imported when a kernel is started, found or checked.
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
from stepper.session.protocols import KernelMetadata

if TYPE_CHECKING:
    from stepper.kernels.backends.jupyter.jupyter_launcher import JupyterLauncher
    from stepper.policy.configuration.kernel_config import (
        BackendConfig,
        BackendDescription,
        KeyPath,
    )


class JupyterBackend(KernelBackend):
    """Kernels on a Jupyter server, JupyterHub, Kernel or Enterprise Gateway."""

    def parse_settings(self, values: Any, path: KeyPath) -> JupyterSettings:
        """Return the settings of a backend; raise BackendConfigError."""
        return jupyter_settings.parse_settings(values, path)

    def describe(self, settings: JupyterSettings) -> BackendDescription:
        """Return the description of a backend."""
        return jupyter_settings.describe_settings(settings)

    def create_launcher(self, context: LauncherContext) -> JupyterLauncher:
        """Return the launcher of one notebook's kernel."""
        from stepper.kernels.backends.jupyter.jupyter_launcher import JupyterLauncher

        return JupyterLauncher(
            context.record, context.runtime, context.parts, context.get_environ
        )

    async def check(
        self, backend: BackendConfig, environ: Environ, python: str
    ) -> BackendCheck:
        """Return the server's kernelspecs; raise KernelError."""
        from stepper.kernels.backends.jupyter import jupyter_launcher

        offers = await jupyter_launcher.check_server(backend.settings, environ)
        return BackendCheck(offers)

    async def get_metadata(
        self, backend: BackendConfig, environ: Environ, python: str
    ) -> KernelMetadata:
        """Return the notebook metadata of a kernel of the server.

        Raise KernelError.
        """
        from stepper.kernels.backends.jupyter import jupyter_launcher

        return await jupyter_launcher.get_metadata(backend.settings, environ)
