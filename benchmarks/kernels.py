"""Kernels without stepper, driven by raw ZeroMQ sockets and by jupyter_client.

They are the lower bounds of a step.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import zmq
from common import BrokenStepError, measure_elapsed_ms
from jupyter_client import AsyncKernelManager

DELIMITER = b"<IDS|MSG>"
# The arguments of stepper's kernels: no history file.
ARGUMENTS = ("-m", "ipykernel_launcher", "--HistoryManager.hist_file=:memory:", "-f")
SILENCE_SECONDS = 60  # after which a kernel counts as hanging
RECONNECT_MS = 5  # between attempts to connect to a kernel that does not listen yet


class RawKernel:
    """A kernel that is driven with raw messages; it is ready after the constructor.

    `address` contains the kernel's transport, ports and CurveZMQ keys; by default it uses
    ipc. `get_client_address` returns the address to which the client connects, which
    differs if the connection is forwarded.
    """

    def __init__(
        self,
        address: Mapping[str, Any] | None = None,
        get_client_address: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="raw-")
        key = secrets.token_hex(16)
        ports = {
            f"{name}_port": n
            for n, name in enumerate(("shell", "iopub", "stdin", "control", "hb"), 1)
        }
        ipc_address = {
            "transport": "ipc",
            "ip": str(Path(self.folder.name, "k")),
            **ports,
        }
        connection_info = {
            "key": key,
            "signature_scheme": "hmac-sha256",
            **(address or ipc_address),
        }
        connection = Path(self.folder.name, "connection.json")
        connection.write_bytes(orjson.dumps(connection_info))
        connection.chmod(0o600)
        self.key, self.session, self.printed = key.encode(), uuid.uuid4().hex, b""
        self.process = subprocess.Popen(
            [sys.executable, *ARGUMENTS, str(connection)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.context = zmq.Context()
        self.shell, self.iopub = (
            self.context.socket(zmq.DEALER),
            self.context.socket(zmq.SUB),
        )
        self.poller = zmq.Poller()
        for socket in (self.shell, self.iopub):
            socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)
            if "curve_publickey" in connection_info:
                socket.curve_serverkey = socket.curve_publickey = connection_info[
                    "curve_publickey"
                ].encode()
                socket.curve_secretkey = connection_info["curve_secretkey"].encode()
            self.poller.register(socket, zmq.POLLIN)
        self.iopub.subscribe(b"")
        client_address = get_client_address(connection_info)
        separator = "-" if client_address["transport"] == "ipc" else ":"
        for socket, name in ((self.shell, "shell_port"), (self.iopub, "iopub_port")):
            socket.connect(
                f"{client_address['transport']}://{client_address['ip']}{separator}{client_address[name]}"
            )
        # Messages before the subscription arrives are lost: repeat the request until
        # its `idle` arrives.
        while not self.wait_for_reply(
            self.send_request("kernel_info_request", {}), idle_timeout_ms=RECONNECT_MS
        ):
            pass

    def send_request(self, kind: str, content: dict[str, Any]) -> str:
        """Send a request on the shell channel; return its id."""
        msg_id = uuid.uuid4().hex
        header = {
            "msg_id": msg_id,
            "msg_type": kind,
            "session": self.session,
            "username": "",
            "version": "5.3",
        }
        header["date"] = "2026-01-01T00:00:00Z"
        parts = [orjson.dumps(part) for part in (header, {}, {}, content)]
        signature = (
            hmac.new(self.key, b"".join(parts), hashlib.sha256).hexdigest().encode()
        )
        self.shell.send_multipart([DELIMITER, signature, *parts])
        return msg_id

    def wait_for_reply(
        self, msg_id: str, idle: bool = True, idle_timeout_ms: int | None = None
    ) -> bool:
        """Wait for a request's reply and its `idle`.

        Return False if `idle` does not arrive within `idle_timeout_ms` after the reply. Raise
        BrokenStepError if the reply is not ok or the kernel exited.
        """
        pending = {"reply", "idle"} if idle else {"reply"}
        deadline = time.monotonic() + SILENCE_SECONDS
        while pending:
            is_timed = idle_timeout_ms is not None and "reply" not in pending
            ready = dict(self.poller.poll(idle_timeout_ms if is_timed else 1000))
            if not ready and is_timed:
                return False
            if not ready and (
                self.process.poll() is not None or time.monotonic() > deadline
            ):
                raise BrokenStepError("a raw kernel exited or does not answer")
            if self.iopub in ready:
                frames = self.iopub.recv_multipart()
                if b"stream" in frames[0]:  # a word may arrive in parts
                    self.printed += frames[-1]
                elif (
                    idle
                    and b'"idle"' in frames[-1]
                    and orjson.loads(frames[-3])["msg_id"] == msg_id
                ):
                    pending.discard("idle")
            if self.shell in ready:
                _, _, _, parent, _, content, *_ = self.shell.recv_multipart()
                if orjson.loads(parent)["msg_id"] == msg_id:
                    pending.discard("reply")
                    if orjson.loads(content)["status"] not in (
                        ("ok",) if idle else ("ok", "error")
                    ):
                        raise BrokenStepError(
                            f"a raw kernel replied: {content[:300]!r}"
                        )
        return True

    def run(self, source: str, idle: bool = True) -> float:
        """Return the milliseconds from a request to its reply and its `idle`.

        Without `idle`, only wait for the reply, and accept an error in the cell. Iopub messages
        are read and discarded.
        """
        content = {
            "code": source,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
        }
        started_at = time.perf_counter()
        self.wait_for_reply(
            self.send_request(
                "execute_request",
                {**content, "allow_stdin": False, "stop_on_error": False},
            ),
            idle,
        )
        return measure_elapsed_ms(started_at)

    def round_trip(self) -> float:
        """Return the milliseconds of printing a word.

        Raise BrokenStepError unless it is printed.
        """
        marker, self.printed = secrets.token_hex(8), b""
        duration_ms = self.run(f"print('{marker}')")
        if marker.encode() not in self.printed:
            raise BrokenStepError(f"a raw kernel printed {self.printed!r}")
        return duration_ms

    def shut_down(self) -> None:
        """Kill the kernel."""
        self.process.kill()
        self.process.wait()
        self.context.destroy(linger=0)
        self.folder.cleanup()


class Kernel:
    """A kernel driven by jupyter_client alone."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.manager = AsyncKernelManager(kernel_name="python3", transport="ipc")
        self.loop.run_until_complete(self.manager.start_kernel())
        self.client = self.manager.client()
        self.client.start_channels()
        self.loop.run_until_complete(self.client.wait_for_ready(timeout=60))

    def round_trip(self) -> float:
        """Return the milliseconds from a request to its `idle` and its reply."""
        started_at = time.perf_counter()
        self.loop.run_until_complete(self._run())
        return measure_elapsed_ms(started_at)

    async def _run(self) -> None:
        msg_id = self.client.execute("print('x')")
        while True:
            message = await self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            if (
                message["msg_type"] == "status"
                and message["content"]["execution_state"] == "idle"
            ):
                break
        while (await self.client.get_shell_msg(timeout=60))["parent_header"].get(
            "msg_id"
        ) != msg_id:
            pass

    def shut_down(self) -> None:
        """Shut down the kernel."""
        self.client.stop_channels()
        self.loop.run_until_complete(self.manager.shutdown_kernel(now=True))
        self.loop.close()
