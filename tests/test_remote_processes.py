"""Processes of remote kernels whose host or provisioner fails."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from stepper.common.errors import KernelError
from stepper.kernels.backends.jupyter.websocket_channels import WebsocketChannels
from stepper.kernels.backends.kernelspec import provisioner_process
from stepper.kernels.backends.slurm import batch_job
from stepper.kernels.backends.ssh.ssh_connection import SshConnection
from stepper.kernels.backends.ssh.ssh_process import SshProcess
from stepper.kernels.backends.ssh.ssh_settings import SshSettings
from stepper.kernels.zmq_channels import Channels

CONNECTION = {
    "transport": "ipc",
    "ip": "/nonexistent",
    "key": "k",
    "signature_scheme": "hmac-sha256",
    **{f"{name}_port": 1 for name in ("shell", "iopub", "stdin", "control", "hb")},
}


class SlowProvisioner:
    """A provisioner that needs time to answer and cannot stop its kernel."""

    has_process = True

    async def poll(self) -> int | None:
        await asyncio.sleep(0.01)
        return None

    async def kill(self) -> None:
        raise OSError("no response")


class Manager:
    has_kernel = True
    provisioner = SlowProvisioner()


def create_provisioner_process(record: Path) -> Any:
    data = {
        "kernel": "0" * 32,
        "kernelspec": "slow",
        "provisioner_name": "slow",
        "connection": CONNECTION,
    }
    manager: Any = Manager()
    return provisioner_process.ProvisionerProcess(data, manager, str(record))


def test_several_callers_poll_a_provisioner(tmp_path: Path) -> None:
    async def poll_twice() -> list[Any]:
        process = create_provisioner_process(tmp_path / "kernel.json")
        return await asyncio.gather(process.poll(), process.poll())

    assert asyncio.run(poll_twice()) == [None, None]


def test_cancelled_shutdown_request_closes_its_channels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    class RecordedChannels(Channels):
        def open(self) -> None:
            opened.append(self)
            super().open()

    monkeypatch.setattr(provisioner_process, "Channels", RecordedChannels)
    monkeypatch.setattr(Manager, "has_kernel", False)

    async def stop_without_patience() -> None:
        process = create_provisioner_process(tmp_path / "kernel.json")
        await asyncio.wait_for(process._stop(), 0.5)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(stop_without_patience())
    assert [channels.is_open for channels in opened] == [False]


async def kill_twice(process: Any, record: Path) -> None:
    """Assert that both attempts fail and keep the record."""
    for _ in range(2):
        with pytest.raises(KernelError, match="may still be running"):
            await process.kill()
        process.remove_record()
        assert json.loads(record.read_text())["ending"]


def test_second_failed_attempt_to_stop_a_provisioners_kernel(tmp_path: Path) -> None:
    record = tmp_path / "kernel.json"

    async def kill() -> None:
        await kill_twice(create_provisioner_process(record), record)

    asyncio.run(kill())


def test_second_failed_attempt_to_kill_a_remote_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host cannot be reached, because `ssh` cannot be executed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    record = tmp_path / "kernel.json"

    async def kill() -> None:
        link = SshConnection(SshSettings("box"), str(tmp_path / "c"), str(tmp_path))
        data = {
            "kernel": "0" * 32,
            "pid": 1,
            "python": "python3",
            "stack": "",
            "connection": CONNECTION,
        }
        await kill_twice(SshProcess(data, link, str(record)), record)

    asyncio.run(kill())


def test_job_without_files_leaves_no_files(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.mkfifo(tmp_path / "job.stack")
    with pytest.raises(KernelError, match="could not be written"):
        batch_job.write_files(tmp_path / "job.connection", "")
    assert list(tmp_path.iterdir()) == []


def test_invalid_request_id_does_not_end_a_websocket() -> None:
    server: Any = None  # no request is sent
    channels = WebsocketChannels(server, "0" * 32, "session")
    message = {
        "header": {"session": "kernel"},
        "msg_type": "stream",
        "parent_header": {"session": "session", "msg_id": ["m"]},
        "content": {},
    }
    channels._receive("iopub", message)
    assert list(channels.iopub.take_messages()) == [message]
