"""Run file operations in the background, in the order in which they were requested.

A job starts after a short delay, to let the daemon send the report on the current step
first. Syncing a file to disk can delay writes to other files.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

DELAY_SECONDS = 0.01  # before a job starts
EXECUTOR = ThreadPoolExecutor(1, "background-io")
_pending_jobs = deque[Callable[[], None]]()


def run_later(function: Callable[[int], None], handle: int) -> Future[None]:
    """Call a function in the background, with a duplicate of a file descriptor.

    The function gets the duplicate, which is closed afterwards. Return a future that is
    done after the call. Call `start_pending_jobs` before you wait for the future.
    """
    duplicate = os.dup(handle)
    future = Future[None]()

    def run_job() -> None:
        """Call the function, and set the result of the future."""
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
    """Immediately start all jobs that are still waiting for the delay."""
    while True:
        try:
            job = _pending_jobs.popleft()
        except IndexError:  # another thread may have started the last job
            return
        EXECUTOR.submit(job)
