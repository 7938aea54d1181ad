"""The backend `local`: the project's interpreter as a local process.

The backend always exists, so it cannot be defined in the configuration.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from stepper.common import secure_files
from stepper.kernels.backends.local.kernel_files import RECORD_ERRORS, KernelFiles
from stepper.kernels.kernel_backend import (
    BackendCheck,
    Environ,
    KernelBackend,
    LauncherContext,
)

if TYPE_CHECKING:
    from stepper.kernels.backends.local.local_launcher import LocalLauncher
    from stepper.policy.configuration.kernel_config import (
        BackendConfig,
        BackendDescription,
        KeyPath,
    )


class LocalBackend(KernelBackend):
    """The backend for kernels that run the project's Python on this machine."""

    def parse_settings(self, values: Any, path: KeyPath) -> None:
        """Raise BackendConfigError, because this backend cannot be defined."""
        from stepper.policy.configuration.kernel_config import BackendConfigError

        raise BackendConfigError(path, "cannot be defined")

    def describe(self, settings: Any) -> BackendDescription:
        """Return the description of the backend."""
        from stepper.policy.configuration.kernel_config import BackendDescription

        return BackendDescription("the project's Python on this machine", is_local=True)

    def create_launcher(self, context: LauncherContext) -> LocalLauncher:
        """Return the launcher for one notebook's kernel."""
        from stepper.kernels.backends.local.local_launcher import LocalLauncher

        return LocalLauncher(context.record, context.runtime, context.parts)

    async def check(
        self, backend: BackendConfig, environ: Environ, python: str
    ) -> BackendCheck:
        """Return a result with the project's interpreter, without any checks."""
        return BackendCheck([python])

    def kill_recorded_kernel(self, record: str) -> bool:
        """Kill the processes of a recorded kernel and remove its files except stderr.

        Return whether the kernel was running. Start times identify the processes, so a
        process with a reused pid is not killed.
        """
        # `stepper shutdown` rarely needs this module, which takes long to import.
        from stepper.kernels.backends.local.process_identity import (
            Identity,
            kill_kernel_processes,
        )

        killed_count = 0
        with contextlib.suppress(*RECORD_ERRORS):
            data = json.loads(secure_files.read(record))
            identity = None
            if "provisioner" in data:
                identity = Identity.from_record(data["provisioner"])
            killed_count = kill_kernel_processes(str(data["kernel"]), identity)
        # An OSError means that a link leads to files that are not stepper's.
        with contextlib.suppress(OSError):
            KernelFiles(record).remove()
        return killed_count > 0
