"""The launcher for kernels on a remote host that is reached with `ssh`."""

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

from stepper.common import secure_files
from stepper.common.errors import KernelError
from stepper.kernels import sealed_kernel_records
from stepper.kernels.backends.ssh import ssh_errors, ssh_settings
from stepper.kernels.backends.ssh.remote_launcher import CHANNELS
from stepper.kernels.backends.ssh.ssh_connection import SshConnection
from stepper.kernels.backends.ssh.ssh_process import SshProcess
from stepper.kernels.backends.ssh.ssh_settings import KIND, SshSettings
from stepper.kernels.client import KernelClient
from stepper.policy.configuration.kernel_config import BackendConfig
from stepper.policy.model import Death
from stepper.session.protocols import LaunchConfig, QueueStatus

START_SECONDS = 60.0


class SshLauncher:
    """Starts and finds the kernel of one notebook.

    `record` is the path of the kernel's record, and `runtime` the folder of sockets.
    `parts` maps each module that the helper in the kernel may load to its package.
    """

    queue_status: QueueStatus | None = None  # ssh has no queue

    def __init__(self, record: str, runtime: str, parts: Mapping[str, str]) -> None:
        self.record = record
        self.runtime = runtime
        self.parts = parts

    def _create_connection(
        self, settings: SshSettings, kernel_id: str
    ) -> SshConnection:
        """Return a connection for the sockets of a kernel, without opening it."""
        sockets = os.path.join(self.runtime, f"k{kernel_id[:8]}")
        return SshConnection(settings, f"{sockets}.ssh", sockets)

    async def start(self, config: LaunchConfig) -> KernelClient:
        """Start a kernel and return it when it is ready.

        Raise KernelError if the kernel cannot be started or reached.
        """
        backend = config.backend
        assert backend is not None
        settings = backend.settings
        assert isinstance(settings, SshSettings)
        await self.cancel_request()
        kernel_id = uuid.uuid4().hex
        key = secrets.token_hex(32)
        curve_keys = _create_curve_keys()
        link = self._create_connection(settings, kernel_id)
        request = {
            "kernel": kernel_id,
            "key": key,
            "curve": curve_keys,
            "folder": settings.folder,
        }
        response = await link.send_request("start", request)
        if "pid" not in response:
            raise _create_start_error(settings, response)
        connection = _build_connection(link.sockets, key)
        if response["encrypts"]:
            connection.update(curve_keys)
        data = _build_record(backend, kernel_id, connection, response)
        process = SshProcess(data, link, self.record)
        kernel = KernelClient(process, self.parts, self.runtime)
        try:
            # If this daemon exits now, the next daemon finds the kernel.
            sealed_kernel_records.save(self.record, data)
            await link.open(data["ports"])
            await kernel.connect(START_SECONDS)
        except BaseException:
            with contextlib.suppress(KernelError):  # report the first error
                await kernel.shutdown()
            raise
        return kernel

    async def cancel_request(self) -> None:
        """Kill the recorded kernel and remove its record.

        Do nothing if there is no valid record. Raise KernelError if the first attempt
        to kill the kernel fails. If the second attempt also fails, the record is
        removed without an error.
        """
        try:
            data = json.loads(secure_files.read(self.record))
            settings = _parse_settings(data)
            link = self._create_connection(settings, uuid.UUID(data["kernel"]).hex)
            process = SshProcess(data, link, self.record)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return
        try:
            await process.kill()
        except KernelError:
            if not data.get("ending"):
                raise
            process.may_be_running = False
        process.remove_record()

    async def attach(self) -> KernelClient | Death | None:
        """Return the kernel that an earlier daemon started.

        Return a Death if the record is not valid, or None if there is no kernel to
        reconnect to. No request is sent to the kernel.
        """
        try:
            data = json.loads(secure_files.read(self.record))
            settings = _parse_settings(data)
            data["kernel"] = uuid.UUID(data["kernel"]).hex
            link = self._create_connection(settings, data["kernel"])
            if data["connection"]["ip"] != link.sockets:
                raise ValueError(
                    "the kernel's sockets are not in this project's folder"
                )
            process = SshProcess(data, link, self.record)
            ports = [int(port) for port in data["ports"]]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return Death(f"the kernel record {self.record} is not valid: {error}")
        if data.get("ending"):
            return None  # the next start kills the kernel
        process.checked_at = 0.0
        await link.resume(ports)
        process.last_sign_at = time.monotonic()
        return KernelClient(process, self.parts, self.runtime)


