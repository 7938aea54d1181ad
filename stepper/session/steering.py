"""What a person steers with: status, plan, continue, fix, skip, restart, reports. Each works on one session."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from stepper.ground.errors import NotebookError, StepperError, UsageError
from stepper.ground.text import clean
from stepper.policy import changes, directive, gate, ledger, plan
from stepper.policy.model import Cell, Plan, Step, StepStatus, Verdict
from stepper.session.keeper import now
from stepper.session.ports import Notebook, Progress
from stepper.session.run import judged, run_cell
from stepper.session.session import Caller, Session
from stepper.words import brief
from stepper.words import report as reports
from stepper.words.pages import paged


async def create(session: Session, made: Plan) -> None:
    """Begin the journal of a notebook that was just made under this name."""
    async with session.turn():
        await session.keeper.end("its notebook was replaced by a new one of that name")
        session.log({"event": "created", "at": now()})
        session.log({"event": "plan", "at": now(), "plan": plan.to_json(made)})


async def status(session: Session) -> dict[str, Any]:
    """Return the standing of notebook, plan and kernel. Takes no lock: it answers while a cell runs."""
    await session.keeper.find()
    return {
        "notebook": session.name,
        "state": session.state.name,
        "steps": [_step(session, step) for step in session.state.plan.steps],
        "kernel": await session.keeper.status(),
    }


def _step(session: Session, step: Step) -> dict[str, Any]:
    progress = session.state.of(step.id)
    running = (session.state.running or {}).get("key") == step.id
    return {
        "id": step.id,
        "title": step.title,
        "status": "running" if running else progress.status.value,
        "cell_id": progress.cell_id,
        "attempts": progress.attempts,
    }


def history(session: Session) -> list[dict[str, Any]]:
    """Return every run, oldest first."""
    keys = ("run", "cell_id", "step", "started_at", "duration_s", "outcome")
    return [{"notebook": session.name, **{key: run.get(key) for key in keys}} for run in session.state.runs]


def report(session: Session, number: int | None) -> dict[str, Any]:
    """Return a run with the report that the agent read, the last one by default; raise UsageError."""
    state = session.state
    number = state.last_report if number is None else number
    if number and number not in state.reports:  # an old one: the journal has it
        state = ledger.replay(event for event in session.journal.load()[0] if event.get("run") == number)
    run: dict[str, Any] = next((run for run in state.runs if run["run"] == number), {})
    if not run and (number is None or number not in state.reports):
        raise UsageError(f"{session.name} has no run {number}" if number else f"no cell of {session.name} has run here")
    told = {key: run.get(key) for key in ("run", "cell_id", "step", "outcome", "fault")}
    return {**told, "text": reports.bounded(clean(state.reports.get(number or 0, "")))}


async def run(session: Session, everything: bool, caller: Caller, progress: Progress) -> dict[str, Any]:
    """Run the cells that have not run in the present kernel, or all in a fresh one; stop at the first failure."""
    async with session.turn():
        why = gate.stopped(session.state)
        if why:
            raise StepperError(f"nothing ran: {why}")
        document = session.mended()
        cells = changes.not_run_yet(document.cells, session.state.ran)
        if everything:
            await _fresh(session, "it was restarted for a run of all cells")
            cells = changes.runnable(document.cells)
        return await _run(session, document, cells, caller, progress)


async def restore(session: Session, caller: Caller, progress: Progress) -> dict[str, Any]:
    """Run the cells that had ended well again, in the notebook's order, in a fresh kernel; a stop is lifted.

    It ends at the first that ends otherwise than before or was changed since. What did not end well when it ran last,
    such as the cell that ended the kernel, is left out.
    """
    async with session.turn():
        document, last = session.mended(), {run["cell_id"]: run for run in session.state.runs}
        well = {cell_id: run for cell_id, run in last.items() if run["verdict"] == Verdict.FINE.value}
        cells, changed = list[Cell](), ""
        for cell in changes.runnable(document.cells):
            if cell.id in well:
                if changes.source_hash(cell.source) != well[cell.id]["source_hash"]:
                    changed = f"{cell.label} was changed since it ran"
                    break
                cells.append(cell)
        session.log({"event": "restore", "at": now()})
        await _fresh(session, "it was restarted to restore the notebook's state")
        gone = len(well.keys() - {cell.id for cell in document.cells})
        found = await _run(
            session, document, cells, caller, progress, {key: run["outcome"] for key, run in well.items()}
        )
        if changed and found["ok"]:
            found = {
                **found,
                "ok": False,
                "report": f"stepper: {found['ran']} cells are restored; {changed}: it was NOT run",
            }
        return {**found, "gone": gone}


async def _fresh(session: Session, why: str) -> None:
    """End the kernel because it was asked for: nobody need be told that its state is gone."""
    await session.keeper.end(why)
    session.state.lost = ""


async def _run(
    session: Session,
    document: Notebook,
    cells: Sequence[Cell],
    caller: Caller,
    progress: Progress,
    before: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run cells to the first failure, or to the first that ends otherwise than `before` says."""
    done, failed = 0, None
    for position, cell in enumerate(cells, 1):
        progress({"cell": cell.number, "position": position, "of": len(cells), "what": "running"})
        ended = await run_cell(session, document, cell, caller, keep_time=False)
        progress({"position": position, "of": len(cells), "what": "ran", "line": reports.person_line(ended)})
        found = session.kept(reports.of_run(ended), ended)
        if ended.verdict is not Verdict.FINE:
            failed = found
            break
        done += 1
        if before is not None and before[cell.id] != ended.outcome.value:
            failed = replace(found, text=f"{found.text}\nIt ended otherwise than before ({before[cell.id]}).")
            break
    skipped = sum(cell.is_code and changes.SKIP_TAG in cell.tags for cell in document.cells)
    return {
        "notebook": session.name,
        "ok": failed is None,
        "ran": done,
        "cells": len(cells),
        "skipped": skipped,
        "report": failed.text if failed else "",
    }


