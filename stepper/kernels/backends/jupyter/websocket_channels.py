"""The channels of a kernel on a Jupyter server, over a websocket.

A lost websocket is opened again with the same session id, also by the next daemon, so
the server sends the messages that arrived in the meantime. Outgoing messages wait until
the websocket is open. If the server supports the protocol of Jupyter Server 2, messages
have the kernel's own binary format. Otherwise they are JSON, followed by buffers in an
older binary format that all servers support.
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
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from tornado.httpclient import HTTPClientError
from tornado.websocket import (
    WebSocketClientConnection,
    WebSocketClosedError,
    websocket_connect,
)

from stepper.common.errors import KernelError
from stepper.kernels.backends.jupyter.server_api import Server
from stepper.kernels.message_decoding import (
    DECODE_ERRORS,
    Message,
    read_message,
    split_message,
)

PROTOCOL = "v1.kernel.websocket.jupyter.org"
# The pauses before the attempts to reconnect; the last one is repeated.
RETRY_SECONDS = (0.05, 0.2, 0.5, 1.0)
NO_RESPONSE = 599  # tornado's status for a request without a response
PING_SECONDS = 10.0  # a silent connection counts as lost after twice this time
MAX_MESSAGE_SIZE = 1 << 30  # bytes
# If more messages are waiting, reading stops, and the server waits.
MAX_WAITING = 1000
MAX_COUNTED_REQUESTS = 100  # requests whose messages are counted
ENDED_OUTSIDE = "EndedOutside"  # no cell caused the loss of the kernel
KERNEL_RESTARTED = "the kernel's process died, and the server started another one"
PARTS = ("header", "parent_header", "metadata", "content")
log = logging.getLogger("stepper")


class DecodedData(NamedTuple):
    """The messages in data from the websocket.

    `is_complete` is false if the data or a part of it could not be decoded.
    """

    channel: str
    messages: Sequence[Message]
    is_complete: bool = True


UNREADABLE = DecodedData("", (), is_complete=False)


class Inbox:
    """The incoming messages of one channel.

    `unreadable_count` is the number of messages that could not be decoded and have not
    been reported yet.
    """

    def __init__(self) -> None:
        self.waiting: deque[Message] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self.unreadable_count = 0

    def add(self, message: Message) -> None:
        """Add a message and wake the caller of `wait`."""
        self.waiting.append(message)
        self.stop_waiting()

    async def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for a message, and return whether one has arrived.

        Only one caller may wait at a time.
        """
        if self.waiting:
            await asyncio.sleep(0)  # let other tasks run during a flood
            return True
        loop = asyncio.get_running_loop()
        # `wait_for` could swallow the cancellation of the caller.
        self.waiter = loop.create_future()
        timer = loop.call_later(seconds, self.stop_waiting)
        try:
            await self.waiter
        finally:
            timer.cancel()
            self.waiter = None
        return bool(self.waiting)

    def stop_waiting(self) -> None:
        """Make `wait` return."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def take_messages(self) -> Iterator[Message]:
        """Yield and remove the messages that have arrived."""
        while self.waiting:
            yield self.waiting.popleft()


class WebsocketChannels:
    """The channels of a kernel on a Jupyter server.

    `session` is the session id of this client. `kernel_session` is the session id of
    the kernel's process, or an empty string if this id is not known yet. A kernel that
    the server has restarted has another session id.
    """

    connection: Mapping[str, Any] = MappingProxyType({})  # no connection file

    def __init__(
        self, server: Server, kernel_id: str, session: str, kernel_session: str = ""
    ) -> None:
        self.server = server
        self.kernel_id = kernel_id
        self.session = session
        self.kernel_session = kernel_session
        self.is_open = False
        self.loss = ""  # why the server no longer has the kernel
        self.cause = ""  # the cause of the kernel's death, if it is known
        # Whether the current websocket has received a message of the kernel's process.
        self.has_kernel_message = False
        self.unreachable_reason = ""  # why the kernel cannot be reached
        # How often the connection was lost. Messages may be missing after each loss.
        self.disconnect_count = 0
        self.iopub = Inbox()
        self.shell = Inbox()
        self.inboxes = {"iopub": self.iopub, "shell": self.shell}
        self.counts: dict[str, int] = {}
        self.unsent: deque[Message] = deque()
        self.websocket: WebSocketClientConnection | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def client_session(self) -> str:
        """The session id in the headers of this client's messages."""
        return self.session

    def open(self) -> None:
        """Open the websocket in the background."""
        if not self.is_open:
            self.is_open = True
            self.task = asyncio.get_running_loop().create_task(self._keep_connected())

    def close(self) -> None:
        """Close the websocket and stop waiting for messages."""
        if not self.is_open:
            return
        self.is_open = False
        if self.task is not None:
            self.task.cancel()
        if self.websocket is not None:
            self.websocket.close()
            self.websocket = None
        self.iopub.stop_waiting()
        self.shell.stop_waiting()

    def count_received(self, request_id: str) -> int:
        """Return the number of iopub messages received for a request."""
        return self.counts.get(request_id, 0)

    def send(
        self,
        message_type: str,
        content: Message,
        metadata: Message | None = None,
        request: str = "",
        parent: Message | None = None,
    ) -> str:
        """Send a message on the shell channel and return its id.

        `request` is the message id to use; by default, a new one is created. `parent`
        is the message, or its header, that the message belongs to. The message is sent
        when the websocket is open.
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
        self.unsent.append(message)
        self._flush()
        return message_id

    def _flush(self) -> None:
        """Send the outgoing messages, or leave them unsent if no websocket is open."""
        while self.websocket is not None and self.unsent:
            message = self.unsent[0]
            try:
                if self.websocket.selected_subprotocol == PROTOCOL:
                    parts = [json.dumps(message[part]).encode() for part in PARTS]
                    data = encode_binary("shell", parts)
                    self.websocket.write_message(data, binary=True)
                else:
                    text = json.dumps({"channel": "shell", **message, "buffers": []})
                    self.websocket.write_message(text)
            except WebSocketClosedError:
                return  # the reader reconnects
            self.unsent.popleft()

    async def _keep_connected(self) -> None:
        """Connect, read messages and reconnect until the channels are closed."""
        attempts = 0
        while self.is_open:
            try:
                await self._connect_and_read()
            except HTTPClientError as error:
                await self._record_refusal(error)
            except KernelError as error:
                self.unreachable_reason = error.message
            except Exception as error:
                self.unreachable_reason = self.server.explain_unreachable(error)
            if self.websocket is not None:
                attempts = 0
                self.disconnect_count += 1
                self.websocket.close()
                self.websocket = None
                # The loss is not reported yet, because the first attempt to reconnect
                # usually succeeds.
                self.unreachable_reason = ""
            # Only the first attempts are logged, because the message is the same.
            if attempts < len(RETRY_SECONDS):
                log.info(
                    "kernel %s is not connected: %s",
                    self.kernel_id,
                    self.unreachable_reason or "the connection was lost",
                )
            last = len(RETRY_SECONDS) - 1
            await asyncio.sleep(RETRY_SECONDS[min(attempts, last)])
            attempts += 1

    async def _connect_and_read(self) -> None:
        """Connect, send unsent messages, and read messages until the connection ends.

        `websocket` remains set, so that the caller can count the lost connection.
        """
        websocket = await self._connect()
        self.websocket = websocket
        self.unreachable_reason = ""
        self._flush()
        self.has_kernel_message = False
        await self._read(websocket)

    async def _connect(self) -> WebSocketClientConnection:
        """Return an open websocket to the kernel."""
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

    async def _record_refusal(self, error: HTTPClientError) -> None:
        """Record why the websocket could not be opened."""
        reason = f"{self.server.name} responded with status {error.code}"
        if error.code == NO_RESPONSE:
            reason = self.server.explain_unreachable(error)
        # Set before the request below, which may take long.
        self.unreachable_reason = self.unreachable_reason or reason
        explanation = await self._explain_refusal(error.code)
        self.unreachable_reason = explanation or reason

    async def _explain_refusal(self, code: int) -> str:
        """Return why the server refused the websocket, or an empty string if unknown.

        `code` is the HTTP status. If the server no longer has the kernel, record the
        loss. If the token may have been refused, forget the token.
        """
        if code in (401, 403):
            self.server.token = ""  # the token may have changed
        try:
            self.record_loss(await self.server.explain_loss(self.kernel_id))
        except KernelError as error:
            return error.message
        return self.loss

    def record_loss(self, loss: str) -> None:
        """Record why the server no longer has the kernel, if `loss` is not empty.

        The first recorded loss is kept. The cause is set to ENDED_OUTSIDE, because no
        cell caused the loss.
        """
        if loss and not self.loss:
            self.loss = loss
            self.cause = ENDED_OUTSIDE

    async def _read(self, websocket: WebSocketClientConnection) -> None:
        """Read messages until the websocket is closed."""
        is_binary = websocket.selected_subprotocol == PROTOCOL
        while (data := await websocket.read_message()) is not None:
            _acknowledge(websocket)
            decode = decode_binary if is_binary else decode_json
            decoded = decode(data)
            for message in decoded.messages:
                self._receive(decoded.channel, message)
            if not decoded.is_complete:
                self.iopub.unreadable_count += 1
                log.warning(
                    "could not read a message of %d bytes from the kernel %s",
                    len(data),
                    self.kernel_id,
                )
            while len(self.iopub.waiting) > MAX_WAITING and self.is_open:
                await asyncio.sleep(0.02)

    def _receive(self, channel: str, message: Message) -> None:
        """Put a message into the inbox of its channel.

        Drop messages of a restarted kernel and replies to other clients.
        """
        session = message["header"].get("session")
        self._update_kernel_state(message, session)
        if self.loss:
            return  # the messages of the new kernel are not for stepper
        parent_session = message["parent_header"].get("session") or self.session
        if parent_session != self.session:
            # The outputs of other clients' requests are needed, but not the replies.
            if channel == "iopub":
                self.iopub.add(message)
            return
        if (
            message["msg_type"] == "stream"
            and self.kernel_session
            and session == self.session
        ):
            # The server itself reports that it dropped messages.
            self.disconnect_count += 1
        elif channel == "iopub":
            self._count_message(message["parent_header"].get("msg_id"))
        if channel in self.inboxes:
            self.inboxes[channel].add(message)

    def _update_kernel_state(self, message: Message, session: Any) -> None:
        """Record the kernel's session id, its death or its restart from a message."""
        content = message["content"]
        message_type = message["msg_type"]
        if message_type == "kernel_info_reply":
            if content.get("implementation") == "ipython":
                self.kernel_session = self.kernel_session or str(session)
        elif message_type == "status" and not self.loss:
            self._update_loss(content.get("execution_state"), session)
        if self.kernel_session and session == self.kernel_session:
            self.has_kernel_message = True

    def _update_loss(self, state: Any, session: Any) -> None:
        """Record the loss of the kernel, if a status message reports it.

        `state` is the execution state in the message, and `session` the session id of
        the message's sender.
        """
        own_sessions = (self.kernel_session, self.session)
        if state == "restarting":
            self.loss = KERNEL_RESTARTED
        elif state == "dead":
            self.loss = "the kernel's process died"
        elif self.kernel_session and session not in own_sessions:
            self.loss = "the server started another kernel instead"
            # The server reports the death of a kernel, so this kernel has not died.
            self.cause = ENDED_OUTSIDE if self.has_kernel_message else ""

    def _count_message(self, request_id: Any) -> None:
        """Count an iopub message of a request.

        If there are more than MAX_COUNTED_REQUESTS requests, drop the oldest count.
        Ignore an id that is not a string, which a cell may send.
        """
        if not isinstance(request_id, str):
            return
        self.counts[request_id] = self.counts.pop(request_id, 0) + 1
        if len(self.counts) > MAX_COUNTED_REQUESTS:
            oldest = next(iter(self.counts))
            del self.counts[oldest]