def _create_curve_keys() -> dict[str, str]:
    """Return a new pair of CurveZMQ keys, as fields of a connection file."""
    public_key, secret_key = zmq.curve_keypair()
    return {
        "curve_publickey": public_key.decode(),
        "curve_secretkey": secret_key.decode(),
    }


def _build_connection(sockets: str, key: str) -> dict[str, Any]:
    """Return the connection fields for the local sockets of forwarded ports.

    `sockets` is the prefix of the socket paths, and `key` signs the messages.
    """
    ports = {f"{channel}_port": number for number, channel in enumerate(CHANNELS, 1)}
    return {
        **ports,
        "transport": "ipc",
        "ip": sockets,
        "key": key,
        "signature_scheme": "hmac-sha256",
    }


def _build_record(
    backend: BackendConfig,
    kernel_id: str,
    connection: Mapping[str, Any],
    response: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the record of a kernel.

    `response` is the response of the remote launcher that has started the kernel.
    """
    ports = [response["ports"][f"{channel}_port"] for channel in CHANNELS]
    return {
        "kind": KIND,
        "name": backend.name,
        "definition": dict(backend.definition),
        "kernel": kernel_id,
        "pid": response["pid"],
        "python": response["python"],
        "stack": response["stack"],
        "connection": connection,
        "boot": response["boot"],
        "ports": ports,
    }


def _parse_settings(data: Mapping[str, Any]) -> SshSettings:
    """Return the settings in a record.

    Raise ValueError, KeyError or TypeError if they are not valid.
    """
    return ssh_settings.parse_settings(data["definition"][KIND], (KIND,))


async def check_host(settings: SshSettings) -> list[str]:
    """Check that the host can start kernels, and return a description of its Python.

    Raise KernelError if the host cannot be reached or lacks ipykernel.
    """
    # ssh shares no connection if the path of the control socket is "none".
    link = SshConnection(settings, "none", "")
    response = await link.send_request("describe", {})
    python = response["python"]
    if not response["ipykernel"]:
        raise _create_missing_ipykernel_error(settings, python, response["installer"])
    version = response["version"]
    return [f"Python {version} ({python}), ipykernel {response['ipykernel']}"]


def _create_start_error(
    settings: SshSettings, response: Mapping[str, Any]
) -> KernelError:
    """Return the error for a kernel that the host could not start."""
    if "lacks" in response:
        python = response.get("python", settings.python)
        installer = response.get("installer", "")
        reason = f": {response['lacks']}"
        return _create_missing_ipykernel_error(settings, python, installer, reason)
    message = response.get("error", "the host gave no reason")
    return KernelError(f"could not start a kernel on {settings.host}: {message}")


def _create_missing_ipykernel_error(
    settings: SshSettings, python: str, installer: str, reason: str = ""
) -> KernelError:
    """Return the error for missing ipykernel, with a command that installs it."""
    ssh = ssh_errors.format_ssh_command(settings)
    quoted_python = shlex.quote(python)
    pip = f"{ssh} {quoted_python} -m pip install ipykernel"
    commands = {
        "pip": pip,
        "uv": f"{ssh} uv pip install --python {quoted_python} ipykernel",
        "ensurepip": f"{ssh} {quoted_python} -m ensurepip && {pip}",
    }
    return KernelError(
        f"{python} on {settings.host} does not have ipykernel{reason}",
        commands.get(installer, ""),
    )
