"""Messages about background runs: interim reports, refusals and notifications."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
OUTPUT_LIMIT = 800  # of the output of a running cell

NOTHING_RAN = "stepper: the cell did not run."
NOTIFIED = "you are notified with its report when it finishes"
OTHER_SESSION = "another session is notified when it finishes"
MEANWHILE = (
    "Meanwhile, you can edit the plan and Markdown cells, read the notebook, and work"
    " in other notebooks."
)
QUEUE_HINT = "With `queue: true` in .stepper/config.yaml, code cells are queued."


@dataclass(frozen=True, kw_only=True)
class BackgroundCell:
    """A running cell that continues in the background, for its interim report."""

    cell: Cell
    plan: Plan
    step: Step | None  # of the plan, if the cell belongs to a step
    seconds: float  # since the start of the cell
    deadline: str  # the text from `format_deadline`
    last_line: str  # the last printed line; may be empty
    outputs: Sequence[dict[str, Any]] | None  # so far; None if they are incomplete
    matched_line: str  # the line that matches the `wake=` pattern; may be empty
    kernel: str  # the location of a remote kernel; empty for a local kernel
    notes: Sequence[str]

    @property
    def step_name(self) -> str:
        """The name of the step, or an empty string."""
        if self.step is None:
            return ""
        return format_step(self.plan, self.step)


def _format_stop_hint(commands: CommandLines) -> str:
    """Return sentences on how to stop a background cell, without the final period."""
    return (
        f"To stop the cell, run `{commands.shell('interrupt')}`. The user can also type"
        " `stop the cell`"
    )


def _format_recipient(is_notified: bool) -> str:
    """Return a clause on the session that is notified: the agent's or another one.

    `is_notified` says whether the agent's session is notified.
    """
    return NOTIFIED if is_notified else OTHER_SESSION


def format_deadline(timeout: float, left_seconds: float | None) -> str:
    """Return a text with the deadline of a run and the estimated remaining time.

    `timeout` is the deadline and `left_seconds` the remaining time, both in seconds.
    `left_seconds` is None if there is no estimate.
    """
    text = f"deadline {format_span(timeout)}"
    if left_seconds is None:
        return text
    return f"{text}, ≈ {format_estimate(left_seconds)} left"


def format_still_running(
    name: str, commands: CommandLines, running: BackgroundCell, *, queue: bool
) -> Report:
    """Return the interim report on a cell that continues in the background.

    `queue` says whether new code cells are queued.
    """
    label = capitalize_first(running.cell.label)
    elapsed = format_seconds(running.seconds)
    details = ", ".join(filter(None, [running.step_name, running.deadline]))
    parts = [f"stepper: {label} is still running after {elapsed} ({details})."]
    if running.matched_line:
        parts.append(_format_match(running.matched_line))
    parts += [f"Note: {note}." for note in running.notes]
    parts += format_kernel(running.kernel)
    if running.outputs is not None:
        output = format_outputs(running.outputs, OUTPUT_LIMIT, "Last lines")
        parts += output or ["The cell has printed nothing yet."]
    parts.append(
        f"The cell keeps running in the background: {NOTIFIED}, so you can finish this"
        f" turn. {MEANWHILE} {_format_blocked(name, queue)}"
        f" {_format_stop_hint(commands)}; Esc does not stop it."
    )
    return Report(limit_report("\n".join(parts)), _format_running_line(running))


def _format_running_line(running: BackgroundCell) -> str:
    """Return the user's line on a cell that continues in the background."""
    name = running.step_name or running.cell.label
    elapsed = format_seconds(running.seconds)
    status = " · ".join(filter(None, [running.deadline, running.kernel]))
    line = (
        f"{RUNNING_MARK} {name} · still running after {elapsed} · {status} · runs in"
        " the background; to stop it, type `stop the cell`"
    )
    if running.last_line:
        return f"{line} | {running.last_line}"
    return line


def format_session_start(
    name: str,
    commands: CommandLines,
    running: str,
    seconds: float,
    deadline: str,
    last_line: str,
    *,
    is_notified: bool,
) -> str:
    """Return the text on a background cell for a new agent session.

    `running` names the cell, `seconds` is the elapsed time, and `deadline` is the text
    from `format_deadline`. `last_line` is the last printed line; it may be empty.
    `is_notified` says whether the new session is notified when the cell finishes.
    """
    last_line_note = ""
    if last_line:
        last_line_note = f" The last line that it printed:\n| {last_line}"
    return (
        f"stepper: {running} of {one_line(name)} is still running after"
        f" {format_seconds(seconds)} ({deadline}): {_format_recipient(is_notified)}."
        f" {_format_stop_hint(commands)}.{last_line_note}"
    )


def format_queued_behind(name: str, behind: str) -> Report:
    """Return the interim report on a cell that waits for the cell `behind`."""
    text = (
        f"stepper: the cell has NOT run yet: it is queued behind {behind} of"
        f" {one_line(name)}. You are notified with the report when the cell has run."
        f" {MEANWHILE}"
    )
    return Report(text, f"{RUNNING_MARK} the cell is queued behind {behind}")


