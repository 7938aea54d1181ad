"""The protocol that a kernel backend implements.

stepper's own backends are the folders in `backends/`. Other packages provide a backend
by an entry point in the group `stepper.kernel_backends`; its value is a class without
arguments, and its name is the key in the configuration. Members with a body here are
optional for a class that inherits from KernelBackend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from stepper.session.protocols import KernelLauncher, KernelMetadata

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
    """The arguments for the launcher of one notebook's kernel."""

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
    """The result of a check of a backend that responds.

    `offers` are short descriptions of what the backend can run, `unchecked` of what
    only a start can check. `uncertainty` says why a kernel may still fail to start; it
    is empty if there is no known reason.
    """

    offers: Sequence[str] = ()
    unchecked: Sequence[str] = ()
    uncertainty: str = ""


@runtime_checkable
class KernelBackend(Protocol):
    """A kind of place in which kernels run.

    Only backends that the user accepted with `stepper trust` are contacted. Settings
    are parsed before that, so `parse_settings` and `describe` must not do any I/O.
    """

    def parse_settings(self, values: Any, path: KeyPath) -> Any:
        """Return the settings of a backend; raise BackendConfigError.

        `values` is the value of the backend's key in the configuration, which a
        stranger may have written. `path` are the keys to it, for errors.
        """

    def describe(self, settings: Any) -> BackendDescription:
        """Return the properties of a backend that follow from its settings."""

    def create_launcher(self, context: LauncherContext) -> KernelLauncher:
        """Return the launcher of one notebook's kernel.

        It is also created for the record of a kernel: it must find its settings there.
        """

    async def check(
        self, backend: BackendConfig, environ: Environ, python: str
    ) -> BackendCheck:
        """Return what the backend offers; raise KernelError if it is unreachable.

        `python` is the path of the project's interpreter, or empty if it has none.
        """

    async def get_metadata(
        self, backend: BackendConfig, environ: Environ, python: str
    ) -> KernelMetadata:
        """Return the notebook metadata of the backend's kernel; raise KernelError.

        Called only if the backend's description does not say that it is Python.
        """
        return PYTHON

    async def remove_orphans(
        self,
        backends: Sequence[BackendConfig],
        runtime: str,
        get_records: Callable[[], Iterable[Path]],
        environ: Environ,
    ) -> int:
        """Remove kernels of this project that no record names; return their number.

        The daemon calls this when it starts, with the accepted backends of this kind.
        Raise KernelError.
        """
        return 0

    def kill_recorded_kernel(self, record: str) -> bool:
        """Kill a recorded kernel without a daemon; return whether it was running.

        The default does nothing: only a daemon can reach the kernel. If the record
        still exists afterwards, the kernel was not killed.
        """
        return False
