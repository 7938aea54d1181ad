"""A kernel's channels through a server: one websocket that is opened again when lost.

The session id stays the same, also for the next daemon, so that the server sends the
messages that arrived meanwhile. Outgoing messages wait until the websocket is open. If
the server supports the protocol of Jupyter Server 2, messages are the kernel's own
bytes. Otherwise they are JSON, with buffers in Jupyter's older binary form, which all
servers support.
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
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from tornado.httpclient import HTTPClientError
from tornado.websocket import (
    WebSocketClientConnection,
    WebSocketClosedError,
    websocket_connect,
)

from stepper.common.errors import KernelError
from stepper.kernels.backends.jupyter.server_api import Server
from stepper.kernels.message_decoding import Message, read_message, split_message

PROTOCOL = "v1.kernel.websocket.jupyter.org"
# The pauses before the attempts to reconnect; the last one is repeated.
RETRY_SECONDS = (0.05, 0.2, 0.5, 1.0)
NO_RESPONSE = 599  # tornado's status for a request without a response
PING_SECONDS = 10.0  # a silent connection counts as lost after twice this time
MAX_MESSAGE_SIZE = 1 << 30  # bytes
# With more waiting messages, no more are read, and the server waits.
MAX_WAITING = 1000
MAX_COUNTED_REQUESTS = 100  # for which received messages are counted
ENDED_OUTSIDE = "EndedOutside"  # no cell caused the end
PARTS = ("header", "parent_header", "metadata", "content")
log = logging.getLogger("stepper")


class Inbox:
    """The incoming messages of one channel.

    `unread` counts those that could not be decoded and were not reported yet.
    """

    def __init__(self) -> None:
        self.waiting: deque[Message] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self.unread = 0

    def put(self, message: Message) -> None:
        """Add a message."""
        self.waiting.append(message)
        self.release()

    async def ready(self, seconds: float) -> bool:
        """Wait at most `seconds` for a message; return whether there is one.

        Only one caller may wait at a time.
        """
        if self.waiting:
            await asyncio.sleep(0)  # let other tasks run during a flood
            return True
        loop = asyncio.get_running_loop()
        # `wait_for` could swallow the cancellation of the caller.
        self.waiter = loop.create_future()
        timer = loop.call_later(seconds, self.release)
        try:
            await self.waiter
        finally:
            timer.cancel()
            self.waiter = None
        return bool(self.waiting)

    def release(self) -> None:
        """Let the caller that waits continue."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def messages(self) -> Iterator[Message]:
        """Yield the messages that have arrived."""
        while self.waiting:
            yield self.waiting.popleft()


