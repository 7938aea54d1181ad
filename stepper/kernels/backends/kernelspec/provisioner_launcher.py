"""The launcher for kernels that a kernel provisioner of jupyter_client starts.

The record contains the result of the provisioner's `get_provisioner_info`. The next
daemon passes it to `load_provisioner_info` to restore the provisioner.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager

from stepper.common import secure_files
from stepper.common.errors import KernelError, KernelStartError
from stepper.common.text import one_line
from stepper.kernels import sealed_kernel_records
from stepper.kernels.backends.kernelspec import provisioner_manager
from stepper.kernels.backends.kernelspec.kernelspec_settings import KIND
from stepper.kernels.backends.kernelspec.kernelspecs import Kernelspec
from stepper.kernels.backends.kernelspec.provisioner_process import ProvisionerProcess
from stepper.kernels.backends.local import kernel_command, process_identity
from stepper.kernels.client import KernelClient
from stepper.policy.model import Death
from stepper.session.protocols import LaunchConfig, QueueStatus

READY_SECONDS = 60.0
# How long a cancelled start may take to finish, so that its kernel can be stopped.
CANCEL_SECONDS = 5.0
QUEUE_SECONDS = 5.0  # after which a start is reported as waiting


class ProvisionerLauncher:
    """Starts and finds the kernel of one notebook.

    `record` is the path of the kernel's record, and `runtime` the folder of connection
    files. `parts` maps each module that the helper in the kernel may load to its
    package.
    """

    def __init__(self, record: str, runtime: str, parts: Mapping[str, str]) -> None:
        self.record = record
        self.runtime = runtime
        self.parts = parts
        self.provisioner_name = ""
        self.launched_at = 0.0  # 0 unless the provisioner is starting a kernel

    @property
    def queue_status(self) -> QueueStatus | None:
        """The queue status of a start that takes longer than QUEUE_SECONDS, or None.

        A provisioner may need minutes.
        """
        if not self.launched_at:
            return None
        if time.monotonic() < self.launched_at + QUEUE_SECONDS:
            return None
        return QueueStatus(
            f"the provisioner {self.provisioner_name} is starting the kernel",
            self.launched_at,
            None,
            until="the kernel starts",
            request="kernel request",
        )

    async def start(self, config: LaunchConfig, kernelspec: Kernelspec) -> KernelClient:
        """Start a kernel and return it when it is ready.

        Raise KernelError if the kernel cannot be started.
        """
        provisioner_manager.check_provisioner(kernelspec)
        self.provisioner_name = kernelspec.provisioner
        data = _create_record(config, kernelspec)
        kernel_id = data["kernel"]
        spec = provisioner_manager.read_spec(kernelspec, config.python)
        connection_file = kernel_command.get_connection_file(self.runtime, kernel_id)
        manager = provisioner_manager.create_manager(spec, kernel_id, connection_file)
        # The record is written before the start: if this daemon exits during the start,
        # the next daemon stops the kernel.
        sealed_kernel_records.save(self.record, data)
        try:
            await self._launch_and_record(manager, config, data)
        except BaseException as error:
            await self._abandon(manager, data)
            if isinstance(error, KernelError) or not isinstance(error, Exception):
                raise
            reason = one_line(f"{type(error).__name__}: {error}", 500)
            raise KernelStartError(
                f"the provisioner {kernelspec.provisioner} did not start the kernel:"
                f" {reason}"
            ) from error
        process = ProvisionerProcess(data, manager, self.record)
        kernel = KernelClient(process, self.parts, self.runtime)
        try:
            await kernel.connect(READY_SECONDS)
        except BaseException:
            with contextlib.suppress(KernelError):  # report the first error
                await kernel.shutdown()
            raise
        return kernel

    async def _launch_and_record(
        self, manager: AsyncKernelManager, config: LaunchConfig, data: dict[str, Any]
    ) -> None:
        """Start the kernel, and add its connection and provisioner to the record."""
        await self._launch(manager, config, data["kernel"])
        provisioner = manager.provisioner
        assert provisioner is not None
        data["connection"] = provisioner_manager.get_connection(manager)
        info = await provisioner.get_provisioner_info()
        data["provisioner_info"] = provisioner_manager.convert_to_json_value(info)
        sealed_kernel_records.save(self.record, data)

    async def _launch(
        self, manager: AsyncKernelManager, config: LaunchConfig, kernel_id: str
    ) -> None:
        """Let the provisioner start the kernel.

        If the start is cancelled, wait up to CANCEL_SECONDS for the provisioner, so
        that the kernel can be stopped.
        """
        environ = kernel_command.remove_foreign_variables(config.environ)
        environ[process_identity.MARKER] = kernel_id
        stderr_file = str(Path(self.record).with_suffix(".stderr"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        stderr = secure_files.open_private(stderr_file, flags)
        self.launched_at = time.monotonic()
        try:
            start = asyncio.ensure_future(
                manager.start_kernel(
                    cwd=config.cwd,
                    env=environ,
                    # An independent kernel keeps running when the daemon exits.
                    independent=not config.exits_with_daemon,
                    stdout=stderr,
                    stderr=stderr,
                )
            )
            try:
                await asyncio.shield(start)
            except asyncio.CancelledError:
                await asyncio.wait({start}, timeout=CANCEL_SECONDS)
                start.cancel()
                await asyncio.wait({start})
                raise
        finally:
            self.launched_at = 0.0
            os.close(stderr)

    async def _abandon(
        self, manager: AsyncKernelManager, data: Mapping[str, Any]
    ) -> None:
        """Stop a kernel whose start failed, and remove its record.

        Raise KernelError and keep the record if the kernel may still be running.
        """
        provisioner = manager.provisioner
        try:
            if provisioner is not None:
                if provisioner.has_process:
                    await provisioner.kill()
                    await provisioner.wait()
                await provisioner.cleanup()
        except Exception as error:
            reason = one_line(f"{type(error).__name__}: {error}", 300)
            raise KernelError(
                f"the provisioner {data['provisioner_name']} did not stop the kernel"
                f" {data['kernel']}, which may still be running: {reason}"
            ) from error
        finally:
            kernel_id = str(data["kernel"])
            await asyncio.to_thread(process_identity.kill_kernel_processes, kernel_id)
            provisioner_manager.remove_connection_file(manager)
        secure_files.remove(self.record)

    def _read_record(self) -> dict[str, Any]:
        """Return the content of the record.

        Raise OSError or ValueError if the record cannot be read.
        """
        data = json.loads(secure_files.read(self.record))
        if not isinstance(data, dict):
            raise ValueError("its content is not a JSON object")
        return data

    async def _restore(self, data: Mapping[str, Any]) -> ProvisionerProcess:
        """Return the process of the recorded kernel.

        Raise KernelError if the provisioner cannot be restored.
        """
        try:
            # `read_spec` reads the other fields from the folder.
            kernelspec = Kernelspec(
                str(data["kernelspec"]),
                str(data["folder"]),
                argv=(),
                language="",
                display_name="",
            )
            spec = provisioner_manager.read_spec(kernelspec, str(data["python"]))
            connection_file = kernel_command.get_connection_file(
                self.runtime, str(data["kernel"])
            )
            manager = await provisioner_manager.restore_manager(
                spec, data, connection_file
            )
            return ProvisionerProcess(data, manager, self.record)
        except Exception as error:
            reason = one_line(f"{type(error).__name__}: {error}", 300)
            raise KernelError(
                f"stepper cannot reconnect to kernel {data.get('kernel')} of the"
                f" provisioner {data.get('provisioner_name')} (the kernel may still be"
                f" running): {reason}"
            ) from error

    async def attach(self) -> KernelClient | Death | None:
        """Return the kernel that an earlier daemon started.

        Return how the kernel died if it is dead, a Death with the reason if stepper
        cannot reconnect to it, or None if there is no started kernel. No request is
        sent to the kernel.
        """
        try:
            data = self._read_record()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            return Death(f"the kernel record {self.record} is not valid: {error}")
        if data.get("ending"):
            return None  # the next start stops the kernel
        if "connection" not in data:
            return await self._remove_unfinished_start(data)
        try:
            process = await self._restore(data)
        except KernelError as error:
            return Death(error.message)
        kernel = KernelClient(process, self.parts, self.runtime)
        death = await kernel.check_death()
        if death is None:
            return kernel
        with contextlib.suppress(KernelError):
            await kernel.shutdown()
        return death

    async def _remove_unfinished_start(self, data: Mapping[str, Any]) -> Death | None:
        """Kill the kernel that an earlier daemon was starting, and remove its record.

        Return None if a process was found and killed. Otherwise, return a Death that
        says that the kernel may still be running.
        """
        kernel_id = str(data["kernel"])
        killed_count = await asyncio.to_thread(
            process_identity.kill_kernel_processes, kernel_id
        )
        secure_files.remove(self.record)
        if killed_count:
            return None
        provisioner_name = data.get("provisioner_name")
        return Death(
            f"the daemon exited while the provisioner {provisioner_name} was starting"
            f" the kernel {kernel_id}, which may be running"
        )

    async def cancel_request(self) -> None:
        """Stop the recorded kernel and remove its record.

        Raise KernelError if the kernel may still be running. The record of a started
        kernel then remains, and the next call tries again. If the second attempt fails,
        the record is removed without an error.
        """
        try:
            data = self._read_record()
        except (OSError, ValueError):
            return
        if data.get("kind") != KIND:
            return
        if "connection" not in data:
            death = await self._remove_unfinished_start(data)
            if death is not None:
                raise KernelError(death.reason)
            return
        try:
            process = await self._restore(data)
            await process.kill()
        except KernelError:
            if data.get("ending"):
                secure_files.remove(self.record)
                return
            sealed_kernel_records.save(self.record, {**data, "ending": True})
            raise
        process.remove_record()


def _create_record(config: LaunchConfig, kernelspec: Kernelspec) -> dict[str, Any]:
    """Return the record of a new kernel before its start."""
    assert config.backend is not None
    return {
        "kind": KIND,
        "name": config.backend.name,
        "definition": dict(config.backend.definition),
        "kernel": str(uuid.uuid4()),
        "kernelspec": kernelspec.name,
        "folder": kernelspec.folder,
        "python": config.python,
        "provisioner_name": kernelspec.provisioner,
    }
