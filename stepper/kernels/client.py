"""The kernel client, which connects to a kernel and executes code in it.

A kernel keeps running when the daemon exits or the connection is lost. The helper in
the kernel records the messages that are published in this time, and
`await_earlier_request` builds the result of the execution from the record.
"""

from __future__ import annotations

import contextlib
import json
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
    RunningExecution,
)
from stepper.kernels.kernel_channels import Inbox
from stepper.kernels.kernel_process import GRACE_SECONDS, PATIENCE_SECONDS
from stepper.policy.execution_result import Execution
from stepper.policy.model import Death, Limits, Outcome
from stepper.policy.namespace_model import UNKNOWN_NAMESPACE, Namespace
from stepper.policy.undo_model import RestoreRequest, UndoFacts, UndoRequest

log = logging.getLogger("stepper")
# How long to wait for the connection to a kernel of an earlier daemon.
REATTACH_SECONDS = 2.0
REQUEST_SECONDS = 0.2  # between two requests for the kernel info
READ_SECONDS = 0.01  # how long to wait for messages of one channel
MAX_UNDO_MEMORY = 512_000_000  # bytes
# The kernel ignores interrupts during an undo, so it is killed at this limit.
UNDO_SECONDS = 60.0


class KernelClient(Connection):
    """A client of one kernel, which implements the session's `Kernel` protocol."""

    # The id and the time of the request that detects the end of another client's
    # execution; the id is empty if no such request was sent.
    probe_request = ""
    probe_time = 0.0
    # The memory of the kernel's machine or container in bytes; 0 before it is read.
    total_memory = 0

    async def connect(self, seconds: float) -> None:
        """Open the channels, wait until the kernel replies, and install the helper.

        Raise KernelError if the kernel does not reply within `seconds`.
        """
        await self._wait_for_replies(seconds)
        connected_at = time.monotonic()
        await self._install_helper(seconds)
        if self.has_helper:
            duration = time.monotonic() - connected_at
            log.info("kernel connection: helper loaded after %.2f s", duration)

    async def _wait_for_replies(self, seconds: float) -> None:
        """Open the channels and wait until the kernel replies on shell and iopub.

        Raise KernelError if the kernel dies or does not reply within `seconds`.
        """
        self.channels.open()
        started_at = time.monotonic()
        deadline = started_at + seconds
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
                raise self._build_timeout_error(seconds)
        duration = time.monotonic() - started_at
        log.info("kernel connection: shell and iopub replied after %.2f s", duration)
        self.external_executions.forget_before(started_at)

    def _build_timeout_error(self, seconds: float) -> KernelError:
        """Return the error for a kernel that did not reply within `seconds`."""
        details = f"its stderr was written to {self.process.log_location}"
        if self.unreachable_reason:
            details = self.unreachable_reason
        return KernelStartError(
            f"the kernel did not reply within {seconds:.0f} s: {details}"
        )

    def _build_start_error(self, death: Death) -> KernelError:
        """Return the error for a kernel that died while it was starting."""
        text = f"the kernel died at start ({death.reason})"
        if death.stderr:
            last_line = death.stderr.splitlines()[-1]
            text += f": {last_line}\n{death.stderr}"
        else:
            text += ": it wrote nothing to stderr"
        hint = self.process.suggest_fix(death)
        if hint:
            return IpykernelMissingError(text, hint)
        return KernelStartError(text)

    async def _receive(self, inbox: Inbox) -> bool:
        """Wait up to READ_SECONDS for messages of a channel, and handle them.

        Return whether messages were received.
        """
        if not await inbox.wait(READ_SECONDS):
            return False
        messages = [*inbox.take_messages()]
        for message in messages:
            content = message["content"]
            if message["msg_type"] == "kernel_info_reply" and isinstance(content, dict):
                self._set_kernel_info(content)
            self.handle_message(message)
        return bool(messages)

    def _set_kernel_info(self, content: dict[str, Any]) -> None:
        """Store the kernel's language, and whether the helper can be installed."""
        self.has_helper = content.get("implementation") == "ipython"
        language_info = content.get("language_info")
        self.language_info = language_info if isinstance(language_info, dict) else {}
        self.language = str(self.language_info.get("name") or "").lower()

    async def _install_helper(self, seconds: float) -> None:
        """Install the helper if the kernel is an IPython kernel.

        Other kernels work without the helper. Raise KernelError if the installation
        fails.
        """
        if not self.has_helper:
            return
        metadata = helper_loader.build_metadata(self.parts, self.process.stack_path)
        result = await self._execute_silently(helper_loader.INSTALL, seconds, metadata)
        if result.outcome is Outcome.OK:
            return
        if result.fault:
            reason = f"{result.fault.ename}: {result.fault.evalue}"
        elif result.death:
            reason = result.death.reason
        else:
            reason = str(result.outcome)
        raise KernelError(
            f"stepper's helper could not be installed in the kernel: {reason}"
        )

    async def execute(
        self,
        code: str,
        timeout: float,
        limits: Limits,
        request: str = "",
        scratch: bool = False,
        criterion: str = "",
        wake: str = "",
        undo: UndoRequest | None = None,
    ) -> Execution:
        """Execute code until it finishes, is interrupted or the kernel dies.

        The execution is interrupted after `timeout` seconds or at the memory limit. A
        `scratch` execution is not added to the history. `request` is the message id to
        use; by default, a new one is created. `criterion` is an expression that the
        helper evaluates afterwards. `wake` is a pattern: the first printed line that
        matches is stored in the partial output. `undo` asks the helper to undo earlier
        runs, and to record the state before this one. Raise KernelError if the kernel
        cannot be reached for too long.
        """
        self.widgets.limits = limits
        metadata = self._build_metadata(limits, criterion, undo)
        running = RunningExecution(self, timeout, limits, wake)
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
                    if not running.was_aborted:
                        return result
                    # A failed execution of another client aborts the requests that are
                    # waiting behind it.
                    seconds = timeout
                except ConnectionLostError:
                    seconds = running.deadline - time.monotonic()
                    recovered_result = await self.await_earlier_request(
                        running.msg_id, seconds, limits, wake, running
                    )
                    if recovered_result is not None:
                        recovered_result.reconnected = True
                        return recovered_result
                # The request was aborted or never arrived, so it is sent again.
                running = RunningExecution(self, seconds, limits, wake)
        finally:
            self.partial_output = None
            self.process.reset_oom_count()

    def _build_metadata(
        self, limits: Limits, criterion: str, undo: UndoRequest | None
    ) -> dict[str, Any]:
        """Return the metadata of an execute request, which the helper reads."""
        metadata: dict[str, Any] = {"stepper_modules": limits.local_modules}
        if criterion:
            metadata["stepper_criterion"] = criterion
        if undo is not None and self.has_helper:
            memory = self._get_default_undo_memory(limits)
            metadata["stepper_undo"] = undo.to_json(memory)
        return metadata

    def _get_default_undo_memory(self, limits: Limits) -> int:
        """Return the number of bytes that before-images may use by default."""
        if not self.total_memory:
            self.total_memory = self.process.get_memory_usage().total
        if self.total_memory <= 1:  # the memory of a remote machine is unknown
            return MAX_UNDO_MEMORY
        allowed = self.total_memory * limits.max_memory_percent / 100
        return min(MAX_UNDO_MEMORY, int(allowed / 10))

    async def undo(self, request: RestoreRequest) -> UndoFacts | None:
        """Undo earlier runs, and return the facts on the undo.

        Return None if the result is unknown. Raise KernelError if the kernel did not
        get the request or has died.
        """
        if not self.has_helper:
            raise KernelError("undo needs an IPython kernel")
        if self.external_executions.running_since:
            raise KernelError("another client is executing code in the kernel")
        code = helper_loader.UNDO.format(json.dumps(request.to_json()))
        await self.wait_until_reachable()
        try:
            reply = await self._execute_silently(code, UNDO_SECONDS)
            if reply.undo is None and reply.death is None:
                # The helper repeats its message for the same request.
                reply = await self._execute_silently(code, UNDO_SECONDS)
        except KernelUnreachableError:
            return None
        if reply.death is not None:
            raise KernelError(f"the kernel died: {reply.death.reason}")
        return reply.undo

    async def _run(
        self, running: RunningExecution, code: str, **options: Any
    ) -> Execution:
        """Run an execution, and mark the kernel as busy until the end.

        `options` are the keyword arguments of `RunningExecution.run`. If the connection
        is lost after an interrupt, the interrupt's reason is stored in
        `pending_interrupt`.
        """
        self.is_busy = True
        self.interrupt_reason = ""
        try:
            return await running.run(code, **options)
        except (ConnectionLostError, KernelUnreachableError):
            self.pending_interrupt = self.pending_interrupt or self.interrupt_reason
            raise
        finally:
            self.is_busy = False

    async def _execute_silently(
        self, code: str, seconds: float, metadata: Mapping[str, Any] = {}
    ) -> Execution:
        """Execute stepper's own code without history, for at most `seconds`.

        The code is executed again if the connection is lost. Raise
        KernelUnreachableError if the connection cannot be restored.
        """
        await self.wait_until_reachable()
        while True:
            with contextlib.suppress(ConnectionLostError):
                running = RunningExecution(self, seconds)
                return await self._run(running, code, silent=True, metadata=metadata)

    def receive_pending(self) -> None:
        """Handle the messages that arrived while no cell was running.

        Also send the captured outputs of Output widgets to the kernel. Do nothing if
        the kernel is busy or dead.
        """
        if self.is_busy or self.process.death is not None:
            return
        self.channels.open()
        for message in self.channels.iopub.take_messages():
            self.handle_message(message)
        self._probe_external_execution()
        self.sync_widgets()

    def _probe_external_execution(self) -> None:
        """Detect the end of another client's execution if its idle status was lost.

        The kernel handles requests in order, so its reply to a later request means that
        the execution has finished.
        """
        if not self.external_executions.running_since:
            self.probe_request = ""
        elif not self.probe_request:
            self.probe_request = self.channels.send("kernel_info_request", {})
            self.probe_time = time.monotonic()
        else:
            for message in self.channels.shell.take_messages():
                if message["parent_header"].get("msg_id") == self.probe_request:
                    self.probe_request = ""
                    self.external_executions.forget_before(self.probe_time)
                    break

    async def take_over(self) -> Death | None:
        """Connect to a kernel of an earlier daemon.

        If the kernel does not reply, interrupt its execution and try again. A kernel
        that still does not reply is shut down. Return how the kernel died, or None if
        the kernel replies. Raise KernelUnreachableError if the kernel cannot be
        reached, and KernelError if the kernel is executing another client's code.
        """
        for _ in range(2):
            # The backend may need a token, which the current caller provides.
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
        with contextlib.suppress(KernelError):  # the kernel cannot be used in any case
            await self.shutdown()
        if death:
            return death
        return Death(f"the kernel did not respond to an interrupt: {reason}")

    async def await_earlier_request(
        self,
        request: str,
        seconds: float,
        limits: Limits,
        wake: str = "",
        lost: RunningExecution | None = None,
    ) -> Execution | None:
        """Wait for an execution of an earlier connection, and return its result.

        `request` is the message id of the execution, which is interrupted after
        `seconds`. `wake` is its wake pattern, if any. `lost` is the execution if this
        daemon started it. The messages that were missed are taken from the helper's
        record. If the kernel has no helper, the result contains only the messages that
        were received. Return None if the execution never started. Raise KernelError if
        the kernel does not reply.
        """
        patience = PATIENCE_SECONDS
        if lost:
            patience += max(0.0, seconds)
        await self.wait_until_reachable(patience)
        self.channels.open()
        # Interrupt the execution now if the user interrupted it while the kernel could
        # not be reached.
        pending_interrupt = self.pending_interrupt
        self.pending_interrupt = ""
        remaining_seconds = max(0.0, seconds)
        if pending_interrupt:
            remaining_seconds = 0.0
        running = RunningExecution(self, remaining_seconds, limits)
        earlier = self._create_earlier_run(request, limits, wake, lost)
        running.earlier = earlier
        wait_result = await self._wait_for_earlier(running, earlier, pending_interrupt)
        if wait_result.death is not None:
            return wait_result
        # The requests below reset `self.interrupt_reason`.
        interrupt_reason = ""
        if self.interrupt_reason:
            interrupt_reason = pending_interrupt or self.interrupt_reason
        await self._reconnect()
        facts = {}
        if self.has_helper:
            facts = await self._fetch_record(request)
            is_received = lost is not None and self.channels.count_received(request) > 0
            if not facts.get("record") and not is_received:
                return None
        self.interrupt_reason = interrupt_reason
        self.widgets.limits = limits
        return await self._build_result(running, earlier, facts)

    def _create_earlier_run(
        self, request: str, limits: Limits, wake: str, lost: RunningExecution | None
    ) -> EarlierRun:
        """Return an execution of an earlier connection, with its outputs so far.

        For the parameters, see `await_earlier_request`.
        """
        if lost is not None:
            return EarlierRun(request, lost.area, self, lost, is_finished=lost.is_idle)
        # This object is used only for its empty area.
        unknown_run = RunningExecution(self, 0.0, limits, wake)
        return EarlierRun(request, unknown_run.area, self)

    async def _build_result(
        self, running: RunningExecution, earlier: EarlierRun, facts: dict[str, Any]
    ) -> Execution:
        """Return the result of an earlier execution that has finished.

        `running` is used to build a result from the helper's record. `facts` is the
        content of the helper's message with the record. There is no record if the
        kernel has no helper, or if another client's execution has replaced the record.
        """
        lost = earlier.lost
        record = facts.get("record")
        if lost is not None and earlier.is_finished and lost.reply:
            # All messages may have been received before the connection was lost.
            received = self.channels.count_received(earlier.request_id)
            if not record or received == record["count"]:
                return await lost.finish()
        if not record:
            unknown_run = RunningExecution(self, 0.0, running.limits)
            return await unknown_run.finish_from_received(earlier)
        reason = CONNECTION_LOST if lost else NO_DAEMON
        return await running.finish_from_record(earlier.request_id, facts, reason)

    async def _wait_for_earlier(
        self, running: RunningExecution, earlier: EarlierRun, pending_interrupt: str
    ) -> Execution:
        """Wait until an earlier execution has finished or the kernel has died.

        `running` is an empty request, which the kernel handles after the earlier
        execution. Return the result of this request. If the kernel has died, the result
        contains the outputs of the earlier execution. If the kernel cannot be reached,
        store `pending_interrupt` again and raise KernelUnreachableError.
        """
        self.partial_output = earlier.area
        try:
            result = await self._wait_for_kernel(running)
        except KernelUnreachableError:
            self.pending_interrupt = pending_interrupt or self.pending_interrupt
            raise
        finally:
            self.partial_output = None
        if result.death is not None:
            result.outputs = earlier.area.get_outputs()  # the record is lost
        return result

    async def _fetch_record(self, request_id: str) -> dict[str, Any]:
        """Return the content of the helper's message with the record of a request.

        Also update the helper and the stored environment. Raise KernelError if the
        kernel does not return the message.
        """
        reply = await self._execute_silently(
            helper_loader.PUBLISH_RECORD.format(request_id), GRACE_SECONDS
        )
        if reply.outcome is not Outcome.OK:
            raise KernelError(
                f"the kernel did not return the result of the run: {reply.outcome}"
            )
        # An earlier daemon may have installed another version of the helper.
        await self._install_helper(GRACE_SECONDS)
        await self.fetch_namespace()  # the record does not contain the environment
        return reply.diagnosis_data

    async def _reconnect(self) -> None:
        """Wait until the kernel replies, even if the connection is lost again.

        Raise KernelError if the kernel dies, does not reply, or cannot be reached for
        too long.
        """
        while True:
            try:
                await self._wait_for_replies(GRACE_SECONDS)
                return
            except KernelError:
                if not self.unreachable_reason or await self.check_death() is not None:
                    raise
                await self.wait_until_reachable()

    async def _wait_for_kernel(self, running: RunningExecution) -> Execution:
        """Wait until the kernel has finished its current execution.

        An empty request is sent for this, and sent again if the connection is lost.
        Return the result of that request.
        """
        while True:
            try:
                return await self._run(running, "", silent=True)
            except ConnectionLostError:
                earlier = running.earlier
                seconds = running.deadline - time.monotonic()
                running = RunningExecution(self, seconds, running.limits)
                running.earlier = earlier

    async def fetch_missed_messages(self, request: str) -> list[dict[str, Any]]:
        """Return the messages that a request published after it had finished.

        The messages are taken from the helper's record. They may include messages that
        an earlier daemon has already written to the notebook, but no messages that this
        daemon has received. Return an empty list if the kernel has no helper or no
        record of the request.
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
        """Return a summary of the kernel's namespace.

        Return UNKNOWN_NAMESPACE if the kernel has no helper or is executing another
        client's code.
        """
        if not self.has_helper or self.external_executions.running_since:
            return UNKNOWN_NAMESPACE
        reply = await self._execute_silently(helper_loader.PUBLISH_FACTS, GRACE_SECONDS)
        return reply.namespace
