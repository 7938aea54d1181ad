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
from stepper.policy.duration_estimate import Estimate
from stepper.policy.kernel_namespace import UNKNOWN_NAMESPACE, Namespace
from stepper.policy.model import Cell, Death, Fault, Key, Limits
from stepper.session.cell_outputs import OutputWriter
from stepper.session.clients import BackgroundCall, Caller
from stepper.session.diagnosis_protocol import Diagnosis
from stepper.session.kernel_manager import KernelManager, format_now
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

SHOWN_SECONDS = 2.0  # of what runs longer than this, people see how it gets on
CODE = 200  # characters of what another client ran that are kept: its first line
FLOWS = 5000  # sources of which it is kept what they do to names
LINK_SECONDS = 0.1  # how often it is looked whether a line is back
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
        place: Callable[[Mapping[str, str], str], LaunchConfig],
        adviser: Diagnosis,
        settle: Callable[[Session], Awaitable[None]],
    ) -> None:
        self.name, self.file, self.journal, self.limits, self.base_diagnosis = (
            name,
            file,
            journal,
            limits,
            adviser,
        )
        # as the notebook's language has it
        self.diagnosis, self.speaks_python, self.comment = adviser, True, "#"
        self.recover_run = settle  # what finishes a run that lost its daemon
        self.lock = asyncio.Lock()
        self.running_caller: Caller | None = None  # whose cell runs now
        # cell id → the source that was told not to have run
        self.reported_unrun: dict[str, str] = {}
        self.reconnecting_callers: dict[
            str, Caller
        ] = {}  # who asks again, by the tool's call
        self.background_calls: dict[
            str, BackgroundCall
        ] = {}  # under way; and those that were over of late
        self.finished_call_ids: deque[str] = deque(maxlen=200)
        # what was handed to the client, and it has not told yet
        self.delivered_reports: deque[Report] = deque(maxlen=20)
        self.retry_interrupted = asyncio.Event()
        self.run_started_at = 0.0
        self.estimate = Estimate()  # of when what runs is over
        self.needs_replay = False  # it is to be replayed unasked
        # called with each journal event
        self.on_change: Callable[[], None] = lambda: None
        self.compare_pixels: PixelComparison = lambda *_: (
            None
        )  # how far two pictures differ
        self.scratch_run: journal_events.RunStarted | None = (
            None  # what runs in no cell, while it does
        )
        self.last_used = time.monotonic()
        self.namespace = UNKNOWN_NAMESPACE
        # something ran of which nothing was told: a silent execution of another
        # client's
        self.namespace_is_outdated = False
        self.last_failed_execution: Execution | None = (
            None  # the last run, where it failed
        )
        self.analyze_names = functools.lru_cache(FLOWS)(self._analyze_names)
        self.run_history = cell_dependencies.History(self.analyze_names)
        # causes of stale cells and hidden state that a report named
        self.reported_causes: set[tuple[object, ...]] = set()
        lines, trouble = journal.load()
        self.state = journal_reducer.replay(lines)
        # what each is about → what is told of it with the next run
        self.pending_notices: dict[Hashable, str] = {}
        if trouble:
            self.add_notice(trouble)
        if self.state.unreadable_events:
            self.add_notice(
                f"{self.state.unreadable_events} line(s) of the journal say nothing that stepper understands"
            )
        self.outputs = OutputWriter(
            file, late, self.state, limits, self.log, self.add_notice
        )
        self.kernel_manager = KernelManager(
            kernels,
            place,
            self.state,
            self.log,
            self.outputs.handle_display,
            self.record_external_execution,
        )

    # --- whose turn it is

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
                while (
                    again
                    and (kernel := await self._find_unreachable_kernel(again))
                    is not None
                ):
                    kernel.receive_pending()  # takes no lock: others are not to wait for a line
                    await asyncio.sleep(LINK_SECONDS)
                await (
                    self._wait_for_lock(caller)
                    if caller and self.lock.locked()
                    else self.lock.acquire()
                )
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

    async def _find_unreachable_kernel(self, again: Caller) -> Kernel | None:
        """Return the unreachable kernel that may run that call, or None."""
        running, kernel = self.state.running, await self.kernel_manager.find()
        if (
            kernel is None
            or running is None
            or running.tool_use_id != again.call_id
            or again.disconnected.is_set()
        ):
            return None
        return (
            kernel
            if kernel.unreachable_reason and await kernel.check_death() is None
            else None
        )

    async def _wait_for_lock(self, caller: Caller) -> None:
        waits = [
            asyncio.create_task(self.lock.acquire()),
            asyncio.create_task(caller.disconnected.wait()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        mine = waits[0].done()
        for each in waits:
            each.cancel()
        if not mine:
            raise StepperError(
                f"interrupted while it waited for another cell of {self.name}: nothing ran"
            )

    async def wait_until_idle(self) -> None:
        """Wait until the present request has finished."""
        async with self.lock:
            pass

    async def do_maintenance(self) -> None:
        """Write late outputs and notice a dead kernel; never waits for a turn."""
        kernel = self.kernel_manager.kernel
        if kernel is not None and not self.lock.locked():
            kernel.receive_pending()
        if time.monotonic() >= self.outputs.next_late_write:
            self.put_late()
        if self.lock.locked():
            return
        died = self.kernel_manager.unhandled_death or (
            kernel is not None and await kernel.check_death() is not None
        )
        waits = (
            self.state.pending_outputs and time.monotonic() > self.outputs.next_retry
        )
        if (died or self.state.running or waits) and not self.lock.locked():
            async with self.turn():
                pass

    async def handle_idle_death(self) -> None:
        """Record the death of a kernel that happened without a daemon."""
        await self.kernel_manager.find()
        if self.kernel_manager.unhandled_death is not None:
            await self.do_maintenance()

    async def _catch_up(self) -> None:
        kernel = await self.kernel_manager.find()
        if self.state.running is not None:
            if kernel is not None and kernel.unreachable_reason:
                return  # it may run still: that is asked when it can be reached
            await self.recover_run(self)
        elif self.kernel_manager.needs_takeover:
            await self.kernel_manager.take_over()
            if (
                self.kernel_manager.kernel is not None
                and not self.kernel_manager.needs_takeover
            ):
                await self.outputs.take_missed_messages(self.kernel_manager.kernel)
        kernel = self.kernel_manager.kernel
        death = self.kernel_manager.unhandled_death or (
            await kernel.check_death() if kernel is not None else None
        )
        if death is not None:
            await self._handle_idle_death(death)
        self.outputs.write_waiting()
        if self.kernel_manager.kernel is not None:
            self.kernel_manager.kernel.receive_pending()
        self.put_late()

    async def _handle_idle_death(self, death: Death) -> None:
        """Record that the kernel died; stop the notebook if state was lost."""
        built = command_messages.format_rebuild(self.state)
        why = f"the kernel died ({death.reason}) while no cell ran"
        await self.kernel_manager.shut_down(why)
        if built:
            error, block = command_messages.format_death_stop(
                why, built, death.stderr, self.state.commands
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
        known, told = self.state.plan, plan.from_json(document.plan)
        if (
            told
            and (new := replace(known, kernel=told.kernel) if known.steps else told)
            != known
        ):
            self.log(
                journal_events.PlanChanged(at=format_now(), plan=plan.to_json(new))
            )
        if not self.can_run(document):
            raise NotebookError(
                f"{self.name} is a notebook of the language {document.language!r}, and its kernel here is Python's",
                f"name another of `kernels:` in .stepper/config.yaml: {CommandLines(self.name).shell('use --kernel NAME')}",
            )
        self.speaks_python = document.language in LANGUAGES
        self.diagnosis, self.comment = (
            self.base_diagnosis.for_language(document.language),
            cell_directives.comment_marker(document.language),
        )
        return document

    def move(
        self,
        name: str,
        path: str,
        place: Callable[[Mapping[str, str], str], LaunchConfig],
    ) -> None:
        """Use another name and path, also while a cell runs."""
        self.name = name
        self.file.move(path)
        self.kernel_manager.get_launch_config = place
        self.base_diagnosis.move(path)
        if self.state.commands.notebook:
            self.state.commands = CommandLines(name)
        self.on_change()

    def can_run(self, document: Notebook) -> bool:
        """Whether the kernel may support the notebook's language."""
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
        for former, cell in self.file.replace_duplicate_ids():
            where = (
                f"a markdown cell has the id {cell.id}"
                if not cell.is_code
                else f"it is {cell.label}"
            )
            self.add_notice(
                f"two cells had the id {former!r}; the lower one has one of its own now: {where}"
            )
        return self.read()

    def put_late(self) -> None:
        """Write late outputs, and widget state if no cell runs."""
        kernel = self.kernel_manager.kernel
        waits = kernel is None or self.lock.locked() or self.state.pending_outputs
        self.outputs.write_late(
            None if waits or kernel is None else kernel.take_widget_state(),
            self.long_run_output,
        )

    @property
    def runs_in_background(self) -> bool:
        """Whether the running or queued cell is a background run."""
        waits = self.kernel_manager.queue_status and any(
            call.in_background and not call.task.done()
            for call in self.background_calls.values()
        )
        return self.state.runs_in_background or bool(waits)

    @property
    def is_idle(self) -> bool:
        """Whether the notebook has a kernel of its own that runs nothing."""
        kernel = self.kernel_manager.kernel
        if kernel is None or self.lock.locked() or self.state.running is not None:
            return False
        return not (
            kernel.is_busy
            or kernel.external_executions.running_since
            or kernel.describe().is_external
        )

    @property
    def long_run_output(self) -> PartialOutput | None:
        """The output so far, if the cell runs for some time already."""
        runs = (
            self.running_caller is not None
            and time.monotonic() > self.run_started_at + SHOWN_SECONDS
        )
        return (
            self.kernel_manager.kernel.partial_output
            if runs and self.kernel_manager.kernel
            else None
        )

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
        self.running_caller, self.run_started_at, self.estimate = (
            caller,
            time.monotonic(),
            Estimate(),
        )
        # while the kernel works: what follows from the run asks for it
        if self.speaks_python and not scratch:
            asyncio.get_running_loop().call_soon(self.analyze_names, source)
        try:
            execution = await kernel.execute(
                source, timeout, limits, request, scratch, criterion, wake
            )
        finally:
            self.running_caller, self.last_used = None, time.monotonic()
        execution.namespace_before = self.namespace
        self.namespace = execution.namespace
        execution.namespace = execution.namespace or execution.namespace_before
        return execution

    async def get_namespace(self, kernel: Kernel) -> Namespace:
        """Return the namespace; ask the kernel if it is not known."""
        if self.namespace_is_outdated or not self.namespace:
            self.namespace_is_outdated, self.namespace = (
                False,
                await kernel.fetch_namespace(),
            )
        return self.namespace

    async def add_suggestion(
        self,
        fault: Fault,
        told: Mapping[str, Any],
        known: Namespace,
        cell: Cell,
        cells: Sequence[Cell],
    ) -> Fault:
        """Return a fault with its suggestion, if there is one."""
        kernel = self.kernel_manager.kernel
        python = kernel.describe().python if kernel else ""
        return await asyncio.to_thread(
            self.diagnosis.add_suggestion,
            fault,
            told,
            cell,
            cells,
            self.state,
            known,
            python,
        )

    def record_external_execution(self, done: ExternalExecution) -> None:
        """Record an execution of another client.

        A silent execution is recorded only if it assigned names.
        """
        self.last_used = time.monotonic()
        self.namespace, self.namespace_is_outdated = (
            done.namespace or self.namespace,
            not done.namespace,
        )
        bound = cell_dependencies.list_reported_bindings(NameUsage(), done.namespace)
        if self.kernel_manager.kernel is None or (done.is_silent and not bound):
            return
        running, after = self.state.running, self.state.next_run - 1
        self.log(
            journal_events.ExternalExecution(
                at=done.started_at,
                after=running.run - 1 if running else after,
                kernel=self.kernel_manager.kernel.id,
                code=one_line(done.code, CODE),
                duration_s=round(done.seconds, 4),
                error=done.error,
                bound=bound,
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
        """Interrupt the running cell; return whether there was one. Takes no lock."""
        # what waits in line behind it does not run either
        for call in self.background_calls.values():
            if call.in_background and not (
                self.state.running and self.state.running.tool_use_id == call.id
            ):
                call.caller.disconnected.set()
        interrupted = await self.kernel_manager.interrupt("person")
        if self.running_caller is not None and not interrupted:
            self.retry_interrupted.set()  # it waits to be run again
            return True
        return interrupted

    async def cancel_for_caller(self, caller: Caller) -> None:
        """Cancel the run of a caller that disconnected."""
        caller.disconnected.set()
        call = (self.state.running and self.state.running.tool_use_id) or ""
        if caller is self.running_caller or caller is self.reconnecting_callers.get(
            call
        ):
            self.retry_interrupted.set()
            await self.kernel_manager.interrupt("client gone")

    def _analyze_names(self, source: str) -> NameUsage:
        """Return the names that a cell reads and assigns."""
        found = name_analysis.analyze_source(source, self.diagnosis.convert_to_python)
        found.mentions.clear()
        return found

    # --- the journal

    def log(self, event: journal_events.Event, sync: bool | None = True) -> None:
        """Write an event to the journal and apply it to the state."""
        beginning = isinstance(event, journal_events.RunStarted)  # nothing ran yet
        try:
            self.journal.append(event.to_json(), sync, keep=not beginning)
        except OSError as error:
            why = f"the journal can't be written ({error.strerror})"
            if beginning:
                raise StepperError(
                    why, "df -h .stepper; ls -l .stepper/journal"
                ) from error
            told = f"{why}: its lines wait in memory, and are lost where the daemon ends before they can be written"
            self.add_notice(told, error.strerror)
        if isinstance(event, journal_events.KernelChanged):
            self.namespace = UNKNOWN_NAMESPACE
        journal_reducer.apply(event, self.state)
        self.on_change()

    def add_notice(self, text: str, about: Hashable = None) -> None:
        """Add a notice for the next report; replace one on the same subject."""
        self.pending_notices.pop(about or text, None)
        self.pending_notices[about or text] = text

    def take_notices(self) -> list[str]:
        """Return the notices for the next report and clear them."""
        notes = [
            note
            for note in (*self.pending_notices.values(), self.kernel_manager.notice)
            if note
        ]
        self.pending_notices, self.kernel_manager.notice = {}, ""
        return notes

    def was_handled(self, tool_use_id: str | None) -> bool:
        """Whether that tool call was handled already."""
        return tool_use_id in self.state.tool_use_ids

    def find_report(self, tool_use_id: str | None) -> Report | None:
        """Return the report on the last run of a tool call, or None."""
        last = next(
            (
                run
                for run in reversed(self.state.runs)
                if run.tool_use_id == tool_use_id
            ),
            None,
        )
        text = self.state.reports.get(last.run if last else 0)
        if last is None:
            return None if text is None else Report(text, "", ok=False)
        self.pending_notices.pop(last.run, None)  # it is told now
        return command_messages.format_journaled_run(last, text, self.state.stop)

    def record_report(self, found: Report, ended: RunSummary) -> Report:
        """Record a report in the journal; add the stop, if there is one."""
        if self.state.stop and not found.ok:
            found = replace(found, stop=self.state.stop.block)
        self.log(
            journal_events.RunReported(
                run=ended.run.run, text=f"{found.text}\n{found.stop}".strip()
            ),
            sync=False,
        )
        return found

    def stop_notebook(
        self, key: Key, ended: RunSummary, retries: int, mend: str = ""
    ) -> None:
        """Stop the notebook until the user resumes it."""
        error, asked = (
            ": ".join(run_report.get_error(ended)),
            run_report.format_question(ended),
        )
        block = run_report.format_stop_block(ended, retries, mend) + (
            f"\n\n{asked}" if asked else ""
        )
        self.log(
            journal_events.Stopped(
                at=format_now(),
                key=key,
                cell_id=ended.cell.id,
                block=block,
                error=error,
            )
        )
