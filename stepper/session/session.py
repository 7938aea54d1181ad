"""One notebook's session: its state, kernel and file, and the order in which requests get at them.

(Over 300 lines: what all requests share, each part a few lines.)
"""

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
from stepper.messages.run_report import Ended, Report
from stepper.policy import cell_directives, journal_events, journal_reducer, plan
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.comparison.output_comparison import PixelComparison
from stepper.policy.dataflow import cell_dependencies, name_analysis
from stepper.policy.dataflow.name_effects import NameUsage
from stepper.policy.duration_estimate import Estimate
from stepper.policy.kernel_namespace import UNKNOWN_NAMESPACE, Namespace
from stepper.policy.model import Cell, Death, Fault, Key, Limits
from stepper.session.cell_outputs import Outputs
from stepper.session.clients import Call, Caller
from stepper.session.diagnosis_protocol import Diagnosis
from stepper.session.kernel_manager import Keeper, now
from stepper.session.protocols import (
    Coming,
    Execution,
    FromElsewhere,
    Journal,
    Kernel,
    KernelPlace,
    KernelProvider,
    Late,
    Notebook,
    NotebookFile,
)

SHOWN_SECONDS = 2.0  # of what runs longer than this, people see how it gets on
CODE = 200  # characters of what another client ran that are kept: its first line
FLOWS = 5000  # sources of which it is kept what they do to names
LINK_SECONDS = 0.1  # how often it is looked whether a line is back
LANGUAGES = ("python", "python3", "ipython")


