"""The kernel manager of one notebook: finds, starts and shuts down its kernel.

A lost kernel is recorded in the journal and reported with the next run.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from stepper.common.errors import (
    KernelError,
    KernelUnreachableError,
    RequestInterruptedError,
)
from stepper.policy.journal_events import KernelChanged
from stepper.policy.model import Death, Limits
from stepper.session.protocols import (
    ExternalExecution,
    Kernel,
    KernelDescription,
    KernelLauncher,
    LaunchConfig,
    QueueStatus,
)
from stepper.session.responses import KernelStatus
from stepper.session.session_state.notebook_journal import NotebookJournal, format_now

POLL_SECONDS = 0.2  # how often to check whether a queued kernel is still wanted
# How often to check whether the execution of another client has finished.
OTHER_CLIENT_POLL_SECONDS = 0.05
BUSY = "the kernel is busy with another client's execution"
RECONNECT_SECONDS = 10.0  # how long a cell waits for a lost connection
RECONNECT_POLL_SECONDS = 0.1  # how often to check whether the connection is back


class Activity(Enum):
    """The activity of a kernel that an interrupt would affect."""

    NONE = "none"
    QUEUED = "queued"  # the kernel waits in a queue, for example for a job
    STARTING = "starting"
    OTHER_CLIENT = "other client"  # a cell waits for another client's execution
    RUNNING = "running"


class KernelManager:
    """Finds, starts, interrupts and shuts down the kernel of one notebook.

    Any code may read `kernel` and the properties. Commands start, interrupt and shut
    down the kernel. Only the session and `run_recovery` take over the kernel of an
    earlier daemon.
    """

    def __init__(
        self,
        launcher: KernelLauncher,
        get_launch_config: Callable[[Mapping[str, str], str], LaunchConfig],
        journal: NotebookJournal,
        on_display: Callable[[dict[str, Any]], None],
        on_late_output: Callable[[dict[str, Any]], bool],
        on_external_execution: Callable[[ExternalExecution], None],
    ) -> None:
        self.launcher = launcher
        self.get_launch_config = get_launch_config
        self.journal = journal
        self._on_display = on_display
        self._on_late_output = on_late_output
        self._on_external_execution = on_external_execution
        self.kernel: Kernel | None = None
        # `status` may search for the kernel while a cell is about to run.
        self._find_lock = asyncio.Lock()
        self._has_searched = False  # for the kernel of an earlier daemon
        # An earlier daemon started the kernel, and this daemon sent no request yet.
        self.needs_takeover = False
        # The death of an earlier daemon's kernel, until it is recorded or reported.
        self.unhandled_death: Death | None = None
        self.is_starting = False
        # The cell that waits for the kernel was interrupted.
        self._start_cancelled = False
        self.external_wait: QueueStatus | None = None  # for another client's execution
        # The status while a queued request is being withdrawn.
        self._withdrawal: QueueStatus | None = None
        # A text on the last withdrawal; empty after a start without a withdrawal.
        self.withdrawal_result = ""
        self._notice = ""
        self._reported_missing_ipykernel = False
        self._reported_limitations = set[str]()
        # Whether the current or the last kernel runs on another machine. The files and
        # the clock of that machine are unknown.
        self.is_remote = False
        # The backend of the last start by this daemon.
        self.backend_name = ""

    async def find_or_attach(self) -> Kernel | None:
        """Return the kernel, or attach to the kernel of an earlier daemon.

        Return None if there is no kernel. This sends no request to the kernel.
        """
        async with self._find_lock:
            if self.kernel is None and not self._has_searched:
                result = await self.launcher.attach()
                self._has_searched = True
                if isinstance(result, Death):
                    self.unhandled_death = result
                elif result is not None:
                    self.kernel = result
                    self.needs_takeover = True
                    self._connect_callbacks(result)
                    self.is_remote = bool(result.describe().location)
        return self.kernel

    def _connect_callbacks(self, kernel: Kernel) -> None:
        """Make a kernel call the functions that handle its messages."""
        kernel.on_display = self._on_display
        kernel.on_late_output = self._on_late_output
        kernel.external_executions.on_finished = self._on_external_execution

    async def take_over(self) -> None:
        """Take over the kernel of an earlier daemon and interrupt its execution.

        If the kernel has died, set `unhandled_death`. If the kernel cannot be reached,
        do nothing: `needs_takeover` stays true.
        """
        try:
            death = None
            if self.kernel is not None:
                death = await self.kernel.take_over()
        except KernelError:
            return  # the next turn tries again
        self.needs_takeover = False
        if death is not None:
            self.kernel = None
            self.unhandled_death = death

    @contextlib.contextmanager
    def count_as_taken_over(self) -> Iterator[None]:
        """Count the kernel as taken over, from the start of the block.

        If the block raises KernelUnreachableError, undo this.
        """
        needed_takeover = self.needs_takeover
        self.needs_takeover = False
        try:
            yield
        except KernelUnreachableError:
            self.needs_takeover = needed_takeover
            raise

    def pop_unhandled_death(self) -> Death | None:
        """Return how the earlier daemon's kernel died, and count its death as handled.

        Return None if there is no unhandled death.
        """
        death = self.unhandled_death
        self.unhandled_death = None
        return death

    def pop_notice(self) -> str:
        """Return the notice for the next report, or an empty string, and clear it."""
        notice = self._notice
        self._notice = ""
        return notice

    def set_launch_config(
        self, get_launch_config: Callable[[Mapping[str, str], str], LaunchConfig]
    ) -> None:
        """Replace the function that returns the launch configuration."""
        self.get_launch_config = get_launch_config

    @property
    def queue_status(self) -> QueueStatus | None:
        """The wait for a queued or busy kernel, or None if there is no wait."""
        if self.is_starting:
            return self._withdrawal or self.launcher.queue_status
        return self.external_wait

    @property
    def activity(self) -> Activity:
        """The current activity that an interrupt would affect."""
        if self.is_starting:
            if self.queue_status:
                return Activity.QUEUED
            return Activity.STARTING
        if self.external_wait:
            return Activity.OTHER_CLIENT
        if self.kernel is not None and self.kernel.is_busy:
            return Activity.RUNNING
        return Activity.NONE

    async def get_or_start_kernel(
        self, environ: Mapping[str, str], disconnected: asyncio.Event | None = None
    ) -> Kernel:
        """Return the running kernel, or start one with the environment `environ`.

        Raise KernelError if the kernel cannot start or cannot be reached. Raise
        RequestInterruptedError if the start is interrupted, or if a wait in a queue or
        for another client is interrupted or `disconnected` is set during this wait.
        """
        while self.kernel is not None:
            kernel = self.kernel
            death = await kernel.check_death()
            if death is not None:
                await self.shut_down(f"the kernel died ({death.reason})")
                break
            await self._wait_until_reachable(kernel)
            if not kernel.external_executions.running_since:
                return kernel
            await self._wait_for_other_client(kernel, disconnected)
        return await self._start_new_kernel(environ, disconnected)

    async def _start_new_kernel(
        self, environ: Mapping[str, str], disconnected: asyncio.Event | None
    ) -> Kernel:
        """Start a kernel, log its start and add notices for the next report.

        Raise KernelError if the kernel cannot start. Raise RequestInterruptedError if
        the start is interrupted, or `disconnected` is set while the kernel is queued. A
        kernel that started nevertheless is kept.
        """
        self.is_starting = True
        self._start_cancelled = False
        self.withdrawal_result = ""
        try:
            config = self.get_launch_config(environ, self.journal.state.plan.kernel)
            self.backend_name = config.backend.name if config.backend else Limits.kernel
            kernel = await self._launch(config, disconnected)
            self.kernel = kernel
            self._connect_callbacks(kernel)
        finally:
            self.is_starting = False
        description = kernel.describe()
        self.is_remote = bool(description.location)
        self._add_start_notices(description)
        self.journal.log(
            KernelChanged(
                what="started", kernel=kernel.id, pid=description.pid, at=format_now()
            )
        )
        if self._start_cancelled:
            raise RequestInterruptedError(
                "interrupted while the kernel was starting: nothing ran"
            )
        return kernel

    def _add_start_notices(self, description: KernelDescription) -> None:
        """Add notices on lost variables and on the limitations of a new kernel.

        A missing ipykernel and each limitation are reported only once.
        """
        lost_reason = self.journal.state.lost_reason
        if lost_reason:
            self._notice = (
                f"state lost: {lost_reason}. A new kernel has started, without the"
                " earlier variables"
            )
        if description.install_command and not self._reported_missing_ipykernel:
            self._reported_missing_ipykernel = True
            self._add_notice(
                f"{description.python} does not have ipykernel: the kernel uses"
                " stepper's own copy; packages of the project take precedence over it"
            )
            self._add_notice(
                f"To install ipykernel, run: {description.install_command}"
            )
        limitation = description.limitation
        if limitation and limitation not in self._reported_limitations:
            self._reported_limitations.add(limitation)
            self._add_notice(limitation)

    def _add_notice(self, text: str) -> None:
        """Append a sentence to the notice for the next report."""
        self._notice = ". ".join(filter(None, [self._notice, text]))

    async def _wait_until_reachable(self, kernel: Kernel) -> None:
        """Wait up to RECONNECT_SECONDS until the kernel can be reached.

        Raise KernelError if the kernel stays unreachable. Raise KernelError without
        waiting if the kernel needs a takeover or has an unfinished run.
        """
        deadline = time.monotonic() + RECONNECT_SECONDS
        while True:
            # The result of an unfinished run must be known before the next cell runs.
            if self.needs_takeover or self.journal.state.running:
                raise self._create_unreachable_error(kernel)
            if not kernel.unreachable_reason:
                return
            if time.monotonic() > deadline:
                raise self._create_unreachable_error(kernel)
            kernel.receive_pending()
            await asyncio.sleep(RECONNECT_POLL_SECONDS)
            await kernel.check_death()  # also tries to reconnect

    def _create_unreachable_error(self, kernel: Kernel) -> KernelError:
        """Return the error for code that did not run because of a lost connection."""
        reason = kernel.unreachable_reason
        if not reason and kernel.external_executions.running_since:
            reason = BUSY
        reason = reason or "the connection to the kernel was lost"
        unknown_result = ""
        run = self.journal.state.running
        if run:
            unknown_result = (
                f"; the result of run {run.run} (cell {run.number or '?'}) is not known"
                " yet"
            )
        commands = self.journal.state.commands
        return KernelError(
            f"{reason}: the code was NOT run{unknown_result}. The kernel may still be"
            " running, with its variables",
            f"{commands.shell('status')}  # shows whether the kernel can be reached; to"
            f" start a new kernel instead: `{commands.shell('restart')}`",
        )

    async def _wait_for_other_client(
        self, kernel: Kernel, disconnected: asyncio.Event | None
    ) -> None:
        """Wait until another client's execution has finished.

        stepper does not interrupt that execution. Raise RequestInterruptedError if the
        wait is interrupted or `disconnected` is set.
        """
        self.external_wait = QueueStatus(
            BUSY, time.monotonic(), None, "that execution has finished"
        )
        self._start_cancelled = False
        try:
            while (
                kernel.external_executions.running_since
                and await kernel.check_death() is None
            ):
                is_disconnected = disconnected is not None and disconnected.is_set()
                if self._start_cancelled or is_disconnected:
                    raise RequestInterruptedError(
                        f"interrupted while {BUSY}: nothing ran, and that execution"
                        " continues"
                    )
                await asyncio.sleep(OTHER_CLIENT_POLL_SECONDS)
                kernel.receive_pending()
        finally:
            self.external_wait = None

    async def _launch(
        self, config: LaunchConfig, disconnected: asyncio.Event | None
    ) -> Kernel:
        """Start a kernel, and return it when it is ready.

        Raise KernelError if the kernel cannot start. If the start is cancelled while
        the kernel is queued, withdraw the request for the kernel and raise
        RequestInterruptedError.
        """
        start = asyncio.ensure_future(self.launcher.start(config))
        try:
            while not start.done():
                await asyncio.wait([start], timeout=POLL_SECONDS)
                queue_status = self.launcher.queue_status
                is_disconnected = disconnected is not None and disconnected.is_set()
                is_cancelled = self._start_cancelled or is_disconnected
                if queue_status and is_cancelled and not start.done():
                    await self._withdraw(start, queue_status)
            return start.result()
        finally:
            if not start.done():
                start.cancel()
                await asyncio.wait([start])

    async def _withdraw(
        self, start: asyncio.Future[Kernel], queue_status: QueueStatus
    ) -> None:
        """Cancel a queued start and withdraw the request for the kernel.

        Raise RequestInterruptedError, unless the kernel started before this could be
        cancelled.
        """
        interruption = "interrupted while the kernel waited in a queue"
        self._withdrawal = replace(
            queue_status,
            text=f"the request is being withdrawn ({queue_status.text})",
            until="",
        )
        try:
            start.cancel()
            await asyncio.wait([start])
            if not start.cancelled() and start.exception() is None:
                return
            await self.launcher.cancel_request()
            self.withdrawal_result = "there is no kernel"
            if queue_status.request:
                self.withdrawal_result = (
                    f"the {queue_status.request} was withdrawn, and there is no kernel"
                )
            raise RequestInterruptedError(f"{interruption}: {self.withdrawal_result}")
        except KernelError as error:
            # Not a KernelError, which would make the caller try again.
            self.withdrawal_result = (
                f"the request is not withdrawn yet: {error.message}"
            )
            raise RequestInterruptedError(
                f"{interruption}: {self.withdrawal_result}", error.hint
            ) from None
        finally:
            self._withdrawal = None

    async def interrupt(self, reason: str) -> bool:
        """Interrupt the running code, or cancel the wait for the kernel.

        `reason` names the source of the interrupt, such as "user". Return whether the
        kernel was busy or a wait was cancelled.
        """
        if self.is_starting or self.external_wait:
            self._start_cancelled = True
            return True
        is_busy = self.kernel is not None and self.kernel.is_busy
        if self.kernel is not None and (is_busy or self.journal.state.running):
            await self.kernel.interrupt(reason)
        return is_busy

    async def shut_down(self, reason: str) -> bool:
        """Shut down the kernel; return whether there was one.

        If there is no kernel, cancel a pending request for a kernel. stepper only
        disconnects from a kernel that it did not start. If the variables are lost,
        record `reason` as the reason. Raise KernelError if the kernel may still be
        running, or if the request cannot be cancelled.
        """
        kernel = self.kernel
        self.kernel = None
        if self.unhandled_death is not None:
            self.unhandled_death = None
            self.record_loss(reason)
        if kernel is None:
            await self.launcher.cancel_request()
            return False
        # A kernel that stepper did not start keeps running.
        is_external = kernel.describe().is_external
        keeps_running = is_external and await kernel.check_death() is None
        try:
            await kernel.shutdown()
        finally:
            if not keeps_running:
                self.record_loss(reason)
        return True

    def record_loss(self, reason: str) -> None:
        """Forget the kernel, and record in the journal that its variables are lost."""
        self.kernel = None
        self.journal.log(KernelChanged(what="lost", why=reason, at=format_now()))

    async def get_status(self) -> KernelStatus:
        """Return the state, the process, the memory use and the location of the kernel.

        The state is "none", "queued", "starting", "idle", "busy" or "dead".
        """
        kernel = self.kernel
        if kernel is None:
            queue_status = self.queue_status
            if queue_status is not None:
                return KernelStatus(state="queued", where=queue_status.text)
            state = "starting" if self.is_starting else "none"
            return KernelStatus(state=state)
        is_dead = await kernel.check_death() is not None
        external_since = kernel.external_executions.running_since
        is_busy = kernel.is_busy or self.journal.state.running is not None
        if is_dead:
            state = "dead"
        elif is_busy or external_since:
            state = "busy"
        else:
            state = "idle"
        description = kernel.describe()
        problems = [description.problem]
        if external_since:
            seconds = time.monotonic() - external_since
            problems.append(f"{BUSY} ({seconds:.0f} s so far)")
        if description.location:
            problems.append(self._explain_backend_change())
        return KernelStatus(
            pid=description.pid,
            state=state,
            rss_bytes=kernel.measure_memory(),
            python=description.python,
            where=description.location,
            left_seconds=description.walltime_left,
            trouble="; ".join(filter(None, problems)),
        )

    def _explain_backend_change(self) -> str:
        """Return a text if the next kernel cannot start or will run on this machine.

        The current kernel is a remote kernel or the kernel of a provisioner. Return an
        empty string if the configuration still selects a backend.
        """
        try:
            config = self.get_launch_config({}, self.journal.state.plan.kernel)
        except KernelError as error:
            reason = error.message
        else:
            if config.backend is not None:
                return ""
            reason = "the next kernel will run on this machine"
        shutdown = self.journal.state.commands.shell("shutdown")
        return f"{reason}; this kernel keeps running until you run `{shutdown}`"
