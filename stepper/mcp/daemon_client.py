"""Requests to the daemon of the project, each in its own thread.

If the task of a request is cancelled, the socket is shut down, and the daemon
interrupts the cell of the request.
"""

from __future__ import annotations

import _socket
import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from stepper.common.hook_paths import HookPaths
from stepper.hook import daemon_client
from stepper.mcp.mcp_wording import translate

MAX_THREADS = 250  # of each limiter
LONG_COMMANDS = ("cell run", "cell add", "run", "eval", "new", "verify")


class Limiters(NamedTuple):
    """The limits on the threads of an event loop.

    Requests that wait for cells (`long`) have their own limit, so that there are always
    threads for a request that interrupts a cell.
    """

    long: anyio.CapacityLimiter
    short: anyio.CapacityLimiter


LIMITERS: RunVar[Limiters] = RunVar("limiters")


def get_or_create_limiter(is_long: bool) -> anyio.CapacityLimiter:
    """Return the limiter for a request; create the event loop's limiters if needed."""
    try:
        limiters = LIMITERS.get()
    except LookupError:
        limiters = Limiters(
            anyio.CapacityLimiter(MAX_THREADS), anyio.CapacityLimiter(MAX_THREADS)
        )
        LIMITERS.set(limiters)
    if is_long:
        return limiters.long
    return limiters.short


class RequestCancelledError(Exception):
    """The task that waits for the response was cancelled."""


class DaemonRequest:
    """A request in progress; `line` is the last progress message of the daemon."""

    def __init__(self) -> None:
        self.line = ""
        self.sock: _socket.socket | None = None
        self.is_cancelled = False
        self.lock = threading.Lock()

    def on_connect(self, sock: _socket.socket) -> None:
        """Store the socket of the request; close it if the request was cancelled.

        Raises:
            RequestCancelledError: The request was cancelled.
        """
        with self.lock:
            self.sock = sock
            if self.is_cancelled:
                sock.close()
                raise RequestCancelledError

    def on_progress(self, body: bytes) -> None:
        """Update `line` with a progress message or with the running cell.

        Ignore an empty body, which is a heartbeat, and a body that is not JSON.
        """
        if not body:
            return
        try:
            event = json.loads(body)
        except ValueError:
            return
        running_cell = event.get("running")
        if running_cell:
            self.line = _format_running_cell(running_cell)
        elif event.get("line"):
            self.line = translate(str(event["line"]))

    def cancel(self) -> None:
        """Disconnect from the daemon, which then interrupts the cell of the request."""
        with self.lock, suppress(OSError):
            self.is_cancelled = True
            if self.sock:
                # This wakes the reading thread, which closes the socket.
                self.sock.shutdown(_socket.SHUT_RDWR)


def _format_running_cell(cell: Mapping[str, Any]) -> str:
    """Return the name and duration of the running cell, and its last output line."""
    text = f"{cell['name']}, {cell['seconds']:.0f} s"
    if cell["line"]:
        text += f": {cell['line']}"
    return text


class Daemon:
    """A connection to the daemon of a project, for one session of a client."""

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
        """Send a command and return the response.

        `verb` is the command. Arguments with the value None are left out. If no daemon
        is running, start one if `launch` is true; otherwise return None. If the task is
        cancelled, cancel the request.

        Raises:
            StepperError: The command failed, or the daemon can't be reached.
        """
        request = request or DaemonRequest()
        values = {name: value for name, value in arguments.items() if value is not None}
        payload = json.dumps(values).encode()
        # A new kernel gets the environment of this process, without the two variables
        # for the daemon.
        environ = {
            **os.environb,
            b"STEPPER_FACE": b"mcp",
            b"STEPPER_SESSION": os.fsencode(self.session),
        }

        def send() -> bytes | None:
            """Send the request; return None if it was cancelled or no daemon runs."""
            with suppress(RequestCancelledError):
                return daemon_client.send_request(
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
                send, abandon_on_cancel=True, limiter=get_or_create_limiter(is_long)
            )
        except anyio.get_cancelled_exc_class():
            request.cancel()
            raise
        return json.loads(body or b"null")
