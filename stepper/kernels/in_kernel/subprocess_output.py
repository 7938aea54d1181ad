"""What children and C code write to the descriptors 1 and 2 is read by ipykernel on two threads of its own.

Nothing waits for those at a cell's end: a report on `subprocess.run` might hold nothing of what it printed. Here the
last of it is waited for, a few milliseconds where something was written, none where nothing was.
"""

from __future__ import annotations

import fcntl
import struct
import sys
import termios
import time
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import clock

SECONDS = 0.1  # a child that writes on and on is not waited for
# between two looks at the reader; how often in a row it must be found idle
PAUSE, QUIET = 0.001, 3
streams: list[Any] = [
    stream
    for stream in (sys.stdout, sys.stderr)
    if getattr(stream, "_fid", None) is not None
]


def drain() -> None:
    until = clock() + SECONDS
    for stream in streams:
        now, quiet = state(stream), 0
        if now == seen[stream] and now[0] == 0 and now[1] is not None:
            continue
        while quiet < QUIET and clock() < until:
            time.sleep(PAUSE)
            before, now = now, state(stream)
            quiet = quiet + 1 if now == before and now[0] == 0 else 0
        seen[stream] = now


def state(stream: Any) -> tuple[int, int | None]:
    """How many bytes nobody has read yet, and the processor time of the thread that reads, which grows with each read;
    None where the system does not tell."""
    unread: int = struct.unpack(
        "i", fcntl.ioctl(stream._fid, termios.FIONREAD, b"1234")
    )[0]
    try:
        return unread, time.clock_gettime_ns(
            time.pthread_getcpuclockid(stream.watch_fd_thread.ident)
        )
    except (AttributeError, OSError, TypeError):
        return unread, None


seen = {stream: state(stream) for stream in streams}  # when it was idle last
