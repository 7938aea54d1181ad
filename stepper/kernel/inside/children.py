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

from stepper.kernel.inside.base import clock

SECONDS = 0.1  # a child that writes on and on is not waited for
PAUSE, QUIET = 0.001, 3  # between two looks at the reader; how often in a row it must be found idle
streams: list[Any] = [stream for stream in (sys.stdout, sys.stderr) if getattr(stream, "_fid", None) is not None]


def drain() -> None:
    until = clock() + SECONDS
    for stream in streams:
        used, quiet = spent(stream), 0
        if waiting(stream) == 0 and used is not None and used == seen.get(stream):
            continue
        while quiet < QUIET and clock() < until:
            time.sleep(PAUSE)
            before, used = used, spent(stream)
            quiet = quiet + 1 if waiting(stream) == 0 and used == before else 0
        seen[stream] = used


def waiting(stream: Any) -> int:
    """How many bytes nobody has read yet."""
    return int(struct.unpack("i", fcntl.ioctl(stream._fid, termios.FIONREAD, b"1234"))[0])


def spent(stream: Any) -> int | None:
    """The processor time of the thread that reads, which grows with each read; None where the system does not tell."""
    try:
        return time.clock_gettime_ns(time.pthread_getcpuclockid(stream.watch_fd_thread.ident))
    except (AttributeError, OSError, TypeError):
        return None


seen = {stream: spent(stream) for stream in streams}  # its reader's processor time when it was idle last
