"""A client's connection: its request, heartbeats, progress events and the response.

A client sends one request. After that, it sends only signals: a byte to acknowledge a
message to the agent, or the end of its half of the connection to disconnect.
"""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

from stepper.common import wire_format
from stepper.session import progress_events, responses

REQUEST_SECONDS = 30.0  # the timeout for receiving a whole request
ACKNOWLEDGE_SECONDS = 5.0  # the timeout for the acknowledgement of a message


class ClientRequest(NamedTuple):
    """The encoded parts of a request: see `common/wire_format`."""

    command: bytes
    version: bytes
    environ: bytes
    cwd: bytes
    payload: bytes


class Response(NamedTuple):
    """The final response to a request. `wire_format` defines the kinds."""

    kind: bytes
    body: bytes


class Connection:
    """The connection of one client."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._next_signal: asyncio.Task[bytes] | None = None

    def check_peer(self) -> None:
        """Raise PermissionError if the client belongs to another user.

        This should not happen, because only the user can access the socket's folder.
        """
        uid = wire_format.get_peer_uid(self._writer.get_extra_info("socket"))
        if uid != os.getuid():
            raise PermissionError(f"the client belongs to another user (uid {uid})")

    async def receive_request(self) -> ClientRequest:
        """Receive and return the client's request.

        Raise FrameError if the request is invalid, asyncio.TimeoutError if it does not
        arrive within REQUEST_SECONDS, and asyncio.IncompleteReadError if the client
        disconnects.
        """
        parts = await read_parts(self._reader)
        part_count = len(ClientRequest._fields)
        if len(parts) != part_count:
            raise wire_format.FrameError(
                f"the request has {len(parts)} parts instead of {part_count}"
            )
        return ClientRequest(*parts)

    def watch_client(self) -> None:
        """Start waiting for the client's next signal."""
        self._next_signal = asyncio.create_task(_read_signal(self._reader))

    def stop_watching(self) -> None:
        """Stop waiting for the client's next signal."""
        if self._next_signal:
            self._next_signal.cancel()

    @property
    def is_client_disconnected(self) -> bool:
        """Whether the client closed its half of the connection."""
        signal = self._next_signal
        return signal is not None and signal.done() and signal.result() == b""

    async def wait(self, work: asyncio.Task[Response], limit: float) -> None:
        """Wait until the work is done or the client sends a signal.

        Return after `limit` seconds at the latest. If the client has already sent a
        signal, wait only for the work.
        """
        tasks: list[asyncio.Task[Response] | asyncio.Task[bytes]] = [work]
        if self._next_signal and not self._next_signal.done():
            tasks.append(self._next_signal)
        await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)

    def send_heartbeat(self) -> None:
        """Inform the client that the daemon is still processing its request."""
        self._send(wire_format.PROGRESS, b"")

    def send_progress(
        self, event: progress_events.TerminalEvent | progress_events.CellRunning
    ) -> None:
        """Send a progress event."""
        body = responses.to_json(event)
        self._send(wire_format.PROGRESS, body)

    def send_handover(self, request: bytes) -> None:
        """Send the request that the client must repeat if the daemon exits."""
        self._send(wire_format.PROGRESS, b"\0" + request)

    async def deliver(self, text: str) -> bool:
        """Send a message to the agent; return whether the client acknowledged it.

        Return False if the client does not respond within ACKNOWLEDGE_SECONDS. Call
        this at most once, because a client acknowledges only one message.
        """
        body = text.encode("utf-8", "replace")
        self._send(wire_format.PROGRESS, body)
        signal = self._next_signal
        if signal is None:
            return False
        await asyncio.wait([signal], timeout=ACKNOWLEDGE_SECONDS)
        return signal.done() and signal.result() != b""

    async def send_response(self, response: Response) -> None:
        """Send the final response, and wait while the write buffer is full."""
        self._send(*response)
        if not self._writer.is_closing():
            await self._writer.drain()

    def _send(self, kind: bytes, body: bytes) -> None:
        """Send a frame, unless the connection is closed."""
        if not self._writer.is_closing():
            frame = wire_format.pack(kind, body)
            self._writer.write(frame)

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def _read_signal(reader: asyncio.StreamReader) -> bytes:
    """Return the next byte from a client, or b"" if the client disconnects."""
    try:
        return await reader.read(1)
    except ConnectionError:
        # A client that was killed before it read all responses resets the connection.
        return b""


async def read_parts(reader: asyncio.StreamReader) -> list[bytes]:
    """Read a frame, and return its parts.

    Raise asyncio.TimeoutError if the frame is not complete after REQUEST_SECONDS,
    asyncio.IncompleteReadError if the client disconnects, and FrameError if the frame
    is not valid.
    """
    # Cheaper than `asyncio.wait_for`, which starts a task.
    timer = asyncio.get_running_loop().call_later(
        REQUEST_SECONDS, reader.set_exception, asyncio.TimeoutError()
    )
    try:
        prefix = await reader.readexactly(wire_format.PREFIX)
        count = wire_format.parse_part_count(prefix)
        table = await reader.readexactly(wire_format.LENGTH_BYTES * count)
        lengths = wire_format.parse_part_lengths(table)
        return [await reader.readexactly(length) for length in lengths]
    finally:
        timer.cancel()
