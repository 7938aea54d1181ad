"""Messages of a kernel, read many at a time: jupyter_client's own reading costs a poll and two dates each.

The sockets are plain ones: zmq.asyncio asks each of them three times for every message, and has a callback on each
for as long as it is open.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import time
from collections.abc import Iterator
from typing import Any

import orjson
import zmq
from jupyter_client.channels import ZMQSocketChannel
from jupyter_client.session import DELIM

BURST_SECONDS = 0.05  # then whoever else asks the daemon has its turn
LONG_INTEGER = re.compile(rb"[:,\[]\s*-?\d{19}")
LARGE, PIECE = 1 << 20, 1 << 18  # bytes of a stream's text that are read in pieces: fresh memory is dearer than reading
STREAM = re.compile(rb'\{"name": ?"(stdout|stderr)", ?"text": ?"')
HIGH = re.compile(rb"\\u[dD][89abAB]")
NESTED = ("display_data", "update_display_data", "execute_result", "comm_open", "comm_msg")  # they may hold JSON
log = logging.getLogger("stepper")


class Inbox:
    """The incoming messages of one channel."""

    def __init__(self, channel: ZMQSocketChannel) -> None:
        assert channel.socket is not None
        self.session, self.socket = channel.session, channel.socket
        self.waits: asyncio.Future[bool] | None = None
        self.descriptor: int | None = None
        self.unread = 0  # messages that could not be read, not yet told

    async def ready(self, seconds: float) -> bool:
        """Wait until there is a message, at most `seconds`; return whether there is. One waits at a time."""
        if self._there():
            await asyncio.sleep(0)  # a flood must not keep others waiting
            return True
        assert self.waits is None
        loop = asyncio.get_running_loop()
        self.waits = loop.create_future()
        timer = loop.call_later(seconds, self.leave)
        self.descriptor = self.socket.fileno()  # readable when something may have come, which asking for it tells
        loop.add_reader(self.descriptor, self._woken)
        try:
            return await self.waits
        finally:
            timer.cancel()
            self._look_away()
            self.waits = None

    def leave(self) -> None:
        """Have whoever waits go on: nothing came, or the socket is about to be closed."""
        self._look_away()
        if self.waits is not None and not self.waits.done():
            self.waits.set_result(False)

    def _look_away(self) -> None:
        """Forget the descriptor, once: when the socket is closed its number may become somebody else's."""
        if self.descriptor is not None:
            asyncio.get_running_loop().remove_reader(self.descriptor)
            self.descriptor = None

    def _there(self) -> bool:
        return bool(int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def _woken(self) -> None:
        if self.waits is not None and not self.waits.done() and self._there():
            self.waits.set_result(True)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Return the messages that are there, those of a burst at most."""
        until = time.monotonic() + BURST_SECONDS
        while time.monotonic() < until and not self.socket.closed:
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            signature, *frames = parts[parts.index(DELIM) + 1 :] if DELIM in parts else [b""]
            message = self._message(signature, frames)
            if message is None:
                self.unread += 1
                log.warning("a message of the kernel's could not be read: %d bytes", sum(map(len, parts)))
            elif len(frames) > 4 or len(frames[3]) <= LARGE or message["msg_type"] != "stream":
                yield message
            else:
                yield from ({**message, "content": {**message["content"], "text": text}} for text in pieces(frames[3]))

    def _message(self, signature: bytes, frames: list[bytes]) -> dict[str, Any] | None:
        right = len(frames) >= 4 and hmac.compare_digest(signature, self.session.sign(frames[:4]))
        return read(frames) if right else None


def read(parts: list[bytes]) -> dict[str, Any] | None:
    """Return a message from its frames (header, parent, metadata, content, buffers), None where they say nothing."""
    try:
        header, parent = loads(parts[0]), loads(parts[1])
        kind = header["msg_type"]
        stream = STREAM.match(parts[3]) if kind == "stream" and len(parts[3]) > LARGE else None
        content = {"name": stream[1].decode(), "text": ""} if stream else loads(parts[3])
        if kind in NESTED and not _is_text(content) and LONG_INTEGER.search(parts[3]):
            content = json.loads(parts[3].decode("utf-8", "replace"))  # orjson makes floats of them
        size = len(parts[3]) + sum(map(len, parts[4:]))
        return {"header": header, "msg_type": kind, "parent_header": parent, "content": content,
                "buffers": parts[4:], "size": size}  # fmt: skip
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return None


def _is_text(content: dict[str, Any]) -> bool:
    """Whether what is shown is text or a picture alone: most is."""
    data = content.get("data")
    return isinstance(data, dict) and all(isinstance(part, str) for part in data.values())


def pieces(content: bytes) -> Iterator[str]:
    """Yield the text of a stream's content, as JSON, in pieces: no escape and no character is cut in two."""
    stream = STREAM.match(content)
    if stream is None:
        yield loads(content)["text"]
        return
    at, end = stream.end(), content.rindex(b'"')
    while at < end:
        cut = min(at + PIECE, end)
        if cut < end:
            slash = content.rfind(b"\\", cut - 6, cut)
            if slash >= 0:
                run = 1
                while content[slash - run : slash - run + 1] == b"\\":
                    run += 1
                cut = slash if run % 2 else slash + 1  # an escape begins there, or one has just ended
                cut -= 6 * bool(HIGH.match(content, cut - 6))
            while content[cut] & 0xC0 == 0x80:
                cut -= 1
        yield loads(b'"' + content[at:cut] + b'"')
        at = cut


def loads(data: bytes) -> Any:
    """Return what JSON says, also where it holds NaN or bytes that are no UTF-8."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data.decode("utf-8", "replace"))
