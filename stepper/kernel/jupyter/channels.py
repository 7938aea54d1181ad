"""A kernel's channels through a server: one websocket for all, which comes back when it is cut.

The session's id stays the same, so that the server sends what the kernel said meanwhile. What is to be sent waits
until the socket is there. Messages are JSON, with buffers in Jupyter's older binary form, which all servers speak.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import struct
import uuid
from collections import deque
from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

from tornado.websocket import WebSocketClientConnection, WebSocketClosedError, websocket_connect

from stepper.ground.errors import KernelError
from stepper.kernel.jupyter.server import Server
from stepper.kernel.messages import Message, loads

AGAIN_SECONDS = (0.05, 0.2, 0.5, 1.0)  # before each try to come back; the last one from then on
PING_SECONDS = 10.0  # a line that says nothing for longer than that is cut
LARGEST = 1 << 30  # bytes of a message
log = logging.getLogger("stepper")


class Inbox:
    """The incoming messages of one channel. `unread` counts those that could not be read and are not yet told."""

    def __init__(self) -> None:
        self.waiting: deque[Message] = deque()
        self.came = asyncio.Event()
        self.unread = 0

    def put(self, message: Message) -> None:
        """Take a message that came."""
        self.waiting.append(message)
        self.came.set()

    async def ready(self, seconds: float) -> bool:
        """Wait until there is a message, at most `seconds`; return whether there is."""
        if not self.waiting:
            self.came.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.came.wait(), seconds)
        else:
            await asyncio.sleep(0)  # a flood must not keep others waiting
        return bool(self.waiting)

    def leave(self) -> None:
        """Have whoever waits go on."""
        self.came.set()

    def messages(self) -> Iterator[Message]:
        """Return the messages that are there."""
        while self.waiting:
            yield self.waiting.popleft()


class WebsocketChannels:
    """A kernel's channels. `restarted` is whether the server has put another kernel in its place."""

    def __init__(self, server: Server, kernel: str) -> None:
        self.server, self.kernel, self.session = server, kernel, uuid.uuid4().hex
        self.is_open = self.restarted = False
        self.cuts = 0  # a request that was under way then may be lost: what the kernel remembers tells
        self.iopub, self.shell = Inbox(), Inbox()
        self.inboxes = {"iopub": self.iopub, "shell": self.shell}
        self.unsent: deque[str] = deque()
        self.line: WebSocketClientConnection | None = None
        self.work: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Have messages come and go."""
        if not self.is_open:
            self.is_open = True
            self.work = asyncio.get_running_loop().create_task(self._keep())

    def close(self) -> None:
        """Have none come any more; whoever waits for one goes on."""
        if self.is_open:
            self.is_open = False
            if self.work is not None:
                self.work.cancel()
            if self.line is not None:
                self.line.close()
                self.line = None
            self.iopub.leave()
            self.shell.leave()

    def send(
        self,
        kind: str,
        content: Message,
        metadata: Message | None = None,
        request: str = "",
        parent: Message | None = None,
        channel: str = "shell",
    ) -> str:
        """Send a message, by the id `request` where the caller has one; return its id."""
        at, name = datetime.now(timezone.utc).isoformat(), request or uuid.uuid4().hex
        header = {"msg_id": name, "msg_type": kind, "username": "stepper", "session": self.session, "date": at, "version": "5.3"}  # fmt: skip # noqa: E501
        message = {"channel": channel, "header": header, "parent_header": (parent or {}).get("header", parent or {}),
                   "metadata": metadata or {}, "content": content, "buffers": []}  # fmt: skip
        self.unsent.append(json.dumps(message))
        self._flush()
        return name

    def ask(self, kind: str, content: Message | None = None) -> None:
        """Ask the kernel on the channel that is served while a cell runs."""
        if self.is_open:
            self.send(kind, content or {}, channel="control")

    def _flush(self) -> None:
        """Send what waits; what does not go waits on."""
        while self.line is not None and self.unsent:
            try:
                self.line.write_message(self.unsent[0])
            except WebSocketClosedError:
                self.line = None
                return
            self.unsent.popleft()

    async def _keep(self) -> None:
        """Read until this is closed; a line that is cut is made anew."""
        tries = 0
        while self.is_open:
            try:
                url = f"ws{self.server.base.removeprefix('http')}/api/kernels/{self.kernel}/channels"
                request = await self.server.made(f"{url}?session_id={self.session}")
                self.line = await websocket_connect(
                    request, max_message_size=LARGEST, ping_interval=PING_SECONDS / 2, ping_timeout=PING_SECONDS / 2
                )
                tries = 0
                self._flush()
                await self._read(self.line)
            except (OSError, KernelError, ValueError, WebSocketClosedError) as error:
                log.info("the line to a kernel of %s: %s", self.server.host, type(error).__name__)
            except Exception as error:  # tornado's own, such as an answer that is no websocket's
                log.info("the line to a kernel of %s: %s", self.server.host, type(error).__name__)
            self.cuts += self.line is not None
            self.line = None
            await asyncio.sleep(AGAIN_SECONDS[min(tries, len(AGAIN_SECONDS) - 1)])
            tries += 1

    async def _read(self, line: WebSocketClientConnection) -> None:
        while (data := await line.read_message()) is not None:
            _acknowledge(line)
            message = parsed(data)
            if message is None:
                self.iopub.unread += 1
                continue
            if message["msg_type"] == "status" and message["content"].get("execution_state") == "restarting":
                self.restarted = True
            if message["channel"] in self.inboxes:
                self.inboxes[message["channel"]].put(message)


def parsed(data: str | bytes) -> Message | None:
    """Return a message as the server sends it, None where it says nothing."""
    try:
        buffers: list[bytes] = []
        if isinstance(data, bytes):
            (count,) = struct.unpack("!i", data[:4])
            places = [*struct.unpack(f"!{count}I", data[4 : 4 * (count + 1)]), len(data)]
            first, *buffers = [data[begin:end] for begin, end in pairwise(places)]
        else:
            first = data.encode()
        told: dict[str, Any] = loads(first)
        header, content = told["header"], told["content"]
        if not (isinstance(header, dict) and isinstance(content, dict)):
            return None
        size = len(first) + sum(map(len, buffers))
        return {"channel": str(told.get("channel")), "header": header, "msg_type": str(header["msg_type"]),
                "parent_header": told.get("parent_header") or {}, "content": content, "buffers": buffers, "size": size}  # fmt: skip # noqa: E501
    except (ValueError, KeyError, TypeError, IndexError, struct.error, RecursionError):
        return None


def _acknowledge(line: WebSocketClientConnection) -> None:
    """Have what came acknowledged at once: the server waits for that with the next small piece, 40 ms each."""
    with contextlib.suppress(OSError, AttributeError):
        line.protocol.stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # type: ignore[union-attr]
