"""Ctrl-C while the daemon works for a command: the cell is interrupted, and what became of it is told."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from _socket import SHUT_WR
from typing import Any

from stepper.common.errors import StepperError

INTERRUPTED = 130  # what a shell tells of a command that Ctrl-C ended
SAID = b"\nstepper: interrupting it (Ctrl-C again leaves at once)\n"


class Interrupts:
    """The first Ctrl-C closes this command's half of the connection, the daemon's sign to interrupt what it runs for it
    and to answer how that ended; the second ends the command.
    """

    def __init__(self, runs_code: bool) -> None:
        self.runs_code = runs_code  # all other commands just end
        self.came = False
        self.link: Any = None
        self.before: Any = None

    def __enter__(self) -> Interrupts:
        if self.runs_code:
            self.before = signal.signal(signal.SIGINT, self.heard)
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if self.runs_code:
            signal.signal(signal.SIGINT, self.before)
        if self.came and isinstance(error, StepperError):
            error.exit_code = INTERRUPTED

    def watch(self, link: Any) -> None:
        """Be told of the connection on which the daemon is asked."""
        self.link = link

    def heard(self, *_: object) -> None:
        """Ctrl-C was pressed."""
        if self.came or self.link is None:
            raise KeyboardInterrupt
        self.came = True
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), SAID)
        with contextlib.suppress(OSError):  # it is through
            self.link.shutdown(SHUT_WR)
