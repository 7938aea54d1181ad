"""The kernel backends, by kind. No other module imports them.

A new backend is a folder in `backends/` and a row in LAUNCHERS. Remote backends are
imported when they are used: most projects have none.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from stepper.common import secure_files
from stepper.common.errors import KernelError
from stepper.common.text import one_line
from stepper.kernels.backends.local.local_backend import LocalKernels
from stepper.policy.model import Death
from stepper.session.protocols import (
    Kernel,
    KernelLauncher,
    KernelMetadata,
    LaunchConfig,
    QueueStatus,
)

if TYPE_CHECKING:
    from pathlib import Path

    from stepper.kernels.backends.local.kernelspecs import Spec
    from stepper.policy.configuration.kernel_config import BackendConfig, SlurmSettings

log = logging.getLogger("stepper")
Environ = Mapping[str, str]


def _create_ssh_launcher(*args: Any) -> KernelLauncher:
    from stepper.kernels.backends.ssh.ssh_backend import SshKernels

    return SshKernels(*args)


def _create_slurm_launcher(*args: Any) -> KernelLauncher:
    from stepper.kernels.backends.slurm.slurm_backend import SlurmKernels

    return SlurmKernels(*args)


def _create_jupyter_launcher(*args: Any, **kwargs: Any) -> KernelLauncher:
    from stepper.kernels.backends.jupyter.jupyter_backend import JupyterKernels

    return JupyterKernels(*args, **kwargs)


# Kind of backend → its launcher. The arguments are the file of the kernel's record, the
# folder for sockets, and the parts that the helper in the kernel may load. The kernel
# of an installed kernelspec is also a process of this machine.
LAUNCHERS: dict[str, Callable[..., KernelLauncher]] = {
    "local": LocalKernels,
    "kernelspec": LocalKernels,
    "ssh": _create_ssh_launcher,
    "slurm": _create_slurm_launcher,
    "jupyter": _create_jupyter_launcher,
}

LOCAL = "local"
PYTHON = KernelMetadata("python3", "Python 3", "python")


async def get_metadata(
    backend: BackendConfig | None, environ: Environ, python: str
) -> KernelMetadata:
    """Return how a notebook's metadata describes the kernel of a backend.

    `backend` is None for the project's own Python. Raise KernelError.
    """
    if backend is None or backend.is_python:
        return PYTHON
    if backend.kind == "jupyter":
        from stepper.kernels.backends.jupyter import jupyter_backend

        return await jupyter_backend.get_metadata(backend, environ)
    spec = _find_kernelspec(backend, environ, python)
    return KernelMetadata(spec.name, spec.display_name, spec.language)


async def check_backend(
    backend: BackendConfig, environ: Environ, python: str
) -> list[str]:
    """Return short descriptions of what a backend offers.

    Raise KernelError if the backend cannot be reached.
    """
    if backend.is_local:
        spec = _find_kernelspec(backend, environ, python)
        return [f"{spec.display_name} ({spec.language}): {spec.folder}"]
    if backend.kind == "ssh":
        from stepper.kernels.backends.ssh import ssh_backend

        return await ssh_backend.check_backend(backend)
    if backend.kind == "slurm":
        from stepper.kernels.backends.slurm import slurm_backend

        return await slurm_backend.check_backend(_get_slurm_settings(backend), environ)
    if backend.kind == "jupyter":
        from stepper.kernels.backends.jupyter import jupyter_backend

        return await jupyter_backend.check_backend(backend, environ)
    raise build_unknown_kind_error(backend.kind)


def list_unchecked(backend: BackendConfig) -> list[str]:
    """Return short descriptions of what `check_backend` does not check."""
    if backend.kind != "slurm":
        return []
    from stepper.kernels.backends.slurm import slurm_backend

    return slurm_backend.list_unchecked(_get_slurm_settings(backend))


def explain_uncertainty(backend: BackendConfig) -> str:
    """Return why a backend that responds may still not start a kernel, or ''."""
    if backend.kind != "slurm":
        return ""
    from stepper.kernels.backends.slurm import slurm_backend

    return slurm_backend.explain_uncertainty(_get_slurm_settings(backend))


def _get_slurm_settings(backend: BackendConfig) -> SlurmSettings:
    from stepper.policy.configuration.kernel_config import SlurmSettings

    assert isinstance(backend.settings, SlurmSettings)  # implied by the kind
    return backend.settings


def _find_kernelspec(backend: BackendConfig, environ: Environ, python: str) -> Spec:
    """Return the kernelspec of a local backend; raise KernelError."""
    from stepper.kernels.backends.local import kernelspecs
    from stepper.policy.configuration.kernel_config import KernelspecSettings

    settings = backend.settings
    assert isinstance(settings, KernelspecSettings)  # as for all local backends
    return kernelspecs.find_kernelspec(settings.kernelspec, environ, python)


async def reconcile(
    backends: Iterable[BackendConfig],
    runtime: str,
    get_records: Callable[[], Iterable[Path]],
    environ: Environ,
) -> None:
    """Cancel jobs of former daemons of this project that have no record.

    Raise KernelError.
    """
    if any(backend.kind == "slurm" for backend in backends):
        from stepper.kernels.backends.slurm import slurm_backend

        await slurm_backend.reconcile(runtime, get_records, environ)


def build_unknown_kind_error(kind: str) -> KernelError:
    """Return the error for a backend that this version of stepper does not have."""
    return KernelError(f"this version of stepper has no kernel backend `{kind}`")


class BackendLauncher:
    """Starts the kernel of one notebook on any backend.

    The record of the last kernel says which backend it runs on. `get_environ` returns
    the environment of the last client: it may have a token, which no record contains.
    """

    def __init__(
        self,
        record: str,
        runtime: str,
        parts: Mapping[str, str],
        get_environ: Callable[[], Environ] = lambda: os.environ,
    ) -> None:
        self.record = record
        self.launcher_args = (record, runtime, parts)
        self.get_environ = get_environ
        # The launcher of a start that is in progress.
        self.current: KernelLauncher | None = None

    @property
    def queue_status(self) -> QueueStatus | None:
        """What the start in progress waits for in a queue, None without one."""
        return self.current.queue_status if self.current else None

    async def start(self, config: LaunchConfig) -> Kernel:
        """Start a kernel and return it when it is ready; raise KernelError."""
        kind = config.backend.kind if config.backend else LOCAL
        if kind not in LAUNCHERS:
            raise build_unknown_kind_error(kind)
        if self._get_recorded_kind() != kind:
            # A job may be waiting on another backend.
            await self.cancel_request()
        self.current = self._create_launcher(kind)
        started_at = time.monotonic()
        log.info("kernel start: backend %s, record %s", kind, self.record)
        try:
            kernel = await self.current.start(config)
        except BaseException as error:
            seconds = time.monotonic() - started_at
            message = getattr(error, "message", type(error).__name__)
            reason = one_line(message, 300)
            log.info("kernel start: not ready after %.2f s: %s", seconds, reason)
            raise
        finally:
            self.current = None
        seconds = time.monotonic() - started_at
        log.info("kernel start: ready after %.2f s", seconds)
        return kernel

    async def attach(self) -> Kernel | Death | None:
        """Return the kernel of a former daemon, or its death, None if there was none.

        No request is sent to the kernel.
        """
        kind = self._get_recorded_kind()
        if not kind:
            return Death(
                f"the kernel record {self.record} is not valid: stepper did not write "
                "it for you at this path, or its backend is unknown. stepper did not "
                "connect to the kernel"
            )
        return await self._create_launcher(kind).attach()

    async def cancel_request(self) -> None:
        """Cancel a request that is not a kernel yet, such as a queued job.

        Raise KernelError if this fails.
        """
        kind = self._get_recorded_kind()
        if kind:
            await self._create_launcher(kind).cancel_request()
            return
        try:
            secure_files.remove(self.record)
        except OSError as error:
            raise KernelError(
                f"the kernel record {self.record} could not be removed: "
                f"{error.strerror}"
            ) from error

    def _create_launcher(self, kind: str) -> KernelLauncher:
        create = LAUNCHERS[kind]
        if kind == "jupyter":
            return create(*self.launcher_args, environ=self.get_environ)
        return create(*self.launcher_args)

    def _get_recorded_kind(self) -> str:
        """Return the kind of backend in the record, '' if the record is not valid.

        A record of a local kernel needs no seal: the local backend checks its sockets
        and its process.
        """
        try:
            record = json.loads(secure_files.read(self.record))
        except (OSError, ValueError, RecursionError):
            return LOCAL
        if not isinstance(record, dict):
            return LOCAL
        kind = record.get("kind", LOCAL)
        if kind == LOCAL:
            return LOCAL
        from stepper.kernels import sealed_records

        kind = str(kind)
        if kind in LAUNCHERS and sealed_records.is_sealed(self.record, record):
            return kind
        return ""
