"""The way to a kernel over ZeroMQ: as a connection file tells, whether its sockets are files or ports.

The sockets are plain ones: zmq.asyncio asks each of them three times for every message, and has a callback on each
for as long as it is open.
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

from stepper.kernels.external_executions import OURS
from stepper.kernels.message_decoding import Message, read_message, split_message

# a kernel that starts is not there at the first try; ZeroMQ would wait 100 for the next
RECONNECT_MS = 5
BEAT_SECONDS = 3.0  # a heart that is silent for longer does not beat
# between an echo and the next time that one is asked for: a step's messages go alone
REST_SECONDS = 0.5
BURST_SECONDS = 0.05  # then whoever else asks the daemon has its turn
log = logging.getLogger("stepper")
context = zmq.Context()  # of all kernels: each has threads and descriptors of its own
context.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)


class Inbox:
    """The incoming messages of one channel. `unread` counts those that could not be read and are not yet told."""

    def __init__(self, channel: ZMQSocketChannel) -> None:
        assert channel.socket is not None
        self.session, self.socket = channel.session, channel.socket
        self.waits: asyncio.Future[bool] | None = None
        self.descriptor: int | None = None
        self.unread = 0

    async def ready(self, seconds: float) -> bool:
        """Wait until there is a message, at most `seconds`; return whether there is. One waits at a time."""
        if self._there():
            await asyncio.sleep(0)  # a flood must not keep others waiting
            return True
        assert self.waits is None
        loop = asyncio.get_running_loop()
        self.waits = loop.create_future()
        timer = loop.call_later(seconds, self.leave)
        # readable when something may have come, which asking for it tells
        self.descriptor = self.socket.fileno()
        loop.add_reader(self.descriptor, self._woken)
        try:
            return await self.waits
        finally:
            timer.cancel()
            self.leave()
            self.waits = None

    def leave(self) -> None:
        """Have whoever waits go on: nothing came, or the socket is about to be closed."""
        # once: when the socket is closed its number may become somebody else's
        if self.descriptor is not None:
            asyncio.get_running_loop().remove_reader(self.descriptor)
            self.descriptor = None
        self._wake(False)

    def _woken(self) -> None:
        if self._there():
            self._wake(True)

    def _wake(self, there: bool) -> None:
        if self.waits is not None and not self.waits.done():
            self.waits.set_result(there)

    def _there(self) -> bool:
        return bool(int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def messages(self) -> Iterator[Message]:
        """Return the messages that are there, those of a burst at most."""
        until = time.monotonic() + BURST_SECONDS
        while time.monotonic() < until and not self.socket.closed:
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            signature, *frames = (
                parts[parts.index(DELIM) + 1 :] if DELIM in parts else [b""]
            )
            right = len(frames) >= 4 and hmac.compare_digest(
                signature, self.session.sign(frames[:4])
            )
            message = read_message(frames) if right else None
            if message is None:
                self.unread += 1
                log.warning(
                    "a message of the kernel's could not be read: %d bytes",
                    sum(map(len, parts)),
                )
            else:
                yield from split_message(message, frames)


class Channels:
    """A kernel's channels. `connection` is how it is reached, as in Jupyter's connection files."""

    iopub: Inbox  # what the kernel publishes; only while it is open
    shell: Inbox  # what it replies

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self.is_open, self.connection = False, connection
        self.beat: zmq.Socket[bytes] | None = None
        # when an echo was asked for last; for the first time since one came
        self.asked_at = self.owed_at = 0.0
        self.client: KernelClient = BlockingKernelClient(context=context)
        self.client.session.session = OURS + uuid.uuid4().hex
        # jupyter_client's type for it is a TypedDict, which no mapping from a file is
        info = dict(connection, key=connection["key"].encode())
        self.client.load_connection_info(info)  # type: ignore[arg-type]

    @property
    def client_session(self) -> str:
        """The id of the session whose requests its own are."""
        return str(self.client.session.session)

    def open(self) -> None:
        """Have messages come and go."""
        if not self.is_open:
            self.client.start_channels(stdin=False, hb=False, control=False)
            self.iopub, self.shell = (
                Inbox(self.client.iopub_channel),
                Inbox(self.client.shell_channel),
            )
            self.is_open = True

    def close(self) -> None:
        """Have none come any more; whoever waits for one goes on."""
        if self.is_open:
            self.is_open = False
            self.iopub.leave()
            self.shell.leave()
            self.client.stop_channels()
            if self.beat is not None:
                self.beat.close(linger=0)
                self.beat, self.asked_at, self.owed_at = None, 0.0, 0.0

    def ask(self, kind: str, content: Message | None = None) -> None:
        """Ask the kernel on the channel that is served while a cell runs: to interrupt that, to end."""
        if self.is_open:
            self.client.control_channel.send(
                self.client.session.msg(kind, content or {})
            )

    def beats(self) -> bool:
        """Whether the kernel's heart beats, as far as is known by now: each call looks for the echo that is owed."""
        now = time.monotonic()
        if self.beat is not None and self.owed_at:
            with contextlib.suppress(zmq.ZMQError):  # none came yet
                self.beat.recv(zmq.NOBLOCK)
                self.owed_at = 0.0
        if now > self.asked_at + (BEAT_SECONDS if self.owed_at else REST_SECONDS):
            # an echo that is lost on the way keeps its socket
            if self.beat is None or self.owed_at:
                if self.beat is not None:
                    self.beat.close(linger=0)
                self.beat = self.client.connect_hb()
            self.beat.send(b"ping", zmq.NOBLOCK)
            self.asked_at, self.owed_at = now, self.owed_at or now
        return not self.owed_at or now < self.owed_at + BEAT_SECONDS

    def came(self, request: str) -> int:
        """Return 0: they are not counted."""
        return 0

    def send(
        self,
        kind: str,
        content: Message,
        metadata: Message | None = None,
        request: str = "",
        parent: Message | None = None,
    ) -> str:
        """Send a message on the shell channel, by the id `request` where the caller has one; return its id."""
        message = self.client.session.msg(
            kind, content, parent=parent, metadata=metadata
        )
        message["header"]["msg_id"] = message["msg_id"] = (
            request or message["header"]["msg_id"]
        )
        self.client.shell_channel.send(message)
        return str(message["msg_id"])
