"""One notebook's session: change → run → classify → decide → report. Knows the ports and core, never adapters."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

from stepper.advice import Adviser, doubtful
from stepper.core import brief, changes, directive, gate, judge, ledger, plan, progress, report, retry
from stepper.core.model import Cell, CellEdit, Fault, FileWrite, Limits, Outcome, Run, Verdict
from stepper.core.report import Ended, Report
from stepper.errors import KernelError, NotebookError, StepperError
from stepper.keeper import Keeper, now
from stepper.ports import (
    Execution,
    Journal,
    Kernel,
    KernelPlace,
    KernelProvider,
    Notebook,
    NotebookFile,
)


@dataclass
class Caller:
    """Who asks: its environment (a new kernel gets it), and whether it left without waiting for the answer."""

    environ: Mapping[str, str] = field(default_factory=dict)
    left: asyncio.Event = field(default_factory=asyncio.Event)


class Session:
    """The work on one notebook. Its requests run one after the other, in order of arrival."""

    def __init__(
        self,
        name: str,
        file: NotebookFile,
        journal: Journal,
        kernels: KernelProvider,
        limits: Callable[[], Limits],
        place: Callable[[Mapping[str, str]], KernelPlace],
        adviser: Adviser,
    ) -> None:
        self.name, self.file, self.journal, self.limits, self.adviser = name, file, journal, limits, adviser
        self.lock = asyncio.Lock()
        self.waits_for: Caller | None = None  # whose cell runs now
        self.pause = asyncio.Event()
        self.last_used = time.monotonic()
        self.facts: dict[str, Any] = {}
        self.failed: Execution | None = None  # the last run, where it failed
        events, trouble = journal.load()
        self.state = ledger.replay(events)
        self.trouble = trouble  # with the journal; told with the next run
        if self.state.running:
            cut = self.state.running
            self.trouble = (
                f"run {cut['run']} (cell {cut['cell_id']}) lost its daemon: it did begin, how it ended is not known"
            )
        self.keeper = Keeper(kernels, place, self.state, self.log)

    # --- what Claude Code did ---------------------------------------------------------------------------------

    async def edited(self, edit: CellEdit, caller: Caller) -> Report | None:
        """Run the code cell that was just inserted or replaced; None where there is nothing to run or to say."""
        if edit.mode == "delete" or edit.cell_type not in (None, "code"):
            return None
        async with self.lock:
            if self._seen(edit.tool_use_id):
                return None
            document = self.read()
            cell = plan.edited_cell(document.cells, edit)
            if cell is None:
                return report.not_run(
                    f"no cell {edit.cell_id!r} in {self.name}", "Read the notebook again: its cell ids are shown there"
                )
            if cell not in changes.runnable([cell]):
                return None
            why = self._refused(document, cell, new=edit.mode == "insert") or await self._again(document, cell)
            if why:
                return report.not_run(why)
            ended = await self._held(document, cell, caller, edit.tool_use_id)
            ended = ended or await self.run_cell(document, cell, caller, edit.tool_use_id)
            return self.kept(report.of_run(ended), ended)

    def _refused(self, document: Notebook, cell: Cell, new: bool) -> str | None:
        """Return why the gate would have denied the cell that stands in the notebook now."""
        others = [other for other in document.cells if other.id != cell.id]
        return (
            gate.stopped(self.state)
            or (gate.waiting(self.state, others, cell.index) if new else None)
            or (gate.too_many(document.cells, self.limits()) if new else None)
        )

    async def written(self, write: FileWrite, caller: Caller) -> Report | None:
        """Run the new and changed code cells of a notebook that was written whole, from the top."""
        async with self.lock:
            if self._seen(write.tool_use_id):
                return None
            document = self.read()
            if plan.from_json(document.plan) is None and self.state.plan.steps:
                self.file.set_plan(self.state.plan)  # the Write dropped it
                document = self.read()
            cells = changes.not_run_yet(document.cells, self.state.ran_ever)
            ended: list[Ended] = []
            for cell in cells:
                why = self._refused(document, cell, new=cell.id not in self.state.ran_ever)
                if why:
                    refused = report.not_run(why)
                    return report.joined([report.of_runs(ended, len(cells)), refused]) if ended else refused
                try:
                    held = await self._held(document, cell, caller, write.tool_use_id)
                    ended.append(held or await self.run_cell(document, cell, caller, write.tool_use_id))
                except StepperError as error:
                    if not ended:
                        raise
                    told = report.of_runs(ended, len(cells))
                    return report.joined([told, report.not_run(error.message, error.hint)])
                if ended[-1].verdict is not Verdict.FINE:
                    break
            if not ended:
                return None
            return self.kept(report.of_runs(ended, len(cells)), ended[-1])

    async def _again(self, document: Notebook, cell: Cell) -> str | None:
        """Return why a source is not run again: it would end as it did, because nothing has changed since.

        The client's edit has emptied the cell's outputs: they are put back.
        """
        key = plan.key(self.state, document.cells, cell)
        last = progress.same_again(self.state, key, changes.source_hash(cell.source))
        if last is None or self.failed is None or not self.facts:  # in doubt it runs
            return None
        if await asyncio.to_thread(self.adviser.changed_since, last, self.facts):
            return None
        self._put(cell, self.failed, last["step"], keep_time=True)
        return progress.repeated(last)

    async def _held(self, document: Notebook, cell: Cell, caller: Caller, tool_use_id: str | None) -> Ended | None:
        """Return the fault that a cell would end with for certain; None where it may run, or is written once more."""
        limits, state = self.limits(), self.state
        key, source = plan.key(state, document.cells, cell), changes.source_hash(cell.source)
        if not limits.preflight or state.of(key).held == source or changes.RAISES_TAG in cell.tags:
            return None
        try:
            python = await self._known(caller)
        except KernelError:
            return None  # running it tells
        fault = self.adviser.before(cell, self.facts)
        if fault is None:
            return None
        fault = self.adviser.suggested(fault, {}, cell, document.cells, state, self.facts, python)
        begin = judge.Begun(0, key, now(), time.monotonic(), tool_use_id, 0)
        run = begin.run(cell, Outcome.ERROR, fault, Verdict.RECOVERABLE, "", begin.clock)
        attempts = state.of(key).attempts
        self.log({"event": "held", **asdict(run), "key": key, "at": begin.at})
        ended = self._ended(cell, key, run, Execution(run.outcome), 0.0, self.take_notes(), limits)
        counted = state.of(key).attempts > attempts
        if counted and retry.decide(run.verdict, state.of(key).attempts, 0, limits).act is retry.Act.STOP:
            self.stop(key, cell.id, report.stop_block(ended, state.of(key).attempts))
        return replace(ended, held=True, counted=counted)

    async def _known(self, caller: Caller) -> str:
        """Have the kernel's names at hand, asked where they are not known; return its interpreter."""
        kernel = await self.keeper.get(caller.environ)
        self.facts = self.facts or await kernel.facts()
        return kernel.python

    def kept(self, found: Report, ended: Ended) -> Report:
        """Journal the report, so that it can be had again, and add the stop, if there is one."""
        if self.state.stop and not found.ok:
            found = replace(found, stop=self.state.stop.block)
        self.log({"event": "report", "run": ended.run, "text": f"{found.text}\n{found.stop}".strip()}, sync=False)
        return found

    # --- what a person or a script asks for -------------------------------------------------------------------

    async def interrupt(self) -> bool:
        """Interrupt the cell that runs; return whether one did. Takes no lock: that cell holds it."""
        if self.waits_for is not None and not self.keeper.busy:
            self.pause.set()  # it waits to be run again
            return True
        return await self.keeper.interrupt("person")

    async def abandon(self, caller: Caller) -> None:
        """The caller went away: what it waits for is cancelled."""
        caller.left.set()
        if self.waits_for is caller:
            self.pause.set()
            await self.keeper.interrupt("client gone")

    # --- inside -----------------------------------------------------------------------------------------------

    def take_notes(self) -> list[str]:
        """Return what must be said first with the next run, once."""
        notes = [note for note in (self.trouble, self.keeper.news) if note]
        self.trouble = self.keeper.news = ""
        return notes

    def _seen(self, tool_use_id: str | None) -> bool:
        """Whether that very call was handled: two installations of stepper may both fire."""
        return tool_use_id is not None and tool_use_id in self.state.tool_use_ids

    def log(self, event: dict[str, Any], sync: bool = True) -> None:
        """Write an event to the journal and take it into the state; what can't be written is told with the next run."""
        try:
            self.journal.append(event, sync, keep=event["event"] != "start")
        except OSError as error:
            why = f"the journal can't be written ({error.strerror}): a restart forgets what runs now"
            if event["event"] == "start":  # nothing ran yet
                raise StepperError(why, "df -h .stepper; ls -l .stepper/journal") from error
            self.trouble = why
        if event["event"] == "kernel":
            self.facts = {}
        ledger.apply(self.state, event)

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

    async def run_cell(
        self, document: Notebook, cell: Cell, caller: Caller, tool_use_id: str | None, keep_time: bool = True
    ) -> Ended:
        """Run one cell to its verdict, again after a transient error; stop the notebook where that is to follow."""
        limits, asked = self.limits(), directive.parse(cell.source)
        timeout = directive.deadline(asked, limits.cell_timeout_seconds, limits.max_cell_timeout_seconds)
        key, was_complete = plan.key(self.state, document.cells, cell), self.state.complete
        notes = [*asked.problems, *self._out_of_order(document, cell)]
        notes += progress.returned(self.state, key, changes.source_hash(cell.source))
        for repeat in count():
            try:
                kernel = await self.keeper.get(caller.environ)
            except KernelError as error:
                return self._not_started(cell, key, error, limits)
            notes = [*self.take_notes(), *notes]
            begin = judge.Begun(self.state.next_run, key, now(), time.monotonic(), tool_use_id, repeat)
            known = self.facts
            execution = await self._execute(kernel, cell, caller, begin, timeout, limits)
            known = self.facts or known  # a kernel that died tells no more
            fault, verdict = self.judged(cell, execution, known)
            if fault is not None:
                look = execution.facts.get("look") or {}
                fault = await asyncio.to_thread(
                    self.adviser.suggested, fault, look, cell, document.cells, self.state, known, kernel.python
                )
            run = begin.run(cell, execution.outcome, fault, verdict, kernel.id, time.monotonic())
            attempts = self.state.attempts_after(key, verdict, repeat > 0)
            decision = retry.decide(verdict, attempts, repeat, limits)
            if decision.act is not retry.Act.AGAIN:
                notes += self._put(cell, execution, run.step, keep_time)
            if verdict is Verdict.RECOVERABLE:
                notes += progress.same_error(self.state, key, run)
            self._record(run, key, execution, repeat)
            self.failed = execution if verdict is Verdict.RECOVERABLE else None
            if decision.act is not retry.Act.AGAIN:
                break
            notes.append(f"run {run.run}: {report.short_fault(fault)}; stepper ran it again after {decision.wait:g} s")
            if await self._paused(decision.wait, caller):
                run = replace(run, verdict=Verdict.CANCELLED, outcome=Outcome.CANCELLED)
                break
        ended = self._ended(cell, key, run, execution, timeout, notes, limits)
        seen, left = await asyncio.to_thread(self._besides, execution, run, begin.wall_ns)
        ended = replace(ended, origins=self._origins(document), seen=seen, doubts=left)
        if decision.act is retry.Act.STOP:
            self.stop(key, cell.id, report.stop_block(ended, attempts + repeat))
        if self.state.complete and not was_complete:
            with contextlib.suppress(NotebookError):  # it may be gone by now
                ended = replace(ended, tail=brief.completion(self.name, self.state, self.file.read().figures))
        return ended

    async def _execute(
        self, kernel: Kernel, cell: Cell, caller: Caller, begin: judge.Begun, timeout: float, limits: Limits
    ) -> Execution:
        if caller.left.is_set():
            raise StepperError("the caller went away before the cell ran")
        self.log({**begin.event(), "cell_id": cell.id, "kernel": kernel.id}, sync=False)
        return await self.execute(kernel, cell.source, caller, timeout, limits)

    async def execute(
        self, kernel: Kernel, source: str, caller: Caller, timeout: float, limits: Limits, scratch: bool = False
    ) -> Execution:
        """Run code for a caller, who may go away; take over what the helper tells of the namespace."""
        self.waits_for = caller
        try:
            execution = await kernel.execute(source, timeout, limits, scratch)
        finally:
            self.waits_for, self.last_used = None, time.monotonic()
        self.facts = execution.facts.get("namespace") or {}
        return execution

    def _besides(self, execution: Execution, run: Run, since_ns: int) -> tuple[list[str], list[str]]:
        """Return the lines on pictures, and on what a failed cell left behind or what is odd about one that ran ok."""
        changed = execution.facts.get("changed")
        left = self.adviser.kept(changed, since_ns) if run.verdict is not Verdict.FINE else doubtful(execution)
        return self.adviser.seen(execution, run.run), left

    def _put(self, cell: Cell, execution: Execution, step: int | None, keep_time: bool) -> list[str]:
        """Write the outputs; return why they could not be, as notes."""
        try:
            why = self.file.put(cell, execution, step, keep_time)
        except NotebookError as error:
            why = f"the outputs could not be written: {error.message}"
        return [*execution.notes, why] if why else list(execution.notes)

    def _record(self, run: Run, key: ledger.Key, execution: Execution, repeat: int) -> None:
        counted = {"key": key, "repeat": repeat, "execution_count": execution.execution_count}
        self.log({"event": "run", **asdict(run), **counted})
        self.ended(execution, f"cell {run.number}")

    def ended(self, execution: Execution, where: str) -> None:
        """Take note of a kernel that died."""
        if execution.death is not None:
            self.keeper.died(f"the kernel died ({execution.death.how}) in {where}")

    def stop(self, key: ledger.Key, cell_id: str, block: str) -> None:
        """Stop the notebook: no further cell runs until the person says so."""
        self.log({"event": "stop", "at": now(), "key": key, "cell_id": cell_id, "block": block})

    async def _paused(self, wait: float, caller: Caller) -> bool:
        """Wait before stepper runs a cell again; return True where that was interrupted."""
        self.waits_for = caller
        self.pause.clear()
        try:
            await asyncio.wait_for(self.pause.wait(), wait)
        except asyncio.TimeoutError:
            return False
        finally:
            self.waits_for = None
        return True

    def _not_started(self, cell: Cell, key: ledger.Key, error: KernelError, limits: Limits) -> Ended:
        """No kernel: what a command mends is reported and nothing more; one that fails to start stops the notebook."""
        if not error.stops:
            raise error
        fault = Fault("KernelStartFailed", f"the cell was NOT run: {error.message}", ("KernelStartFailed",))
        run = Run(0, cell.id, cell.number, cell.index, key if isinstance(key, int) else None, "", now(), 0.0,
                  Outcome.KERNEL_DIED, Verdict.UNRECOVERABLE, fault)  # fmt: skip
        ended = self._ended(cell, key, run, Execution(run.outcome), 0.0, [], limits)
        self.stop(key, cell.id, report.stop_block(ended, self.state.of(key).attempts, error.hint))
        return ended

    def _out_of_order(self, document: Notebook, cell: Cell) -> list[str]:
        below = [c for c in document.cells if c.index > cell.index and c.id in self.state.ran]
        if not below:
            return []
        return [f"out of order: it ran after cell {below[-1].number}, which stands below it"]

    def _origins(self, document: Notebook) -> dict[int, str]:
        """Return how reports name the cells that ran in this kernel, by execution count."""
        names = {cell.id: report.place(cell) for cell in document.cells if cell.is_code}
        return {n: names.get(cell_id, "a cell that is gone") for n, cell_id in self.state.counts.items()}

    def judged(self, cell: Cell, execution: Execution, facts: dict[str, Any]) -> tuple[Fault | None, Verdict]:
        """Return the fault of an execution and what follows; `facts` are what the kernel told last."""
        how, stderr = (execution.death.how, execution.death.stderr) if execution.death else ("", "")
        memory = "; ".join([execution.memory, *brief.largest(facts)]) if execution.memory else ""
        return judge.judge(execution.outcome, execution.fault, cell.tags, how, stderr, memory)

    def _ended(
        self,
        cell: Cell,
        key: ledger.Key,
        run: Run,
        execution: Execution,
        timeout: float,
        notes: list[str],
        limits: Limits,
    ) -> Ended:
        return Ended(
            cell=cell,
            run=run.run,
            outcome=run.outcome,
            verdict=run.verdict,
            duration_s=run.duration_s,
            outputs=execution.outputs,
            fault=run.fault,
            plan=self.state.plan,
            step=self.state.plan.step(run.step),
            next_step=self.state.plan.step(self.state.open_step()),
            attempts=self.state.of(key).attempts,
            max_retries=limits.max_retries,
            timeout=timeout,
            notes=notes,
        )
