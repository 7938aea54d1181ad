"""The texts on what was handed on: that it goes on, how it ended, why its notebook's code cells wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepper.common.text import one_line
from stepper.messages.quoted_output import format_estimate, format_outputs, format_span
from stepper.messages.run_report import (
    Report,
    capitalize_first,
    format_kernel,
    format_seconds,
    format_step,
    limit_report,
)
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.model import Cell, Plan, Step

LAST = 100  # of a line, for the person
LINES = 800  # characters of what it has printed
NOTHING = "stepper: nothing of it ran."
WOKEN = "you are woken with its report when it ends"
OTHERS = "it is another session's, which is told when it ends"
MEANWHILE = "plan, markdown, reading, other notebooks"


def _ends(commands: CommandLines) -> str:
    """Return what ends a cell that runs in the background."""
    return f"`{commands.shell('interrupt')}`, or the user's words `stop the cell`"


def till(timeout: float, left: float | None) -> str:
    """Return how long it may run, and how long it will, where that can be told."""
    return f"deadline {format_span(timeout)}" + (
        f", ≈ {format_estimate(left)} left" if left is not None else ""
    )


def goes_on(
    name: str,
    commands: CommandLines,
    cell: Cell,
    took: float,
    till: str,
    plan: Plan,
    step: Step | None,
    last: str,
    outputs: Sequence[dict[str, Any]] | None,
    queue: bool,
    matched: str,
    kernel: str,
    notes: Sequence[str],
) -> Report:
    """Return what is read at once of a cell that was handed on; `kernel` tells where that is, if elsewhere."""
    where = f"{format_step(plan, step)}, " if step else ""
    first = f"{capitalize_first(cell.label)} is still running after {format_seconds(took)} ({where}{till})."
    parts = [
        "stepper: " + first,
        *([_woken_by(matched)] if matched else []),
        *(f"Note: {note}." for note in notes),
    ]
    parts += format_kernel(kernel)
    if outputs is not None:
        parts += format_outputs(outputs, LINES, "Last lines") or [
            "It has printed nothing yet."
        ]
    parts.append(
        "It goes on without you: you are woken with its report when it ends, so this turn may end. What can be done"
        f" meanwhile: {MEANWHILE}. {_not(name, queue)} What ends it: {_ends(commands)}; Esc does not."
    )
    where, till = (
        format_step(plan, step) if step else cell.label,
        " · ".join(filter(None, [till, kernel])),
    )
    line = f"▶ {where} · still running after {format_seconds(took)} · {till} · you may go on;"
    return Report(
        limit_report("\n".join(parts)),
        f"{line} `stop the cell` ends it{' | ' if last else ''}{last}",
    )


def still(
    name: str,
    commands: CommandLines,
    runs: str,
    took: float,
    till: str,
    last: str,
    wakes: bool,
) -> str:
    """Return what a session reads at its start of what was handed on before it and runs."""
    said = f" It printed last:\n| {last}" if last else ""
    return (
        f"stepper: {runs} of {one_line(name)} is still running after {format_seconds(took)} ({till}):"
        f" {WOKEN if wakes else OTHERS}. What ends it: {_ends(commands)}.{said}"
    )


def waits(name: str, behind: str) -> Report:
    """Return what is read at once of a cell that waits in line."""
    text = (
        f"stepper: the cell has NOT run yet: it waits in line behind {behind} of {one_line(name)}."
        f" You are woken with its report when it has run. What can be done meanwhile: {MEANWHILE}."
    )
    return Report(text, f"▶ the cell waits in line behind {behind}")


def in_queue(text: str, until: str) -> str:
    """Return that a cell waits for its kernel, and why; it runs when `until`, '' if it will not run."""
    when = f"has NOT run; it runs when {until}" if until else "does NOT run"
    return f"queued: {one_line(text, LAST * 3)}: the cell {when}"


def _not(name: str, queue: bool) -> str:
    return f"Not: code cells of {one_line(name)}, which {'wait in line' if queue else 'are refused until then'}."


def queued(
    name: str, commands: CommandLines, text: str, until: str, request: str, queue: bool
) -> Report:
    """Return what is read at once of a cell whose kernel waits in a queue, or is another client's for now."""
    withdraws = f"withdraws the {request}" if request else "has the cell not run"
    told = (
        f"stepper: {in_queue(text, until)}. You are woken with its report when it has run, so this turn may end. What"
        f" can be done meanwhile: {MEANWHILE}. {_not(name, queue)} What ends the wait, and {withdraws}: {_ends(commands)}; Esc"
        " does not."
    )
    return Report(
        told, f"▶ {in_queue(text, until)} · you may go on; `stop the cell` {withdraws}"
    )


def still_queued(name: str, text: str, until: str, wakes: bool) -> str:
    """Return what a session reads at its start of a cell whose kernel still waits in a queue."""
    return f"stepper: a cell of {one_line(name)}: {in_queue(text, until)}: {WOKEN if wakes else OTHERS}."


def refused_for_queue(name: str, commands: CommandLines, text: str, wakes: bool) -> str:
    """Return why no code cell is written while one waits for its kernel."""
    return (
        f"A cell of {one_line(name)} waits for its kernel ({one_line(text, LAST * 3)}): this code cell was NOT written;"
        f" {WOKEN if wakes else OTHERS}. What can be done meanwhile: {MEANWHILE}. What withdraws it: {_ends(commands)}."
        " `queue: true` in .stepper/config.yaml lets cells wait in line."
    )


def refused(
    name: str, commands: CommandLines, runs: str, took: float, till: str, wakes: bool
) -> str:
    """Return why no code cell is written while one that was handed on runs."""
    return (
        f"{runs} of {one_line(name)} is still running after {format_seconds(took)} ({till}): this code"
        f" cell was NOT written; {WOKEN if wakes else OTHERS}. What can be done meanwhile: {MEANWHILE}."
        f" What ends it: {_ends(commands)}. `queue: true` in .stepper/config.yaml lets cells wait in line."
    )


def ended(name: str, news: Report) -> Report:
    """Return what wakes the agent: what was handed on has ended."""
    return replace(
        news,
        text=f"stepper: what was handed on in {one_line(name)} has ended.\n{news.text}",
    )


def matched(name: str, commands: CommandLines, runs: str, line: str) -> Report:
    """Return what wakes the agent: a line that it asked to be woken by."""
    text = (
        f"stepper: {runs} of {one_line(name)} goes on. {_woken_by(line)}\n"
        f"When it ends you are woken once more, or told with the next prompt. What ends it now: {_ends(commands)}."
    )
    return Report(
        text, f"▶ {runs} goes on · matched by its `wake=` | {one_line(line, LAST)}"
    )


def _woken_by(line: str) -> str:
    return f"It printed a line that its `wake=` matches:\n| {one_line(line, 400)}"


def meanwhile(name: str, text: str) -> str:
    """Return what is told later of something handed on that ended while nobody could be woken."""
    return f"stepper: what was handed on in {one_line(name)} ended meanwhile.\n{text}"


def interrupted(name: str, waits: bool) -> str:
    """Return the answer to `stop the cell` where its report is not there yet; one may still wait for its kernel."""
    if waits:
        return f"stepper: the cell of {one_line(name)} that waits for its kernel will NOT run; its report comes."
    return f"stepper: what runs in {one_line(name)} was interrupted; its report comes."
