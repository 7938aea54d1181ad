"""One notebook's session: change → run → classify → decide → report. Knows the ports and core, never adapters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from stepper.core import changes, classify, directive, ledger, plan, report
from stepper.core.model import Cell, CellEdit, Fault, FileWrite, Limits, Outcome, Plan, Run, Step, Verdict
from stepper.core.report import Ended, Report
from stepper.errors import NotebookError, StepperError
from stepper.ports import (
    Execution,
    Journal,
    Kernel,
    KernelPlace,
    KernelProvider,
    Notebook,
    NotebookFile,
    Progress,
)


@dataclass
class Caller:
    """Who asks: its environment (a new kernel gets it) and whether it still waits for the answer."""

    environ: Mapping[str, str] = field(default_factory=dict)
    gone: bool = False


def now() -> str:
    """Return the time in UTC as ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
    ) -> None:
        self.name, self.file, self.journal, self.kernels = name, file, journal, kernels
        self.limits, self.place = limits, place
        self.lock = asyncio.Lock()
        self.kernel: Kernel | None = None
        self.kernel_state = "none"
        self.waits_for: Caller | None = None  # whose cell runs now
        self.last_used = time.monotonic()
        self.facts: dict[str, Any] = {}
        self.pending_notes: list[str] = []
        events, trouble = journal.load()
        self.state = ledger.replay(events)
        if trouble:
            self.pending_notes.append(trouble)

    # --- what Claude Code did ---------------------------------------------------------------------------------

    async def edited(self, edit: CellEdit, caller: Caller) -> Report | None:
        """Run the code cell that was just inserted or replaced; None where there is nothing to run or to say."""
        if edit.mode == "delete" or edit.cell_type not in (None, "code"):
            return None
        async with self.lock:
            if self._seen(edit.tool_use_id):
                return None
            document = self._read()
            cell = self._edited_cell(document, edit)
            if cell is None:
                return report.not_run(
                    f"no cell {edit.cell_id!r} in {self.name}",
                    "Read the notebook again: its cell ids are shown there",
                )
            if cell not in changes.runnable([cell]):
                return None
            return report.of_run(await self._run_cell(document, cell, caller, edit.tool_use_id))

    def _edited_cell(self, document: Notebook, edit: CellEdit) -> Cell | None:
        """Return the cell that was edited; without cell ids an insert is found below the cell it came after."""
        cells = document.cells
        if edit.cell_id is not None:
            found = plan.find_cell(cells, edit.cell_id)
        else:
            above = plan.find_cell(cells, edit.after) if edit.after else None
            index = above.index + 1 if above else 0
            found = cells[index] if index < len(cells) else None
        same = [cell for cell in cells if cell.is_code and cell.source == edit.source]
        return found if found is None or found in same or len(same) != 1 else same[0]

    async def written(self, write: FileWrite, caller: Caller) -> Report | None:
        """Run the new and changed code cells of a notebook that was written whole, from the top."""
        async with self.lock:
            if self._seen(write.tool_use_id):
                return None
            document = self._read()
            cells = changes.not_run_yet(document.cells, self.state.ran_ever)
            ended = []
            for cell in cells:
                ended.append(await self._run_cell(document, cell, caller, write.tool_use_id))
                if ended[-1].verdict is not Verdict.FINE:
                    break
            return report.of_runs(ended, len(cells)) if ended else None

    # --- what a person or a script asks for -------------------------------------------------------------------

    async def run(self, everything: bool, caller: Caller, progress: Progress) -> dict[str, Any]:
        """Run the cells that have not run in the present kernel, or all in a fresh one; stop at the first failure."""
        async with self.lock:
            document = self._read()
            if everything:
                await self._end_kernel("restarted for a run of all cells")
                self.state.lost = ""
            else:
                await self._find_kernel()
            cells = changes.not_run_yet(document.cells, self.state.ran)
            if everything:
                cells = changes.runnable(document.cells)
            done, failed = 0, None
            for position, cell in enumerate(cells, 1):
                progress({"cell": cell.number, "position": position, "of": len(cells), "what": "running"})
                ended = await self._run_cell(document, cell, caller, None, keep_time=False)
                progress({"position": position, "of": len(cells), "what": "ran", "line": report.person_line(ended)})
                if ended.verdict is not Verdict.FINE:
                    failed = report.of_run(ended)
                    break
                done += 1
            skipped = sum(cell.is_code and changes.SKIP_TAG in cell.tags for cell in document.cells)
            return {
                "notebook": self.name,
                "ok": failed is None,
                "ran": done,
                "cells": len(cells),
                "skipped": skipped,
                "report": failed.text if failed else "",
            }

    async def interrupt(self) -> bool:
        """Interrupt the cell that runs; return whether one did. Takes no lock: that cell holds it."""
        if self.kernel is None or not self.kernel.busy:
            return False
        await self.kernel.interrupt("person")
        return True

    async def abandon(self, caller: Caller) -> None:
        """The caller went away: what it waits for is cancelled."""
        caller.gone = True
        if self.waits_for is caller and self.kernel is not None:
            await self.kernel.interrupt("client gone")

    async def restart(self, caller: Caller) -> bool:
        """End the kernel and start a fresh one; return whether there was one."""
        await self.interrupt()
        async with self.lock:
            await self._find_kernel()
            had = await self._end_kernel("restarted at the person's request")
            await self._kernel(caller)
            return had

    async def shutdown(self, why: str) -> bool:
        """End the kernel; return whether there was one."""
        await self.interrupt()
        async with self.lock:
            await self._find_kernel()
            return await self._end_kernel(why)

    def detach(self) -> None:
        """Leave the kernel to the next daemon."""
        if self.kernel is not None:
            self.kernel.detach()

    async def status(self) -> dict[str, Any]:
        """Return the standing of notebook, plan and kernel. Takes no lock: it answers while a cell runs."""
        if not self.lock.locked():
            await self._find_kernel()
        kernel = self.kernel
        if kernel is not None and await kernel.death() is not None:
            self.kernel_state = "dead"
        return {
            "notebook": self.name,
            "state": self.state.name,
            "steps": [self._step_status(step) for step in self.state.plan.steps],
            "kernel": {
                "pid": kernel.pid if kernel else None,
                "state": "busy" if kernel and kernel.busy else self.kernel_state,
                "rss_bytes": kernel.rss_bytes() if kernel else None,
                "python": kernel.python if kernel else None,
            },
        }

    def _step_status(self, step: Step) -> dict[str, Any]:
        progress = self.state.of(step.id)
        running = self.waits_for is not None and (self.state.running or {}).get("key") == step.id
        return {
            "id": step.id,
            "title": step.title,
            "status": "running" if running else progress.status.value,
            "cell_id": progress.cell_id,
            "attempts": progress.attempts,
        }

    def history(self) -> list[dict[str, Any]]:
        """Return every run, oldest first."""
        keys = ("run", "cell_id", "step", "started_at", "duration_s", "outcome")
        return [{"notebook": self.name, **{key: run.get(key) for key in keys}} for run in self.state.runs]

    async def create(self, new_plan: Plan) -> None:
        """Begin the journal of a notebook that was just made under this name."""
        async with self.lock:
            await self._find_kernel()
            await self._end_kernel("its notebook was replaced by a new one of that name")
            self._log({"event": "created", "at": now()})
            self._log({"event": "plan", "at": now(), "plan": plan.to_json(new_plan)})

    # --- inside -----------------------------------------------------------------------------------------------

    def _seen(self, tool_use_id: str | None) -> bool:
        """Whether that very call was handled: two installations of stepper may both fire."""
        return tool_use_id is not None and tool_use_id in self.state.tool_use_ids

    def _log(self, event: dict[str, Any], sync: bool = True) -> None:
        self.journal.append(event, sync)
        ledger.apply(self.state, event)

    def _read(self) -> Notebook:
        """Read the notebook, take over a plan that the journal does not know; raise NotebookError."""
        document = self.file.read()
        if document.language not in ("python", "python3", "ipython"):
            raise NotebookError(
                f"{self.name} is a notebook of the language {document.language!r}; stepper runs Python notebooks only"
            )
        told = plan.from_json(document.plan)
        if told and not self.state.plan.steps:
            self._log({"event": "plan", "at": now(), "plan": plan.to_json(told)})
        return document

    async def _find_kernel(self) -> None:
        """Find the kernel that a former daemon left, once."""
        if self.kernel is None and self.kernel_state == "none":
            self.kernel, why = await self.kernels.attach()
            if self.kernel is None and why:
                self._lose(why)
            self.kernel_state = "idle" if self.kernel else "none"

    async def _kernel(self, caller: Caller) -> Kernel:
        """Return the live kernel, started where there is none; raise KernelError."""
        await self._find_kernel()
        if self.kernel is not None:
            death = await self.kernel.death()
            if death is None:
                return self.kernel
            await self._end_kernel(f"the kernel died ({death.how})")
        self.kernel_state = "starting"
        try:
            self.kernel = await self.kernels.start(self.place(caller.environ))
        finally:
            self.kernel_state = "idle" if self.kernel else "none"
        if self.state.lost:
            self.pending_notes.append(f"state lost: {self.state.lost}. A fresh kernel ran this cell.")
        self._log(
            {
                "event": "kernel",
                "what": "started",
                "kernel": self.kernel.id,
                "pid": self.kernel.pid,
                "at": now(),
            }
        )
        return self.kernel

    async def _end_kernel(self, why: str) -> bool:
        kernel, self.kernel = self.kernel, None
        self.kernel_state = "none"
        if kernel is None:
            return False
        await kernel.shutdown()
        self._lose(why)
        return True

    def _lose(self, why: str) -> None:
        """Record that the kernel's state is gone; the next report says so."""
        self._log({"event": "kernel", "what": "lost", "why": why, "at": now()})

    async def _run_cell(
        self, document: Notebook, cell: Cell, caller: Caller, tool_use_id: str | None, keep_time: bool = True
    ) -> Ended:
        """Run one cell: journal, kernel, notebook, journal. Raise KernelError where no kernel could be had."""
        limits, asked = self.limits(), directive.parse(cell.source)
        timeout = directive.deadline(asked, limits.cell_timeout_seconds, limits.max_cell_timeout_seconds)
        step = plan.owner(self.state, document.cells, cell)
        if caller.gone:
            raise StepperError("the caller went away before the cell ran")
        kernel = await self._kernel(caller)
        notes, self.pending_notes = [*self.pending_notes, *asked.problems], []
        number, started_at, began = self.state.next_run, now(), time.monotonic()
        begin = {
            "event": "start",
            "run": number,
            "cell_id": cell.id,
            "key": step or cell.id,
            "at": started_at,
        }
        self._log({**begin, "kernel": kernel.id, "tool_use_id": tool_use_id}, sync=False)
        self.waits_for = caller
        try:
            if caller.gone:
                raise StepperError("the caller went away before the cell ran")
            execution = await kernel.execute(cell.source, timeout, limits.max_output_bytes)
        finally:
            self.waits_for, self.last_used = None, time.monotonic()
        self.facts = execution.facts.get("namespace") or self.facts
        fault, verdict = self._judge(cell, execution)
        run = Run(
            number,
            cell.id,
            cell.number,
            cell.index,
            step,
            changes.source_hash(cell.source),
            started_at,
            round(time.monotonic() - began, 4),
            execution.outcome,
            verdict,
            fault,
            kernel.id,
            tool_use_id,
        )
        try:
            left_out = self.file.put(cell, execution, step, keep_time)
        except NotebookError as error:
            left_out = f"the outputs could not be written: {error.message}"
        if left_out:
            notes.append(left_out)
        self._log({"event": "run", **asdict(run), "key": step or cell.id})
        if execution.death is not None:
            self.kernel, self.kernel_state = None, "none"
            self._lose(f"the kernel died ({execution.death.how}) in cell {cell.number}")
        return self._ended(cell, run, execution, timeout, notes)

    def _judge(self, cell: Cell, execution: Execution) -> tuple[Fault | None, Verdict]:
        fault = execution.fault
        if execution.death is not None:
            said = f"\n{execution.death.stderr}" if execution.death.stderr else ""
            message = f"kernel died ({execution.death.how}): all variables are lost{said}"
            fault = Fault("KernelDied", message, ("KernelDied",))
        if execution.outcome is Outcome.ERROR and changes.RAISES_TAG in cell.tags:
            return fault, Verdict.FINE
        return fault, classify.of_run(execution.outcome, fault)

    def _ended(self, cell: Cell, run: Run, execution: Execution, timeout: float, notes: list[str]) -> Ended:
        following = self.state.plan.step(self.state.open_step())
        key = run.step if run.step is not None else cell.id
        return Ended(
            cell,
            run.outcome,
            run.verdict,
            run.duration_s,
            execution.outputs,
            run.fault,
            self.state.plan,
            self.state.plan.step(run.step),
            following,
            self.state.of(key).attempts,
            self.limits().max_retries,
            timeout,
            notes,
        )
