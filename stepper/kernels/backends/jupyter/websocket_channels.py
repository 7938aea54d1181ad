"""A kernel's channels through a server: one websocket for all, which comes back when it is cut.

The session's id stays the same, for the next daemon too, so that the server sends what the kernel said meanwhile. What
is to be sent waits until the socket is there. Messages are the kernel's own bytes where the server knows that protocol
(Jupyter Server 2), else JSON with buffers in Jupyter's older binary form, which all servers speak.
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
# before each try to come back; the last one from then on
AGAIN_SECONDS = (0.05, 0.2, 0.5, 1.0)
NO_ANSWER = 599  # what tornado calls a request that got none
PING_SECONDS = 10.0  # a line that says nothing for twice as long is cut
LARGEST = 1 << 30  # bytes of a message
# messages that nobody has taken: then no more are read, and the server waits
HELD = 1000
COUNTED = 100  # requests of which it is known how many messages came
OUTSIDE = "EndedOutside"  # nothing in a cell ended it
PARTS = ("header", "parent_header", "metadata", "content")
log = logging.getLogger("stepper")


class Inbox:
    """The incoming messages of one channel. `unread` counts those that could not be read and are not yet told."""

    def __init__(self) -> None:
        self.waiting: deque[Message] = deque()
        self.waits: asyncio.Future[None] | None = None
        self.unread = 0

    def put(self, message: Message) -> None:
        """Take a message that came."""
        self.waiting.append(message)
        self.leave()

    async def ready(self, seconds: float) -> bool:
        """Wait until there is a message, at most `seconds`; return whether there is. One waits at a time."""
        if self.waiting:
            await asyncio.sleep(0)  # a flood must not keep others waiting
            return True
        loop = asyncio.get_running_loop()
        # wait_for would swallow that who waits is cancelled
        self.waits = loop.create_future()
        timer = loop.call_later(seconds, self.leave)
        try:
            await self.waits
        finally:
            timer.cancel()
            self.waits = None
        return bool(self.waiting)

    def leave(self) -> None:
        """Have whoever waits go on."""
        if self.waits is not None and not self.waits.done():
            self.waits.set_result(None)

    def messages(self) -> Iterator[Message]:
        """Return the messages that are there."""
        while self.waiting:
            yield self.waiting.popleft()


class WebsocketChannels:
    """A kernel's channels. `life` tells its process from one that the server puts in its place, '' where not known."""

    connection: Mapping[str, Any] = MappingProxyType({})  # no file tells of it

    def __init__(
        self, server: Server, kernel: str, session: str, life: str = ""
    ) -> None:
        self.server, self.kernel, self.session, self.life = (
            server,
            kernel,
            session,
            life,
        )
        self.is_open = False
        self.lost = ""  # how it was lost, as far as the line tells
        self.cause = ""  # the class of that, where it is known
        # this line, which was not cut since, has told of that process
        self.hears_life = False
        self.away = ""  # why nothing reaches it now
        # a request that was under way then may be lost: what the kernel remembers tells
        self.cuts = 0
        self.iopub, self.shell = Inbox(), Inbox()
        self.inboxes = {"iopub": self.iopub, "shell": self.shell}
        self.counts: dict[str, int] = {}
        self.unsent: deque[tuple[str, Message]] = deque()
        self.line: WebSocketClientConnection | None = None
        self.work: asyncio.Task[None] | None = None

    @property
    def client_session(self) -> str:
        """The id of the session whose requests its own are."""
        return self.session

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

    def count_received(self, request: str) -> int:
        """Return how many messages of a request the kernel has published here."""
        return self.counts.get(request, 0)

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
        header = {
            "msg_id": name,
            "msg_type": kind,
            "username": "stepper",
            "session": self.session,
            "date": at,
            "version": "5.3",
        }
        message = {
            "header": header,
            "parent_header": (parent or {}).get("header", parent or {}),
            "metadata": metadata or {},
            "content": content,
        }
        self.unsent.append((channel, message))
        self._flush()
        return name

    def _flush(self) -> None:
        """Send what waits; what does not go waits on."""
        while self.line is not None and self.unsent:
            channel, message = self.unsent[0]
            try:
                if self.line.selected_subprotocol == PROTOCOL:
                    parts = [json.dumps(message[part]).encode() for part in PARTS]
                    self.line.write_message(framed(channel, parts), binary=True)
                else:
                    self.line.write_message(
                        json.dumps({"channel": channel, **message, "buffers": []})
                    )
            except WebSocketClosedError:
                return  # whoever reads from it brings it back
            self.unsent.popleft()

    async def _keep(self) -> None:
        """Read until this is closed; a line that is cut is made anew."""
        tries = 0
        while self.is_open:
            try:
                url = f"ws{self.server.base.removeprefix('http')}/api/kernels/{self.kernel}/channels"
                request = await self.server.made(f"{url}?session_id={self.session}")
                self.line = await websocket_connect(
                    request,
                    max_message_size=LARGEST,
                    ping_interval=PING_SECONDS,
                    ping_timeout=PING_SECONDS,
                    subprotocols=[PROTOCOL],
                )
                tries, self.away = 0, ""
                self._flush()
                self.hears_life = False
                await self._read(self.line)
            except HTTPClientError as error:
                silent = error.code == NO_ANSWER
                why = (
                    self.server.unreached(error)
                    if silent
                    else f"{self.server.name} answers {error.code}"
                )
                self.away = self.away or why
                self.away = await self._refused(error.code) or why
            except KernelError as error:
                self.away = error.message
            except Exception as error:
                self.away = self.server.unreached(error)
            if self.line is not None:
                self.cuts += 1
                self.line.close()
                self.line, self.away = None, ""  # as a rule it is back at once
            if tries < len(AGAIN_SECONDS):
                log.info(
                    "the line to the kernel %s is cut%s",
                    self.kernel,
                    self.away and f": {self.away}",
                )
            await asyncio.sleep(AGAIN_SECONDS[min(tries, len(AGAIN_SECONDS) - 1)])
            tries += 1

    async def _refused(self, code: int) -> str:
        """Return why the server did not take the line, as far as it says: it may have the kernel no more."""
        if code in (401, 403):
            self.server.kept = ""  # it may be a new one by now
        try:
            self.gone(await self.server.lacks(self.kernel))
        except KernelError as error:
            return error.message
        return self.lost

    def gone(self, how: str) -> None:
        """The server says how it lost the kernel, '' where it has it: nothing in a cell did that."""
        if how and not self.lost:
            self.lost, self.cause = how, OUTSIDE

    async def _read(self, line: WebSocketClientConnection) -> None:
        binary = line.selected_subprotocol == PROTOCOL
        while (data := await line.read_message()) is not None:
            _acknowledge(line)
            channel, messages = of_frames(data) if binary else of_json(data)
            for message in messages:
                self._take(channel, message)
            if not messages:
                self.iopub.unread += 1
                log.warning(
                    "a message of the kernel %s could not be read: %d bytes",
                    self.kernel,
                    len(data),
                )
            while len(self.iopub.waiting) > HELD and self.is_open:
                await asyncio.sleep(0.02)

    def _take(self, channel: str, message: Message) -> None:
        kind, content, session = (
            message["msg_type"],
            message["content"],
            message["header"].get("session"),
        )
        if kind == "kernel_info_reply" and content.get("implementation") == "ipython":
            self.life = self.life or str(session)
        if kind == "status" and content.get("execution_state") in (
            "restarting",
            "dead",
        ):
            self.lost = (
                self.lost or "its process died, and the server has started another"
            )
        elif (
            kind == "status"
            and not self.lost
            and self.life
            and session not in (self.life, self.session)
        ):
            self.lost = "the server has started another in its place"
            # of a death it would have told first
            self.cause = OUTSIDE if self.hears_life else ""
        self.hears_life = self.hears_life or bool(self.life and session == self.life)
        whose = message["parent_header"].get("session") or self.session
        if self.lost:
            return  # what the next one says belongs to no cell of ours
        if whose != self.session:  # another client asked for it
            if channel == "iopub":
                self.iopub.put(message)
            return
        if kind == "stream" and self.life and session == self.session:
            # the server's own word, that it leaves out what is too much for it
            self.cuts += 1
        elif channel == "iopub":
            request = message["parent_header"].get("msg_id")
            self.counts[request] = self.counts.pop(request, 0) + 1
            if len(self.counts) > COUNTED:
                del self.counts[next(iter(self.counts))]
        if channel in self.inboxes:
            self.inboxes[channel].put(message)