def encode_binary(channel: str, parts: list[bytes]) -> bytes:
    """Return a message encoded in the protocol of Jupyter Server 2.

    `parts` are the header, the parent header, the metadata and the content. The result
    contains the number of offsets, the offsets, the channel and the parts.
    """
    frames = [channel.encode(), *parts]
    offsets = [8 * (len(frames) + 2)]
    for frame in frames:
        offsets.append(offsets[-1] + len(frame))
    header = struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets)
    return b"".join([header, *frames])


def decode_binary(data: str | bytes) -> DecodedData:
    """Return the channel and the message in data of the Jupyter Server 2 protocol.

    A large message is split into several. If a part of the text is not valid, the
    messages before this part are returned.
    """
    if not isinstance(data, bytes):
        return UNREADABLE
    channel_name = ""
    messages: list[Message] = []
    try:
        (count,) = struct.unpack_from("<Q", data)
        offsets = struct.unpack_from(f"<{count}Q", data, 8)
        channel, *parts = [data[start:end] for start, end in pairwise(offsets)]
        channel_name = channel.decode()
        message = read_message(parts)
        if message is None:
            return UNREADABLE
        for piece in split_message(message, parts):
            messages.append(piece)
    except (*DECODE_ERRORS, struct.error, MemoryError, OverflowError):
        return DecodedData(channel_name, messages, is_complete=False)
    return DecodedData(channel_name, messages)


