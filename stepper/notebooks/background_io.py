"""What is done to files besides a step, in the order in which it is asked for: nobody waits for it.

Nor does it hold anybody up: a file system that writes out one file has the next line of another wait, so that it begins
once the step's answer is on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

DELAY_SECONDS = 0.01
EXECUTOR = ThreadPoolExecutor(1, "later")
_waiting = deque[Callable[[], None]]()


def run_later(work: Callable[[int], None], handle: int) -> Future[None]:
    """Have something done with an open file or folder, by a descriptor of its own; the future holds its OSError.

    Whoever needs it done calls `begin` first.
    """
    own, ended = os.dup(handle), Future[None]()

    def done() -> None:
        try:
            work(own)
        except Exception as error:  # noqa: BLE001  # whoever waits for it gets it
            ended.set_exception(error)
        else:
            ended.set_result(None)
        finally:
            os.close(own)

    _waiting.append(done)
    try:
        asyncio.get_running_loop().call_later(DELAY_SECONDS, start_pending_jobs)
    except RuntimeError:  # no loop: no step either
        start_pending_jobs()
    return ended


def start_pending_jobs() -> None:
    """Begin with what waits."""
    with contextlib.suppress(IndexError):
        while True:
            EXECUTOR.submit(_waiting.popleft())
