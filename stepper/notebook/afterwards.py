"""What is done to files besides a step, in the order in which it is asked for: nobody waits for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

LATER = ThreadPoolExecutor(1, "later")


def soon(work: Callable[[int], None], handle: int) -> Future[None]:
    """Have something done with an open file or folder, by a descriptor of its own; the future holds its OSError."""

    def done(own: int) -> None:
        try:
            work(own)
        finally:
            os.close(own)

    return LATER.submit(done, os.dup(handle))
