"""The wait for the output of subprocesses and C code at the end of a cell.

Two threads of ipykernel read the output that is written to descriptors 1 and 2, and
ipykernel does not wait for these threads when a cell finishes. Without a wait, the
report on `subprocess.run` might lack its output. `drain` waits a few milliseconds if
something was written.
"""

from __future__ import annotations

import fcntl
import struct
import sys
import termios
import time
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.safe_inspect import clock

MAX_SECONDS = 0.1  # for a subprocess that keeps writing
PAUSE_SECONDS = 0.001  # between two checks of the reader thread
IDLE_CHECKS = 3  # in a row, after which the reader counts as idle
INT_SIZE = struct.calcsize("i")
streams: list[Any] = [
    stream
    for stream in (sys.stdout, sys.stderr)
    if getattr(stream, "_fid", None) is not None
]


def drain() -> None:
    """Wait until ipykernel has read the output written to descriptors 1 and 2.

    Wait for at most MAX_SECONDS.
    """
    deadline = clock() + MAX_SECONDS
    for stream in streams:
        state = read_state(stream)
        is_known = state.thread_time is not None
        if is_known and state.unread == 0 and state == idle_states[stream]:
            continue
        idle_checks = 0
        while idle_checks < IDLE_CHECKS and clock() < deadline:
            time.sleep(PAUSE_SECONDS)
            previous = state
            state = read_state(stream)
            if state.unread == 0 and state == previous:
                idle_checks += 1
            else:
                idle_checks = 0
        idle_states[stream] = state


class ReaderState(NamedTuple):
    """The number of unread bytes, and the CPU time of the reader thread in ns.

    The CPU time grows with each read. It is None if the system does not report it.
    """

    unread: int
    thread_time: int | None


def read_state(stream: Any) -> ReaderState:
    """Return the state of the thread that reads the output written to a stream."""
    result = fcntl.ioctl(stream._fid, termios.FIONREAD, bytes(INT_SIZE))
    unread: int = struct.unpack("i", result)[0]
    try:
        thread_clock = time.pthread_getcpuclockid(stream.watch_fd_thread.ident)
        return ReaderState(unread, time.clock_gettime_ns(thread_clock))
    except (AttributeError, OSError, TypeError):
        return ReaderState(unread, None)


# stream → the state when the reader was last idle
idle_states = {stream: read_state(stream) for stream in streams}