async def evaluate(session: Session, source: str, caller: Caller) -> dict[str, Any]:
    """Run code in the live kernel without touching the notebook; return how it ended and what it printed.

    Raise StepperError where there is no kernel: there is nothing to look at.
    """
    if why := changes.halved(source):
        raise UsageError(why)
    async with session.turn():
        kernel = session.keeper.kernel
        if kernel is None or await kernel.death() is not None:
            raise StepperError(
                f"{session.name} has no live kernel: there is nothing to look at", f"stepper run {session.name}"
            )
        limits, asked = session.limits(), directive.parse(source)
        timeout = directive.deadline(asked, limits.cell_timeout_seconds, limits.max_cell_timeout_seconds)
        known, began, at = session.facts or await kernel.facts(), time.monotonic(), now()
        execution = await session.execute(kernel, source, caller, timeout, limits, scratch=True)
        took = round(time.monotonic() - began, 4)
        session.ended(execution, "`stepper eval`")
        cell, cells = Cell("eval", -1, 0, "code", source), list[Cell]()
        known = session.facts or known
        fault, verdict = judged(cell, execution, known)
        if fault is not None:
            with contextlib.suppress(NotebookError):  # the code has run: what it said matters more
                cells = [*session.read().cells]
            look = execution.facts.get("look") or {}
            fault = await asyncio.to_thread(
                session.adviser.suggested, fault, look, cell, cells, session.state, known, kernel.about().python
            )
        told = {"source": source, "outcome": execution.outcome, "duration_s": took, "fault": fault and asdict(fault)}
        session.log({"event": "scratch", "at": at, **told})
        text = reports.of_scratch(execution.outcome, verdict, fault, took, timeout, source, execution.outputs)
        return {"notebook": session.name, **told, "text": text}


def output(session: Session, name: str, page: int) -> dict[str, Any]:
    """Return a page of a cell's text outputs, as the notebook holds them; raise UsageError."""
    cells = session.file.read().cells
    fits = [cell for cell in cells if cell.is_code and name in (cell.id, str(cell.number))]
    if not fits:
        raise UsageError(f"{session.name} has no code cell {name!r}", "give its number among the code cells, or its id")
    cell = fits[0]
    pages = paged(session.file.outputs(cell))
    if not 1 <= page <= len(pages):
        raise UsageError(f"the output of {cell.label} has {len(pages)} page(s)")
    return {"notebook": session.name, "cell_id": cell.id, "page": page, "pages": len(pages), "text": pages[page - 1]}


async def restart(session: Session, caller: Caller) -> bool:
    """End the kernel and start a fresh one; return whether there was one."""
    await session.interrupt()
    async with session.turn():
        had = await session.keeper.end("it was restarted at the person's request")
        if session.state.stop is not None and session.state.stop.key is None:  # the kernel's own end had stopped it
            session.log({"event": "continue", "at": now()})
        await session.keeper.get(caller.environ)
        return had


