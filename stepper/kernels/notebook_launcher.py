"""The launcher of a notebook's kernel, which selects the backend."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

from stepper.common import secure_files
from stepper.common.errors import KernelError
from stepper.common.text import one_line
from stepper.kernels import backend_registry
from stepper.kernels.backend_registry import LOCAL
from stepper.kernels.kernel_backend import Environ, LauncherContext
from stepper.policy.model import Death
from stepper.session.protocols import Kernel, KernelLauncher, LaunchConfig, QueueStatus

log = logging.getLogger("stepper")


class NotebookLauncher:
    """Starts and finds the kernel of one notebook on any backend.

    `record` is the path of the record of the last kernel, which contains the kind of
    its backend. `get_environ` returns the environment of the last client, which may
    contain a token. Tokens are never written to the record.
    """

    def __init__(
        self,
        record: str,
        runtime: str,
        parts: Mapping[str, str],
        get_environ: Callable[[], Environ] = lambda: os.environ,
    ) -> None:
        self.record = record
        self.context = LauncherContext(record, runtime, parts, get_environ)
        # The launcher of a start that is in progress.
        self.current: KernelLauncher | None = None

    @property
    def queue_status(self) -> QueueStatus | None:
        """The queue status of the current start, or None if nothing is in a queue."""
        if self.current:
            return self.current.queue_status
        return None

    async def start(self, config: LaunchConfig) -> Kernel:
        """Start a kernel and return it when it is ready.

        If the record is from another backend, the recorded request is cancelled first.
        Raise KernelError if the kernel cannot be started.
        """
        kind = LOCAL
        if config.backend is not None:
            backend_registry.check_usable(config.backend)
            kind = config.backend.kind
        launcher = self._create_launcher(kind)
        if self._get_recorded_kind() != kind:
            # A job may be waiting on another backend.
            await self.cancel_request()
        self.current = launcher
        started_at = time.monotonic()
        log.info("kernel start: backend %s, record %s", kind, self.record)
        try:
            with backend_registry.report_errors(kind):
                kernel = await launcher.start(config)
        except BaseException as error:
            seconds = time.monotonic() - started_at
            message = getattr(error, "message", type(error).__name__)
            reason = one_line(message, 300)
            log.info("kernel start: failed after %.2f s: %s", seconds, reason)
            raise
        finally:
            self.current = None
        seconds = time.monotonic() - started_at
        log.info("kernel start: ready after %.2f s", seconds)
        return kernel

    async def attach(self) -> Kernel | Death | None:
        """Return the kernel that an earlier daemon started.

        Return how the kernel died if it is dead, a Death with the reason if stepper
        cannot reconnect to it, or None if there was no kernel. No request is sent to
        the kernel.
        """
        kind = self._get_recorded_kind()
        if not kind:
            return Death(
                f"stepper did not connect to the kernel in the record {self.record}:"
                " the record has no valid seal, so another user may have written it, or"
                " it may be from another folder"
            )
        try:
            launcher = self._create_launcher(kind)
        except KernelError as error:
            return Death(
                "stepper cannot reconnect to the notebook's kernel, which may still be"
                f" running: {error.message}"
            )
        with backend_registry.report_errors(kind):
            return await launcher.attach()

    async def cancel_request(self) -> None:
        """Cancel a request for a kernel that has not started, such as a queued job.

        If the record is not valid or the backend is not installed, only remove the
        record. Raise KernelError if the request may not have been cancelled, or if the
        record cannot be removed.
        """
        kind = self._get_recorded_kind()
        launcher = None
        if kind:
            try:
                launcher = self._create_launcher(kind)
            except KernelError as error:
                # `attach` has reported that stepper cannot reach the kernel.
                log.warning(
                    "removing the kernel record %s: %s", self.record, error.message
                )
        if launcher is not None:
            with backend_registry.report_errors(kind):
                await launcher.cancel_request()
            return
        try:
            secure_files.remove(self.record)
        except OSError as error:
            raise KernelError(
                f"the kernel record {self.record} could not be removed: "
                f"{error.strerror}"
            ) from error

    def _create_launcher(self, kind: str) -> KernelLauncher:
        """Return a launcher of a kind of backend.

        Raise KernelError if the backend is not installed or fails.
        """
        backend = backend_registry.get_backend(kind)
        with backend_registry.report_errors(kind):
            return backend.create_launcher(self.context)

    def _get_recorded_kind(self) -> str:
        """Return the kind of backend in the record, or LOCAL if there is no record.

        Return an empty string if the record's seal is not valid. Records of local
        kernels have no seal. The local backend checks the sockets and the process of
        the kernel instead.
        """
        record = backend_registry.read_record(self.record)
        kind = str(record.get("kind", LOCAL))
        if kind == LOCAL:
            return LOCAL
        from stepper.kernels import sealed_kernel_records

        if sealed_kernel_records.is_sealed(self.record, record):
            return kind
        return ""
