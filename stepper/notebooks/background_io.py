"""Run file operations in the background, in the order in which they were requested.

A job starts only after a short delay, when the current step's report is on its way:
while a file system writes one file to disk, it makes writes to other files wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

DELAY_SECONDS = 0.01
EXECUTOR = ThreadPoolExecutor(1, "background-io")
_pending_jobs = deque[Callable[[], None]]()


def run_later(function: Callable[[int], None], handle: int) -> Future[None]:
    """Call a function with a duplicate of a descriptor, in the background.

    Returns a future with the exception, if any. To wait for the future, call
    `start_pending_jobs` first.
    """
    duplicate = os.dup(handle)
    future = Future[None]()

    def run_job() -> None:
        try:
            function(duplicate)
        except Exception as error:  # noqa: BLE001  # the future passes it on
            future.set_exception(error)
        else:
            future.set_result(None)
        finally:
            os.close(duplicate)

    _pending_jobs.append(run_job)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # no event loop, so no step to wait for
        start_pending_jobs()
    else:
        loop.call_later(DELAY_SECONDS, start_pending_jobs)
    return future


def start_pending_jobs() -> None:
    """Start all jobs that are still waiting for the delay."""
    with contextlib.suppress(IndexError):
        while True:
            EXECUTOR.submit(_pending_jobs.popleft())
