"""Messages of a kernel, read many at a time: jupyter_client's own reading costs a poll and two dates each."""

from __future__ import annotations

import hmac
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import orjson
import zmq
from jupyter_client.channels import AsyncZMQSocketChannel
from jupyter_client.session import DELIM

BURST_SECONDS = 0.05  # then whoever else asks the daemon has its turn
log = logging.getLogger("stepper")


class Inbox:
    """The incoming messages of one channel."""

    def __init__(self, channel: AsyncZMQSocketChannel) -> None:
        assert channel.socket is not None
        self.session, self.socket = channel.session, channel.socket
        self.plain: zmq.Socket[bytes] = zmq.Socket.shadow(self.socket.underlying)

    async def ready(self, seconds: float) -> bool:
        """Wait until there is a message, at most `seconds`; return whether there is."""
        return bool(await self.socket.poll(int(seconds * 1000)))

    def messages(self) -> Iterator[dict[str, Any]]:
        """Return the messages that are there, those of a burst at most."""
        until = time.monotonic() + BURST_SECONDS
        while time.monotonic() < until:
            try:
                parts = self.plain.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            message = self._message(parts[parts.index(DELIM) + 1 :]) if DELIM in parts else None
            if message is None:
                log.warning("a message of the kernel's could not be read: %d bytes", sum(map(len, parts)))
            else:
                yield message

    def _message(self, parts: list[bytes]) -> dict[str, Any] | None:
        signature, *parts = parts[:5]
        if not hmac.compare_digest(signature, self.session.sign(parts)):
            return None
        try:
            header, parent, _, content = map(loads, parts)
            return {"header": header, "msg_type": header["msg_type"], "parent_header": parent, "content": content}
        except (ValueError, KeyError, TypeError):
            return None


def loads(data: bytes) -> Any:
    """Return what JSON says, also where it holds NaN or bytes that are no UTF-8."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data.decode("utf-8", "replace"))
