"""The backend `kernelspec`: kernels of installed kernelspecs, for any language.

The launcher is imported only when a kernel is started, found or checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepper.kernels.backends.kernelspec import kernelspec_settings
from stepper.kernels.backends.kernelspec.kernelspec_settings import KernelspecSettings
from stepper.kernels.kernel_backend import (
    BackendCheck,
    Environ,
    KernelBackend,
    LauncherContext,
)
from stepper.policy.model import KernelMetadata

if TYPE_CHECKING:
    from stepper.kernels.backends.kernelspec.kernelspec_launcher import (
        KernelspecLauncher,
    )
    from stepper.policy.configuration.kernel_config import (
        BackendConfig,
        BackendDescription,
        KeyPath,
    )


class KernelspecBackend(KernelBackend):
    """The backend for kernels whose kernelspec is installed on this machine."""

    def parse_settings(self, values: Any, path: KeyPath) -> KernelspecSettings:
        """Return the validated settings of a backend.

        Raise BackendConfigError if they are not valid.
        """
        return kernelspec_settings.parse_settings(values, path)

    def describe(self, settings: KernelspecSettings) -> BackendDescription:
        """Return the description of a backend with these settings."""
        return kernelspec_settings.describe_settings(settings)

    def create_launcher(self, context: LauncherContext) -> KernelspecLauncher:
        """Return the launcher for one notebook's kernel."""
        from stepper.kernels.backends.kernelspec.kernelspec_launcher import (
            KernelspecLauncher,
        )

        return KernelspecLauncher(context.record, context.runtime, context.parts)

    async def check(
        self, backend: BackendConfig, environ: Environ, python: str
    ) -> BackendCheck:
        """Check that the kernelspec and its provisioner are installed.

        Return a description of the kernelspec. Raise KernelError if the kernelspec or
        the provisioner is not installed.
        """
        from stepper.kernels.backends.kernelspec import kernelspecs

        settings: KernelspecSettings = backend.settings
        spec = kernelspecs.find_kernelspec(settings.kernelspec, environ, python)
        if spec.provisioner:
            from stepper.kernels.backends.kernelspec import provisioner_manager

            provisioner_manager.check_provisioner(spec)
        return BackendCheck([f"{spec.display_name} ({spec.language}): {spec.folder}"])

    async def get_metadata(
        self, backend: BackendConfig, environ: Environ, python: str
    ) -> KernelMetadata:
        """Return the metadata of the kernel for the notebook file.

        Raise KernelError if the kernelspec is not installed.
        """
        from stepper.kernels.backends.kernelspec import kernelspecs

        settings: KernelspecSettings = backend.settings
        spec = kernelspecs.find_kernelspec(settings.kernelspec, environ, python)
        return KernelMetadata(spec.name, spec.display_name, spec.language)
