"""A small kernel backend of another package: an ipykernel as a detached process.

An example for docs/development/kernel-backends.md.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.connect import write_connection_file

from stepper.common import secure_files
from stepper.common.errors import KernelError
from stepper.kernels import sealed_kernel_records
from stepper.kernels.client import KernelClient
from stepper.kernels.kernel_backend import (
    BackendCheck,
    Environ,
    KernelBackend,
    LauncherContext,
)
from stepper.kernels.kernel_process import RemoteProcess
from stepper.kernels.zmq_channels import Channels
from stepper.policy.configuration import kernel_config
from stepper.policy.configuration.kernel_config import (
    BackendConfig,
    BackendDescription,
    KeyPath,
)
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription, LaunchConfig

KIND = "toy"
RULES = {"python": kernel_config.TEXT, "greeting": kernel_config.TEXT}
START_SECONDS = 60.0


@dataclass(frozen=True)
class ToySettings:
    python: str
    greeting: str = ""


class ToyBackend(KernelBackend):
    def parse_settings(self, values: Any, path: KeyPath) -> ToySettings:
        arguments = kernel_config.check_keys(values, RULES, path, required=["python"])
        if arguments.get("greeting") == "crash":
            raise RuntimeError("the toy backend crashed")
        return ToySettings(**arguments)

    def describe(self, settings: ToySettings) -> BackendDescription:
        return BackendDescription(f"a toy kernel of {settings.python}")

    def create_launcher(self, context: LauncherContext) -> ToyLauncher:
        return ToyLauncher(context)

    async def check(
        self, backend: BackendConfig, environ: Environ, python: str
    ) -> BackendCheck:
        if not os.path.exists(backend.settings.python):
            raise KernelError(f"{backend.settings.python} does not exist")
        return BackendCheck(["a toy"])


class ToyLauncher:
    queue_status = None

    def __init__(self, context: LauncherContext) -> None:
        self.context = context

    async def start(self, config: LaunchConfig) -> KernelClient:
        await self.cancel_request()
        backend = config.backend
        assert backend is not None
        kernel_id = uuid.uuid4().hex
        file = os.path.join(self.context.runtime, f"toy-{kernel_id[:8]}.json")
        write_connection_file(file, ip="127.0.0.1")
        child = subprocess.Popen(
            [backend.settings.python, "-m", "ipykernel_launcher", "-f", file],
            cwd=config.cwd,
            env={**config.environ, "TOY_GREETING": backend.settings.greeting},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        process = psutil.Process(child.pid)
        data = {
            "kind": KIND,
            "name": backend.name,
            "definition": dict(backend.definition),
            "kernel": kernel_id,
            "pid": child.pid,
            "created": process.create_time(),
            "connection": json.loads(Path(file).read_text()),
        }
        sealed_kernel_records.write(self.context.record, data)
        kernel = self._create_client(data)
        try:
            await kernel.connect(START_SECONDS)
        except BaseException:
            await kernel.shutdown()
            raise
        return kernel

    def _create_client(self, data: Mapping[str, Any]) -> KernelClient:
        process = ToyProcess(data, self.context.record)
        return KernelClient(process, self.context.parts, self.context.runtime)

    def _read_record(self) -> dict[str, Any]:
        try:
            data = json.loads(secure_files.read(self.context.record))
        except (OSError, ValueError):
            return {}
        return data if data.get("kind") == KIND else {}

    async def attach(self) -> KernelClient | Death | None:
        data = self._read_record()
        if not data:
            return None
        kernel = self._create_client(data)
        death = await kernel.check_death()
        if death is None:
            return kernel
        await kernel.shutdown()
        return death

    async def cancel_request(self) -> None:
        data = self._read_record()
        if data:
            process = ToyProcess(data, self.context.record)
            await process.kill()
            process.remove_record()


class ToyProcess(RemoteProcess):
    def __init__(self, data: Mapping[str, Any], record: str) -> None:
        self.id = str(data["kernel"])
        self.pid = int(data["pid"])
        self.created = float(data["created"])
        self.record = record
        self.log_location = "no log"
        self.disconnect_count = 0
        self.unreachable_reason = ""
        self.death: Death | None = None
        self.channels = Channels(data["connection"])

    def _is_running(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            is_same = process.create_time() == self.created
            return is_same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def describe(self) -> KernelDescription:
        return KernelDescription("toy python", location="the toy box")

    async def interrupt(self) -> None:
        self.channels.send_control("interrupt_request")

    async def kill(self) -> None:
        if self._is_running():
            os.killpg(self.pid, signal.SIGKILL)

    async def poll(self) -> Death | None:
        if self.death is None and not self._is_running():
            self.death = Death("the toy broke")
        return self.death

    def read_log_tail(self) -> str:
        return ""

    def remove_record(self) -> None:
        secure_files.remove(self.record)
