"""The places where kernels run: the only module that imports their providers. A place is one folder, and one row."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from stepper.common import private_files
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
    from stepper.policy.kernel_config import BackendConfig

log = logging.getLogger("stepper")


def _ssh(*given: Any) -> KernelLauncher:
    from stepper.kernels.backends.ssh.ssh_backend import SshKernels

    return SshKernels(*given)


def _slurm(*given: Any) -> KernelLauncher:
    from stepper.kernels.backends.slurm.slurm_backend import SlurmKernels

    return SlurmKernels(*given)


def _jupyter(*given: Any, **more: Any) -> KernelLauncher:
    from stepper.kernels.backends.jupyter.jupyter_backend import JupyterKernels

    return JupyterKernels(*given, **more)


# The kind of a place → what starts a notebook's kernel there, given the file for its
# record, the folder for sockets and
# what the kernel's helper may load besides its own. An installed kernelspec's kernel is
# a process of this machine, too.
PLACES: dict[str, Callable[..., KernelLauncher]] = {
    "local": LocalKernels,
    "kernelspec": LocalKernels,
    "ssh": _ssh,
    "slurm": _slurm,
    "jupyter": _jupyter,
}

LOCAL = "local"
PYTHON = KernelMetadata("python3", "Python 3", "python")


async def metadata(
    place: BackendConfig | None, environ: Mapping[str, str], python: str
) -> KernelMetadata:
    """Return what a notebook says of a kernel in a place (None for the project's); raise KernelError."""
    if place is None or place.is_python:
        return PYTHON
    if place.kind == "jupyter":
        from stepper.kernels.backends.jupyter import jupyter_backend as servers

        return await servers.metadata(place, environ)
    spec = _spec(place, environ, python)
    return KernelMetadata(spec.name, spec.display_name, spec.language)


async def look(
    place: BackendConfig, environ: Mapping[str, str], python: str
) -> list[str]:
    """Return what a place offers, in short lines; raise KernelError where it can't be reached."""
    if place.is_local:
        spec = _spec(place, environ, python)
        return [f"{spec.display_name} ({spec.language}): {spec.folder}"]
    if place.kind == "ssh":
        from stepper.kernels.backends.ssh import ssh_backend

        return await ssh_backend.look(place)
    if place.kind == "slurm":
        from stepper.kernels.backends.slurm import slurm_backend as jobs
        from stepper.policy.kernel_config import SlurmSettings

        assert isinstance(place.settings, SlurmSettings)  # its kind says so
        return await jobs.look(place.settings, environ)
    if place.kind == "jupyter":
        from stepper.kernels.backends.jupyter import jupyter_backend as servers

        return await servers.look(place, environ)
    raise unknown(place.kind)


def unchecked(place: BackendConfig) -> list[str]:
    """Return what `look` does not check of a place, in a few words each."""
    if place.kind != "slurm":
        return []
    from stepper.kernels.backends.slurm import slurm_backend as jobs
    from stepper.policy.kernel_config import SlurmSettings

    assert isinstance(place.settings, SlurmSettings)  # its kind says so
    return jobs.unchecked(place.settings)


def doubt(place: BackendConfig) -> str:
    """Return why it can't be said whether a place that answers takes a kernel; '' if it can."""
    if place.kind != "slurm":
        return ""
    from stepper.kernels.backends.slurm import slurm_backend as jobs
    from stepper.policy.kernel_config import SlurmSettings

    assert isinstance(place.settings, SlurmSettings)  # its kind says so
    return jobs.doubt(place.settings)


def _spec(place: BackendConfig, environ: Mapping[str, str], python: str) -> Spec:
    from stepper.kernels.backends.local import kernelspecs
    from stepper.policy.kernel_config import KernelspecSettings

    assert isinstance(place.settings, KernelspecSettings)  # what is local is one
    return kernelspecs.named(place.settings.kernelspec, environ, python)


async def reconcile(
    places: Iterable[BackendConfig],
    runtime: str,
    records: Callable[[], Iterable[Path]],
    environ: Mapping[str, str],
) -> None:
    """End what former daemons started there for this project and no record tells of; raise KernelError."""
    if any(place.kind == "slurm" for place in places):
        from stepper.kernels.backends.slurm import slurm_backend as jobs

        await jobs.reconcile(runtime, records, environ)


def unknown(kind: str) -> KernelError:
    """Return the error on a kind of place whose provider there is not."""
    return KernelError(
        f"this version of stepper starts no kernels in places of the kind `{kind}`"
    )


class AnyPlace:
    """One notebook's kernel, wherever it is to run; where the last one does, its record tells.

    `environ` is the environment of whoever asked last: where a token is, which no record has.
    """

    def __init__(
        self,
        record: str,
        runtime: str,
        parts: Mapping[str, str],
        environ: Callable[[], Mapping[str, str]] = lambda: os.environ,
    ) -> None:
        self.record, self.given, self.environ = (
            record,
            (record, runtime, parts),
            environ,
        )
        self.starts: KernelLauncher | None = None  # what starts one now

    @property
    def queue_status(self) -> QueueStatus | None:
        """What a start that is under way waits for in a queue."""
        return self.starts.queue_status if self.starts else None

    async def start(self, place: LaunchConfig) -> Kernel:
        """Start a kernel and return it when it is ready; raise KernelError."""
        kind = place.backend.kind if place.backend else LOCAL
        if kind not in PLACES:
            raise unknown(kind)
        if self._recorded() != kind:
            await self.cancel_request()  # a job may wait for it elsewhere
        self.starts = self._provider(kind)
        began = time.monotonic()
        log.info("kernel start: backend %s, record %s", kind, self.record)
        try:
            kernel = await self.starts.start(place)
        except BaseException as error:
            why = one_line(getattr(error, "message", type(error).__name__), 300)
            log.info(
                "kernel start: not ready after %.2f s: %s",
                time.monotonic() - began,
                why,
            )
            raise
        finally:
            self.starts = None
        log.info("kernel start: ready after %.2f s", time.monotonic() - began)
        return kernel

    async def attach(self) -> Kernel | Death | None:
        """Return the kernel that a former daemon left, or how it ended; None where there was none. Asks it nothing."""
        kind = self._recorded()
        if not kind:
            return Death(
                f"the record {self.record} was not written by stepper, for you and there: nothing is asked"
            )
        return await self._provider(kind).attach()

    async def cancel_request(self) -> None:
        """End what was asked for and is no kernel yet; raise KernelError."""
        if kind := self._recorded():
            return await self._provider(kind).cancel_request()
        try:
            private_files.remove(self.record)
        except OSError as error:
            raise KernelError(
                f"{self.record} can't be removed: {error.strerror}"
            ) from error

    def _provider(self, kind: str) -> KernelLauncher:
        return PLACES[kind](
            *self.given, **({"environ": self.environ} if kind == "jupyter" else {})
        )

    def _recorded(self) -> str:
        """Return the kind of the place that the record tells of, '' where it is not of ours.

        One of this machine is known by its sockets or its process, and looked at by whoever reads it.
        """
        try:
            told = json.loads(private_files.read(self.record))
        except (OSError, ValueError, RecursionError):
            return LOCAL
        kind = told.get("kind", LOCAL) if isinstance(told, dict) else LOCAL
        if kind == LOCAL:
            return LOCAL
        from stepper.kernels import kernel_records

        return (
            str(kind)
            if str(kind) in PLACES and kernel_records.is_sealed(self.record, told)
            else ""
        )