class WebsocketChannels:
    """The channels of a kernel.

    `life` is the session id of the kernel's process, which differs after the server has
    restarted the kernel; '' if it is unknown.
    """

    connection: Mapping[str, Any] = MappingProxyType({})  # no connection file

    def __init__(
        self, server: Server, kernel_id: str, session: str, life: str = ""
    ) -> None:
        self.server = server
        self.kernel_id = kernel_id
        self.session = session
        self.life = life
        self.is_open = False
        self.loss = ""  # how the server lost the kernel
        self.cause = ""  # the class of that, if it is known
        # The present websocket has received a message of that process.
        self.heard_life = False
        self.away = ""  # why the kernel cannot be reached
        # How often the connection was lost: messages may be missing then.
        self.cuts = 0
        self.iopub = Inbox()
        self.shell = Inbox()
        self.inboxes = {"iopub": self.iopub, "shell": self.shell}
        self.counts: dict[str, int] = {}
        self.unsent: deque[tuple[str, Message]] = deque()
        self.websocket: WebSocketClientConnection | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def client_session(self) -> str:
        """The session id in the headers of this client's requests."""
        return self.session

    def open(self) -> None:
        """Connect the channels."""
        if not self.is_open:
            self.is_open = True
            self.task = asyncio.get_running_loop().create_task(self._keep_connected())

    def close(self) -> None:
        """Disconnect the channels and stop waiting for messages."""
        if not self.is_open:
            return
        self.is_open = False
        if self.task is not None:
            self.task.cancel()
        if self.websocket is not None:
            self.websocket.close()
            self.websocket = None
        self.iopub.release()
        self.shell.release()

    def count_received(self, request: str) -> int:
        """Return how many messages of a request were received."""
        return self.counts.get(request, 0)

    def send(
        self,
        message_type: str,
        content: Message,
        metadata: Message | None = None,
        request: str = "",
        parent: Message | None = None,
        channel: str = "shell",
    ) -> str:
        """Send a message and return its id.

        `request` is the id if the caller chose one.
        """
        message_id = request or uuid.uuid4().hex
        header = {
            "msg_id": message_id,
            "msg_type": message_type,
            "username": "stepper",
            "session": self.session,
            "date": datetime.now(timezone.utc).isoformat(),
            "version": "5.3",
        }
        parent_header = parent or {}
        message = {
            "header": header,
            "parent_header": parent_header.get("header", parent_header),
            "metadata": metadata or {},
            "content": content,
        }
        self.unsent.append((channel, message))
        self._flush()
        return message_id

    def _flush(self) -> None:
        """Send the waiting messages; keep those that cannot be sent."""
        while self.websocket is not None and self.unsent:
            channel, message = self.unsent[0]
            try:
                if self.websocket.selected_subprotocol == PROTOCOL:
                    parts = [json.dumps(message[part]).encode() for part in PARTS]
                    data = encode_binary(channel, parts)
                    self.websocket.write_message(data, binary=True)
                else:
                    text = json.dumps({"channel": channel, **message, "buffers": []})
                    self.websocket.write_message(text)
            except WebSocketClosedError:
                return  # the reader reconnects
            self.unsent.popleft()

    async def _keep_connected(self) -> None:
        """Read messages until the channels are closed; reconnect when necessary."""
        attempts = 0
        while self.is_open:
            try:
                websocket = await self._connect()
                self.websocket = websocket
                attempts = 0
                self.away = ""
                self._flush()
                self.heard_life = False
                await self._read(websocket)
            except HTTPClientError as error:
                if error.code == NO_RESPONSE:
                    reason = self.server.explain_unreachable(error)
                else:
                    reason = f"{self.server.name} answers {error.code}"
                self.away = self.away or reason
                self.away = await self._handle_refusal(error.code) or reason
            except KernelError as error:
                self.away = error.message
            except Exception as error:
                self.away = self.server.explain_unreachable(error)
            if self.websocket is not None:
                self.cuts += 1
                self.websocket.close()
                self.websocket = None
                self.away = ""  # the first attempt to reconnect usually succeeds
            if attempts < len(RETRY_SECONDS):
                log.info(
                    "the connection to the kernel %s was lost%s",
                    self.kernel_id,
                    self.away and f": {self.away}",
                )
            last = len(RETRY_SECONDS) - 1
            await asyncio.sleep(RETRY_SECONDS[min(attempts, last)])
            attempts += 1

    async def _connect(self) -> WebSocketClientConnection:
        base = self.server.base.removeprefix("http")
        url = f"ws{base}/api/kernels/{self.kernel_id}/channels"
        request = await self.server.create_request(f"{url}?session_id={self.session}")
        return await websocket_connect(
            request,
            max_message_size=MAX_MESSAGE_SIZE,
            ping_interval=PING_SECONDS,
            ping_timeout=PING_SECONDS,
            subprotocols=[PROTOCOL],
        )

    async def _handle_refusal(self, code: int) -> str:
        """Return why the server refused the websocket, or '' if it does not say.

        It may not have the kernel any more.
        """
        if code in (401, 403):
            self.server.token = ""  # the token may have changed
        try:
            self.record_loss(await self.server.explain_loss(self.kernel_id))
        except KernelError as error:
            return error.message
        return self.loss

    def record_loss(self, loss: str) -> None:
        """Record how the server lost the kernel, which no cell caused; '' if not."""
        if loss and not self.loss:
            self.loss = loss
            self.cause = ENDED_OUTSIDE

    async def _read(self, websocket: WebSocketClientConnection) -> None:
        """Read messages until the websocket is closed."""
        is_binary = websocket.selected_subprotocol == PROTOCOL
        while (data := await websocket.read_message()) is not None:
            _acknowledge(websocket)
            decode = decode_binary if is_binary else decode_json
            channel, messages = decode(data)
            for message in messages:
                self._receive(channel, message)
            if not messages:
                self.iopub.unread += 1
                log.warning(
                    "a message of the kernel %s could not be read: %d bytes",
                    self.kernel_id,
                    len(data),
                )
            while len(self.iopub.waiting) > MAX_WAITING and self.is_open:
                await asyncio.sleep(0.02)

    def _receive(self, channel: str, message: Message) -> None:
        """Put a message into the inbox of its channel."""
        session = message["header"].get("session")
        self._check_life(message, session)
        if self.loss:
            return  # messages of the next kernel belong to no cell of stepper
        parent_session = message["parent_header"].get("session") or self.session
        if parent_session != self.session:
            # The reply or output of another client's request.
            if channel == "iopub":
                self.iopub.put(message)
            return
        if message["msg_type"] == "stream" and self.life and session == self.session:
            # The server itself reports that it left out messages.
            self.cuts += 1
        elif channel == "iopub":
            self._count(message["parent_header"].get("msg_id"))
        if channel in self.inboxes:
            self.inboxes[channel].put(message)

    def _check_life(self, message: Message, session: Any) -> None:
        """Detect that the kernel died, or that the server restarted it."""
        content = message["content"]
        message_type = message["msg_type"]
        if message_type == "kernel_info_reply":
            if content.get("implementation") == "ipython":
                self.life = self.life or str(session)
        elif message_type == "status":
            state = content.get("execution_state")
            own_sessions = (self.life, self.session)
            if state in ("restarting", "dead"):
                self.loss = (
                    self.loss or "its process died, and the server started another one"
                )
            elif self.life and not self.loss and session not in own_sessions:
                self.loss = "the server started another kernel in its place"
                # The server would have reported a death first.
                self.cause = ENDED_OUTSIDE if self.heard_life else ""
        if self.life and session == self.life:
            self.heard_life = True

    def _count(self, request: Any) -> None:
        """Count an iopub message of a request; forget the oldest requests."""
        self.counts[request] = self.counts.pop(request, 0) + 1
        if len(self.counts) > MAX_COUNTED_REQUESTS:
            oldest = next(iter(self.counts))
            del self.counts[oldest]