async def shutdown(session: Session, why: str) -> bool:
    """End the kernel; return whether there was one."""
    await session.interrupt()
    async with session.turn():
        return await session.keeper.end(why)


async def go_on(session: Session) -> str:
    """Lift a stop; return where to go on, with the context."""
    lifted = session.state.stop is not None
    if lifted:
        session.log({"event": "continue", "at": now()})
    facts, alive = await namespace(session)
    return brief.after_continue(session.name, session.state, facts, alive, lifted)


async def fix(session: Session) -> str:
    """Lift a stop and grant the failed step a fresh set of retries; return what failed and what was tried."""
    key = failed_key(session)
    session.log({"event": "fix", "at": now(), "key": key})
    cell = _cell(session, key)
    return brief.after_fix(session.name, session.state, key, cell, session.limits().max_retries)


async def skip(session: Session, reason: str) -> str:
    """Mark the failed step, else the next one, and its cell as skipped; lift a stop; return the next step."""
    key, reason = failed_key(session), " ".join(reason.split())
    if session.state.stop is not None and session.state.stop.key is None:  # no cell is to blame
        return await go_on(session)
    if key is None:
        key = session.state.open_step()
    if key is not None:
        cell = _cell(session, key)
        session.log({"event": "skip", "at": now(), "key": key, "reason": reason})
        if cell is not None:
            session.file.mark(cell, changes.SKIP_TAG)
    return brief.after_skip(session.name, session.state, key, reason)


def failed_key(session: Session) -> ledger.Key | None:
    """Return what `fix` and `skip` are about: what stopped the notebook, else what failed last and was not mended."""
    state = session.state
    if state.stop is not None:
        return state.stop.key
    failing = [run["key"] for run in state.runs if state.of(run["key"]).status is StepStatus.FAILED]
    steps = [key for key in failing if isinstance(key, int)]
    loose = [key for key in failing if isinstance(key, str) and _cell(session, key) is not None]
    return (steps or loose or [None])[-1]


def _cell(session: Session, key: ledger.Key | None) -> Cell | None:
    """Return the cell of a step (or the cell of that id), None where it is gone."""
    if key is None:
        return None
    with contextlib.suppress(NotebookError):
        name = session.state.of(key).cell_id or (key if isinstance(key, str) else None)
        return plan.find_cell(session.file.read().cells, name) if name else None
    return None


async def namespace(session: Session) -> tuple[dict[str, Any], bool]:
    """Return the kernel's namespace in short, and whether the kernel is alive."""
    kernel = await session.keeper.find()
    if kernel is None or await kernel.death() is not None:
        return {}, False
    if not session.facts and not session.lock.locked():
        async with session.turn():
            kernel = session.keeper.kernel
            session.facts = session.facts or (await kernel.facts() if kernel else {})
    return session.facts, kernel is not None


async def context(session: Session) -> dict[str, Any]:
    """Return what another agent needs to go on, and the same as text."""
    facts, alive = await namespace(session)
    variables = facts.get("variables") or {}
    return {
        "current_notebook": session.name,
        "imported_modules": facts.get("modules") or {},
        "defined_functions": facts.get("functions") or {},
        "variables": {name: brief.describe(fact) for name, fact in variables.items()},
        "plan": plan_json(session),
        "text": brief.context(session.name, session.state, facts, alive),
    }


def plan_json(session: Session) -> list[dict[str, Any]]:
    """Return the plan's steps with their statuses."""
    state = session.state
    return [
        {
            "id": step.id,
            "title": step.title,
            "criterion": step.criterion,
            "kind": step.kind.value,
            "status": state.of(step.id).status.value,
            "reason": state.of(step.id).reason,
        }
        for step in state.plan.steps
    ]


async def change_plan(session: Session, verb: str, arguments: dict[str, Any]) -> None:
    """Add, edit, remove or move a step that has not run; raise UsageError."""
    state = session.state
    changes_of = {
        "add": lambda: plan.added(state, arguments["title"], arguments.get("after")),
        "edit": lambda: plan.edited(state, arguments["id"], arguments["title"]),
        "remove": lambda: plan.removed(state, arguments["id"]),
        "move": lambda: plan.moved(state, arguments["id"], arguments["after"]),
    }
    async with session.turn():
        try:
            changed = changes_of[verb]()
        except ValueError as error:
            raise UsageError(str(error), "stepper plan  # shows the steps") from None
        session.log({"event": "plan", "at": now(), "plan": plan.to_json(changed)})
        session.file.set_plan(changed)