def framed(channel: str, parts: list[bytes]) -> bytes:
    """Return a message's parts as that protocol has them: how many offsets, the offsets, the channel, the parts."""
    frames = [channel.encode(), *parts]
    places = [8 * (len(frames) + 2)]
    for frame in frames:
        places.append(places[-1] + len(frame))
    return b"".join(
        [struct.pack(f"<{len(places) + 1}Q", len(places), *places), *frames]
    )


def of_frames(data: str | bytes) -> tuple[str, list[Message]]:
    """Return a message as that protocol has it, in pieces where it is large; none where it says nothing."""
    try:
        assert isinstance(data, bytes)
        (count,) = struct.unpack_from("<Q", data)
        places = struct.unpack_from(f"<{count}Q", data, 8)
        channel, *parts = [data[begin:end] for begin, end in pairwise(places)]
        message = read_message(parts)
        right = message is not None and all(
            isinstance(message[part], dict) for part in ("header", "parent_header")
        )
        return channel.decode(), [
            *split_message(message, parts)
        ] if message is not None and right else []
    except (ValueError, AssertionError, struct.error, MemoryError, OverflowError):
        return "", []


def of_json(data: str | bytes) -> tuple[str, list[Message]]:
    """Return a message in the older form: JSON, before its buffers where it has any."""
    try:
        buffers: list[bytes] = []
        if isinstance(data, bytes):
            (count,) = struct.unpack("!i", data[:4])
            places = [
                *struct.unpack(f"!{count}I", data[4 : 4 * (count + 1)]),
                len(data),
            ]
            first, *buffers = [data[begin:end] for begin, end in pairwise(places)]
        else:
            first = data.encode()
        told: dict[str, Any] = json.loads(first)
        header, parent, content = (
            told["header"],
            told.get("parent_header") or {},
            told["content"],
        )
        if not (
            isinstance(header, dict)
            and isinstance(parent, dict)
            and isinstance(content, dict)
        ):
            return "", []
        size = len(first) + sum(map(len, buffers))
        return str(told.get("channel")), [
            {
                "header": header,
                "msg_type": str(header["msg_type"]),
                "parent_header": parent,
                "content": content,
                "buffers": buffers,
                "size": size,
            }
        ]
    except (ValueError, KeyError, TypeError, IndexError, struct.error, RecursionError):
        return "", []


def _acknowledge(line: WebSocketClientConnection) -> None:
    """Have what came acknowledged at once: the server waits for that with the next small piece, 40 ms each."""
    # it may be closed; other systems have no such option
    with contextlib.suppress(OSError, AttributeError):
        raw_socket = line.protocol.stream.socket  # type: ignore[union-attr]
        raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
