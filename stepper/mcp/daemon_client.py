"""Ask the project's daemon from a task, by a thread each. A task that is cancelled closes its socket.

The daemon takes that for a client that went away: what runs for it is interrupted.
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

# threads that wait for the daemon; as many again for what waits for no cell
AT_ONCE = 250
LASTING = ("cell run", "cell add", "run", "eval", "new")
# of an event loop
LIMITERS: RunVar[tuple[anyio.CapacityLimiter, anyio.CapacityLimiter]] = RunVar(
    "limiters"
)


def limiter(waits: bool) -> anyio.CapacityLimiter:
    """Return what bounds the threads of calls that wait for cells, or of all others: an interrupt is to get past."""
    try:
        found = LIMITERS.get()
    except LookupError:
        LIMITERS.set(
            found := (anyio.CapacityLimiter(AT_ONCE), anyio.CapacityLimiter(AT_ONCE))
        )
    return found[waits]


class LeftError(Exception):
    """Nobody waits for the answer any more."""


class Asked:
    """One request on its way, and the last that the daemon told of it."""

    def __init__(self) -> None:
        self.line = ""
        self.sock: _socket.socket | None = None
        self.left = False
        self.lock = threading.Lock()

    def begun(self, sock: _socket.socket) -> None:
        """Take the socket; raise LeftError where nobody waits any more."""
        with self.lock:
            self.sock = sock
            if self.left:
                sock.close()
                raise LeftError

    def progress(self, body: bytes) -> None:
        """Keep what is told on the way: a wait's or a cell's line, or how long a cell has run."""
        with suppress(ValueError):
            told = json.loads(body) if body else {}
            if now := told.get("running"):
                line = f": {now['line']}" if now["line"] else ""
                self.line = f"{now['name']}, {now['seconds']:.0f} s{line}"
            else:
                self.line = translate(str(told.get("line") or self.line))

    def leave(self) -> None:
        """End it."""
        with self.lock, suppress(OSError):
            self.left = True
            if self.sock:
                # the thread that waits for it wakes, and closes it
                self.sock.shutdown(_socket.SHUT_RDWR)


class Daemon:
    """The project's daemon, as one session of a client asks it."""

    def __init__(self, project: str, session: str) -> None:
        self.paths = HookPaths(project)
        self.session = session

    async def ask(
        self,
        verb: str,
        told: Mapping[str, Any],
        asked: Asked | None = None,
        launch: bool = True,
    ) -> Any:
        """Return the answer to a command, None where no daemon runs and none is to be started; raise StepperError."""
        request = asked or Asked()
        payload = json.dumps(
            {name: value for name, value in told.items() if value is not None}
        ).encode()

        def work() -> bytes | None:
            # A kernel gets what we were given, as after an edit: but for the agent's
            # own, which the daemon leaves out.
            environ = {
                **os.environb,
                b"STEPPER_FACE": b"mcp",
                b"STEPPER_SESSION": os.fsencode(self.session),
            }
            with suppress(LeftError):
                return client.send_request(
                    self.paths,
                    verb.encode(),
                    payload,
                    request.progress,
                    launch,
                    environ,
                    on_connect=request.begun,
                )
            return None

        waits = verb in LASTING or bool(told.get("wait_seconds"))
        try:
            body = await anyio.to_thread.run_sync(
                work, abandon_on_cancel=True, limiter=limiter(waits)
            )
        except anyio.get_cancelled_exc_class():
            request.leave()
            raise
        return json.loads(body or b"null")
