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
            message = self._message(parts[parts.index(DELIM) + 1 :]) if DELIM in parts else None
            if message is None:
                self.unread += 1
                log.warning("a message of the kernel's could not be read: %d bytes", sum(map(len, parts)))
            else:
                yield message

    def _message(self, parts: list[bytes]) -> dict[str, Any] | None:
        signature, *parts = parts
        return read(parts) if hmac.compare_digest(signature, self.session.sign(parts[:4])) else None


def read(parts: list[bytes]) -> dict[str, Any] | None:
    """Return a message from its frames (header, parent, metadata, content, buffers), None where they say nothing."""
    try:
        header, parent, content = loads(parts[0]), loads(parts[1]), loads(parts[3])
        kind = header["msg_type"]
        if kind in NESTED and not _is_text(content) and LONG_INTEGER.search(parts[3]):
            content = json.loads(parts[3].decode("utf-8", "replace"))  # orjson makes floats of them
        size = len(parts[3]) + sum(map(len, parts[4:]))
        return {"header": header, "msg_type": kind, "parent_header": parent, "content": content,
                "buffers": parts[4:], "size": size}  # fmt: skip
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None


def _is_text(content: dict[str, Any]) -> bool:
    """Whether what is shown is text or a picture alone: most is."""
    data = content.get("data")
    return isinstance(data, dict) and all(isinstance(part, str) for part in data.values())


def loads(data: bytes) -> Any:
    """Return what JSON says, also where it holds NaN or bytes that are no UTF-8."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data.decode("utf-8", "replace"))
