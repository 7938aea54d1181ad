"""The kernel provider `local`, through jupyter_client: kernels are detached and can be attached to again."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import uuid
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.provisioning import KernelProvisionerFactory

from stepper import private
from stepper.adapters import process
from stepper.adapters.kernel import Files, LocalKernel
from stepper.errors import KernelError
from stepper.ports import Death, KernelPlace

START_SECONDS = 60.0
# As `-m ipykernel_launcher`, which would take that and what it needs from the notebook's own folder, where a stranger
# may have put modules of those names. What the launcher starts puts the folder on the path for the cells.
LAUNCH = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); import runpy;"
    " runpy.run_module('ipykernel_launcher', run_name='__main__', alter_sys=True)"
)
SPEC = {"kernel_provisioner": {"provisioner_name": "stepper-local"}}


class OneSpec(KernelSpecManager):
    """A kernel spec manager that knows the project's own interpreter and nothing else."""

    def __init__(self, python: str) -> None:
        super().__init__()
        # No history file: on network homes its lock hangs kernels, and an agent's cells are no person's history.
        arguments = [
            "-c",
            LAUNCH,
            "-f",
            "{connection_file}",
            "--HistoryManager.hist_file=:memory:",
        ]
        self.spec = KernelSpec(argv=[python, *arguments], display_name="Python 3", language="python", metadata=SPEC)

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return the project's spec, whatever the name."""
        return self.spec


@functools.cache
def sockets() -> zmq.asyncio.Context:
    """Return the ZeroMQ context of all kernels: each has threads and descriptors of its own."""
    return zmq.asyncio.Context()


class Manager(AsyncKernelManager):
    """A manager without a control socket: kernels are interrupted and ended by signals."""

    def _connect_control_socket(self) -> None:
        pass


class LocalKernels:
    """The kernel provider `local`: one notebook's kernel, kept in `record` for the next daemon."""

    def __init__(self, record: str, runtime: str) -> None:
        self.files = Files.beside(record)
        self.runtime = runtime

    def _manager(self, python: str) -> AsyncKernelManager:
        return Manager(kernel_spec_manager=OneSpec(python), transport="ipc", context=sockets())

    async def start(self, place: KernelPlace) -> LocalKernel:
        """Start a kernel and return it when it is ready; raise KernelError with what it wrote to stderr."""
        manager = self._manager(place.python)
        manager.kernel_id = uuid.uuid4().hex
        # A file of its own for each kernel: a manager that is collected later removes the one it wrote.
        manager.ip = str(Path(self.runtime) / f"k{manager.kernel_id[:8]}")
        manager.connection_file = manager.ip + ".json"
        # On record before it is there: what a daemon that dies now leaves behind is found by the kernel's id.
        try:
            self.files.note({"kernel": manager.kernel_id})
            stderr = open(self.files.stderr, "wb", opener=private.opened)  # noqa: SIM115
            os.close(private.opened(str(self.files.stack), os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        except OSError as error:
            why = f"the kernel's record can't be written: {error.strerror}"
            raise KernelError(why, getattr(error, "hint", "")) from error
        with stderr:
            try:
                # independent: the kernel must live on when the daemon dies
                await manager.start_kernel(
                    independent=True,
                    cwd=place.cwd,
                    env={**place.environ, process.MARKER: manager.kernel_id},
                    stdout=stderr,
                    stderr=stderr,
                )
            except BaseException as error:
                await self._clear(manager.kernel_id)
                if isinstance(error, OSError):
                    raise KernelError(f"{place.python} can't be started: {error.strerror}") from error
                raise
        kernel = LocalKernel(manager, self.files, place.python)
        try:
            await kernel.connect(START_SECONDS)
            assert manager.provisioner is not None
            kernel.banner = self.files.stderr.stat().st_size
            self.files.note(
                {
                    "kernel": kernel.id,
                    "python": place.python,
                    "connection": manager.get_connection_info(),
                    "provisioner": await manager.provisioner.get_provisioner_info(),
                    "banner": kernel.banner,
                }
            )
            manager.cleanup_connection_file()  # the kernel has read it, the record holds it
            for path in Path(self.runtime).glob(f"k{kernel.id[:8]}-*"):
                path.chmod(0o600)  # the folder is the user's alone; so is what the kernel has bound in it
        except BaseException:
            await kernel.shutdown()
            raise
        return kernel

    async def _clear(self, kernel: str) -> None:
        """End what there is of a kernel that never came to be, and forget it."""
        await asyncio.to_thread(process.clear, kernel)
        for path in Path(self.runtime).glob(f"k{kernel[:8]}*"):
            path.unlink(missing_ok=True)
        self.files.forget()

    async def attach(self) -> LocalKernel | Death | None:
        """Return the kernel that a former daemon left, or how it ended; None where there was none. Asks it nothing."""
        try:
            told = json.loads(private.read(str(self.files.record)))
            if "connection" not in told:  # its daemon died while it started it: nothing has run in it
                await self._clear(uuid.UUID(told["kernel"]).hex)
                return None
            kernel = await self._taken_over(told)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return Death(f"the record {self.files.record} can't be read: {error}")
        death = await kernel.death()
        if death is not None:
            await kernel.shutdown()
        return death or kernel

    async def _taken_over(self, told: dict[str, Any]) -> LocalKernel:
        """Return the kernel that a record tells of, not connected; raise KeyError, TypeError or ValueError."""
        manager = self._manager(told["python"])
        manager.kernel_id = uuid.UUID(told["kernel"]).hex
        ip = str(Path(self.runtime) / f"k{manager.kernel_id[:8]}")
        if (told["connection"]["transport"], told["connection"]["ip"]) != ("ipc", ip):
            raise ValueError("it names sockets that are not in this project's folder: no kernel that was started here")
        connection: Any = {**told["connection"], "key": told["connection"]["key"].encode()}
        manager.load_connection_info(connection)
        manager.provisioner = KernelProvisionerFactory.instance().create_provisioner_instance(
            manager.kernel_id, manager.kernel_spec, parent=manager
        )
        await manager.provisioner.load_provisioner_info(told["provisioner"])
        kernel = LocalKernel(manager, self.files, told["python"])
        kernel.banner = int(told["banner"])
        return kernel
