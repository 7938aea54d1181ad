"""The line below the client's prompt: progress, the running cell, the kernel's memory."""

from __future__ import annotations

from stepper.common.text import format_count, one_line
from stepper.messages.quoted_output import format_span
from stepper.policy.kernel_namespace import Namespace
from stepper.policy.model import Key, Step, StepStatus
from stepper.policy.notebook_state import FINISHED, State

# Marks at the start of the line.
RUNNING_MARK = "⏵"
QUEUED_MARK = "⧖"
STOPPED_MARK = "■"
COMPLETE_MARK = "✓"
FAILED_MARK = "✗"
IDLE_MARK = "·"

OPEN_WORDS = {
    "failed": "failed",
    "interrupted": "interrupted",
    "changed": "changed",
    "pending": "not run",
    "stale": "stale",
}
# Sizes in characters.
TITLE_LIMIT = 40
MESSAGE_LIMIT = 80
NAME_LIMIT = 30


def format_status_line(
    state: State,
    running: str,
    clock: str,
    queued: str,
    namespace: Namespace,
    frame: str,
    memory: int,
) -> str:
    """Return the line on a notebook, '' if there is nothing to show.

    `running` names a running cell outside the plan, `clock` is its time (see
    `format_clock`), `queued` what a cell waits for, `frame` the variable whose shape is
    shown, `memory` the kernel's bytes.
    """
    mark, parts = _format_progress(state, running, clock, queued)
    if not parts:
        return ""
    if frame in namespace.variables:
        shape = namespace.variables[frame].shape
        if shape:
            parts.append(f"{one_line(frame, NAME_LIMIT)} {_format_shape(shape)}")
    if memory:
        parts.append(f"{memory / 1e6:,.0f} MB")
    return f"{mark} " + " · ".join(filter(None, parts))


def _format_shape(shape: tuple[int | str, ...]) -> str:
    sizes = [f"{size:,}" if isinstance(size, int) else size for size in shape]
    return "×".join(sizes)


def _format_progress(
    state: State, running: str, clock: str, queued: str
) -> tuple[str, list[str]]:
    """Return the mark and the parts of the line on the plan and the running cell."""
    if queued:
        return QUEUED_MARK, [_format_next(state), one_line(queued, MESSAGE_LIMIT)]
    if clock:
        step = _find_step(state, state.running.key if state.running else None)
        name = _format_step(state, step) if step else running
        return RUNNING_MARK, [name, clock]
    if state.stop:
        step = _find_step(state, state.stop.key)
        name = _format_step(state, step) if step else ""
        error = one_line(state.stop.error, MESSAGE_LIMIT)
        return STOPPED_MARK, [name, f"stopped: {error}"]
    if state.is_complete:
        return COMPLETE_MARK, [_format_complete(state)]
    if state.plan.steps and not state.open_steps and state.open_cells:
        return _format_open_cells(state)
    last = _find_step(state, state.last_key)
    if last and state.status_of(last.id) is StepStatus.FAILED:
        attempts = state.progress_of(last.id).attempts
        used = f", {attempts} of its retries used" if attempts else ""
        return FAILED_MARK, [_format_step(state, last), f"failed{used}"]
    return IDLE_MARK, [_format_next(state)]


def _find_step(state: State, key: Key | None) -> Step | None:
    return state.plan.find_step(key) if isinstance(key, int) else None


def _format_complete(state: State) -> str:
    total = len(state.plan.steps)
    statuses = [state.status_of(step.id) for step in state.plan.steps]
    skipped = statuses.count(StepStatus.SKIPPED)
    if skipped:
        return f"complete, {total - skipped} done, {skipped} skipped"
    return f"{total}/{total} complete"


def _format_open_cells(state: State) -> tuple[str, list[str]]:
    """Return the mark and parts for cells outside the plan that failed or did not run."""
    mark = FAILED_MARK if state.is_failing else IDLE_MARK
    failed = [
        cell for cell in state.open_cells if cell.status == StepStatus.FAILED.value
    ]
    cells = failed or state.open_cells
    more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
    steps = f"{format_count(len(state.plan.steps), 'step')} over"
    first = cells[0]
    return mark, [steps, f"cell {first.number}{more} {OPEN_WORDS[first.status]}"]


def _format_next(state: State) -> str:
    """Return the next step, '' if none is open."""
    for step in state.plan.steps:
        if state.status_of(step.id) not in FINISHED:
            return _format_step(state, step)
    return ""


def _format_step(state: State, step: Step) -> str:
    position = f"{state.plan.position_of(step.id)}/{len(state.plan.steps)}"
    return f"{position} {one_line(step.title, TITLE_LIMIT)}"


def format_clock(seconds: float, timeout: float) -> str:
    """Return how long a cell has been running, and its deadline."""
    deadline = format_span(timeout)
    if seconds < 600:
        return f"{seconds:.0f} s of {deadline.removesuffix(' s')}"
    return f"{seconds / 60:.0f} min of {deadline}"


def choose_frame(namespace: Namespace, previous: str) -> str:
    """Return the variable whose shape is shown.

    This is the last assigned variable with a shape, else the previous choice, else the
    largest one; '' if no variable has a shape.
    """
    shaped = [name for name, variable in namespace.variables.items() if variable.shape]
    assigned = [name for name in namespace.rebound if name in shaped]
    if assigned:
        return assigned[-1]
    if previous in shaped:
        return previous
    return max(shaped, key=lambda name: namespace.variables[name].bytes, default="")