def decode_json(data: str | bytes) -> DecodedData:
    """Return the channel and the message in data of the older JSON format."""
    try:
        text, buffers = _split_buffers(data)
        values: dict[str, Any] = json.loads(text)
        header = values["header"]
        parent_header = values.get("parent_header") or {}
        content = values["content"]
        for value in (header, parent_header, content):
            if not isinstance(value, dict):
                return UNREADABLE
        message = {
            "header": header,
            "msg_type": str(header["msg_type"]),
            "parent_header": parent_header,
            "content": content,
            "buffers": buffers,
            "size": len(text) + sum(map(len, buffers)),
        }
        return DecodedData(str(values.get("channel")), [message])
    except (ValueError, KeyError, TypeError, struct.error, RecursionError):
        return UNREADABLE


def _split_buffers(data: str | bytes) -> tuple[bytes, list[bytes]]:
    """Return the JSON text and the buffers in data of the older format.

    Raise struct.error or ValueError if the data is not valid.
    """
    if isinstance(data, str):
        return data.encode(), []
    (count,) = struct.unpack("!i", data[:4])
    offsets = [*struct.unpack(f"!{count}I", data[4 : 4 * (count + 1)]), len(data)]
    text, *buffers = [data[start:end] for start, end in pairwise(offsets)]
    return text, buffers


def _acknowledge(websocket: WebSocketClientConnection) -> None:
    """Acknowledge received data immediately.

    Otherwise, the server waits 40 ms before it sends another small packet.
    """
    # The socket may be closed, and not all systems have this option.
    with contextlib.suppress(OSError, AttributeError):
        raw_socket = websocket.protocol.stream.socket  # type: ignore[union-attr]
        raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
