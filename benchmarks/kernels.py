"""Kernels without stepper: driven by raw ZeroMQ sockets, and by jupyter_client. What a step can't be quicker than."""

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
from common import BrokenStepError, since
from jupyter_client import AsyncKernelManager

DELIMITER = b"<IDS|MSG>"
# As stepper starts its kernels: no history file.
ARGUMENTS = ("-m", "ipykernel_launcher", "--HistoryManager.hist_file=:memory:", "-f")
SILENCE_SECONDS = 60  # of a kernel, at most
AGAIN_MS = 5  # how often a socket connects to a kernel that does not listen yet


class RawKernel:
    """A kernel started with a connection file and asked with messages made by hand; ready when it is made.

    `where` is what it listens on, and its keys for CurveZMQ where it has some; `reached` returns where it is asked, the
    same where nothing lies between.
    """

    def __init__(
        self,
        where: Mapping[str, Any] | None = None,
        reached: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="raw-")
        key = secrets.token_hex(16)
        ports = {
            f"{name}_port": n
            for n, name in enumerate(("shell", "iopub", "stdin", "control", "hb"), 1)
        }
        usual = {"transport": "ipc", "ip": str(Path(self.folder.name, "k")), **ports}
        about = {"key": key, "signature_scheme": "hmac-sha256", **(where or usual)}
        connection = Path(self.folder.name, "connection.json")
        connection.write_bytes(orjson.dumps(about))
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
            socket.setsockopt(zmq.RECONNECT_IVL, AGAIN_MS)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)
            if "curve_publickey" in about:
                socket.curve_serverkey = socket.curve_publickey = about[
                    "curve_publickey"
                ].encode()
                socket.curve_secretkey = about["curve_secretkey"].encode()
            self.poller.register(socket, zmq.POLLIN)
        self.iopub.subscribe(b"")
        asked = reached(about)
        between = "-" if asked["transport"] == "ipc" else ":"
        for socket, name in ((self.shell, "shell_port"), (self.iopub, "iopub_port")):
            socket.connect(
                f"{asked['transport']}://{asked['ip']}{between}{asked[name]}"
            )
        # What is published before the subscription arrives is lost: asked again until
        # its `idle` is seen.
        while not self.over(self.request("kernel_info_request", {}), patience=AGAIN_MS):
            pass

    def request(self, kind: str, content: dict[str, Any]) -> str:
        """Send a request on the shell channel; return its id."""
        asked = uuid.uuid4().hex
        header = {
            "msg_id": asked,
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
        return asked

    def over(self, asked: str, idle: bool = True, patience: int | None = None) -> bool:
        """Wait for a request's reply and its `idle`; return False where that is not seen `patience` ms after the reply.

        Raise BrokenStepError where the reply is not ok or the kernel ended.
        """
        awaited = {"reply", "idle"} if idle else {"reply"}
        until = time.monotonic() + SILENCE_SECONDS
        while awaited:
            late = patience is not None and "reply" not in awaited
            ready = dict(self.poller.poll(patience if late else 1000))
            if not ready and late:
                return False
            if not ready and (
                self.process.poll() is not None or time.monotonic() > until
            ):
                raise BrokenStepError("a raw kernel ended or does not answer")
            if self.iopub in ready:
                frames = self.iopub.recv_multipart()
                if b"stream" in frames[0]:  # a word may come in pieces
                    self.printed += frames[-1]
                elif (
                    idle
                    and b'"idle"' in frames[-1]
                    and orjson.loads(frames[-3])["msg_id"] == asked
                ):
                    awaited.discard("idle")
            if self.shell in ready:
                _, _, _, parent, _, content, *_ = self.shell.recv_multipart()
                if orjson.loads(parent)["msg_id"] == asked:
                    awaited.discard("reply")
                    if orjson.loads(content)["status"] not in (
                        ("ok",) if idle else ("ok", "error")
                    ):
                        raise BrokenStepError(
                            f"a raw kernel answers: {content[:300]!r}"
                        )
        return True

    def run(self, source: str, idle: bool = True) -> float:
        """Return the milliseconds from a request to its reply and its `idle`, or to the reply alone.

        What the kernel publishes is read and thrown away. Without `idle` an error in the cell is no error here.
        """
        content = {
            "code": source,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
        }
        began = time.perf_counter()
        self.over(
            self.request(
                "execute_request",
                {**content, "allow_stdin": False, "stop_on_error": False},
            ),
            idle,
        )
        return since(began)

    def round_trip(self) -> float:
        """Return the milliseconds of printing a word; raise BrokenStepError unless it was printed."""
        word, self.printed = secrets.token_hex(8), b""
        took = self.run(f"print('{word}')")
        if word.encode() not in self.printed:
            raise BrokenStepError(f"a raw kernel printed {self.printed!r}")
        return took

    def end(self) -> None:
        """End the kernel."""
        self.process.kill()
        self.process.wait()
        self.context.destroy(linger=0)
        self.folder.cleanup()


class Kernel:
    """A kernel of its own, driven by jupyter_client alone: what the round trip costs without stepper."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.manager = AsyncKernelManager(kernel_name="python3", transport="ipc")
        self.loop.run_until_complete(self.manager.start_kernel())
        self.client = self.manager.client()
        self.client.start_channels()
        self.loop.run_until_complete(self.client.wait_for_ready(timeout=60))

    def round_trip(self) -> float:
        """Return the milliseconds from a request to its `idle` and its reply."""
        began = time.perf_counter()
        self.loop.run_until_complete(self._run())
        return since(began)

    async def _run(self) -> None:
        asked = self.client.execute("print('x')")
        while True:
            message = await self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != asked:
                continue
            if (
                message["msg_type"] == "status"
                and message["content"]["execution_state"] == "idle"
            ):
                break
        while (await self.client.get_shell_msg(timeout=60))["parent_header"].get(
            "msg_id"
        ) != asked:
            pass

    def end(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.loop.run_until_complete(self.manager.shutdown_kernel(now=True))
        self.loop.close()
