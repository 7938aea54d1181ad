"""The channels of a kernel over ZeroMQ, using Unix sockets or TCP ports.

The sockets of zmq.asyncio are not used, because zmq.asyncio polls each socket three
times for every message and keeps a callback registered while the socket is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import zmq
from jupyter_client import BlockingKernelClient, KernelClient
from jupyter_client.channels import ZMQSocketChannel
from jupyter_client.session import DELIM

from stepper.kernels.external_executions import SESSION_PREFIX
from stepper.kernels.message_decoding import (
    DECODE_ERRORS,
    Message,
    read_message,
    split_message,
)

# A kernel that starts does not accept the first connection, and ZeroMQ's default for
# the next attempt is 100 ms.
RECONNECT_MS = 5
HEARTBEAT_TIMEOUT_SECONDS = 3.0
# Between an echo and the next ping, so that pings do not delay the messages of a step.
HEARTBEAT_PAUSE_SECONDS = 0.5
BURST_SECONDS = 0.05  # of messages, before the daemon serves other requests
log = logging.getLogger("stepper")
# The context of all kernels: each context has its own threads and descriptors.
context = zmq.Context()
context.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)


class Inbox:
    """The incoming messages of one channel.

    `unreadable_count` is the number of messages that could not be decoded and have not
    been reported yet.
    """

    def __init__(self, channel: ZMQSocketChannel) -> None:
        assert channel.socket is not None
        self.session = channel.session
        self.socket = channel.socket
        self.waiter: asyncio.Future[bool] | None = None
        self.descriptor: int | None = None
        self.unreadable_count = 0

    async def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for a message, and return whether one has arrived.

        Only one caller may wait at a time.
        """
        if self._has_message():
            await asyncio.sleep(0)  # a flood of messages must not block other tasks
            return True
        assert self.waiter is None
        loop = asyncio.get_running_loop()
        self.waiter = loop.create_future()
        timer = loop.call_later(seconds, self.stop_waiting)
        # ZeroMQ's descriptor becomes readable when a message may have arrived.
        self.descriptor = self.socket.fileno()
        loop.add_reader(self.descriptor, self._on_readable)
        try:
            return await self.waiter
        finally:
            timer.cancel()
            self.stop_waiting()
            self.waiter = None

    def stop_waiting(self) -> None:
        """Make `wait` return, after its time limit or before the socket is closed."""
        # The number of a closed descriptor may be used for another file.
        if self.descriptor is not None:
            asyncio.get_running_loop().remove_reader(self.descriptor)
            self.descriptor = None
        self._resolve(has_message=False)

    def _on_readable(self) -> None:
        """Make `wait` return if a message has arrived."""
        if self._has_message():
            self._resolve(has_message=True)

    def _resolve(self, *, has_message: bool) -> None:
        """Set the result of `wait`, if a caller is waiting."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(has_message)

    def _has_message(self) -> bool:
        """Return whether a message can be received without waiting."""
        return bool(int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def take_messages(self) -> Iterator[Message]:
        """Yield and remove the messages that have arrived.

        Stop after BURST_SECONDS, even if more messages are waiting.
        """
        deadline = time.monotonic() + BURST_SECONDS
        while time.monotonic() < deadline and not self.socket.closed:
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            frames = self._verify(parts)
            try:
                message = read_message(frames)
                if message is not None:
                    yield from split_message(message, frames)
                    continue
            except DECODE_ERRORS:  # in the text of a large stream message
                pass
            self.unreadable_count += 1
            size = sum(map(len, parts))
            log.warning("could not read a kernel message of %d bytes", size)

    def _verify(self, parts: list[bytes]) -> list[bytes]:
        """Return the frames of a message after its signature.

        Return an empty list if the signature is wrong or frames are missing.
        """
        if DELIM not in parts:
            return []
        signed_parts = parts[parts.index(DELIM) + 1 :]
        if len(signed_parts) < 5:
            return []
        signature, *frames = signed_parts
        expected = self.session.sign(frames[:4])
        if hmac.compare_digest(signature, expected):
            return frames
        return []


class Channels:
    """The ZeroMQ channels of a kernel.

    `connection` contains the fields of a Jupyter connection file. `iopub` and `shell`
    exist only while the channels are open.
    """

    iopub: Inbox
    shell: Inbox

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self.is_open = False
        self.connection = connection
        self.heartbeat: zmq.Socket[bytes] | None = None
        # Times of the last ping, and of the first ping since the last echo (0 if none).
        self.pinged_at = 0.0
        self.unanswered_since = 0.0
        self.client: KernelClient = BlockingKernelClient(context=context)
        self.client.session.session = SESSION_PREFIX + uuid.uuid4().hex
        # jupyter_client declares a TypedDict, which a mapping from a file is not.
        info = dict(connection, key=connection["key"].encode())
        self.client.load_connection_info(info)  # type: ignore[arg-type]

    @property
    def client_session(self) -> str:
        """The session id in the headers of this client's messages."""
        return str(self.client.session.session)

    def open(self) -> None:
        """Open the channels."""
        if not self.is_open:
            self.client.start_channels(stdin=False, hb=False, control=False)
            self.iopub = Inbox(self.client.iopub_channel)
            self.shell = Inbox(self.client.shell_channel)
            self.is_open = True

    def close(self) -> None:
        """Close the channels and stop waiting for messages."""
        if self.is_open:
            self.is_open = False
            self.iopub.stop_waiting()
            self.shell.stop_waiting()
            self.client.stop_channels()
            if self.heartbeat is not None:
                self.heartbeat.close(linger=0)
                self.heartbeat = None
                self.pinged_at = 0.0
                self.unanswered_since = 0.0

    def send_control(self, message_type: str, content: Message | None = None) -> None:
        """Send a request on the control channel, for example to interrupt the kernel.

        The kernel handles the control channel even while a cell is running. Do nothing
        if the channels are not open.
        """
        if self.is_open:
            message = self.client.session.msg(message_type, content or {})
            self.client.control_channel.send(message)

    def probe_heartbeat(self) -> bool:
        """Send a heartbeat ping if necessary, and return whether the kernel responds.

        Each call checks for the echo of the last ping. The result is False if a ping
        has been unanswered for HEARTBEAT_TIMEOUT_SECONDS.
        """
        now = time.monotonic()
        if self.heartbeat is not None and self.unanswered_since:
            with contextlib.suppress(zmq.ZMQError):  # no echo yet
                self.heartbeat.recv(zmq.NOBLOCK)
                self.unanswered_since = 0.0
        pause = HEARTBEAT_PAUSE_SECONDS
        if self.unanswered_since:
            pause = HEARTBEAT_TIMEOUT_SECONDS
        if now > self.pinged_at + pause:
            self._send_ping(now)
        if not self.unanswered_since:
            return True
        return now < self.unanswered_since + HEARTBEAT_TIMEOUT_SECONDS

    def _send_ping(self, now: float) -> None:
        """Send a heartbeat ping, and store the time `now` of the ping."""
        if self.heartbeat is not None and self.unanswered_since:
            # A socket whose ping was lost cannot send another ping.
            self.heartbeat.close(linger=0)
            self.heartbeat = None
        if self.heartbeat is None:
            self.heartbeat = self.client.connect_hb()
        self.heartbeat.send(b"ping", zmq.NOBLOCK)
        self.pinged_at = now
        self.unanswered_since = self.unanswered_since or now

    def count_received(self, request_id: str) -> int:
        """Return 0: messages over ZeroMQ are not counted."""
        return 0

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
        is the message, or its header, that the message belongs to.
        """
        message = self.client.session.msg(
            message_type, content, parent=parent, metadata=metadata
        )
        if request:
            message["header"]["msg_id"] = request
            message["msg_id"] = request
        self.client.shell_channel.send(message)
        return str(message["msg_id"])
