"""Release of the daemon's freed memory to the system, with glibc's malloc_trim.

The daemon runs for days. Without malloc_trim, glibc keeps the memory that was needed
for large outputs and requests.
"""

from __future__ import annotations

import ctypes
import gc

import psutil

# The growth of the process after which its memory is trimmed again.
GROWTH_BYTES = 8 << 20
# Larger blocks are mapped separately, and released when they are freed.
MMAP_THRESHOLD_BYTES = 256 << 10
M_MMAP_THRESHOLD = -3  # a parameter of glibc's mallopt


class MemoryTrimmer:
    """Releases the freed memory of this process to the system."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._malloc_trim = getattr(libc, "malloc_trim", None)
        if self._malloc_trim is not None:
            # A fixed threshold: by default, glibc raises it whenever a mapped block is
            # freed.
            libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        self._process = psutil.Process()
        self._trimmed_rss: int = self._process.memory_info().rss

    def trim_if_grown(self) -> None:
        """Trim the memory if the process has grown by GROWTH_BYTES since the last trim.

        On systems without glibc, only collect garbage.
        """
        if self._process.memory_info().rss <= self._trimmed_rss + GROWTH_BYTES:
            return
        gc.collect()
        if self._malloc_trim is not None:
            self._malloc_trim(0)
        self._trimmed_rss = self._process.memory_info().rss
