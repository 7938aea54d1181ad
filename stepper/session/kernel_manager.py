"""The kernel manager of one notebook: finds, starts and shuts down its kernel.

A lost kernel is recorded in the journal and reported with the next run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from stepper.common.errors import KernelError, StepperError
from stepper.policy.journal_events import Event, KernelChanged
from stepper.policy.model import Death, Limits, Moment
from stepper.policy.notebook_state import State
from stepper.session.protocols import (
    ExternalExecution,
    Kernel,
    KernelLauncher,
    LaunchConfig,
    QueueStatus,
)
from stepper.session.responses import KernelStatus

# how often it is looked whether a kernel that waits in a queue is still wanted
LOOK_SECONDS = 0.2
FREE_SECONDS = 0.05  # … whether another client's execution is over
BUSY = "the kernel is busy with another client's execution"
AWAY_SECONDS = 10.0  # for a line that is down to come back before a cell is given up


def format_now() -> Moment:
    """Return the time in UTC as ISO 8601."""
    return (
        datetime.now(timezone.utc)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


class Activity(Enum):
    """What an interrupt would affect."""

    NONE = "none"
    QUEUED = "queued"
    STARTING = "starting"
    OTHER_CLIENT = "other client"
    RUNNING = "running"


class KernelManager:
    """Manages the kernel of one notebook; `notice` is for the next report."""

    def __init__(
        self,
        provider: KernelLauncher,
        place: Callable[[Mapping[str, str], str], LaunchConfig],
        state: State,
        log: Callable[[Event], None],
        hears: Callable[[dict[str, Any], bool], bool],
        from_elsewhere: Callable[[ExternalExecution], None],
    ) -> None:
        self.on_display = hears  # what comes for cells beside the one that runs
        self.on_external_execution = from_elsewhere  # what other clients had it run
        self.launcher, self.get_launch_config, self.state, self.log = (
            provider,
            place,
            state,
            log,
        )
        self.kernel: Kernel | None = None
        self.has_looked = False  # for the kernel of a former daemon
        self.needs_takeover = (
            False  # it is that kernel, and nobody has spoken to it yet
        )
        # how that kernel ended, until somebody has seen to it
        self.unhandled_death: Death | None = None
        self.find_lock = asyncio.Lock()  # `status` may ask while a cell is about to run
        self.is_starting = False
        self.start_cancelled = (
            False  # the cell for which a kernel starts, or waits in a queue
        )
        self.external_wait: QueueStatus | None = (
            None  # for what another client has the kernel run
        )
        self.withdrawal: QueueStatus | None = (
            None  # the request that is being withdrawn
        )
        self.withdrawal_result = (
            ""  # what became of the last request that was withdrawn
        )
        self.notice = ""
        self.reported_missing_ipykernel = False  # ipykernel, which was said
        self.reported_limitations = set[str]()  # what places can't do, which was said
        # the last kernel is, or was: what its machine has for files and clock is not
        # known here
        self.is_remote = False
        # the name of the place where the last one was started; a former daemon knew it
        # of its own
        self.backend_name = ""

    async def find(self) -> Kernel | None:
        """Return the kernel, also one of an earlier daemon, or None.

        No request is sent to the kernel.
        """
        async with self.find_lock:
            if self.kernel is None and not self.has_looked:
                found = await self.launcher.attach()
                self.has_looked = True
                if isinstance(found, Death):
                    self.unhandled_death = found
                elif found is not None:
                    self.kernel, self.needs_takeover = found, True
                    found.on_display, found.external_executions.on_finished = (
                        self.on_display,
                        self.on_external_execution,
                    )
                    self.is_remote = bool(found.describe().location)
        return self.kernel

    async def take_over(self) -> None:
        """Take over the kernel of an earlier daemon; interrupt what it runs."""
        try:
            death = await self.kernel.take_over() if self.kernel is not None else None
        except KernelError:
            return  # it is taken over when it can be reached
        self.needs_takeover = False
        if death is not None:
            self.kernel, self.unhandled_death = None, death

    @property
    def queue_status(self) -> QueueStatus | None:
        """What the kernel waits for in a queue, or None."""
        if self.is_starting:
            return self.withdrawal or self.launcher.queue_status
        return self.external_wait

    @property
    def activity(self) -> Activity:
        """What an interrupt would meet now."""
        if self.is_starting:
            return Activity.QUEUED if self.queue_status else Activity.STARTING
        if self.external_wait:
            return Activity.OTHER_CLIENT
        busy = self.kernel is not None and self.kernel.is_busy
        return Activity.RUNNING if busy else Activity.NONE

    async def get_kernel(
        self, environ: Mapping[str, str], left: asyncio.Event | None = None
    ) -> Kernel:
        """Return the running kernel; start one if there is none.

        Raise KernelError if it cannot start, and StepperError if the caller
        disconnected while the request was queued.
        """
        if self.kernel is not None:
            death = await self.kernel.check_death()
            if death is None:
                await self._wait_until_reachable(self.kernel)
                if self.kernel.external_executions.running_since:
                    await self._wait_for_other_client(self.kernel, left)
                    return await self.get_kernel(environ, left)
                return self.kernel
            await self.shut_down(f"the kernel died ({death.reason})")
        self.is_starting, self.start_cancelled = True, False
        self.withdrawal_result = ""
        try:
            place = self.get_launch_config(environ, self.state.plan.kernel)
            self.backend_name = place.backend.name if place.backend else Limits.kernel
            self.kernel = kernel = await self._start_kernel(place, left)
            kernel.on_display, kernel.external_executions.on_finished = (
                self.on_display,
                self.on_external_execution,
            )
        finally:
            self.is_starting = False
        if self.state.lost_reason:
            self.notice = f"state lost: {self.state.lost_reason}. A fresh kernel is there, without any earlier variable"
        about = kernel.describe()
        self.is_remote = bool(about.location)
        if about.install_command and not self.reported_missing_ipykernel:
            self.reported_missing_ipykernel = True
            said = f"{about.python} lacks ipykernel: stepper's own copy runs the kernel, behind the project's packages"
            self.notice = ". ".join(
                filter(
                    None,
                    (self.notice, f"{said}; what adds it: {about.install_command}"),
                )
            )
        if about.limitation and about.limitation not in self.reported_limitations:
            self.reported_limitations.add(about.limitation)
            self.notice = ". ".join(filter(None, (self.notice, about.limitation)))
        self.log(
            KernelChanged(
                what="started", kernel=kernel.id, pid=about.pid, at=format_now()
            )
        )
        if self.start_cancelled:
            raise StepperError("interrupted while its kernel started: nothing ran")
        return kernel

    async def _wait_until_reachable(self, kernel: Kernel) -> None:
        """Wait a limited time for a lost connection.

        Raise KernelError if the kernel stays unreachable or could not be taken over.
        """
        until = time.monotonic() + AWAY_SECONDS * (not self.needs_takeover)
        # of that is to be known first what became of it
        while kernel.unreachable_reason or self.needs_takeover or self.state.running:
            if time.monotonic() > until or self.state.running:
                down = kernel.unreachable_reason or (
                    BUSY
                    if kernel.external_executions.running_since
                    else "the link was down"
                )
                begun = self.state.running
                open_yet = (
                    f"; what became of run {begun.run} (cell {begun.number or '?'}) is not known yet"
                    if begun
                    else ""
                )
                why = f"{down}: the cell was NOT run{open_yet}. The kernel may be well, with its variables"
                commands = self.state.commands
                status, restart = commands.shell("status"), commands.shell("restart")
                raise KernelError(
                    why, f"{status}  # shows when it is back; `{restart}` gives it up"
                )
            kernel.receive_pending()
            await asyncio.sleep(0.1)
            await kernel.check_death()  # which looks for it

    async def _wait_for_other_client(
        self, kernel: Kernel, left: asyncio.Event | None
    ) -> None:
        """Wait until another client's execution has finished.

        stepper does not interrupt it. Raise StepperError if the wait is interrupted.
        """
        self.external_wait, self.start_cancelled = (
            QueueStatus(BUSY, time.monotonic(), None, "that has ended"),
            False,
        )
        try:
            while (
                kernel.external_executions.running_since
                and await kernel.check_death() is None
            ):
                if self.start_cancelled or (left is not None and left.is_set()):
                    raise StepperError(
                        f"interrupted while {BUSY}: nothing ran, and that goes on"
                    )
                await asyncio.sleep(FREE_SECONDS)
                kernel.receive_pending()
        finally:
            self.external_wait = None

    async def _start_kernel(
        self, place: LaunchConfig, left: asyncio.Event | None
    ) -> Kernel:
        start = asyncio.ensure_future(self.launcher.start(place))
        try:
            while not start.done():
                await asyncio.wait([start], timeout=LOOK_SECONDS)
                queued = self.launcher.queue_status
                gone = left is not None and left.is_set()
                if queued and (self.start_cancelled or gone) and not start.done():
                    await self._withdraw(start, queued)
            return start.result()
        finally:
            if not start.done():
                start.cancel()
                await asyncio.wait([start])

    async def _withdraw(
        self, start: asyncio.Future[Kernel], queued: QueueStatus
    ) -> None:
        """Cancel a queued start; raise StepperError that says so."""
        what = "interrupted while its kernel waited in a queue"
        withdrawing = f"the request is being withdrawn ({queued.text})"
        self.withdrawal = replace(queued, text=withdrawing, until="")
        try:
            start.cancel()
            await asyncio.wait([start])
            if not start.cancelled() and start.exception() is None:
                return  # the kernel is there
            await self.launcher.cancel_request()
            withdrawn = f"the {queued.request} was withdrawn, and " * bool(
                queued.request
            )
            self.withdrawal_result = f"{withdrawn}there is no kernel"
            raise StepperError(f"{what}: {self.withdrawal_result}")
        except KernelError as error:  # whoever asked for the kernel does not try again
            self.withdrawal_result = (
                f"the request is not withdrawn yet: {error.message}"
            )
            raise StepperError(
                f"{what}: {self.withdrawal_result}", error.hint
            ) from None
        finally:
            self.withdrawal = None

    async def interrupt(self, reason: str) -> bool:
        """Interrupt the running cell, or one that waits for its kernel.

        Return whether there was one.
        """
        if self.is_starting or self.external_wait:
            self.start_cancelled = True  # also where it is about to queue
            return True
        busy = self.kernel is not None and self.kernel.is_busy
        if self.kernel is not None and (busy or self.state.running):
            await self.kernel.interrupt(reason)
        return busy

    async def shut_down(self, why: str) -> bool:
        """Shut down the kernel; return whether there was one.

        Raise KernelError if it may still run.
        """
        kernel, self.kernel = self.kernel, None
        if self.unhandled_death is not None:
            self.unhandled_death = None
            self.record_loss(why)
        if kernel is not None:
            kept = kernel.describe().is_external and await kernel.check_death() is None
            try:
                await kernel.shutdown()
            finally:
                if not kept:
                    self.record_loss(why)
        else:
            await self.launcher.cancel_request()
        return kernel is not None

    def record_loss(self, why: str) -> None:
        """Record in the journal that the kernel and its state are lost."""
        self.kernel = None
        self.log(KernelChanged(what="lost", why=why, at=format_now()))

    async def get_status(self) -> KernelStatus:
        """Return pid, state, memory and interpreter."""
        kernel = self.kernel
        if kernel is None:
            queued = self.queue_status
            if queued is not None:
                return KernelStatus(state="queued", where=queued.text)
            return KernelStatus(state="starting" if self.is_starting else "none")
        others = kernel.external_executions.running_since
        busy = kernel.is_busy or self.state.running is not None or others > 0
        state = (
            "dead"
            if await kernel.check_death() is not None
            else "busy"
            if busy
            else "idle"
        )
        about = kernel.describe()
        beside = f"{BUSY}, for {time.monotonic() - others:.0f} s" if others else ""
        trouble = "; ".join(
            filter(
                None,
                [
                    about.problem,
                    beside,
                    self._explain_backend_change() if about.location else "",
                ],
            )
        )
        return KernelStatus(
            about.pid,
            state,
            kernel.measure_memory(),
            about.python,
            about.location,
            about.walltime_left,
            trouble,
        )

    def _explain_backend_change(self) -> str:
        """Return why the next kernel would run on another backend, or ''."""
        try:
            gone = self.get_launch_config({}, self.state.plan.kernel).backend is None
            why = "the next one is to run on this machine" if gone else ""
        except KernelError as error:
            why = error.message
        shutdown = self.state.commands.shell("shutdown")
        return f"{why}: this kernel goes on until `{shutdown}`" if why else ""