class Session:
    """The work on one notebook. Its requests run one after the other, in order of arrival, each in a `turn`."""

    def __init__(
        self,
        name: str,
        file: NotebookFile,
        late: Late,
        journal: Journal,
        kernels: KernelProvider,
        limits: Callable[[], Limits],
        place: Callable[[Mapping[str, str], str], KernelPlace],
        adviser: Diagnosis,
        settle: Callable[[Session], Awaitable[None]],
    ) -> None:
        self.name, self.file, self.journal, self.limits, self.advisers = (
            name,
            file,
            journal,
            limits,
            adviser,
        )
        # as the notebook's language has it
        self.adviser, self.speaks_python, self.comment = adviser, True, "#"
        self.settle = settle  # what finishes a run that lost its daemon
        self.lock = asyncio.Lock()
        self.waits_for: Caller | None = None  # whose cell runs now
        # cell id → the source that was told not to have run
        self.unrun: dict[str, str] = {}
        self.asking: dict[str, Caller] = {}  # who asks again, by the tool's call
        self.calls: dict[str, Call] = {}  # under way; and those that were over of late
        self.over: deque[str] = deque(maxlen=200)
        # what was handed to the client, and it has not told yet
        self.news: deque[Report] = deque(maxlen=20)
        self.pause = asyncio.Event()
        self.began_at = 0.0
        self.estimate = Estimate()  # of when what runs is over
        self.replays = False  # it is to be replayed unasked
        # called with each journal event
        self.changed: Callable[[], None] = lambda: None
        self.pixels: PixelComparison = lambda *_: None  # how far two pictures differ
        self.looks: journal_events.RunStarted | None = (
            None  # what runs in no cell, while it does
        )
        self.last_used = time.monotonic()
        self.namespace = UNKNOWN_NAMESPACE
        # something ran of which nothing was told: a silent execution of another
        # client's
        self.outdated = False
        self.failed: Execution | None = None  # the last run, where it failed
        self.flow = functools.lru_cache(FLOWS)(self._flow)
        self.past = cell_dependencies.History(self.flow)
        # causes of stale cells and hidden state that a report named
        self.reported_causes: set[tuple[object, ...]] = set()
        lines, trouble = journal.load()
        self.state = journal_reducer.replay(lines)
        # what each is about → what is told of it with the next run
        self.troubles: dict[Hashable, str] = {}
        if trouble:
            self.trouble(trouble)
        if self.state.unreadable_events:
            self.trouble(
                f"{self.state.unreadable_events} line(s) of the journal say nothing that stepper understands"
            )
        self.outputs = Outputs(file, late, self.state, limits, self.log, self.trouble)
        self.keeper = Keeper(
            kernels, place, self.state, self.log, self.outputs.heard, self.elsewhere
        )

    # --- whose turn it is
    # -------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def turn(
        self, again: Caller | None = None, caller: Caller | None = None
    ) -> AsyncIterator[None]:
        """Wait for one's turn. What a former daemon, a dead kernel or a full disk left undone is done first.

        Who asks `again` for the run of a call, and goes away, cancels it, also while another turn waits for that run.
        A `caller` that goes away is not waited for: raise StepperError."""
        if again and again.call:
            self.asking[again.call] = again
        try:
            while True:
                while again and (kernel := await self._out_of_reach(again)) is not None:
                    kernel.listen()  # takes no lock: others are not to wait for a line
                    await asyncio.sleep(LINK_SECONDS)
                await (
                    self._wait(caller)
                    if caller and self.lock.locked()
                    else self.lock.acquire()
                )
                try:
                    await self._catch_up()
                    if not (again and await self._out_of_reach(again)):
                        yield
                        return
                finally:
                    self.lock.release()
        finally:
            if again and self.asking.get(again.call or "") is again:
                del self.asking[again.call or ""]

    async def _out_of_reach(self, again: Caller) -> Kernel | None:
        """Return the kernel in which that call's run may go on and which can't be reached now, where one still asks."""
        running, kernel = self.state.running, await self.keeper.find()
        if (
            kernel is None
            or running is None
            or running.tool_use_id != again.call
            or again.left.is_set()
        ):
            return None
        return kernel if kernel.away and await kernel.death() is None else None

    async def _wait(self, caller: Caller) -> None:
        waits = [
            asyncio.create_task(self.lock.acquire()),
            asyncio.create_task(caller.left.wait()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        mine = waits[0].done()
        for each in waits:
            each.cancel()
        if not mine:
            raise StepperError(
                f"interrupted while it waited for another cell of {self.name}: nothing ran"
            )

    async def idle(self) -> None:
        """Wait until whoever has the turn is through."""
        async with self.lock:
            pass

    async def look(self) -> None:
        """Do what is to be done without a request: outputs come or wait, a kernel died. Never waits for a turn."""
        kernel = self.keeper.kernel
        if kernel is not None and not self.lock.locked():
            kernel.listen()
        if time.monotonic() >= self.outputs.late_at:
            self.put_late()
        if self.lock.locked():
            return
        died = self.keeper.found_dead or (
            kernel is not None and await kernel.death() is not None
        )
        waits = (
            self.state.pending_outputs and time.monotonic() > self.outputs.put_again_at
        )
        if (died or self.state.running or waits) and not self.lock.locked():
            async with self.turn():
                pass

    async def notice_death(self) -> None:
        """Have the death of a kernel count that nobody has looked at since, as after a restart of the machine."""
        await self.keeper.find()
        if self.keeper.found_dead is not None:
            await self.look()

    async def _catch_up(self) -> None:
        kernel = await self.keeper.find()
        if self.state.running is not None:
            if kernel is not None and kernel.away:
                return  # it may run still: that is asked when it can be reached
            await self.settle(self)
        elif self.keeper.foreign:
            await self.keeper.adopt()
            if self.keeper.kernel is not None and not self.keeper.foreign:
                await self.outputs.take_missed(self.keeper.kernel)
        kernel = self.keeper.kernel
        death = self.keeper.found_dead or (
            await kernel.death() if kernel is not None else None
        )
        if death is not None:
            await self._died_idle(death)
        self.outputs.put_waiting()
        if self.keeper.kernel is not None:
            self.keeper.kernel.listen()
        self.put_late()

    async def _died_idle(self, death: Death) -> None:
        """The kernel died while no cell ran: where state went with it, the notebook stops."""
        built = command_messages.format_rebuild(self.state)
        why = f"the kernel died ({death.how}) while no cell ran"
        await self.keeper.end(why)
        if built:
            error, block = command_messages.format_death_stop(
                why, built, death.stderr, self.state.commands
            )
            self.log(
                journal_events.Stopped(
                    at=now(), key=None, cell_id="", block=block, error=error
                )
            )

    # --- the notebook
    # -----------------------------------------------------------------------------------------

    def read(self) -> Notebook:
        """Read the notebook, take over a plan and a kernel that the journal does not know; raise NotebookError."""
        document = self.file.read()
        known, told = self.state.plan, plan.from_json(document.plan)
        if (
            told
            and (new := replace(known, kernel=told.kernel) if known.steps else told)
            != known
        ):
            self.log(journal_events.PlanChanged(at=now(), plan=plan.to_json(new)))
        if not self.runs(document):
            raise NotebookError(
                f"{self.name} is a notebook of the language {document.language!r}, and its kernel here is Python's",
                f"name another of `kernels:` in .stepper/config.yaml: {CommandLines(self.name).shell('use --kernel NAME')}",
            )
        self.speaks_python = document.language in LANGUAGES
        self.adviser, self.comment = (
            self.advisers.of(document.language),
            cell_directives.comment_marker(document.language),
        )
        return document

    def move(
        self,
        name: str,
        path: str,
        place: Callable[[Mapping[str, str], str], KernelPlace],
    ) -> None:
        """Go on with the notebook under another name, also while a cell runs."""
        self.name = name
        self.file.move(path)
        self.keeper.place = place
        self.advisers.move(path)
        if self.state.commands.notebook:
            self.state.commands = CommandLines(name)
        self.changed()

    def runs(self, document: Notebook) -> bool:
        """Whether the notebook's language may be its kernel's: one that is named may have any."""
        if document.language in LANGUAGES:
            return True
        return (self.state.plan.kernel or self.limits().kernel) != Limits.kernel

    def mended(self) -> Notebook:
        """Read the notebook before something runs; cells that share an id get ids of their own. Raise NotebookError."""
        document = self.read()
        if len({cell.id for cell in document.cells}) == len(document.cells):
            return document
        for former, cell in self.file.replace_duplicate_ids():
            where = (
                f"a markdown cell has the id {cell.id}"
                if not cell.is_code
                else f"it is {cell.label}"
            )
            self.trouble(
                f"two cells had the id {former!r}; the lower one has one of its own now: {where}"
            )
        return self.read()

    def put_late(self) -> None:
        """Write what came besides runs; while a cell runs the state of widgets waits for its end."""
        kernel = self.keeper.kernel
        waits = kernel is None or self.lock.locked() or self.state.pending_outputs
        self.outputs.put_late(
            None if waits or kernel is None else kernel.models(), self.coming
        )

    @property
    def goes_on(self) -> bool:
        """Whether what runs, or waits for its kernel, was handed on: nobody waits for it any more."""
        waits = self.keeper.queued and any(
            call.handed and not call.work.done() for call in self.calls.values()
        )
        return self.state.runs_in_background or bool(waits)

    @property
    def is_idle(self) -> bool:
        """Whether there is a kernel of stepper's in which nothing runs, not even for another client."""
        kernel = self.keeper.kernel
        if kernel is None or self.lock.locked() or self.state.running is not None:
            return False
        return not (kernel.busy or kernel.others.since or kernel.about().kept)

    @property
    def coming(self) -> Coming | None:
        """What has come of what runs, where that runs for some time already."""
        runs = (
            self.waits_for is not None
            and time.monotonic() > self.began_at + SHOWN_SECONDS
        )
        return self.keeper.kernel.coming if runs and self.keeper.kernel else None

    # --- the kernel
    # -------------------------------------------------------------------------------------------

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
        """Run code for a caller, who may go away; a kernel that died tells no more than what it held before."""
        self.waits_for, self.began_at, self.estimate = (
            caller,
            time.monotonic(),
            Estimate(),
        )
        # while the kernel works: what follows from the run asks for it
        if self.speaks_python and not scratch:
            asyncio.get_running_loop().call_soon(self.flow, source)
        try:
            execution = await kernel.execute(
                source, timeout, limits, request, scratch, criterion, wake
            )
        finally:
            self.waits_for, self.last_used = None, time.monotonic()
        execution.namespace_before = self.namespace
        self.namespace = execution.namespace
        execution.namespace = execution.namespace or execution.namespace_before
        return execution

    async def known(self, kernel: Kernel) -> Namespace:
        """Return what the kernel holds, asked of it where that is not known."""
        if self.outdated or not self.namespace:
            self.outdated, self.namespace = False, await kernel.namespace()
        return self.namespace

    async def advised(
        self,
        fault: Fault,
        told: Mapping[str, Any],
        known: Namespace,
        cell: Cell,
        cells: Sequence[Cell],
    ) -> Fault:
        """Return a fault with its suggestion, where there is one."""
        kernel = self.keeper.kernel
        python = kernel.about().python if kernel else ""
        return await asyncio.to_thread(
            self.adviser.suggested, fault, told, cell, cells, self.state, known, python
        )

    def elsewhere(self, done: FromElsewhere) -> None:
        """Take note of what another client had the kernel run; one that is in no history only where it bound names."""
        self.last_used = time.monotonic()
        self.namespace, self.outdated = (
            done.namespace or self.namespace,
            not done.namespace,
        )
        bound = cell_dependencies.reported_bindings(NameUsage(), done.namespace)
        if self.keeper.kernel is None or (done.unkept and not bound):
            return
        running, after = self.state.running, self.state.next_run - 1
        self.log(
            journal_events.ExternalExecution(
                at=done.at,
                after=running.run - 1 if running else after,
                kernel=self.keeper.kernel.id,
                code=one_line(done.code, CODE),
                duration_s=round(done.seconds, 4),
                error=done.error,
                bound=bound,
            ),
            sync=False,
        )

    def ended(self, execution: Execution, where: str) -> None:
        """Take note of a kernel that died."""
        if execution.death is not None:
            self.keeper.lost(f"the kernel died ({execution.death.how}) in {where}")

    async def interrupt(self) -> bool:
        """Interrupt the cell that runs; return whether one did. Takes no lock: that cell holds it."""
        # what waits in line behind it does not run either
        for call in self.calls.values():
            if call.handed and not (
                self.state.running and self.state.running.tool_use_id == call.id
            ):
                call.caller.left.set()
        interrupted = await self.keeper.interrupt("person")
        if self.waits_for is not None and not interrupted:
            self.pause.set()  # it waits to be run again
            return True
        return interrupted

    async def abandon(self, caller: Caller) -> None:
        """The caller went away: what it waits for is cancelled."""
        caller.left.set()
        call = (self.state.running and self.state.running.tool_use_id) or ""
        if caller is self.waits_for or caller is self.asking.get(call):
            self.pause.set()
            await self.keeper.interrupt("client gone")

    def _flow(self, source: str) -> NameUsage:
        """Return what a cell does to names; in which lines is not kept."""
        found = name_analysis.analyze_source(source, self.adviser.python)
        found.mentions.clear()
        return found

    # --- the journal
    # ------------------------------------------------------------------------------------------

    def log(self, event: journal_events.Event, sync: bool | None = True) -> None:
        """Write an event to the journal and take it into the state; what can't be written is told with the next run."""
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
            self.trouble(told, error.strerror)
        if isinstance(event, journal_events.KernelChanged):
            self.namespace = UNKNOWN_NAMESPACE
        journal_reducer.apply(event, self.state)
        self.changed()

    def trouble(self, text: str, about: Hashable = None) -> None:
        """Have this told with the next run; of what is told already `about` the same, nothing more is."""
        self.troubles.pop(about or text, None)
        self.troubles[about or text] = text

    def take_notes(self) -> list[str]:
        """Return what must be said first with the next run, once."""
        notes = [note for note in (*self.troubles.values(), self.keeper.news) if note]
        self.troubles, self.keeper.news = {}, ""
        return notes

    def seen(self, tool_use_id: str | None) -> bool:
        """Whether that very call was handled: two installations of stepper may both fire."""
        return tool_use_id in self.state.tool_use_ids

    def answered(self, tool_use_id: str | None) -> Report | None:
        """Return the report on the last run of that call, for a client whose daemon ended before it could answer."""
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
        self.troubles.pop(last.run, None)  # it is told now
        return command_messages.format_journaled_run(last, text, self.state.stop)

    def kept(self, found: Report, ended: Ended) -> Report:
        """Journal the report, so that it can be had again, and add the stop, if there is one."""
        if self.state.stop and not found.ok:
            found = replace(found, stop=self.state.stop.block)
        self.log(
            journal_events.RunReported(
                run=ended.run.run, text=f"{found.text}\n{found.stop}".strip()
            ),
            sync=False,
        )
        return found

    def stop(self, key: Key, ended: Ended, retries: int, mend: str = "") -> None:
        """Stop the notebook: no further cell runs until the person says so."""
        error, asked = (
            ": ".join(run_report.get_error(ended)),
            run_report.format_question(ended),
        )
        block = run_report.format_stop_block(ended, retries, mend) + (
            f"\n\n{asked}" if asked else ""
        )
        self.log(
            journal_events.Stopped(
                at=now(), key=key, cell_id=ended.cell.id, block=block, error=error
            )
        )
