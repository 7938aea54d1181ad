"""The session of one notebook: its state, kernel, file and request order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import Any

from stepper.common.errors import NotebookError, StepperError
from stepper.common.text import one_line
from stepper.messages import command_messages, run_report
from stepper.messages.run_report import Report, RunSummary
from stepper.policy import cell_directives, journal_events, journal_reducer, plan
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.comparison.output_comparison import PixelComparison
from stepper.policy.dataflow import cell_dependencies, name_analysis
from stepper.policy.dataflow.name_effects import NameUsage
from stepper.policy.kernel_namespace import UNKNOWN_NAMESPACE, Namespace
from stepper.policy.model import Cell, Death, Fault, Key, Limits
from stepper.policy.progress_estimate import Estimate
from stepper.session.background_call_states import BackgroundCall
from stepper.session.clients import Caller
from stepper.session.diagnosis_protocol import Diagnosis
from stepper.session.kernel_manager import KernelManager, format_now
from stepper.session.output_writer import OutputWriter
from stepper.session.protocols import (
    Execution,
    ExternalExecution,
    Journal,
    Kernel,
    KernelLauncher,
    LateOutputs,
    LaunchConfig,
    Notebook,
    NotebookFile,
    PartialOutput,
)

SHOWN_SECONDS = 2.0  # viewers see the progress of cells that run longer than this
CODE_LIMIT = 200  # characters of an external execution's first line in the journal
ANALYSES = 5000  # sources whose analysis is cached
RECONNECT_POLL_SECONDS = 0.1  # how often to check for a lost connection
LANGUAGES = ("python", "python3", "ipython")


class Session:
    """The work on one notebook; requests run one at a time, each in a `turn`."""

    def __init__(
        self,
        name: str,
        file: NotebookFile,
        late: LateOutputs,
        journal: Journal,
        kernels: KernelLauncher,
        limits: Callable[[], Limits],
        get_launch_config: Callable[[Mapping[str, str], str], LaunchConfig],
        diagnosis: Diagnosis,
        recover_run: Callable[[Session], Awaitable[None]],
    ) -> None:
        self.name = name
        self.file = file
        self.journal = journal
        self.limits = limits
        self.recover_run = recover_run  # finishes a run that lost its daemon
        # The language of the notebook.
        self.base_diagnosis = diagnosis
        self.diagnosis = diagnosis
        self.speaks_python = True
        self.comment = "#"
        # Requests and runs.
        self.lock = asyncio.Lock()
        self.running_caller: Caller | None = None  # the caller of the running cell
        # Callers that request the result of an earlier tool call, by its ID.
        self.reconnecting_callers: dict[str, Caller] = {}
        self.retry_interrupted = asyncio.Event()
        self.run_started_at = 0.0
        self.last_used = time.monotonic()
        self.estimate = Estimate()  # of the end of the running cell
        self.scratch_run: journal_events.RunStarted | None = None  # while it runs
        self.last_failed_execution: Execution | None = None  # if the last run failed
        self.needs_replay = False  # the notebook is complete: verify it
        # Background runs, also recently finished ones, by call ID.
        self.background_calls: dict[str, BackgroundCall] = {}
        self.finished_call_ids: deque[str] = deque(maxlen=200)
        # Reports that a client accepted and the agent may not have read yet.
        self.delivered_reports: deque[Report] = deque(maxlen=20)
        # Reports.
        self.reported_unrun: dict[str, str] = {}  # cell ID → source hash
        # Causes of stale cells and hidden state that a report named.
        self.reported_causes: set[tuple[object, ...]] = set()
        # Subject → notice for the next report.
        self.pending_notices: dict[Hashable, str] = {}
        # Called after each journal event.
        self.on_change: Callable[[], None] = _do_nothing
        # Returns how much two images differ.
        self.compare_pixels: PixelComparison = lambda *_: None
        # The names in the kernel.
        self.namespace = UNKNOWN_NAMESPACE
        # A silent execution of another client may have changed them.
        self.namespace_is_outdated = False
        self.analyze_names = functools.lru_cache(ANALYSES)(self._analyze_names)
        self.run_history = cell_dependencies.History(self.analyze_names)
        events, problem = journal.load()
        self.state = journal_reducer.replay(events)
        if problem:
            self.add_notice(problem)
        if self.state.unreadable_events:
            self.add_notice(
                f"{self.state.unreadable_events} line(s) of the journal are not valid"
                " and were ignored"
            )
        self.outputs = OutputWriter(
            file, late, self.state, limits, self.log, self.add_notice
        )
        self.kernel_manager = KernelManager(
            kernels,
            get_launch_config,
            self.state,
            self.log,
            self.outputs.handle_display,
            self.record_external_execution,
        )

    # --- turns

    @contextlib.asynccontextmanager
    async def turn(
        self, again: Caller | None = None, caller: Caller | None = None
    ) -> AsyncIterator[None]:
        """Wait until earlier requests have finished, then recover and run.

        Work of an earlier daemon is recovered first. If the caller `again` disconnects,
        its run is cancelled. If `caller` disconnects while waiting, raise StepperError.
        """
        if again and again.call_id:
            self.reconnecting_callers[again.call_id] = again
        try:
            while True:
                if again:
                    await self._wait_until_reachable(again)
                if caller and self.lock.locked():
                    await self._wait_for_lock(caller)
                else:
                    await self.lock.acquire()
                try:
                    await self._catch_up()
                    if not (again and await self._find_unreachable_kernel(again)):
                        yield
                        return
                finally:
                    self.lock.release()
        finally:
            if again and self.reconnecting_callers.get(again.call_id or "") is again:
                del self.reconnecting_callers[again.call_id or ""]

    async def _wait_until_reachable(self, again: Caller) -> None:
        """Wait for a lost connection to the kernel that may run that call.

        This takes no lock, so that other requests do not wait for the connection.
        """
        while True:
            kernel = await self._find_unreachable_kernel(again)
            if kernel is None:
                return
            kernel.receive_pending()
            await asyncio.sleep(RECONNECT_POLL_SECONDS)

    async def _find_unreachable_kernel(self, again: Caller) -> Kernel | None:
        """Return the unreachable kernel that may run that call, or None."""
        kernel = await self.kernel_manager.find()
        running = self.state.running
        if kernel is None or running is None or again.disconnected.is_set():
            return None
        if running.tool_use_id != again.call_id or not kernel.unreachable_reason:
            return None
        return kernel if await kernel.check_death() is None else None

    async def _wait_for_lock(self, caller: Caller) -> None:
        acquire = asyncio.create_task(self.lock.acquire())
        disconnected = asyncio.create_task(caller.disconnected.wait())
        await asyncio.wait([acquire, disconnected], return_when=asyncio.FIRST_COMPLETED)
        is_acquired = acquire.done()
        acquire.cancel()
        disconnected.cancel()
        if not is_acquired:
            raise StepperError(
                f"interrupted while it waited for another cell of {self.name}: nothing"
                " ran"
            )

    async def wait_until_idle(self) -> None:
        """Wait until the present request has finished."""
        async with self.lock:
            pass

    async def do_maintenance(self) -> None:
        """Write late outputs and detect a dead kernel; never wait for a turn."""
        kernel = self.kernel_manager.kernel
        if kernel is not None and not self.lock.locked():
            kernel.receive_pending()
        if time.monotonic() >= self.outputs.next_late_write:
            self.put_late()
        if self.lock.locked():
            return
        has_died = self.kernel_manager.unhandled_death or (
            kernel is not None and await kernel.check_death() is not None
        )
        has_pending_outputs = (
            self.state.pending_outputs and time.monotonic() > self.outputs.next_retry
        )
        needs_turn = has_died or self.state.running or has_pending_outputs
        # `check_death` may have waited: another request may have taken the lock.
        if needs_turn and not self.lock.locked():
            async with self.turn():
                pass

    async def handle_idle_death(self) -> None:
        """Record the death of a kernel that happened without a daemon."""
        await self.kernel_manager.find()
        if self.kernel_manager.unhandled_death is not None:
            await self.do_maintenance()

    async def _catch_up(self) -> None:
        """Recover a run, take over a kernel and write what waits, before a turn."""
        manager = self.kernel_manager
        kernel = await manager.find()
        if self.state.running is not None:
            if kernel is not None and kernel.unreachable_reason:
                return  # the cell may still run: ask the kernel when it is reachable
            await self.recover_run(self)
        elif manager.needs_takeover:
            await manager.take_over()
            if manager.kernel is not None and not manager.needs_takeover:
                await self.outputs.take_missed_messages(manager.kernel)
        death = manager.unhandled_death
        if death is None and manager.kernel is not None:
            death = await manager.kernel.check_death()
        if death is not None:
            await self._handle_idle_death(death)
        self.outputs.write_waiting()
        if manager.kernel is not None:
            manager.kernel.receive_pending()
        self.put_late()

    async def _handle_idle_death(self, death: Death) -> None:
        """Record that the kernel died; stop the notebook if state was lost."""
        rebuild = command_messages.format_rebuild(self.state)
        reason = f"the kernel died ({death.reason}) while no cell was running"
        await self.kernel_manager.shut_down(reason)
        if not rebuild:
            return
        error, block = command_messages.format_death_stop(
            reason, rebuild, death.stderr, self.state.commands
        )
        self.log(
            journal_events.Stopped(
                at=format_now(), key=None, cell_id="", block=block, error=error
            )
        )

    # --- the notebook

    def read(self) -> Notebook:
        """Read the notebook, its plan and its kernel; raise NotebookError."""
        document = self.file.read()
        self._update_plan(document)
        if not self.can_run(document):
            command = CommandLines(self.name).shell("use --kernel NAME")
            raise NotebookError(
                f"{self.name} is a notebook in {document.language!r}, but its kernel"
                " here runs Python",
                f"choose a backend of `kernels:` in .stepper/config.yaml: {command}",
            )
        self.speaks_python = document.language in LANGUAGES
        self.diagnosis = self.base_diagnosis.for_language(document.language)
        self.comment = cell_directives.get_comment_marker(document.language)
        return document

    def _update_plan(self, document: Notebook) -> None:
        """Take the plan, or only its kernel, from the notebook file.

        Once the journal has a plan, only commands change its steps.
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
            self.log(journal_events.PlanChanged(at=format_now(), plan=plan_json))

    def move(
        self,
        name: str,
        path: str,
        get_launch_config: Callable[[Mapping[str, str], str], LaunchConfig],
    ) -> None:
        """Use another name and path, also while a cell runs."""
        self.name = name
        self.file.move(path)
        self.kernel_manager.get_launch_config = get_launch_config
        self.base_diagnosis.move(path)
        if self.state.commands.notebook:
            self.state.commands = CommandLines(name)
        self.on_change()

    def can_run(self, document: Notebook) -> bool:
        """Return whether the kernel may support the notebook's language."""
        if document.language in LANGUAGES:
            return True
        return (self.state.plan.kernel or self.limits().kernel) != Limits.kernel

    def read_with_unique_ids(self) -> Notebook:
        """Read the notebook; replace duplicate cell IDs.

        Raise NotebookError.
        """
        document = self.read()
        if len({cell.id for cell in document.cells}) == len(document.cells):
            return document
        for duplicate_id, cell in self.file.replace_duplicate_ids():
            new_name = cell.label if cell.is_code else f"id {cell.id}"
            self.add_notice(
                f"two cells had the id {duplicate_id!r}; the lower one has a new id"
                f" now: {new_name}"
            )
        return self.read()

    def put_late(self) -> None:
        """Write late outputs, and widget state if no cell runs."""
        kernel = self.kernel_manager.kernel
        is_busy = self.lock.locked() or self.state.pending_outputs
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
            for call in self.background_calls.values()
        )

    @property
    def is_idle(self) -> bool:
        """Whether the notebook has a kernel of its own that runs nothing."""
        kernel = self.kernel_manager.kernel
        if kernel is None or self.lock.locked() or self.state.running is not None:
            return False
        if kernel.is_busy or kernel.external_executions.running_since:
            return False
        return not kernel.describe().is_external

    @property
    def long_run_output(self) -> PartialOutput | None:
        """The output so far of a cell that has run for some time, else None."""
        kernel = self.kernel_manager.kernel
        if self.running_caller is None or kernel is None:
            return None
        if time.monotonic() <= self.run_started_at + SHOWN_SECONDS:
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
    ) -> Execution:
        """Run code for a caller and update the namespace."""
        self.running_caller = caller
        self.run_started_at = time.monotonic()
        self.estimate = Estimate()
        # Analyze the source while the kernel executes it: the result is needed later.
        if self.speaks_python and not scratch:
            asyncio.get_running_loop().call_soon(self.analyze_names, source)
        try:
            execution = await kernel.execute(
                source, timeout, limits, request, scratch, criterion, wake
            )
        finally:
            self.running_caller = None
            self.last_used = time.monotonic()
        execution.namespace_before = self.namespace
        self.namespace = execution.namespace
        execution.namespace = execution.namespace or execution.namespace_before
        return execution

    async def get_namespace(self, kernel: Kernel) -> Namespace:
        """Return the namespace; ask the kernel if it is not known."""
        if self.namespace_is_outdated or not self.namespace:
            self.namespace_is_outdated = False
            self.namespace = await kernel.fetch_namespace()
        return self.namespace

    async def add_suggestion(
        self,
        fault: Fault,
        kernel_facts: Mapping[str, Any],
        namespace: Namespace,
        cell: Cell,
        cells: Sequence[Cell],
    ) -> Fault:
        """Return a fault with its suggestion, if there is one.

        `kernel_facts` is what the helper in the kernel reported with the error.
        """
        kernel = self.kernel_manager.kernel
        python = kernel.describe().python if kernel else ""
        return await asyncio.to_thread(
            self.diagnosis.add_suggestion,
            fault,
            kernel_facts,
            cell,
            cells,
            self.state,
            namespace,
            python,
        )

    def record_external_execution(self, execution: ExternalExecution) -> None:
        """Record an execution of another client.

        A silent execution is recorded only if it assigned names.
        """
        self.last_used = time.monotonic()
        self.namespace_is_outdated = not execution.namespace
        self.namespace = execution.namespace or self.namespace
        bindings = cell_dependencies.list_reported_bindings(
            NameUsage(), execution.namespace
        )
        kernel = self.kernel_manager.kernel
        if kernel is None or (execution.is_silent and not bindings):
            return
        running = self.state.running
        next_run = running.run if running else self.state.next_run
        self.log(
            journal_events.ExternalExecution(
                at=execution.started_at,
                after=next_run - 1,
                kernel=kernel.id,
                code=one_line(execution.code, CODE_LIMIT),
                duration_s=round(execution.seconds, 4),
                error=execution.error,
                bound=bindings,
            ),
            sync=False,
        )

    def record_death(self, execution: Execution, where: str) -> None:
        """Record the death of the kernel, if it died."""
        if execution.death is not None:
            self.kernel_manager.record_loss(
                f"the kernel died ({execution.death.reason}) in {where}"
            )

    async def interrupt(self) -> bool:
        """Interrupt the running cell; return whether there was one. Take no lock."""
        # Background runs that wait in line behind it do not run either.
        running = self.state.running
        running_call_id = running.tool_use_id if running else None
        for call in self.background_calls.values():
            if call.in_background and call.id != running_call_id:
                call.caller.disconnected.set()
        is_interrupted = await self.kernel_manager.interrupt("user")
        if self.running_caller is not None and not is_interrupted:
            self.retry_interrupted.set()  # the cell waits for its next try
            return True
        return is_interrupted

    async def cancel_for_caller(self, caller: Caller) -> None:
        """Cancel the run of a caller that disconnected."""
        caller.disconnected.set()
        running = self.state.running
        call_id = (running.tool_use_id or "") if running else ""
        reconnecting_caller = self.reconnecting_callers.get(call_id)
        if caller is self.running_caller or caller is reconnecting_caller:
            self.retry_interrupted.set()
            await self.kernel_manager.interrupt("client disconnected")

    def _analyze_names(self, source: str) -> NameUsage:
        """Return the names that a cell reads and assigns."""
        usage = name_analysis.analyze_source(source, self.diagnosis.convert_to_python)
        usage.mentions.clear()
        return usage

    # --- the journal

    def log(self, event: journal_events.Event, sync: bool | None = True) -> None:
        """Write an event to the journal and apply it to the state.

        Raise StepperError if the start of a run cannot be written: the cell does not
        run then.
        """
        is_start = isinstance(event, journal_events.RunStarted)
        try:
            self.journal.append(event.to_json(), sync, keep=not is_start)
        except OSError as error:
            problem = f"the journal cannot be written ({error.strerror})"
            if is_start:
                raise StepperError(
                    problem, "df -h .stepper; ls -l .stepper/journal"
                ) from error
            self.add_notice(
                f"{problem}: its entries are only in memory, and are lost if the daemon"
                " exits before it can write them",
                error.strerror,
            )
        if isinstance(event, journal_events.KernelChanged):
            self.namespace = UNKNOWN_NAMESPACE
        journal_reducer.apply(event, self.state)
        self.on_change()

    def add_notice(self, text: str, subject: Hashable = None) -> None:
        """Add a notice for the next report; replace one on the same subject."""
        self.pending_notices.pop(subject or text, None)
        self.pending_notices[subject or text] = text

    def take_notices(self) -> list[str]:
        """Return the notices for the next report and clear them."""
        notices = [*self.pending_notices.values(), self.kernel_manager.notice]
        self.pending_notices = {}
        self.kernel_manager.notice = ""
        return [notice for notice in notices if notice]

    def was_handled(self, tool_use_id: str | None) -> bool:
        """Return whether that tool call was handled already."""
        return tool_use_id in self.state.tool_use_ids

    def find_report(self, tool_use_id: str | None) -> Report | None:
        """Return the report on the last run of a tool call, or None."""
        last_run = None
        for run in self.state.runs:
            if run.tool_use_id == tool_use_id:
                last_run = run
        if last_run is None:
            text = self.state.reports.get(0)
            return None if text is None else Report(text, "", ok=False)
        text = self.state.reports.get(last_run.run)
        self.pending_notices.pop(last_run.run, None)  # this report replaces it
        return command_messages.format_journaled_run(last_run, text, self.state.stop)

    def record_report(self, report: Report, summary: RunSummary) -> Report:
        """Record a report in the journal; add the stop, if there is one."""
        if self.state.stop and not report.ok:
            report = replace(report, stop=self.state.stop.block)
        text = f"{report.text}\n{report.stop}".strip()
        self.log(journal_events.RunReported(run=summary.run.run, text=text), sync=False)
        return report

    def stop_notebook(
        self, key: Key, summary: RunSummary, attempts: int, fix: str = ""
    ) -> None:
        """Stop the notebook until the user resumes it.

        `fix` is the command that fixes the cause, if it is known.
        """
        block = run_report.format_stop_block(summary, attempts, fix)
        question = run_report.format_question(summary)
        if question:
            block = f"{block}\n\n{question}"
        self.log(
            journal_events.Stopped(
                at=format_now(),
                key=key,
                cell_id=summary.cell.id,
                block=block,
                error=": ".join(run_report.get_error(summary)),
            )
        )


def _do_nothing() -> None:
    pass
