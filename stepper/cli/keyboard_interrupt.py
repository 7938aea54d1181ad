"""Handle Ctrl-C while the daemon runs cells for a command.

The first Ctrl-C interrupts the cell, and the command still prints the result. The
second Ctrl-C stops the command.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from _socket import SHUT_RDWR, SHUT_WR
from typing import Any

from stepper.common.errors import StepperError

INTERRUPTED = 130  # 128 + SIGINT, the exit code that shells report after Ctrl-C
NOT_SENT = "the command was interrupted before the daemon received the request"
NOTICE = b"\nstepper: interrupting the cell (press Ctrl-C again to stop waiting)\n"


class InterruptHandler:
    """A context manager that handles Ctrl-C for a command.

    The first Ctrl-C closes the command's half of the connection. The daemon then
    interrupts the command's cell and responds with the result. For commands that run no
    code, Ctrl-C is not handled.
    """

    def __init__(self, runs_code: bool) -> None:
        self.runs_code = runs_code
        self.interrupted = False
        self.connections: list[Any] = []
        self.is_stopped = False  # whether a Ctrl-C stopped the command
        self.previous_handler: Any = None

    def __enter__(self) -> InterruptHandler:
        if self.runs_code:
            self.previous_handler = signal.signal(signal.SIGINT, self.handle_signal)
        return self

    def __exit__(
        self,
        kind: object,
        error: BaseException | None,
        _: object,
    ) -> None:
        """Restore the previous handler; set the exit code of an interrupted command."""
        if self.runs_code:
            signal.signal(signal.SIGINT, self.previous_handler)
        if self.interrupted and isinstance(error, StepperError):
            error.exit_code = INTERRUPTED

    def add_connection(self, connection: Any) -> None:
        """Add the connection of a request, before the request is sent.

        Raise StepperError if Ctrl-C was pressed, so that no request is sent. With
        several requests, the handler may run while another thread opens a connection.
        """
        self.connections.append(connection)
        if self.interrupted or self.is_stopped:
            raise StepperError(NOT_SENT)

    def handle_signal(self, *_: object) -> None:
        """Interrupt the cell at the first Ctrl-C. Called for the signal SIGINT.

        At the second Ctrl-C, or if there is no connection yet, raise KeyboardInterrupt.
        This also ends the threads that wait for responses: the program exits only when
        they have ended.
        """
        if self.interrupted or not self.connections:
            self.is_stopped = True
            self._shut_down_connections(SHUT_RDWR)
            raise KeyboardInterrupt
        self.interrupted = True
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), NOTICE)
        self._shut_down_connections(SHUT_WR)

    def _shut_down_connections(self, direction: int) -> None:
        """Shut down one or both directions of all connections, such as SHUT_WR."""
        for connection in self.connections:
            with contextlib.suppress(OSError):  # the daemon has closed the connection
                connection.shutdown(direction)
