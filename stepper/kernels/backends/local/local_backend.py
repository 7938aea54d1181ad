"""The kernel provider `local`: a notebook's kernel is started, or found where a former daemon left it.

What talks to a kernel (jupyter_client, ZeroMQ) is loaded while the kernel starts, which takes longer.
"""

from __future__ import annotations

import asyncio
import glob
import json
import logging
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any

from stepper.common import private_files
from stepper.common.errors import IpykernelMissingError, KernelError
from stepper.kernels.backends.local import launch, process_identity
from stepper.kernels.backends.local.launch import Files
from stepper.kernels.backends.local.process_identity import Identity
from stepper.policy.model import Death
from stepper.session.protocols import LaunchConfig, QueueStatus

if TYPE_CHECKING:
    from stepper.kernels.client import KernelClient

log = logging.getLogger("stepper")
START_SECONDS = 60.0


class LocalKernels:
    """One notebook's kernel, kept in `record` for the next daemon; its sockets lie in `runtime`.

    `parts` are what its helper may load besides its own: name → package.
    """

    queue_status: QueueStatus | None = None  # it waits in no queue

    # only read
    def __init__(
        self, record: str, runtime: str, parts: Mapping[str, str] = {}
    ) -> None:
        self.files = Files(record)
        self.runtime, self.parts = runtime, parts

    async def start(self, place: LaunchConfig) -> KernelClient:
        """Start a kernel and return it when it is ready; raise KernelError with what it wrote to stderr."""
        try:
            return await self._start(place)
        except IpykernelMissingError as missing:
            if (
                place.backend
                or not place.bundled_ipykernel
                or not glob.glob(f"{glob.escape(place.bundled_ipykernel)}*")
            ):
                raise
            try:
                return await self._start(place, missing.hint)
            except KernelError:
                # none for that Python, or not with what else the project holds
                raise missing from None

    async def _start(self, place: LaunchConfig, lacks: str = "") -> KernelClient:
        """Start it: on stepper's own copy of ipykernel where the interpreter lacks one, which `lacks` would add."""
        began = time.monotonic()
        name, spec = uuid.uuid4().hex, None
        if place.backend is not None:
            from stepper.kernels.backends.local import kernelspecs
            from stepper.policy.kernel_config import KernelspecSettings

            # the others' kernels are not local
            assert isinstance(place.backend.settings, KernelspecSettings)
            spec = kernelspecs.named(
                place.backend.settings.kernelspec, place.environ, place.python
            )
        # On record before it is there: what a daemon that dies now leaves behind is
        # found by the kernel's id.
        try:
            self.files.note({"kernel": name})
            # Written at its end, wherever that is: the daemon cuts it where it grows.
            stderr = open(self.files.stderr, "ab", opener=private_files.open_private)  # noqa: SIM115
            stderr.truncate(0)
            os.close(
                private_files.open_private(
                    str(self.files.stack), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                )
            )
        except OSError as error:
            why = f"the kernel's record can't be written: {error.strerror}"
            raise KernelError(why, getattr(error, "hint", "")) from error
        with stderr:
            try:
                child, connection = launch.launch(
                    place,
                    name,
                    self.runtime,
                    stderr,
                    place.bundled_ipykernel if lacks else "",
                    spec,
                )
                identity = Identity.of(child.pid)
                python = (
                    str(child.args[0])
                    if spec and isinstance(child.args, list)
                    else place.python
                )
                told = {
                    "kernel": name,
                    "python": python,
                    "connection": connection,
                    "lacks": lacks,
                }
                if spec:
                    told["interrupt"] = spec.interrupt_mode
                told["provisioner"] = asdict(identity)
                kernel = self._live(told, identity, child)
            except BaseException as error:
                await self._clear(name)
                if isinstance(error, OSError):
                    why = f"the kernel can't be started: {error.filename or place.python}: {error.strerror}"
                    raise KernelError(why, getattr(error, "hint", "")) from error
                raise
        try:
            log.info(
                "kernel start: process %d launched after %.2f s",
                child.pid,
                time.monotonic() - began,
            )
            await kernel.connect(START_SECONDS)
            os.truncate(self.files.stderr, 0)  # of ipykernel's greeting
            self.files.note(told)
            for path in Path(self.runtime).glob(f"{Path(connection['ip']).name}-*"):
                # the folder is the user's alone; so is what the kernel has bound in it
                path.chmod(0o600)
        except BaseException:
            await kernel.shutdown()
            raise
        return kernel

    def _live(
        self,
        told: dict[str, Any],
        identity: Identity,
        child: Popen[bytes] | None = None,
    ) -> KernelClient:
        from stepper.kernels.backends.local.local_process import LocalProcess
        from stepper.kernels.client import KernelClient

        return KernelClient(
            LocalProcess(told, identity, child, self.files, self.runtime),
            self.parts,
            self.runtime,
        )

    async def _clear(self, kernel: str) -> None:
        """End what there is of a kernel that never came to be, and forget it."""
        await asyncio.to_thread(process_identity.clear, kernel)
        launch.clear_files(self.runtime, kernel)
        self.files.forget()

    async def cancel_request(self) -> None:
        """Nothing: a kernel here is there, or none was asked for."""

    def _is_ours(
        self, kernel: str, connection: Mapping[str, Any], identity: Identity
    ) -> bool:
        """Whether what a record names is a kernel's of this project: by its sockets, or its process, which has ports.

        Where that is gone there is nobody to talk with.
        """
        if connection["transport"] == "ipc":
            return bool(connection["ip"] == launch.socket_path(self.runtime, kernel))
        if (connection["transport"], connection["ip"]) != ("tcp", "127.0.0.1"):
            return False
        return not identity.alive() or process_identity.holds(identity.pid, kernel)

    async def attach(self) -> KernelClient | Death | None:
        """Return the kernel that a former daemon left, or how it ended; None where there was none. Asks it nothing."""
        try:
            told = json.loads(private_files.read(str(self.files.record)))
            told["kernel"] = uuid.UUID(told["kernel"]).hex
            # its daemon died while it started it: nothing has run in it
            if "connection" not in told:
                await self._clear(told["kernel"])
                return None
            identity = Identity.recorded(told["provisioner"])
            if not self._is_ours(told["kernel"], told["connection"], identity):
                raise ValueError(
                    "it names sockets that are not in this project's folder: no kernel of ours"
                )
            kernel = self._live(told, identity)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return Death(f"the record {self.files.record} can't be read: {error}")
        death = await kernel.check_death()
        if death is not None:
            await kernel.shutdown()
        return death or kernel
