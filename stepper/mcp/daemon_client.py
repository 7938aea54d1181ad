"""Sends requests to the project's daemon, each in a thread of its own.

A cancelled task closes its socket. The daemon then interrupts the cell that runs for
it, as if the client had disconnected.
"""

from __future__ import annotations

import _socket
import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from stepper.common.socket_path import HookPaths
from stepper.hook import client
from stepper.mcp.mcp_wording import translate

# Threads for requests that wait for cells, and as many again for all others.
MAX_THREADS = 250
LONG_COMMANDS = ("cell run", "cell add", "run", "eval", "new")
# The limits of an event loop: for long requests, and for all others.
LIMITERS: RunVar[tuple[anyio.CapacityLimiter, anyio.CapacityLimiter]] = RunVar(
    "limiters"
)


def get_limiter(is_long: bool) -> anyio.CapacityLimiter:
    """Return the limit on threads.

    Requests that wait for cells have a limit of their own, so that an interrupt is
    always possible.
    """
    try:
        limiters = LIMITERS.get()
    except LookupError:
        limiters = (
            anyio.CapacityLimiter(MAX_THREADS),
            anyio.CapacityLimiter(MAX_THREADS),
        )
        LIMITERS.set(limiters)
    for_long, for_short = limiters
    return for_long if is_long else for_short


class RequestCancelledError(Exception):
    """The caller no longer waits for the response."""


class DaemonRequest:
    """A request in progress; `line` is the last progress that the daemon reported."""

    def __init__(self) -> None:
        self.line = ""
        self.sock: _socket.socket | None = None
        self.is_cancelled = False
        self.lock = threading.Lock()

    def on_connect(self, sock: _socket.socket) -> None:
        """Take the socket; raise RequestCancelledError if the request is cancelled."""
        with self.lock:
            self.sock = sock
            if self.is_cancelled:
                sock.close()
                raise RequestCancelledError

    def on_progress(self, body: bytes) -> None:
        """Update the progress: a line, or the running cell and its time."""
        with suppress(ValueError):
            event = json.loads(body) if body else {}
            running = event.get("running")
            if running:
                line = f": {running['line']}" if running["line"] else ""
                self.line = f"{running['name']}, {running['seconds']:.0f} s{line}"
            else:
                self.line = translate(str(event.get("line") or self.line))

    def cancel(self) -> None:
        """Disconnect from the daemon."""
        with self.lock, suppress(OSError):
            self.is_cancelled = True
            if self.sock:
                # Wakes the thread that waits for it, which closes the socket.
                self.sock.shutdown(_socket.SHUT_RDWR)


class Daemon:
    """The project's daemon, for one session of a client."""

    def __init__(self, project: str, session: str) -> None:
        self.paths = HookPaths(project)
        self.session = session

    async def ask(
        self,
        verb: str,
        arguments: Mapping[str, Any],
        request: DaemonRequest | None = None,
        launch: bool = True,
    ) -> Any:
        """Return the response to a command; raise StepperError.

        Return None if no daemon is running and `launch` is false.
        """
        request = request or DaemonRequest()
        values = {name: value for name, value in arguments.items() if value is not None}
        payload = json.dumps(values).encode()
        # A new kernel gets the environment of this process, as after an edit. The
        # daemon removes the variables below.
        environ = {
            **os.environb,
            b"STEPPER_FACE": b"mcp",
            b"STEPPER_SESSION": os.fsencode(self.session),
        }

        def send() -> bytes | None:
            with suppress(RequestCancelledError):
                return client.send_request(
                    self.paths,
                    verb.encode(),
                    payload,
                    request.on_progress,
                    launch,
                    environ,
                    on_connect=request.on_connect,
                )
            return None

        is_long = verb in LONG_COMMANDS or bool(arguments.get("wait_seconds"))
        try:
            body = await anyio.to_thread.run_sync(
                send, abandon_on_cancel=True, limiter=get_limiter(is_long)
            )
        except anyio.get_cancelled_exc_class():
            request.cancel()
            raise
        return json.loads(body or b"null")