def format_queue_state(reason: str, until: str) -> str:
    """Return the state of a cell that waits for its kernel.

    `reason` is the state of the queue. `until` is the condition under which the cell
    runs, or an empty string if the cell will not run.
    """
    outcome = "will NOT run"
    if until:
        outcome = f"has NOT run; it runs when {until}"
    return f"queued: {one_line(reason, QUEUE_LIMIT)}: the cell {outcome}"


def _format_blocked(name: str, queue: bool) -> str:
    """Return the sentence on new code cells, which are queued or refused."""
    if queue:
        return f"New code cells of {one_line(name)} are queued."
    return f"New code cells of {one_line(name)} are refused until then."


def format_queued(
    name: str,
    commands: CommandLines,
    reason: str,
    until: str,
    request: str,
    *,
    queue: bool,
) -> Report:
    """Return the interim report on a cell that waits for a queued or busy kernel.

    `reason` and `until` are those of `format_queue_state`. `request` names the request
    that a stop withdraws, such as `job`; it may be empty. `queue` says whether code
    cells are queued.
    """
    effect = "cancels the cell"
    if request:
        effect = f"withdraws the {request}"
    state = format_queue_state(reason, until)
    text = (
        f"stepper: {state}. You are notified with the report when the cell has run, so"
        f" you can finish this turn. {MEANWHILE} {_format_blocked(name, queue)}"
        f" {_format_stop_hint(commands)}, which {effect}; Esc does not."
    )
    return Report(text, f"{RUNNING_MARK} {state} · `stop the cell` {effect}")


def format_still_queued(
    name: str, reason: str, until: str, *, is_notified: bool
) -> str:
    """Return the text for a new agent session on a cell that waits for its kernel.

    `reason` and `until` are those of `format_queue_state`. `is_notified` says whether
    the new session is notified when the cell finishes.
    """
    outcome = "It will NOT run"
    if until:
        outcome = f"It has NOT run; it runs when {until}"
    return (
        f"stepper: a cell of {one_line(name)} is queued"
        f" ({one_line(reason, QUEUE_LIMIT)}). {outcome},"
        f" and {_format_recipient(is_notified)}."
    )


def format_refused_queued(
    name: str, commands: CommandLines, reason: str, *, is_notified: bool
) -> str:
    """Return the message on a code cell that is refused while another cell waits.

    `reason` says why the other cell waits. `is_notified` says whether the agent's
    session is notified when that cell finishes.
    """
    return (
        f"This code cell was NOT written: a cell of {one_line(name)} waits for its"
        f" kernel ({one_line(reason, QUEUE_LIMIT)}); {_format_recipient(is_notified)}."
        f" {MEANWHILE} {_format_stop_hint(commands)}."
        f" {QUEUE_HINT}"
    )


def format_refused(
    name: str,
    commands: CommandLines,
    running: str,
    seconds: float,
    deadline: str,
    *,
    is_notified: bool,
) -> str:
    """Return the message on a code cell that is refused while another cell is running.

    `running` names the running cell, `seconds` is the elapsed time, and `deadline` is
    the text from `format_deadline`. `is_notified` says whether the agent's session is
    notified when that cell finishes.
    """
    return (
        f"This code cell was NOT written: {running} of {one_line(name)} is still"
        f" running after {format_seconds(seconds)} ({deadline});"
        f" {_format_recipient(is_notified)}. {MEANWHILE} {_format_stop_hint(commands)}."
        f" {QUEUE_HINT}"
    )


def format_finished(name: str, report: Report) -> Report:
    """Return the notification that a background cell finished, with its report."""
    text = f"stepper: the background cell in {one_line(name)} finished.\n{report.text}"
    return replace(report, text=text)


def format_matched(
    name: str, commands: CommandLines, running: str, line: str
) -> Report:
    """Return the notification of a line that matches the cell's `wake=` pattern.

    `running` names the running cell, `line` is the line.
    """
    text = (
        f"stepper: {running} of {one_line(name)} is still running."
        f" {_format_match(line)}\nWhen the cell finishes, you get another"
        " notification, or the report comes with your next code cell or the user's next"
        f" prompt. {_format_stop_hint(commands)}."
    )
    user_line = (
        f"{RUNNING_MARK} {running} is still running · printed a line that matches"
        f" `wake=` | {one_line(line, LINE_LIMIT)}"
    )
    return Report(text, user_line)


def _format_match(line: str) -> str:
    """Return the text on a printed line that matches the `wake=` pattern."""
    shown = one_line(line, 400)
    return f"The cell printed a line that matches its `wake=` pattern:\n| {shown}"


def format_finished_meanwhile(name: str, text: str) -> str:
    """Return the late report on a background cell that finished without a notification.

    `text` is the text of the report.
    """
    return (
        f"stepper: the background cell in {one_line(name)} finished in the meantime."
        f"\n{text}"
    )


def format_interrupted(name: str, is_waiting: bool) -> str:
    """Return the response to `stop the cell` before the cell's report is available.

    `is_waiting` says whether the cell still waits for its kernel.
    """
    if is_waiting:
        return (
            f"stepper: the cell of {one_line(name)} that waits for its kernel will NOT"
            " run; the cell's report follows."
        )
    return (
        f"stepper: the running cell in {one_line(name)} was interrupted; its report"
        " follows."
    )
