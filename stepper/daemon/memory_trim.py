"""The daemon's own memory, given back after large outputs and requests."""

from __future__ import annotations

import ctypes
import gc

import psutil

GROWN_BYTES = 8 << 20  # after which freed memory is given back
# glibc's mallopt: what is larger is mapped, and unmapped when it is freed
MMAP_THRESHOLD = -3


class Footprint:
    """The memory of this process: what it freed goes back to the system, which glibc would keep."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self.trim = getattr(libc, "malloc_trim", None)
        if self.trim is not None:
            # else glibc raises it with the first large buffer that is freed
            libc.mallopt(MMAP_THRESHOLD, 256 << 10)
        self.process = psutil.Process()
        self.settled: int = self.process.memory_info().rss

    def settle(self) -> None:
        """Give back what is free, where the process has grown much since the last time."""
        if self.process.memory_info().rss > self.settled + GROWN_BYTES:
            gc.collect()
            if self.trim is not None:
                self.trim(0)
            self.settled = self.process.memory_info().rss
