"""One notebook's session: its state, kernel and file, and the order in which requests get at them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stepper.advice import Adviser
from stepper.core import brief, ledger, plan
from stepper.core.model import Cell, Limits
from stepper.core.report import Ended, Report
from stepper.errors import NotebookError, StepperError
from stepper.keeper import Keeper, now
from stepper.ports import Death, Execution, Journal, Kernel, KernelPlace, KernelProvider, Notebook, NotebookFile

PUT_SHARE = 50  # how many times what a try took is waited before the next one


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
        journal: Journal,
        kernels: KernelProvider,
        limits: Callable[[], Limits],
        place: Callable[[Mapping[str, str]], KernelPlace],
        adviser: Adviser,
        settle: Callable[[Session], Awaitable[None]],
    ) -> None:
        self.name, self.file, self.journal, self.limits, self.adviser = name, file, journal, limits, adviser
        self.settle = settle  # what finishes a run that lost its daemon
        self.lock = asyncio.Lock()
        self.waits_for: Caller | None = None  # whose cell runs now
        self.asking: dict[str, Caller] = {}  # who asks again, by the tool's call
        self.pause = asyncio.Event()
        self.last_used = time.monotonic()
        self.put_again_at = 0.0  # when outputs that wait are tried again unasked
        self.facts: dict[str, Any] = {}
        self.failed: Execution | None = None  # the last run, where it failed
        events, trouble = journal.load()
        self.state = ledger.replay(events)
        self.troubles = [trouble] if trouble else []  # told with the next run
        if self.state.unread:
            self.troubles.append(f"{self.state.unread} line(s) of the journal say nothing that stepper understands")
        self.keeper = Keeper(kernels, place, self.state, self.log)

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
        """Do what is to be done without a request: a kernel died, outputs wait. Never waits for a turn."""
        if self.lock.locked():
            return
        kernel = self.keeper.kernel
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
        kernel = self.keeper.kernel
        death = self.keeper.found_dead or (await kernel.death() if kernel is not None else None)
        if death is not None:
            await self._died_idle(death)
        self._put_waiting()

    async def _died_idle(self, death: Death) -> None:
        """The kernel died while no cell ran: where state went with it, the notebook stops."""
        built = brief.built(self.state)
        why = f"the kernel died ({death.how}) while no cell ran"
        await self.keeper.end(why)
        if built:
            self.stop(None, "", brief.stop_of_death(f"{why}: all variables are lost; {built}", death.stderr))

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
            self.log({"event": "plan", "at": now(), "plan": plan.to_json(told)})
        return document

    def put(self, cell: Cell, execution: Execution, step: int | None, run: int, keep_time: bool) -> list[str]:
        """Write the outputs; return why they could not be, as notes. Where a later try may do, they wait."""
        try:
            why = self.file.put(cell, execution, step, keep_time)
        except NotebookError as error:
            self._keep_waiting(cell, execution, step, run)
            why = (
                f"the outputs could not be written ({error.message}):"
                " they wait in the journal and are written when that is possible"
            )
        return [*execution.notes, why] if why else list(execution.notes)

    def _keep_waiting(self, cell: Cell, execution: Execution, step: int | None, run: int) -> None:
        self.log(
            {
                "event": "unwritten",
                "run": run,
                "cell_id": cell.id,
                "number": cell.number,
                "source": cell.source,
                "step": step,
                "outputs": execution.outputs,
                "execution_count": execution.execution_count,
                "timings": execution.timings,
            }
        )

    def _put_waiting(self) -> None:
        """Write the outputs that wait, where that is possible now; what became of them is told with the next run."""
        began = time.monotonic()
        for waiting in list(self.state.unwritten.values()):
            cell = Cell(waiting["cell_id"], -1, waiting["number"], "code", waiting["source"])
            execution = Execution(ledger.outcome_of(self.state, waiting["run"]), waiting["outputs"],
                                  waiting["execution_count"], waiting["timings"])  # fmt: skip
            try:
                why = self.file.put(cell, execution, waiting["step"], keep_time=True)  # a message may be under way
            except NotebookError:
                now_at = time.monotonic()  # a large notebook is not read each second for nothing
                self.put_again_at = now_at + PUT_SHARE * (now_at - began)
                return
            except (AttributeError, KeyError, TypeError, ValueError):  # somebody else wrote that line
                why = "they are no outputs"
            self.log({"event": "written", "run": waiting["run"], "cell_id": cell.id, "why_not": why})
            told = f"were left out ({why})" if why else "are in the notebook now"
            self.troubles.append(f"the outputs of run {waiting['run']} (cell {cell.number}), which waited, {told}")

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
        self.facts = execution.facts.get("namespace") or {}
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
        call = (self.state.running or {}).get("tool_use_id") or ""
        if caller is self.waits_for or caller is self.asking.get(call):
            self.pause.set()
            await self.keeper.interrupt("client gone")

    # --- the journal ------------------------------------------------------------------------------------------

    def log(self, event: dict[str, Any], sync: bool | None = True) -> None:
        """Write an event to the journal and take it into the state; what can't be written is told with the next run."""
        beginning = event["event"] == "start"  # nothing ran yet
        try:
            self.journal.append(event, sync, keep=not beginning)
        except OSError as error:
            why = f"the journal can't be written ({error.strerror})"
            if beginning:
                raise StepperError(why, "df -h .stepper; ls -l .stepper/journal") from error
            told = f"{why}: its lines wait in memory, and are lost where the daemon ends before they can be written"
            self.troubles = [*(one for one in self.troubles if not one.startswith(why)), told]
        if event["event"] == "kernel":
            self.facts = {}
        ledger.apply(self.state, event)

    def take_notes(self) -> list[str]:
        """Return what must be said first with the next run, once."""
        notes = [note for note in (*self.troubles, self.keeper.news) if note]
        self.troubles, self.keeper.news = [], ""
        return notes

    def seen(self, tool_use_id: str | None) -> bool:
        """Whether that very call was handled: two installations of stepper may both fire."""
        return tool_use_id is not None and tool_use_id in self.state.tool_use_ids

    def answered(self, tool_use_id: str | None) -> Report | None:
        """Return the report on the last run of that call, for a client whose daemon ended before it could answer."""
        runs = [run for run in self.state.runs if run["tool_use_id"] == tool_use_id]
        text = self.state.reports.get(runs[-1]["run"] if runs else 0)
        if text is not None and not runs:
            return Report(text, "", ok=False)
        if not runs:
            return None
        told = f"run {runs[-1]['run']} ("
        self.troubles = [one for one in self.troubles if not one.startswith(told)]  # it is told now
        return brief.of_journaled(runs[-1], text, self.state.stop)

    def kept(self, found: Report, ended: Ended) -> Report:
        """Journal the report, so that it can be had again, and add the stop, if there is one."""
        if self.state.stop and not found.ok:
            found = replace(found, stop=self.state.stop.block)
        self.log({"event": "report", "run": ended.run, "text": f"{found.text}\n{found.stop}".strip()}, sync=False)
        return found

    def stop(self, key: ledger.Key | None, cell_id: str, block: str) -> None:
        """Stop the notebook: no further cell runs until the person says so."""
        self.log({"event": "stop", "at": now(), "key": key, "cell_id": cell_id, "block": block})
