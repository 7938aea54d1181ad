"""The protocol that a kernel backend implements.

stepper's own backends are in `backends/`. Other packages register a backend as an entry
point in the group `stepper.kernel_backends`. The name of the entry point is the
backend's key in the configuration. The entry point refers to a class, which is called
without arguments. A subclass of KernelBackend need not implement the methods that have
a default result: `get_metadata`, `remove_orphans` and `kill_recorded_kernel`. The last
is called only for stepper's own backends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from stepper.policy.model import KernelMetadata
from stepper.session.protocols import KernelLauncher

if TYPE_CHECKING:
    from pathlib import Path

    from stepper.policy.configuration.kernel_config import (
        BackendConfig,
        BackendDescription,
        KeyPath,
    )

Environ = Mapping[str, str]
PYTHON = KernelMetadata("python3", "Python 3", "python")


@dataclass(frozen=True)
class LauncherContext:
    """The arguments for the launcher of a notebook's kernel."""

    # The path of the kernel's record, by which the next daemon finds the kernel.
    record: str
    # The private folder for sockets and connection files.
    runtime: str
    # Modules that the helper in the kernel may load: name → package.
    parts: Mapping[str, str]
    # Returns the environment of the last client, which may contain a token.
    get_environ: Callable[[], Environ]


@dataclass(frozen=True)
class BackendCheck:
    """The result of checking a backend that can be reached.

    `offers` describes what the backend can run, for example its partitions or
    kernelspecs. `unchecked` lists what can be checked only by starting a kernel.
    `uncertainty` is a reason why a kernel may fail to start, or an empty string.
    """

    offers: Sequence[str] = ()
    unchecked: Sequence[str] = ()
    uncertainty: str = ""


@runtime_checkable
class KernelBackend(Protocol):
    """A way to run kernels, such as local processes or SLURM jobs.

    stepper contacts a backend only after the user has accepted it with `stepper trust`.
    Settings are parsed earlier, so `parse_settings` and `describe` must not do any I/O.
    """

    def parse_settings(self, values: Any, path: KeyPath) -> Any:
        """Return the validated settings of a backend.

        `values` is the value of the backend's key in the configuration file, which may
        come from an untrusted repository. `path` is the sequence of keys that leads to
        `values`, for error messages. Raise BackendConfigError if `values` is not valid.
        """

    def describe(self, settings: Any) -> BackendDescription:
        """Return a description of a backend, derived from its settings only."""

    def create_launcher(self, context: LauncherContext) -> KernelLauncher:
        """Return the launcher for one notebook's kernel.

        The launcher may be created to find an existing kernel, so it must read the
        settings from the kernel's record.
        """

    async def check(
        self, backend: BackendConfig, environ: Environ, python: str
    ) -> BackendCheck:
        """Check that a backend can be reached, and return the result of the check.

        `python` is the path of the project's interpreter, or an empty string if the
        project has none. Raise KernelError if the backend cannot be reached.
        """

    async def get_metadata(
        self, backend: BackendConfig, environ: Environ, python: str
    ) -> KernelMetadata:
        """Return the metadata of the backend's kernel for the notebook file.

        This method is called only if the description of the backend has
        `is_python=False`. Raise KernelError if the metadata cannot be determined.
        """
        return PYTHON

    async def remove_orphans(
        self,
        backends: Sequence[BackendConfig],
        runtime: str,
        get_records: Callable[[], Iterable[Path]],
        environ: Environ,
    ) -> int:
        """Remove this project's kernels that have no record, and return their number.

        The daemon calls this method when it starts, with the accepted backends of this
        kind. Raise KernelError if the kernels cannot be removed.
        """
        return 0

    def kill_recorded_kernel(self, record: str) -> bool:
        """Kill a recorded kernel without a daemon, and return whether it was running.

        By default, do nothing and return False, because only a daemon can reach the
        kernel. An implementation that kills the kernel must also remove its record.
        """
        return False
