"""The backend `slurm`: kernels that are SLURM jobs, or steps in a job of the user.

The launcher is imported only when a kernel is started, found or checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from stepper.kernels.backends.slurm import slurm_settings
from stepper.kernels.backends.slurm.slurm_settings import SlurmSettings
from stepper.kernels.kernel_backend import (
    BackendCheck,
    Environ,
    KernelBackend,
    LauncherContext,
)

if TYPE_CHECKING:
    from pathlib import Path

    from stepper.kernels.backends.slurm.slurm_launcher import SlurmLauncher
    from stepper.policy.configuration.kernel_config import (
        BackendConfig,
        BackendDescription,
        KeyPath,
    )


class SlurmBackend(KernelBackend):
    """The backend for kernels that are SLURM jobs or job steps."""

    def parse_settings(self, values: Any, path: KeyPath) -> SlurmSettings:
        """Return the validated settings of a backend.

        Raise BackendConfigError if they are not valid.
        """
        return slurm_settings.parse_settings(values, path)

    def describe(self, settings: SlurmSettings) -> BackendDescription:
        """Return the description of a backend with these settings."""
        return slurm_settings.describe_settings(settings)

    def create_launcher(self, context: LauncherContext) -> SlurmLauncher:
        """Return the launcher for one notebook's kernel."""
        from stepper.kernels.backends.slurm.slurm_launcher import SlurmLauncher

        return SlurmLauncher(context.record, context.runtime, context.parts)

    async def check(
        self, backend: BackendConfig, environ: Environ, python: str
    ) -> BackendCheck:
        """Check the settings with SLURM, and return the partitions or the user's job.

        Raise KernelError if SLURM does not answer or refuses the settings.
        """
        from stepper.kernels.backends.slurm import slurm_launcher

        settings = backend.settings
        offers = await slurm_launcher.check_cluster(settings, environ)
        return BackendCheck(
            offers,
            slurm_launcher.list_unchecked(settings),
            slurm_launcher.explain_uncertainty(settings),
        )

    async def remove_orphans(
        self,
        backends: Sequence[BackendConfig],
        runtime: str,
        get_records: Callable[[], Iterable[Path]],
        environ: Environ,
    ) -> int:
        """Cancel this project's jobs that have no record, and return their number.

        Raise KernelError if SLURM fails, or OSError if a record cannot be read.
        """
        from stepper.kernels.backends.slurm import slurm_launcher

        return await slurm_launcher.cancel_orphaned_jobs(runtime, get_records, environ)