def encode_binary(channel: str, parts: list[bytes]) -> bytes:
    """Return a message in the protocol of Jupyter Server 2.

    It has the number of offsets, the offsets, the channel and the parts.
    """
    frames = [channel.encode(), *parts]
    offsets = [8 * (len(frames) + 2)]
    for frame in frames:
        offsets.append(offsets[-1] + len(frame))
    header = struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets)
    return b"".join([header, *frames])


def decode_binary(data: str | bytes) -> tuple[str, list[Message]]:
    """Return the channel and the message, in pieces if it is large.

    The list is empty if the message is not valid.
    """
    try:
        assert isinstance(data, bytes)
        (count,) = struct.unpack_from("<Q", data)
        offsets = struct.unpack_from(f"<{count}Q", data, 8)
        channel, *parts = [data[start:end] for start, end in pairwise(offsets)]
        channel_name = channel.decode()
        message = read_message(parts)
        if message is None:
            return channel_name, []
        for part in ("header", "parent_header"):
            if not isinstance(message[part], dict):
                return channel_name, []
        return channel_name, [*split_message(message, parts)]
    except (ValueError, AssertionError, struct.error, MemoryError, OverflowError):
        return "", []


def decode_json(data: str | bytes) -> tuple[str, list[Message]]:
    """Return the channel and the message of the older form, JSON before its buffers.

    The list is empty if the message is not valid.
    """
    try:
        text, buffers = _split_buffers(data)
        values: dict[str, Any] = json.loads(text)
        header = values["header"]
        parent_header = values.get("parent_header") or {}
        content = values["content"]
        for value in (header, parent_header, content):
            if not isinstance(value, dict):
                return "", []
        message = {
            "header": header,
            "msg_type": str(header["msg_type"]),
            "parent_header": parent_header,
            "content": content,
            "buffers": buffers,
            "size": len(text) + sum(map(len, buffers)),
        }
        return str(values.get("channel")), [message]
    except (ValueError, KeyError, TypeError, IndexError, struct.error, RecursionError):
        return "", []


def _split_buffers(data: str | bytes) -> tuple[bytes, list[bytes]]:
    """Return the JSON text and the buffers; raise struct.error or IndexError."""
    if isinstance(data, str):
        return data.encode(), []
    (count,) = struct.unpack("!i", data[:4])
    offsets = [*struct.unpack(f"!{count}I", data[4 : 4 * (count + 1)]), len(data)]
    text, *buffers = [data[start:end] for start, end in pairwise(offsets)]
    return text, buffers


def _acknowledge(websocket: WebSocketClientConnection) -> None:
    """Acknowledge received data at once.

    Otherwise the server waits 40 ms before each small packet.
    """
    # The socket may be closed, and not all systems have this option.
    with contextlib.suppress(OSError, AttributeError):
        raw_socket = websocket.protocol.stream.socket  # type: ignore[union-attr]
        raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
