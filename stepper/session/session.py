"""The session of one notebook: connects the parts of its state, and orders requests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import Any

from stepper.common.errors import NotebookError, StepperError
from stepper.common.text import one_line
from stepper.messages import command_messages
from stepper.notebooks.journal_file import SyncMode
from stepper.notebooks.notebook_document import Document
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy import journal_events, plan
from stepper.policy.comparison.output_comparison import PixelComparison
from stepper.policy.configuration import kernelspec_languages
from stepper.policy.dataflow import run_history
from stepper.policy.dataflow.name_effects import NameUsage
from stepper.policy.execution_result import Execution
from stepper.policy.model import Cell, Death, Fault, Limits
from stepper.policy.namespace_model import UNKNOWN_NAMESPACE, Namespace
from stepper.policy.notebook_state import State
from stepper.policy.undo_model import RestoreRequest, UndoFacts, UndoRequest
from stepper.session.caller import Caller
from stepper.session.diagnosis_protocol import Diagnosis
from stepper.session.protocols import (
    ExternalExecution,
    Journal,
    Kernel,
    KernelLauncher,
    LateOutputs,
    LaunchConfig,
    PartialOutput,
)
from stepper.session.session_state.agent_reads import AgentReads
from stepper.session.session_state.background_calls import BackgroundCalls
from stepper.session.session_state.kernel_manager import KernelManager
from stepper.session.session_state.namespace_tracker import NamespaceTracker
from stepper.session.session_state.notebook_journal import NotebookJournal, format_now
from stepper.session.session_state.notebook_language import (
    PYTHON_LANGUAGES,
    NotebookLanguage,
)
from stepper.session.session_state.notices import Notices
from stepper.session.session_state.output_writer import OutputWriter
from stepper.session.session_state.reported_changes import ReportedChanges
from stepper.session.session_state.request_queue import RequestQueue

SHOWN_SECONDS = 2.0  # viewers see the progress of cells that run longer than this
CODE_LIMIT = 200  # characters of an external execution's first line in the journal
RECONNECT_POLL_SECONDS = 0.1  # how often to check for a lost connection


def _do_nothing() -> None:
    pass


def _compare_no_pixels(*_: object) -> None:
    """Return None, which means that two images cannot be compared."""


class Session:
    """The work on one notebook; requests take turns (`take_turn`).

    Each class in `session_state` manages a part of the session's state, and only its
    methods change this part. The session creates the objects, passes events between
    them, and executes code.
    """

    def __init__(
        self,
        name: str,
        file: IpynbFile,
        late: LateOutputs,
        journal: Journal,
        kernels: KernelLauncher,
        limits: Callable[[], Limits],
        get_launch_config: Callable[[Mapping[str, str], str], LaunchConfig],
        diagnosis: Diagnosis,
        recover_run: Callable[[Session], Awaitable[None]],
        on_change: Callable[[], None] = _do_nothing,
        compare_pixels: PixelComparison = _compare_no_pixels,
    ) -> None:
        self.name = name
        self.file = file
        self.limits = limits
        self._recover_run = recover_run  # finishes a run that lost its daemon
        self._on_change = on_change  # called after each journal event
        self.compare_pixels = compare_pixels  # returns how much two images differ
        self.notices = Notices()
        self.language = NotebookLanguage(diagnosis)
        self.requests = RequestQueue()
        self.background_calls = BackgroundCalls()
        self.reported_changes = ReportedChanges()
        self.agent_reads = AgentReads()
        self.namespace_tracker = NamespaceTracker()
        self.journal = NotebookJournal(
            journal, self.notices, self.language.analyze_names, self._handle_event
        )
        self.outputs = OutputWriter(file, late, self.journal, self.notices, limits)
        self.kernel_manager = KernelManager(
            kernels,
            get_launch_config,
            self.journal,
            self.outputs.update_displays,
            self.outputs.add_late_output,
            self._record_external_execution,
        )

    @property
    def state(self) -> State:
        """The state that the journal produces; only `journal` changes it."""
        return self.journal.state

    def _handle_event(self, event: journal_events.Event) -> None:
        """Reset the namespace if the kernel changed, and call `on_change`."""
        if isinstance(event, journal_events.KernelChanged):
            self.namespace_tracker.reset()
        self._on_change()

    # --- turns

    @contextlib.asynccontextmanager
    async def take_turn(
        self, reconnecting: Caller | None = None, caller: Caller | None = None
    ) -> AsyncIterator[None]:
        """Wait for earlier requests; let later requests wait until the block exits.

        The run and the kernel of an earlier daemon are recovered first. `reconnecting`
        is a caller that requests the result of an earlier tool call. Raise StepperError
        if `caller` disconnects while waiting.
        """
        with self.requests.register_reconnecting(reconnecting):
            while True:
                if reconnecting:
                    await self._wait_until_reachable(reconnecting)
                if not await self.requests.acquire(caller):
                    raise StepperError(
                        "interrupted while waiting for another request to"
                        f" {self.name}: the code did not run"
                    )
                try:
                    await self._catch_up()
                    unreachable_kernel = None
                    if reconnecting:
                        # The connection may have been lost again.
                        unreachable_kernel = await self._find_unreachable_kernel(
                            reconnecting
                        )
                    if unreachable_kernel is None:
                        yield
                        return
                finally:
                    self.requests.release()

    async def _wait_until_reachable(self, reconnecting: Caller) -> None:
        """Wait until the kernel that may be running a caller's cell can be reached.

        Stop waiting if the kernel dies or the caller disconnects. This takes no lock,
        so that other requests do not wait for the connection.
        """
        while True:
            kernel = await self._find_unreachable_kernel(reconnecting)
            if kernel is None:
                return
            kernel.receive_pending()
            await asyncio.sleep(RECONNECT_POLL_SECONDS)

    async def _find_unreachable_kernel(self, reconnecting: Caller) -> Kernel | None:
        """Return the kernel if it may be running a caller's cell but is unreachable.

        Otherwise return None.
        """
        kernel = await self.kernel_manager.find_or_attach()
        running = self.state.running
        if kernel is None or running is None or reconnecting.disconnected.is_set():
            return None
        if running.tool_use_id != reconnecting.call_id or not kernel.unreachable_reason:
            return None
        if await kernel.check_death() is None:
            return kernel
        return None

    async def do_maintenance(self) -> None:
        """Write late and pending outputs; handle an unfinished run or a dead kernel.

        Also process the messages that the kernel has sent. While another request has
        the turn, only write late outputs.
        """
        kernel = self.kernel_manager.kernel
        if kernel is not None and not self.requests.is_locked:
            kernel.receive_pending()
        if time.monotonic() >= self.outputs.next_late_write:
            self.write_late_outputs()
        if self.requests.is_locked:
            return
        death = self.kernel_manager.unhandled_death
        if death is None and kernel is not None:
            death = await kernel.check_death()
        may_write_again = time.monotonic() > self.outputs.next_retry
        needs_turn = (
            death is not None
            or self.state.running is not None
            or (may_write_again and bool(self.state.pending_outputs))
        )
        # `check_death` may have waited: another request may have the turn now.
        if needs_turn and not self.requests.is_locked:
            async with self.take_turn():
                pass

    async def handle_idle_death(self) -> None:
        """Attach to the kernel of an earlier daemon, or record its death.

        While another request has the turn, the death is not recorded yet.
        """
        await self.kernel_manager.find_or_attach()
        if self.kernel_manager.unhandled_death is not None:
            await self.do_maintenance()

    async def _catch_up(self) -> None:
        """Recover an unfinished run or take over the kernel, and write outputs.

        Also record the death of a kernel that died while no cell was running. Do
        nothing if the kernel of the unfinished run cannot be reached.
        """
        manager = self.kernel_manager
        kernel = await manager.find_or_attach()
        if self.state.running is not None:
            if kernel is not None and kernel.unreachable_reason:
                return  # recover the run when the kernel is reachable again
            await self._recover_run(self)
        elif manager.needs_takeover:
            await manager.take_over()
            if manager.kernel is not None and not manager.needs_takeover:
                await self.outputs.take_missed_messages(manager.kernel)
        death = manager.unhandled_death
        if death is None and manager.kernel is not None:
            death = await manager.kernel.check_death()
        if death is not None:
            await self._record_idle_death(death)
        self.outputs.write_pending_outputs()
        if manager.kernel is not None:
            manager.kernel.receive_pending()
        self.write_late_outputs()

    async def _record_idle_death(self, death: Death) -> None:
        """Record that the kernel died; stop the notebook if variables were lost.

        This also shuts down the kernel, with the processes that it started.
        """
        # Format this first: the state forgets the variables when they are lost.
        rebuild_clause = command_messages.format_rebuild(self.state)
        reason = f"the kernel died ({death.reason}) while no cell was running"
        await self.kernel_manager.shut_down(reason)
        if not rebuild_clause:
            return
        error, block = command_messages.format_death_stop(
            reason, rebuild_clause, death.stderr, self.state.commands
        )
        self.journal.log(
            journal_events.Stopped(
                at=format_now(), key=None, cell_id="", block=block, error=error
            )
        )

    # --- the notebook

    def read(self) -> Document:
        """Read the notebook; update the plan and the language from the file.

        Raise NotebookError if the file cannot be read, or if the selected kernel cannot
        run the notebook's language.
        """
        document = self.file.read()
        self._update_plan(document)
        if not self.can_run(document):
            raise NotebookError(
                f"the language of {self.name} is {document.language!r}, but the"
                " selected kernel runs Python",
                kernelspec_languages.format_kernel_hint(
                    self.name, document.language, document.kernelspec_name
                ),
            )
        self.language.select(document.language)
        return document

    def _update_plan(self, document: Document) -> None:
        """Log the plan in the notebook file if it differs from the plan in the journal.

        If the journal already has steps, take only the kernel from the file: only
        commands change the steps.
        """
        journal_plan = self.state.plan
        file_plan = plan.from_json(document.plan)
        if not file_plan:
            return
        new_plan = file_plan
        if journal_plan.steps:
            new_plan = replace(journal_plan, kernel=file_plan.kernel)
        if new_plan != journal_plan:
            plan_json = plan.to_json(new_plan)
            self.journal.log(
                journal_events.PlanChanged(at=format_now(), plan=plan_json)
            )

    def move(
        self,
        name: str,
        path: str,
        get_launch_config: Callable[[Mapping[str, str], str], LaunchConfig],
    ) -> None:
        """Use another name and path after the notebook was renamed.

        `get_launch_config` returns the launch configuration for the new path. The
        notebook may be moved while a cell is running.
        """
        self.name = name
        self.file.move(path)
        self.kernel_manager.set_launch_config(get_launch_config)
        self.language.move(path)
        commands = self.state.commands
        # The name is empty if the project has only this notebook.
        if commands.notebook:
            self.journal.set_command_lines(replace(commands, notebook=name))
        self._on_change()

    def can_run(self, document: Document) -> bool:
        """Return whether the selected kernel may support the notebook's language.

        The default backend supports only Python; other backends may support any
        language.
        """
        if document.language in PYTHON_LANGUAGES:
            return True
        backend_name = self.state.plan.kernel or self.limits().kernel
        return backend_name != Limits.kernel  # the default

    def read_with_unique_ids(self) -> Document:
        """Replace duplicate cell IDs in the file, and read the notebook.

        Raise NotebookError if the file cannot be read or written.
        """
        document = self.read()
        if len({cell.id for cell in document.cells}) == len(document.cells):
            return document
        for duplicate_id, cell in self.file.replace_duplicate_ids():
            lower_cell = "the lower cell"
            if cell.is_code:
                lower_cell += f" (cell {cell.number})"
            self.notices.add(
                f"two cells had the id {duplicate_id!r}: {lower_cell} now has the id"
                f" {cell.id}"
            )
        return self.read()

    def write_late_outputs(self) -> None:
        """Write late outputs and the outputs so far of a long-running cell.

        If no request has the turn and no outputs are pending, also write the widget
        state.
        """
        kernel = self.kernel_manager.kernel
        is_busy = self.requests.is_locked or self.state.pending_outputs
        widgets = None
        if kernel is not None and not is_busy:
            widgets = kernel.take_widget_state()
        self.outputs.write_late(widgets, self.long_run_output)

    @property
    def runs_in_background(self) -> bool:
        """Whether the running or queued cell is a background run."""
        if self.state.runs_in_background:
            return True
        if not self.kernel_manager.queue_status:
            return False
        return any(
            call.in_background and not call.task.done()
            for call in self.background_calls
        )

    @property
    def is_idle(self) -> bool:
        """Whether the notebook has an idle kernel that stepper started."""
        kernel = self.kernel_manager.kernel
        if kernel is None or self.requests.is_locked or self.state.running is not None:
            return False
        if kernel.is_busy or kernel.external_executions.running_since:
            return False
        return not kernel.describe().is_external

    @property
    def long_run_output(self) -> PartialOutput | None:
        """The output so far of a cell that has run for more than SHOWN_SECONDS.

        The value is None if there is no such cell.
        """
        kernel = self.kernel_manager.kernel
        if self.requests.running_caller is None or kernel is None:
            return None
        if time.monotonic() <= self.requests.run_started_at + SHOWN_SECONDS:
            return None
        return kernel.partial_output

    # --- the kernel

    async def execute(
        self,
        kernel: Kernel,
        source: str,
        caller: Caller,
        timeout: float,
        limits: Limits,
        request: str = "",
        scratch: bool = False,
        criterion: str = "",
        wake: str = "",
        undo: UndoRequest | None = None,
    ) -> Execution:
        """Execute code for a caller, and record the namespace afterwards.

        The parameters are those of `Kernel.execute`, except `kernel` and `caller`.
        """
        # Analyze the source while the kernel executes it: the result is needed later.
        if self.language.is_python and not scratch:
            loop = asyncio.get_running_loop()
            loop.call_soon(self.language.analyze_names, source)
        with self.requests.track_execution(caller):
            execution = await kernel.execute(
                source, timeout, limits, request, scratch, criterion, wake, undo
            )
        if undo is None and not scratch:
            # Undo is off. The facts only name the variables that the code assigned,
            # which is needed after scratch executions.
            execution.undo = None
        self.namespace_tracker.record_execution(execution)
        return execution

    async def undo(self, kernel: Kernel, request: RestoreRequest) -> UndoFacts | None:
        """Undo earlier runs without a new run; return the kernel's facts.

        The facts are None if the result is unknown. Afterwards, the recorded namespace
        counts as outdated. Raise KernelError if the kernel did not get the request or
        has died.
        """
        facts = await kernel.undo(request)
        # The next `fetch` requests the namespace from the kernel.
        self.namespace_tracker.record_external(UNKNOWN_NAMESPACE)
        return facts

    async def add_suggestion(
        self,
        fault: Fault,
        kernel_facts: Mapping[str, Any],
        namespace: Namespace,
        cell: Cell,
        cells: Sequence[Cell],
    ) -> Fault:
        """Return a fault, with a suggestion if the diagnosis has one.

        `kernel_facts` are the facts that the helper in the kernel reported with the
        error.
        """
        kernel = self.kernel_manager.kernel
        python = ""
        if kernel:
            python = kernel.describe().python
        return await asyncio.to_thread(
            self.language.diagnosis.add_suggestion,
            fault,
            kernel_facts,
            cell,
            cells,
            self.state,
            namespace,
            python,
        )

    def _record_external_execution(self, execution: ExternalExecution) -> None:
        """Record an execution of another client.

        A silent execution is logged only if it assigned names. Nothing is logged if the
        kernel is lost.
        """
        self.requests.record_use()
        self.namespace_tracker.record_external(execution.namespace)
        bindings = run_history.list_reported_bindings(NameUsage(), execution.namespace)
        kernel = self.kernel_manager.kernel
        if kernel is None or (execution.is_silent and not bindings):
            return
        running = self.state.running
        next_run = running.run if running else self.state.next_run
        self.journal.log(
            journal_events.ExternalExecution(
                at=execution.started_at,
                after=next_run - 1,
                kernel=kernel.id,
                code=one_line(execution.code, CODE_LIMIT),
                duration_s=round(execution.seconds, 4),
                error=execution.error,
                bound=bindings,
            ),
            sync=SyncMode.NONE,
        )

    def record_death(self, execution: Execution, where: str) -> None:
        """Record the loss of the kernel if it died during an execution.

        `where` names the executed code, for example "cell 5".
        """
        if execution.death is not None:
            self.kernel_manager.record_loss(
                f"the kernel died ({execution.death.reason}) in {where}"
            )

    @property
    def _running_call_id(self) -> str | None:
        """The ID of the tool call that started the running cell, or None."""
        running = self.state.running
        return running.tool_use_id if running else None

    async def interrupt(self) -> bool:
        """Interrupt the running cell, its retry or the start of its kernel.

        Return whether there was one of these. Queued background runs are cancelled,
        too. This takes no lock.
        """
        # Cancel the background runs that wait behind the running cell.
        for call in self.background_calls:
            if call.in_background and call.id != self._running_call_id:
                call.caller.disconnected.set()
        if await self.kernel_manager.interrupt("user"):
            return True
        # If no code is running, the caller waits for the retry of a cell.
        waits_for_retry = self.requests.running_caller is not None
        if waits_for_retry:
            self.requests.cancel_retry()
        return waits_for_retry

    async def cancel_for_caller(self, caller: Caller) -> None:
        """Cancel the run or the retry of a caller that disconnected."""
        caller.disconnected.set()
        if self.requests.waits_for_run(caller, self._running_call_id):
            self.requests.cancel_retry()
            await self.kernel_manager.interrupt("client disconnected")

    def pop_notices(self) -> list[str]:
        """Return the notices for the next report, and clear them."""
        notices = [*self.notices.pop_all(), self.kernel_manager.pop_notice()]
        return [notice for notice in notices if notice]
