"""The text of Claude Code's status line: progress, running cell and kernel memory."""

from __future__ import annotations

from typing import NamedTuple

from stepper.common.text import format_count, one_line
from stepper.messages.marks import (
    FAILED_MARK,
    INTERRUPTED_MARK,
    OK_MARK,
    PENDING_MARK,
    RUNNING_MARK,
    WAITING_MARK,
)
from stepper.messages.quoted_output import format_span
from stepper.policy.model import Key, Step, StepStatus
from stepper.policy.namespace_model import Namespace
from stepper.policy.notebook_state import FINISHED, State

OPEN_WORDS = {
    "failed": "failed",
    "interrupted": "interrupted",
    "changed": "changed",
    "pending": "not run",
    "stale": "stale",
    "hidden state": "used hidden state",
}
# Sizes in characters.
TITLE_LIMIT = 40
MESSAGE_LIMIT = 80
NAME_LIMIT = 30


class _Progress(NamedTuple):
    """The mark at the start of the line, and the first parts of the text."""

    mark: str
    parts: list[str]


def format_status_line(
    state: State,
    running: str,
    clock: str,
    queue_reason: str,
    namespace: Namespace,
    frame: str,
    memory: int,
) -> str:
    """Return the line on a notebook, or an empty string if there is nothing to show.

    `running` names a running cell outside the plan. `clock` is the text of
    `format_clock` for the running cell, `queue_reason` the reason why a cell waits;
    both may be empty. `frame` is the variable with the shape to show, `memory` the
    kernel's memory in bytes.
    """
    mark, parts = _format_progress(state, running, clock, queue_reason)
    if frame in namespace.variables:
        shape = namespace.variables[frame].shape
        if shape:
            name = one_line(frame, NAME_LIMIT)
            parts.append(f"{name} {_format_shape(shape)}")
    if memory:
        megabytes = memory / 1e6
        parts.append(f"{megabytes:,.0f} MB")
    text = " · ".join(filter(None, parts))
    return f"{mark} {text}" if text else ""


def _format_shape(shape: tuple[int | str, ...]) -> str:
    """Return a shape such as `1,000×20`."""
    sizes = []
    for size in shape:
        if isinstance(size, int):
            sizes.append(f"{size:,}")
        else:
            sizes.append(size)
    return "×".join(sizes)


def _format_progress(
    state: State, running: str, clock: str, queue_reason: str
) -> _Progress:
    """Return the mark and the text on the progress.

    The text is on the queue, the running cell, the stop, the completion, the open cells
    or the failed step: the first of these that exists. Otherwise the text is on the
    next step. Each part may be empty.
    """
    if queue_reason:
        reason = one_line(queue_reason, MESSAGE_LIMIT)
        return _Progress(WAITING_MARK, [_format_next(state), reason])
    if clock:
        key = None
        if state.running:
            key = state.running.key
        name = _format_step_name(state, key) or running
        return _Progress(RUNNING_MARK, [name, clock])
    if state.stop:
        name = _format_step_name(state, state.stop.key)
        error = one_line(state.stop.error, MESSAGE_LIMIT)
        return _Progress(INTERRUPTED_MARK, [name, f"stopped: {error}"])
    if state.is_complete:
        return _Progress(OK_MARK, [_format_complete(state)])
    if state.plan.steps and not state.open_steps and state.open_cells:
        return _format_open_cells(state)
    last_key = state.last_key
    name = _format_step_name(state, last_key)
    if last_key and name and state.get_step_status(last_key) is StepStatus.FAILED:
        result = "failed"
        attempts = state.get_progress(last_key).attempts
        if attempts:
            retries = "1 retry" if attempts == 1 else f"{attempts} retries"
            result += f", {retries} used"
        return _Progress(FAILED_MARK, [name, result])
    return _Progress(PENDING_MARK, [_format_next(state)])


def _format_step_name(state: State, key: Key | None) -> str:
    """Return the position and title of a step, or an empty string.

    `key` is the id of the step, the id of a cell outside the plan, or None.
    """
    if not isinstance(key, int):
        return ""
    step = state.plan.find_step(key)
    if step:
        return _format_step(state, step)
    return ""


def _format_complete(state: State) -> str:
    """Return the text on a complete notebook."""
    total = len(state.plan.steps)
    statuses = [state.get_step_status(step.id) for step in state.plan.steps]
    skipped_count = statuses.count(StepStatus.SKIPPED)
    if skipped_count:
        done = total - skipped_count
        return f"complete, {done} done, {skipped_count} skipped"
    return f"{total}/{total} complete"


def _format_open_cells(state: State) -> _Progress:
    """Return the mark and the text on open cells."""
    mark = FAILED_MARK if state.is_failing else PENDING_MARK
    failed_cells = [
        cell for cell in state.open_cells if cell.status == StepStatus.FAILED.value
    ]
    cells = failed_cells or state.open_cells
    cell = cells[0]
    name = f"cell {cell.number}"
    if len(cells) > 1:
        other_count = len(cells) - 1
        name += f" and {other_count} more"
    steps = format_count(len(state.plan.steps), "step")
    parts = [f"{steps} finished", f"{name} {OPEN_WORDS[cell.status]}"]
    return _Progress(mark, parts)


def _format_next(state: State) -> str:
    """Return the position and title of the next step, or an empty string."""
    for step in state.plan.steps:
        if state.get_step_status(step.id) not in FINISHED:
            return _format_step(state, step)
    return ""


def _format_step(state: State, step: Step) -> str:
    """Return the position and title of a step, such as `2/7 Load the data`."""
    position = state.plan.get_position(step.id)
    total = len(state.plan.steps)
    title = one_line(step.title, TITLE_LIMIT)
    return f"{position}/{total} {title}"


def format_clock(seconds: float, timeout: float) -> str:
    """Return the elapsed time of a running cell and its deadline (in seconds)."""
    deadline = format_span(timeout)
    if seconds < 600:
        without_unit = deadline.removesuffix(" s")
        return f"{seconds:.0f} s of {without_unit}"
    minutes = seconds / 60
    return f"{minutes:.0f} min of {deadline}"


def choose_frame(namespace: Namespace, previous: str) -> str:
    """Return the name of the variable with the shape to show.

    The order of precedence is: the last assigned variable with a shape, the `previous`
    choice, the largest variable with a shape. Return an empty string if no variable has
    a shape.
    """
    sizes = {
        name: variable.bytes
        for name, variable in namespace.variables.items()
        if variable.shape
    }
    for name in reversed(namespace.rebound):
        if name in sizes:
            return name
    if previous in sizes:
        return previous
    return max(sizes, key=sizes.__getitem__, default="")
