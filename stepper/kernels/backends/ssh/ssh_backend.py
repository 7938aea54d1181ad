"""The kernel provider `ssh`: a kernel is started on a host, or found again by its record and reached anew."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import time
import uuid
from collections.abc import Mapping
from typing import Any

import zmq

from stepper.common import private_files
from stepper.common.errors import KernelError
from stepper.kernels import kernel_records
from stepper.kernels.backends.ssh import ssh_errors
from stepper.kernels.backends.ssh.remote_launcher import CHANNELS
from stepper.kernels.backends.ssh.ssh_connection import Link
from stepper.kernels.backends.ssh.ssh_process import SshProcess
from stepper.kernels.client import KernelClient
from stepper.policy import kernel_config
from stepper.policy.kernel_config import BackendConfig, SshSettings
from stepper.policy.model import Death
from stepper.session.protocols import LaunchConfig, QueueStatus

START_SECONDS = 60.0


class SshKernels:
    """One notebook's kernel, kept in `record` for the next daemon; the sockets to it lie in `runtime`."""

    queue_status: QueueStatus | None = None  # it waits in no queue

    # only read
    def __init__(
        self, record: str, runtime: str, parts: Mapping[str, str] = {}
    ) -> None:
        self.record, self.runtime, self.parts = record, runtime, parts

    def _link(self, place: BackendConfig, kernel: str) -> Link:
        assert isinstance(
            place.settings, SshSettings
        )  # whoever hands it in goes by its kind
        sockets = os.path.join(self.runtime, f"k{kernel[:8]}")
        return Link(place.settings, f"{sockets}.ssh", sockets)

    async def start(self, place: LaunchConfig) -> KernelClient:
        """Start a kernel and return it when it is ready; raise KernelError."""
        assert place.backend is not None and isinstance(
            place.backend.settings, SshSettings
        )
        await self.cancel_request()
        name, key = uuid.uuid4().hex, secrets.token_hex(32)
        link = self._link(place.backend, name)
        public, secret = zmq.curve_keypair()
        curve = {"curve_publickey": public.decode(), "curve_secretkey": secret.decode()}
        said = await link.ask(
            "start",
            {
                "kernel": name,
                "key": key,
                "curve": curve,
                "folder": place.backend.settings.folder,
            },
        )
        if "pid" not in said:
            python, host = (
                said.get("python", place.backend.settings.python),
                place.backend.settings.host,
            )
            if "lacks" in said:
                raise _lacks(
                    place.backend.settings,
                    python,
                    said.get("installer", ""),
                    f": {said['lacks']}",
                )
            raise KernelError(f"{host}: {said.get('error', 'it says nothing')}")
        connection: dict[str, Any] = {
            f"{channel}_port": number for number, channel in enumerate(CHANNELS, 1)
        }
        connection |= {
            "transport": "ipc",
            "ip": link.sockets,
            "key": key,
            "signature_scheme": "hmac-sha256",
        }
        connection |= curve if said["encrypts"] else {}
        told = {
            "kind": "ssh",
            "name": place.backend.name,
            "definition": dict(place.backend.definition),
            "kernel": name,
            "pid": said["pid"],
            "python": said["python"],
            "stack": said["stack"],
            "connection": connection,
            "boot": said["boot"],
            "ports": [said["ports"][f"{channel}_port"] for channel in CHANNELS],
        }
        kernel_records.write(self.record, told)  # before anybody waits for it
        kernel = KernelClient(
            SshProcess(told, link, self.record), self.parts, self.runtime
        )
        try:
            await link.open(told["ports"])
            await kernel.connect(START_SECONDS)
        except BaseException:
            with contextlib.suppress(KernelError):  # what went wrong first is told
                await kernel.shutdown()
            raise
        return kernel

    async def cancel_request(self) -> None:
        """End the kernel on record; raise KernelError, once, where it can't be reached: then it is let go."""
        try:
            told = json.loads(private_files.read(self.record))
            place = kernel_config.parse_backends({told["name"]: told["definition"]})[
                told["name"]
            ]
            process = SshProcess(
                told, self._link(place, uuid.UUID(told["kernel"]).hex), self.record
            )
        except (OSError, ValueError, KeyError, TypeError):
            return
        try:
            await process.kill()
        except KernelError:
            if not told.get("ending"):
                raise
            process.left = False
        process.forget()

    async def attach(self) -> KernelClient | Death | None:
        """Return the kernel that a former daemon left, or how it ended; None where there was none. Asks it nothing."""
        try:
            told = json.loads(private_files.read(self.record))
            place = kernel_config.parse_backends({told["name"]: told["definition"]})[
                told["name"]
            ]
            told["kernel"] = uuid.UUID(told["kernel"]).hex
            link = self._link(place, told["kernel"])
            if told["connection"]["ip"] != link.sockets:
                raise ValueError(
                    "it names sockets that are not in this project's folder"
                )
            process, ports = (
                SshProcess(told, link, self.record),
                [int(port) for port in told["ports"]],
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return Death(f"the record {self.record} can't be read: {error}")
        if told.get("ending"):  # whoever starts the next one has it ended
            return None
        process.looked_at = 0.0
        await link.resume(ports)
        process.sign_at = time.monotonic()
        return KernelClient(process, self.parts, self.runtime)


async def look(place: BackendConfig) -> list[str]:
    """Return what the host offers; raise KernelError where it can't be reached, or takes no kernel."""
    assert isinstance(place.settings, SshSettings)
    said = await Link(place.settings, "none", "").ask("about", {})
    if not said["ipykernel"]:
        raise _lacks(place.settings, said["python"], said["installer"])
    return [
        f"Python {said['version']} ({said['python']}), ipykernel {said['ipykernel']}"
    ]


def _lacks(
    where: SshSettings, python: str, installer: str, why: str = ""
) -> KernelError:
    ssh, quoted = ssh_errors.ssh(where), shlex.quote(python)
    by_pip = f"{ssh} {quoted} -m pip install ipykernel"
    commands = {
        "pip": by_pip,
        "uv": f"{ssh} uv pip install --python {quoted} ipykernel",
        "ensurepip": f"{ssh} {quoted} -m ensurepip && {by_pip}",
    }
    mend = commands.get(installer, "")
    return KernelError(f"{python} on {where.host} lacks ipykernel{why}", mend)
