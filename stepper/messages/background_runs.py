"""Messages about background runs: the interim answer, the refusal, the notification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepper.common.text import one_line
from stepper.messages.marks import RUNNING_MARK
from stepper.messages.quoted_output import (
    format_estimate,
    format_outputs,
    format_span,
)
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

# Sizes in characters.
LINE_LIMIT = 100  # of a printed line, for the user
QUEUE_LIMIT = 300  # of the reason why a cell waits
OUTPUT_LIMIT = 800  # of what the cell has printed

NOTHING_RAN = "stepper: the cell did not run."
NOTIFIED = "you are notified with its report when it finishes"
OTHER_SESSION = "another session is notified when it finishes"
MEANWHILE = (
    "Meanwhile you can edit the plan and markdown cells, read, and work in other"
    " notebooks."
)
QUEUE_HINT = "With `queue: true` in .stepper/config.yaml, code cells wait in line."


def _format_stop_hint(commands: CommandLines) -> str:
    """Return how to stop a background cell."""
    return (
        f"To stop the cell: `{commands.shell('interrupt')}`, or the user types"
        " `stop the cell`"
    )


def _who_is_notified(is_own: bool) -> str:
    return NOTIFIED if is_own else OTHER_SESSION


def format_deadline(timeout: float, left: float | None) -> str:
    """Return the deadline of a run, and the estimate of the seconds that are left."""
    text = f"deadline {format_span(timeout)}"
    return text if left is None else f"{text}, ≈ {format_estimate(left)} left"


def format_still_running(
    name: str,
    commands: CommandLines,
    cell: Cell,
    seconds: float,
    deadline: str,
    plan: Plan,
    step: Step | None,
    last_line: str,
    outputs: Sequence[dict[str, Any]] | None,
    queue: bool,
    matched: str,
    kernel: str,
    notes: Sequence[str],
) -> Report:
    """Return the interim answer for a cell that continues in the background.

    `deadline` is the text of `format_deadline`, `outputs` what the cell printed so far
    (None if not known), `queue` whether code cells may wait in line, `matched` the line
    that matches its `wake=`, `kernel` where a remote kernel runs.
    """
    took = format_seconds(seconds)
    step_name = format_step(plan, step) if step else ""
    details = f"{step_name}, {deadline}" if step_name else deadline
    parts = [
        f"stepper: {capitalize_first(cell.label)} is still running after {took}"
        f" ({details})."
    ]
    if matched:
        parts.append(_format_match(matched))
    parts += [f"Note: {note}." for note in notes]
    parts += format_kernel(kernel)
    if outputs is not None:
        printed = format_outputs(outputs, OUTPUT_LIMIT, "Last lines")
        parts += printed or ["It has printed nothing yet."]
    parts.append(
        f"The cell keeps running in the background: {NOTIFIED}, so you can finish this"
        f" turn. {MEANWHILE} {_format_blocked(name, queue)}"
        f" {_format_stop_hint(commands)}; Esc does not stop it."
    )
    status = " · ".join(filter(None, [deadline, kernel]))
    line = (
        f"{RUNNING_MARK} {step_name or cell.label} · still running after {took} ·"
        f" {status} · runs in the background; to stop it, type `stop the cell`"
    )
    if last_line:
        line += f" | {last_line}"
    return Report(limit_report("\n".join(parts)), line)


def format_session_start(
    name: str,
    commands: CommandLines,
    running: str,
    seconds: float,
    deadline: str,
    last_line: str,
    is_notified: bool,
) -> str:
    """Return what a new session reads about a cell that runs in the background."""
    printed = f" The last line that it printed:\n| {last_line}" if last_line else ""
    return (
        f"stepper: {running} of {one_line(name)} is still running after"
        f" {format_seconds(seconds)} ({deadline}): {_who_is_notified(is_notified)}."
        f" {_format_stop_hint(commands)}.{printed}"
    )


def format_in_line(name: str, behind: str) -> Report:
    """Return the interim answer for a cell that waits for another cell."""
    text = (
        f"stepper: the cell has NOT run yet: it waits in line behind {behind} of"
        f" {one_line(name)}. You are notified with its report when it has run."
        f" {MEANWHILE}"
    )
    return Report(text, f"{RUNNING_MARK} the cell waits in line behind {behind}")


def format_queue_state(reason: str, until: str) -> str:
    """Return a message on a cell that waits for its kernel, with the reason.

    The cell runs when `until`; '' if it will not run.
    """
    when = f"has NOT run; it runs when {until}" if until else "does NOT run"
    return f"queued: {one_line(reason, QUEUE_LIMIT)}: the cell {when}"


def _format_blocked(name: str, queue: bool) -> str:
    if queue:
        return f"New code cells of {one_line(name)} wait in line."
    return f"New code cells of {one_line(name)} are refused until then."


def format_queued(
    name: str,
    commands: CommandLines,
    reason: str,
    until: str,
    request: str,
    queue: bool,
) -> Report:
    """Return the interim answer for a cell whose kernel is queued or busy.

    `request` is what a stop withdraws, such as a job, or an empty string if there is
    nothing.
    """
    effect = f"withdraws the {request}" if request else "cancels the cell"
    state = format_queue_state(reason, until)
    text = (
        f"stepper: {state}. You are notified with its report when it has run, so you"
        f" can finish this turn. {MEANWHILE} {_format_blocked(name, queue)}"
        f" {_format_stop_hint(commands)}, which {effect}; Esc does not."
    )
    return Report(text, f"{RUNNING_MARK} {state} · `stop the cell` {effect}")


def format_still_queued(name: str, reason: str, until: str, is_notified: bool) -> str:
    """Return what a new session reads about a cell whose kernel is queued."""
    state = format_queue_state(reason, until)
    notified = _who_is_notified(is_notified)
    return f"stepper: a cell of {one_line(name)}: {state}: {notified}."


def format_refused_queued(
    name: str, commands: CommandLines, reason: str, is_notified: bool
) -> str:
    """Return why a code cell is refused while another one waits for its kernel."""
    return (
        f"A cell of {one_line(name)} waits for its kernel"
        f" ({one_line(reason, QUEUE_LIMIT)}): this code cell was NOT written;"
        f" {_who_is_notified(is_notified)}. {MEANWHILE} {_format_stop_hint(commands)}."
        f" {QUEUE_HINT}"
    )


def format_refused(
    name: str,
    commands: CommandLines,
    running: str,
    seconds: float,
    deadline: str,
    is_notified: bool,
) -> str:
    """Return why a code cell is refused while another one runs in the background."""
    return (
        f"{running} of {one_line(name)} is still running after"
        f" {format_seconds(seconds)} ({deadline}): this code cell was NOT written;"
        f" {_who_is_notified(is_notified)}. {MEANWHILE} {_format_stop_hint(commands)}."
        f" {QUEUE_HINT}"
    )


def format_finished(name: str, report: Report) -> Report:
    """Return the notification that a background cell finished."""
    text = f"stepper: the background cell in {one_line(name)} finished.\n{report.text}"
    return replace(report, text=text)


def format_matched(
    name: str, commands: CommandLines, running: str, line: str
) -> Report:
    """Return the notification about a printed line that matches `wake=`."""
    text = (
        f"stepper: {running} of {one_line(name)} is still running."
        f" {_format_match(line)}\nWhen it finishes you are notified again, or with the"
        f" next prompt. {_format_stop_hint(commands)}."
    )
    user_line = (
        f"{RUNNING_MARK} {running} is still running · matches its `wake=` |"
        f" {one_line(line, LINE_LIMIT)}"
    )
    return Report(text, user_line)


def _format_match(line: str) -> str:
    return f"It printed a line that its `wake=` matches:\n| {one_line(line, 400)}"


def format_finished_meanwhile(name: str, text: str) -> str:
    """Return the report on a background cell that finished without a notification."""
    return (
        f"stepper: the background cell in {one_line(name)} finished in the meantime."
        f"\n{text}"
    )


def format_interrupted(name: str, is_waiting: bool) -> str:
    """Return the response to `stop the cell` before its report is available.

    `is_waiting`: the cell still waits for its kernel.
    """
    if is_waiting:
        return (
            f"stepper: the cell of {one_line(name)} that waits for its kernel will NOT"
            " run; its report follows."
        )
    return (
        f"stepper: the running cell in {one_line(name)} was interrupted; its report"
        " follows."
    )
