"""The kernel client: connect to a kernel, execute code, and take over a running kernel.

A kernel outlives the daemon and lost connections. `await_earlier_request` returns the
result of an execution that continued meanwhile, from the record of the helper in the
kernel.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any

from stepper.common.errors import (
    IpykernelMissingError,
    KernelError,
    KernelStartError,
    KernelUnreachableError,
)
from stepper.kernels import helper_loader
from stepper.kernels.client_base import Connection
from stepper.kernels.execution import (
    CONNECTION_LOST,
    NO_DAEMON,
    ConnectionLostError,
    EarlierRun,
    Running,
)
from stepper.kernels.kernel_channels import Inbox
from stepper.kernels.kernel_process import GRACE_SECONDS, PATIENCE_SECONDS
from stepper.policy.model import Death, Limits, Outcome
from stepper.policy.namespace_report import UNKNOWN_NAMESPACE, Namespace
from stepper.session.protocols import Execution

log = logging.getLogger("stepper")
# For which the connection to a kernel that was found again may be down at first.
REATTACH_SECONDS = 2.0
REQUEST_SECONDS = 0.2  # after which the kernel info is requested again
READ_SECONDS = 0.01


class KernelClient(Connection):
    """A client of one kernel: what a session asks of its kernel."""

    # The id and the time of a request that is sent to learn whether another client's
    # execution has finished.
    probe_request = ""
    probe_time = 0.0

    async def connect(self, seconds: float) -> None:
        """Open the channels, wait for replies on shell and iopub, install the helper.

        Raises KernelError if the kernel does not reply within `seconds`.
        """
        await self._wait_for_replies(seconds)
        connected_at = time.monotonic()
        await self._install_helper(seconds)
        if self.has_helper:
            duration = time.monotonic() - connected_at
            log.info("kernel connection: helper loaded after %.2f s", duration)

    async def _wait_for_replies(self, seconds: float) -> None:
        self.channels.open()
        began = time.monotonic()
        deadline = began + seconds
        has_shell = False
        # A message on iopub means that the subscription is active and nothing is lost.
        has_iopub = False
        while not (has_shell and has_iopub):
            self.channels.send("kernel_info_request", {})
            resend_at = time.monotonic() + REQUEST_SECONDS
            while time.monotonic() < resend_at and not (has_shell and has_iopub):
                has_shell = has_shell or await self._receive(self.channels.shell)
                has_iopub = await self._receive(self.channels.iopub) or has_iopub
            death = await self.check_death()
            if death is not None:
                raise self._build_start_error(death)
            if time.monotonic() > deadline:
                reason = self.unreachable_reason or self.process.log
                raise KernelStartError(
                    f"the kernel did not reply within {seconds:.0f} s: {reason}"
                )
        duration = time.monotonic() - began
        log.info("kernel connection: shell and iopub replied after %.2f s", duration)
        self.external_executions.forget_before(began)

    def _build_start_error(self, death: Death) -> KernelError:
        """Return the error on a kernel that exited while it was starting."""
        stderr = death.stderr or "it wrote nothing to stderr"
        last_line = stderr.splitlines()[-1]
        text = f"the kernel died at start ({death.reason}): {last_line}\n{stderr}"
        hint = self.process.suggest_fix(death)
        if hint:
            return IpykernelMissingError(text, hint)
        return KernelStartError(text, hint)

    async def _receive(self, inbox: Inbox) -> bool:
        """Handle the messages of a channel; return whether any came within 10 ms."""
        if not await inbox.ready(READ_SECONDS):
            return False
        messages = [*inbox.messages()]
        for message in messages:
            content = message["content"]
            if message["msg_type"] == "kernel_info_reply" and isinstance(content, dict):
                self._set_kernel_info(content)
            self.handle_message(message)
        return bool(messages)

    def _set_kernel_info(self, content: dict[str, Any]) -> None:
        """Store the kernel's implementation and language."""
        self.has_helper = content.get("implementation") == "ipython"
        language_info = content.get("language_info")
        self.language_info = language_info if isinstance(language_info, dict) else {}
        self.language = str(self.language_info.get("name") or "").lower()

    async def _install_helper(self, seconds: float) -> None:
        """Install the helper in an IPython kernel; other kernels work without it."""
        if not self.has_helper:
            return
        metadata = helper_loader.build_metadata(self.parts, self.process.stack)
        result = await self._execute_silently(helper_loader.INSTALL, seconds, metadata)
        if result.outcome is Outcome.OK:
            return
        if result.fault:
            reason = f"{result.fault.ename}: {result.fault.evalue}"
        elif result.death:
            reason = result.death.reason
        else:
            reason = str(result.outcome)
        raise KernelError(f"stepper's helper could not be installed: {reason}")

    async def execute(
        self,
        code: str,
        timeout: float,
        limits: Limits,
        request: str = "",
        scratch: bool = False,
        criterion: str = "",
        wake: str = "",
    ) -> Execution:
        """Execute code until it finishes, is interrupted or the kernel dies.

        The execution is interrupted after `timeout` seconds and at the memory limit. A
        `scratch` execution is not a cell's. `request` is the message id if the caller
        chose one, `criterion` the criterion of the plan's step, and `wake` the wake
        pattern.
        """
        self.widgets.limits = limits
        metadata = {"stepper_modules": limits.local_modules}
        if criterion:
            metadata["stepper_criterion"] = criterion
        running = Running(self, timeout, limits, wake)
        try:
            while True:
                self.partial_output = running.area
                try:
                    result = await self._run(
                        running,
                        code,
                        history=not scratch,
                        request=request,
                        metadata=metadata,
                    )
                    if not running.aborted:
                        result.language_info = self.language_info
                        return result
                    # Another client's execution failed, which aborts all requests that
                    # were waiting behind it.
                    running = Running(self, timeout, limits, wake)
                except ConnectionLostError:
                    seconds = running.deadline - time.monotonic()
                    recalled = await self.await_earlier_request(
                        running.msg_id, seconds, limits, wake, running
                    )
                    if recalled is not None:
                        recalled.reconnected = True
                        return recalled
                    # The request never arrived.
                    running = Running(self, seconds, limits, wake)
        finally:
            self.partial_output = None
            self.process.rest()

    async def _run(self, running: Running, code: str, **options: Any) -> Execution:
        self.is_busy = True
        self.interrupted = ""
        try:
            return await running.run(code, **options)
        except (ConnectionLostError, KernelUnreachableError):
            self.pending_interrupt = self.pending_interrupt or self.interrupted
            raise
        finally:
            self.is_busy = False

    async def _execute_silently(
        self, code: str, seconds: float, metadata: Mapping[str, Any] = {}
    ) -> Execution:
        """Execute code of stepper's own, with a deadline.

        Repeats this if the connection is lost; raises KernelUnreachableError.
        """
        await self.wait_until_reachable()
        while True:
            with contextlib.suppress(ConnectionLostError):
                running = Running(self, seconds)
                return await self._run(running, code, silent=True, metadata=metadata)

    def receive_pending(self) -> None:
        """Handle the messages that the kernel published while no cell was running."""
        if not self.is_busy and self.process.ended is None:
            self.channels.open()
            for message in self.channels.iopub.messages():
                self.handle_message(message)
            self._probe_external_execution()
            self.sync_widgets()

    def _probe_external_execution(self) -> None:
        """Find out whether another client's execution has finished.

        Its idle status may be lost. The kernel replies to a later request only after
        that execution.
        """
        if not self.external_executions.running_since:
            self.probe_request = ""
        elif not self.probe_request:
            self.probe_request = self.channels.send("kernel_info_request", {})
            self.probe_time = time.monotonic()
        else:
            for message in self.channels.shell.messages():
                if message["parent_header"].get("msg_id") == self.probe_request:
                    self.probe_request = ""
                    self.external_executions.forget_before(self.probe_time)
                    break

    async def take_over(self) -> Death | None:
        """Connect to a kernel that was found again, and interrupt its execution.

        Returns its death if it does not reply. Raises KernelUnreachableError if it
        cannot be reached, and KernelError if another client's code is running.
        """
        for _ in range(2):
            # The backend may need a token, which the present caller provides.
            await self.wait_until_reachable(REATTACH_SECONDS)
            try:
                await self.connect(GRACE_SECONDS)
                return None
            except KernelUnreachableError:
                raise
            except KernelError as error:
                reason = error.message
            death = await self.check_death()
            if death is None and self.unreachable_reason:
                raise KernelUnreachableError(self.unreachable_reason)
            if death is None and self.external_executions.running_since:
                raise KernelError("the kernel is running another client's code")
            await self.process.interrupt()
        with contextlib.suppress(KernelError):  # the kernel is given up
            await self.shutdown()
        if death:
            return death
        return Death(f"the kernel did not reply, not even to an interrupt: {reason}")

    async def await_earlier_request(
        self,
        request: str,
        seconds: float,
        limits: Limits,
        wake: str = "",
        lost: Running | None = None,
    ) -> Execution | None:
        """Wait for an execution of an earlier connection and return its result.

        `lost` is that execution if the connection was lost in this daemon. What the
        kernel published meanwhile is in the helper's record; without a helper, only
        what is received from now on is known. Returns None if the execution never
        started; raises KernelError.
        """
        patience = PATIENCE_SECONDS
        if lost:
            patience += max(0.0, seconds)
        await self.wait_until_reachable(patience)
        self.channels.open()
        pending_interrupt = self.pending_interrupt
        self.pending_interrupt = ""
        seconds = 0.0 if pending_interrupt else max(0.0, seconds)
        running = Running(self, seconds, limits)
        area = (lost or Running(self, 0.0, limits, wake)).area
        is_idle = lost is not None and lost.idle
        earlier = EarlierRun(request, area, self, lost, is_idle)
        running.earlier = earlier
        self.partial_output = area
        try:
            waited = await self._wait_for_kernel(running)
        except KernelUnreachableError:
            self.pending_interrupt = pending_interrupt or self.pending_interrupt
            raise
        finally:
            self.partial_output = None
        if waited.death is not None:
            waited.outputs = area.get_outputs()  # the record is lost
            return waited
        interrupted = self.interrupted and (pending_interrupt or self.interrupted)
        await self._reconnect()
        completed = lost if lost is not None and earlier.over and lost.reply else None
        if not self.has_helper:
            self.interrupted = interrupted
            return await self._finish_without_record(completed, earlier, limits)
        reply = await self._execute_silently(
            helper_loader.PUBLISH_RECORD.format(request), GRACE_SECONDS
        )
        if reply.outcome is not Outcome.OK:
            raise KernelError(
                f"the kernel did not return the result of the run: {reply.outcome}"
            )
        facts = reply.diagnosis_data
        await self._install_helper(GRACE_SECONDS)
        await self.fetch_namespace()  # the record does not contain the environment
        record = facts.get("record")
        received = self.channels.count_received(request)
        if not record and not (lost and received):
            return None
        self.interrupted = interrupted
        self.widgets.limits = limits
        if not record:  # another client's execution has replaced the record
            return await self._finish_without_record(completed, earlier, limits)
        if completed and self.channels.count_received(request) == record["count"]:
            return await completed.finish()
        reason = CONNECTION_LOST if lost else NO_DAEMON
        return await running.finish_from_record(request, facts, reason)

    async def _reconnect(self) -> None:
        """Wait for replies of the kernel; repeat that while it cannot be reached."""
        while True:
            try:
                await self._wait_for_replies(GRACE_SECONDS)
                return
            except KernelError:
                if not self.unreachable_reason or await self.check_death() is not None:
                    raise
                await self.wait_until_reachable()

    async def _finish_without_record(
        self, completed: Running | None, earlier: EarlierRun, limits: Limits
    ) -> Execution:
        """Return the result of a run, complete or as far as it was received."""
        if completed:
            return await completed.finish()
        return await Running(self, 0.0, limits).finish_from_received(earlier)

    async def _wait_for_kernel(self, running: Running) -> Execution:
        """Wait until the kernel has finished its execution.

        Executes nothing; if the connection is lost, does so again.
        """
        while True:
            try:
                return await self._run(running, "", silent=True)
            except ConnectionLostError:
                earlier = running.earlier
                seconds = running.deadline - time.monotonic()
                running = Running(self, seconds, running.limits)
                running.earlier = earlier

    async def fetch_missed_messages(self, request: str) -> list[dict[str, Any]]:
        """Return the messages that a finished request published without a daemon.

        They may include messages that a former daemon has already written to the cell,
        but none that this daemon received.
        """
        if not self.has_helper:
            return []
        reply = await self._execute_silently(
            helper_loader.PUBLISH_RECORD.format(request), GRACE_SECONDS
        )
        messages = [*helper_loader.iterate_recorded_messages(reply.diagnosis_data)]
        for position, message in enumerate(messages):
            if message["content"].get("execution_state") == "idle":
                return [
                    late
                    for late in messages[position + 1 :]
                    if late["header"].get("msg_id") not in self.received_ids
                ]
        return []

    async def fetch_namespace(self) -> Namespace:
        """Return a summary of the namespace, UNKNOWN_NAMESPACE if it is not available.

        Another client's execution is neither interrupted nor waited for.
        """
        if not self.has_helper or self.external_executions.running_since:
            return UNKNOWN_NAMESPACE
        reply = await self._execute_silently(helper_loader.PUBLISH_FACTS, GRACE_SECONDS)
        return reply.namespace
