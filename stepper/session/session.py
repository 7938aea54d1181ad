"""One notebook's session: its state, kernel and file, and the order in which requests get at them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from stepper.ground.errors import NotebookError, StepperError
from stepper.policy import events, ledger, plan
from stepper.policy.model import Cell, Death, Key, Limits
from stepper.policy.namespace import UNKNOWN
from stepper.policy.state import Shown
from stepper.session.keeper import Keeper, now
from stepper.session.ports import (
    Diagnosis,
    Execution,
    Journal,
    Kernel,
    KernelPlace,
    KernelProvider,
    Late,
    LeftOut,
    Notebook,
    NotebookFile,
    Target,
)
from stepper.words import brief, report
from stepper.words.report import Ended, Report, left_out

PUT_SHARE = 50  # how many times what a try took is waited before the next one
LATE = ("display_data", "update_display_data", "execute_result", "error")
LATE_SECONDS = 2.0  # between two writes of what comes besides a run


@dataclass
class Caller:
    """Who asks: its environment (a new kernel gets it), and whether it left without waiting for the answer."""

    environ: Mapping[str, str] = field(default_factory=dict)
    left: asyncio.Event = field(default_factory=asyncio.Event)


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
        place: Callable[[Mapping[str, str]], KernelPlace],
        adviser: Diagnosis,
        settle: Callable[[Session], Awaitable[None]],
    ) -> None:
        self.name, self.file, self.journal, self.limits, self.adviser = name, file, journal, limits, adviser
        self.late, self.late_at = late, 0.0  # what comes besides a run, and when it may be written next
        self.known_limits = Limits()
        self.settle = settle  # what finishes a run that lost its daemon
        self.lock = asyncio.Lock()
        self.waits_for: Caller | None = None  # whose cell runs now
        self.asking: dict[str, Caller] = {}  # who asks again, by the tool's call
        self.pause = asyncio.Event()
        self.last_used = time.monotonic()
        self.put_again_at = 0.0  # when outputs that wait are tried again unasked
        self.namespace = UNKNOWN
        self.failed: Execution | None = None  # the last run, where it failed
        lines, trouble = journal.load()
        self.state = ledger.replay(lines)
        self.troubles: dict[Hashable, str] = {}  # what each is about → what is told of it with the next run
        if trouble:
            self.trouble(trouble)
        if self.state.unread:
            self.trouble(f"{self.state.unread} line(s) of the journal say nothing that stepper understands")
        self.keeper = Keeper(kernels, place, self.state, self.log, self.heard)

    # --- whose turn it is -------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def turn(self, caller: Caller | None = None, call: str | None = None) -> AsyncIterator[None]:
        """Wait for one's turn. What a former daemon, a dead kernel or a full disk left undone is done first.

        `caller` asks again for the run of a tool's `call` that lost its daemon: where it goes away, that run is
        cancelled, also while another turn waits for it.
        """
        if caller and call:
            self.asking[call] = caller
        try:
            async with self.lock:
                await self._catch_up()
                yield
        finally:
            if caller and call:
                self.asking.pop(call, None)

    async def look(self) -> None:
        """Do what is to be done without a request: outputs come or wait, a kernel died. Never waits for a turn."""
        kernel = self.keeper.kernel
        if kernel is not None and not self.lock.locked():
            kernel.listen()
        if time.monotonic() >= self.late_at:
            self.put_late()
        if self.lock.locked():
            return
        died = self.keeper.found_dead or (kernel is not None and await kernel.death() is not None)
        waits = self.state.unwritten and time.monotonic() > self.put_again_at
        if (died or self.state.running or waits) and not self.lock.locked():
            async with self.turn():
                pass

    async def _catch_up(self) -> None:
        kernel = await self.keeper.find()
        if self.state.running is not None:
            await self.settle(self)
        elif self.keeper.foreign:
            await self.keeper.adopt()
            await self._take_missed()
        kernel = self.keeper.kernel
        death = self.keeper.found_dead or (await kernel.death() if kernel is not None else None)
        if death is not None:
            await self._died_idle(death)
        self._put_waiting()
        if self.keeper.kernel is not None:
            self.keeper.kernel.listen()
        self.put_late()

    async def _died_idle(self, death: Death) -> None:
        """The kernel died while no cell ran: where state went with it, the notebook stops."""
        built = brief.built(self.state)
        why = f"the kernel died ({death.how}) while no cell ran"
        await self.keeper.end(why)
        if built:
            error, block = brief.stop_of_death(why, built, death.stderr)
            self.log(events.Stopped(at=now(), key=None, cell_id="", block=block, error=error))

    # --- the notebook -----------------------------------------------------------------------------------------

    def read(self) -> Notebook:
        """Read the notebook, take over a plan that the journal does not know; raise NotebookError."""
        document = self.file.read()
        if document.language not in ("python", "python3", "ipython"):
            raise NotebookError(
                f"{self.name} is a notebook of the language {document.language!r}; stepper runs Python notebooks only"
            )
        told = plan.from_json(document.plan)
        if told and not self.state.plan.steps:
            self.log(events.Planned(at=now(), plan=plan.to_json(told)))
        return document

    def mended(self) -> Notebook:
        """Read the notebook before something runs; cells that share an id get ids of their own. Raise NotebookError."""
        document = self.read()
        if len({cell.id for cell in document.cells}) == len(document.cells):
            return document
        for former, cell in self.file.mend_ids():
            where = f"a markdown cell has the id {cell.id}" if not cell.is_code else f"it is {cell.label}"
            self.trouble(f"two cells had the id {former!r}; the lower one has one of its own now: {where}")
        return self.read()

    def put(self, cell: Cell, execution: Execution, step: int | None, run: int, keep_time: bool) -> list[str]:
        """Write the outputs; return why they could not be, as notes. Where a later try may do, they wait."""
        limits, models = self._limits(), execution.widgets
        if not limits.record_timing:
            execution.timings = {}
        if execution.left_out:
            execution.notes.append(
                f"{left_out(*astuple(execution.left_out))} (max_output_bytes {limits.max_output_bytes:,})"
            )
        if models is not None and models.left_out:
            execution.notes.append(
                f"left out of the notebook: the state of {models.left_out} widgets, {models.left_out_bytes:,} bytes"
                f" (max_widget_state_bytes {models.limit:,})"
            )
        try:
            why = self.file.put(cell, execution, step, keep_time)
        except NotebookError as error:
            self._keep_waiting(cell, execution, step, run)
            why = (
                f"the outputs could not be written ({error.message}):"
                " they wait in the journal and are written when that is possible"
            )
        return [*execution.notes, why] if why else list(execution.notes)

    def _limits(self) -> Limits:
        """Return the limits in force, the last right ones where the configuration is wrong: outputs are put anyhow."""
        with contextlib.suppress(StepperError):
            self.known_limits = self.limits()
        return self.known_limits

    def _keep_waiting(self, cell: Cell, execution: Execution, step: int | None, run: int) -> None:
        self.log(
            events.Unwritten(
                run=run,
                cell_id=cell.id,
                number=cell.number,
                source=cell.source,
                step=step,
                outputs=execution.outputs,
                execution_count=execution.execution_count,
                timings=execution.timings,
            )
        )

    def _put_waiting(self) -> None:
        """Write the outputs that wait, where that is possible now; what became of them is told with the next run."""
        began = time.monotonic()
        for waiting in list(self.state.unwritten.values()):
            cell = Cell(waiting.cell_id, -1, waiting.number, "code", waiting.source)
            outcome = self.state.outcome_of(waiting.run)
            execution = Execution(outcome, waiting.outputs, waiting.execution_count, waiting.timings)
            try:
                why = self.file.put(cell, execution, waiting.step, keep_time=True)  # a message may be under way
            except NotebookError:
                now_at = time.monotonic()  # a large notebook is not read each second for nothing
                self.put_again_at = now_at + PUT_SHARE * (now_at - began)
                return
            except (AttributeError, KeyError, TypeError, ValueError):  # somebody else wrote that line
                why = "they are no outputs"
            self.log(events.Written(run=waiting.run, cell_id=cell.id, why_not=why))
            told = f"were left out ({why})" if why else "are in the notebook now"
            self.trouble(f"the outputs of run {waiting.run} (cell {cell.number}), which waited, {told}")

    def heard(self, message: dict[str, Any], late: bool) -> bool:
        """Take what shows something in cells beside the one that runs; return whether any is there to take it.

        With `late` it is a request's that is over, else the running one's, with a display that others may show, too.
        """
        state, running = self.state, self.state.running
        request = str(message["parent_header"].get("msg_id") or "")
        transient = message["content"].get("transient")
        mark = str(transient.get("display_id") or "") if isinstance(transient, dict) else ""
        own = state.requests.get(request)
        if late:
            if not request or (running and request == running.request):
                return True  # the kernel's own words; what its record holds
            last = state.runs[-1] if state.runs and not running else None
            cell_id, source = own or ((last.cell_id, last.source_hash) if last else ("", ""))
            if cell_id == (running.cell_id if running else ""):
                return False  # it can't be told apart, or would be written over
            shows = cell_id in state.shown and mark in state.shown[cell_id].displays
            if shows or message["msg_type"] != "update_display_data":
                self._arrived(Target(cell_id, source), message)
            return True
        not_in = own[0] if own else running and running.cell_id
        for cell_id in state.showing(mark) if mark else ():
            if cell_id != not_in:
                update = {**message, "msg_type": "update_display_data"}
                self._arrived(Target(cell_id, state.shown[cell_id].source_hash), update)
        return True

    async def _take_missed(self) -> None:
        """Take what the last run published after its end while no daemon was there, less what the last one had put."""
        last, kernel = self.state.runs[-1] if self.state.runs else None, self.keeper.kernel
        shown = self.state.shown.get(last.cell_id) if last else None
        if kernel is None or last is None or last.request not in self.state.requests or shown is None:
            return
        characters, others = shown.late_characters, shown.late_others
        for message in await kernel.missed(last.request):
            text = message["content"].get("text")
            if message["msg_type"] == "stream" and isinstance(text, str):
                message["content"]["text"], characters = text[characters:], max(0, characters - len(text))
                if message["content"]["text"]:
                    self.heard(message, True)
            elif others > 0 and message["msg_type"] in LATE:
                others -= 1
            elif message["msg_type"] in LATE:
                self.heard(message, True)

    def _arrived(self, target: Target, message: dict[str, Any]) -> None:
        shown = self.state.shown.get(target.cell_id, Shown(""))
        missing, limit = LeftOut(*shown.left_out), self._limits().max_output_bytes
        try:
            waiting = self.state.unwritten.get(target.cell_id)
            self.late.take(target, message, shown.displays, missing, limit, waiting.outputs if waiting else None)
        except NotebookError as error:
            size = len(str(message["content"].get("text", "")))
            self.log(events.Late(at=now(), **vars(target), characters=size, shows=int(not size), updates=0,
                                 left_out=shown.left_out, displays=shown.displays, there=False, why=error.message),
                     sync=False)  # fmt: skip

    def put_late(self) -> None:
        """Write what came besides runs; what can't be written now waits for the next time."""
        kernel = self.keeper.kernel
        waits = self.lock.locked() or self.state.unwritten
        models = kernel.models() if kernel is not None and not waits else None
        began = time.monotonic()
        try:
            if self.state.unwritten or (not self.late.pending and models is None):  # those are written first
                return
            arrived = self.late.put(models)
        except NotebookError:
            arrived = []
        self.late_at = (done := time.monotonic()) + max(LATE_SECONDS, PUT_SHARE * (done - began))
        for what in arrived:
            displays = {mark: [*outputs] for mark, outputs in what.displays.items()}
            self.log(events.Late(at=now(), **vars(what.target), characters=what.characters, shows=what.outputs,
                                 updates=what.updates, left_out=astuple(what.left_out), displays=displays,
                                 there=what.there), sync=False)  # fmt: skip

    # --- the kernel -------------------------------------------------------------------------------------------

    async def execute(
        self,
        kernel: Kernel,
        source: str,
        caller: Caller,
        timeout: float,
        limits: Limits,
        request: str = "",
        scratch: bool = False,
    ) -> Execution:
        """Run code for a caller, who may go away; take over what the helper tells of the namespace."""
        self.waits_for = caller
        try:
            execution = await kernel.execute(source, timeout, limits, request, scratch)
        finally:
            self.waits_for, self.last_used = None, time.monotonic()
        self.namespace = execution.namespace
        return execution

    def ended(self, execution: Execution, where: str) -> None:
        """Take note of a kernel that died."""
        if execution.death is not None:
            self.keeper.died(f"the kernel died ({execution.death.how}) in {where}")

    async def interrupt(self) -> bool:
        """Interrupt the cell that runs; return whether one did. Takes no lock: that cell holds it."""
        if self.waits_for is not None and not self.keeper.busy:
            self.pause.set()  # it waits to be run again
            return True
        return await self.keeper.interrupt("person")

    async def abandon(self, caller: Caller) -> None:
        """The caller went away: what it waits for is cancelled."""
        caller.left.set()
        call = (self.state.running and self.state.running.tool_use_id) or ""
        if caller is self.waits_for or caller is self.asking.get(call):
            self.pause.set()
            await self.keeper.interrupt("client gone")

    # --- the journal ------------------------------------------------------------------------------------------

    def log(self, event: events.Event, sync: bool | None = True) -> None:
        """Write an event to the journal and take it into the state; what can't be written is told with the next run."""
        beginning = isinstance(event, events.Started)  # nothing ran yet
        try:
            self.journal.append(event.to_json(), sync, keep=not beginning)
        except OSError as error:
            why = f"the journal can't be written ({error.strerror})"
            if beginning:
                raise StepperError(why, "df -h .stepper; ls -l .stepper/journal") from error
            told = f"{why}: its lines wait in memory, and are lost where the daemon ends before they can be written"
            self.trouble(told, error.strerror)
        if isinstance(event, events.KernelChanged):
            self.namespace = UNKNOWN
        ledger.apply(event, self.state)

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
        return tool_use_id is not None and tool_use_id in self.state.tool_use_ids

    def answered(self, tool_use_id: str | None) -> Report | None:
        """Return the report on the last run of that call, for a client whose daemon ended before it could answer."""
        runs = [run for run in self.state.runs if run.tool_use_id == tool_use_id]
        text = self.state.reports.get(runs[-1].run if runs else 0)
        if text is not None and not runs:
            return Report(text, "", ok=False)
        if not runs:
            return None
        self.troubles.pop(runs[-1].run, None)  # it is told now
        return brief.of_journaled(runs[-1], text, self.state.stop)

    def kept(self, found: Report, ended: Ended) -> Report:
        """Journal the report, so that it can be had again, and add the stop, if there is one."""
        if self.state.stop and not found.ok:
            found = replace(found, stop=self.state.stop.block)
        self.log(events.Reported(run=ended.run, text=f"{found.text}\n{found.stop}".strip()), sync=False)
        return found

    def stop(self, key: Key, ended: Ended, retries: int, mend: str = "") -> None:
        """Stop the notebook: no further cell runs until the person says so."""
        error, block = ": ".join(report.error_of(ended)), report.stop_block(ended, retries, mend)
        self.log(events.Stopped(at=now(), key=key, cell_id=ended.cell.id, block=block, error=error))
