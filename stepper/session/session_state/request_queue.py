"""The requests to a notebook, which take turns, and the code that is running."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence

from stepper.policy import journal_events
from stepper.policy.progress_estimate import ProgressEstimator
from stepper.session.caller import Caller


class RequestQueue:
    """The turn of a notebook, the waiting callers and the state of running code.

    Only one request has the turn at a time. `Session` acquires and releases the turn
    and reports executions. Any code may read the attributes.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        # Callers that request the result of an earlier tool call, by its ID.
        self._reconnecting: dict[str, Caller] = {}
        self._retry_cancelled = asyncio.Event()
        # The caller of the running cell; None for a run that an earlier daemon started.
        self.running_caller: Caller | None = None
        self.run_started_at = 0.0  # by time.monotonic
        self._estimator = ProgressEstimator()  # for the running cell
        self.scratch_run: journal_events.RunStarted | None = None  # while it runs
        self.last_used = time.monotonic()  # when code ran last (monotonic clock)
        self._needs_replay = False

    # The turn

    @property
    def is_locked(self) -> bool:
        """Whether a request has the turn."""
        return self._lock.locked()

    async def acquire(self, caller: Caller | None = None) -> bool:
        """Wait for the turn; return False if the caller disconnects first."""
        if caller is None or not self._lock.locked():
            return await self._lock.acquire()
        acquire = asyncio.create_task(self._lock.acquire())
        disconnected = asyncio.create_task(caller.disconnected.wait())
        tasks = [acquire, disconnected]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return acquire.done()
        except asyncio.CancelledError:
            if acquire.done():
                self._lock.release()
            raise
        finally:
            acquire.cancel()
            disconnected.cancel()

    def release(self) -> None:
        """Give the turn to the next request."""
        self._lock.release()

    async def wait_until_idle(self) -> None:
        """Wait until no request has the turn."""
        async with self._lock:
            pass

    # Callers

    @contextlib.contextmanager
    def register_reconnecting(self, caller: Caller | None) -> Iterator[None]:
        """Register a caller that requests the result of its earlier tool call.

        Do nothing if there is no caller, or if it has no call ID.
        """
        call_id = caller.call_id if caller else None
        if caller is None or not call_id:
            yield
            return
        self._reconnecting[call_id] = caller
        try:
            yield
        finally:
            # Another client may have replaced this one.
            if self._reconnecting.get(call_id) is caller:
                del self._reconnecting[call_id]

    def is_reconnecting(self, call_id: str | None) -> bool:
        """Return whether a caller requests the result of the tool call with an ID."""
        return call_id in self._reconnecting

    def waits_for_run(self, caller: Caller, call_id: str | None) -> bool:
        """Return whether a caller waits for the running cell.

        `call_id` is the ID of the tool call that started the cell.
        """
        if caller is self.running_caller:
            return True
        return caller is self._reconnecting.get(call_id or "")

    # The running code

    @contextlib.contextmanager
    def track_execution(self, caller: Caller) -> Iterator[None]:
        """Record that a caller's code is running, for the duration of the block."""
        self.running_caller = caller
        self.run_started_at = time.monotonic()
        self._estimator = ProgressEstimator()
        try:
            yield
        finally:
            self.running_caller = None
            self.record_use()

    @contextlib.contextmanager
    def track_scratch_run(self, started: journal_events.RunStarted) -> Iterator[None]:
        """Record that a scratch execution is running, for the duration of the block."""
        self.scratch_run = started
        try:
            yield
        finally:
            self.scratch_run = None

    def estimate_remaining(self, seconds: float, lines: Sequence[str]) -> float | None:
        """Return the estimated remaining seconds of the running cell.

        `seconds` is the time that the cell has run so far, and `lines` are the last
        lines that it printed. Return None if there is no estimate.
        """
        return self._estimator.update(seconds, lines)

    def record_use(self) -> None:
        """Record the current time as the last use of the kernel."""
        self.last_used = time.monotonic()

    async def wait_for_retry(self, seconds: float, caller: Caller) -> bool:
        """Wait before the retry of a cell; return False if the retry was cancelled.

        The retry is also cancelled if the caller has disconnected.
        """
        if caller.disconnected.is_set():
            return False
        self.running_caller = caller
        self._retry_cancelled.clear()
        try:
            await asyncio.wait_for(self._retry_cancelled.wait(), seconds)
        except asyncio.TimeoutError:
            return True
        finally:
            self.running_caller = None
        return False

    def cancel_retry(self) -> None:
        """Cancel the pending retry of a cell, if there is one."""
        self._retry_cancelled.set()

    # The replay of a complete notebook

    def request_replay(self) -> None:
        """Request a replay of the notebook to verify its outputs."""
        self._needs_replay = True

    def pop_replay_request(self) -> bool:
        """Return whether a replay was requested, and clear the request."""
        is_requested = self._needs_replay
        self._needs_replay = False
        return is_requested
