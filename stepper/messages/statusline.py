"""The line below a client's prompt: how far a notebook is, what runs in it, what its kernel holds. It is bounded."""

from __future__ import annotations

from stepper.common.text import format_count, one_line
from stepper.messages.quoted_output import span
from stepper.policy.kernel_namespace import Namespace
from stepper.policy.model import Step, StepStatus
from stepper.policy.notebook_state import OVER, State

RUNS, WAITS, STOPPED, COMPLETE, FAILED, RESTS = "⏵", "⧖", "■", "✓", "✗", "·"
OPEN_WORDS = {
    "failed": "failed",
    "interrupted": "interrupted",
    "changed": "changed",
    "pending": "not run",
    "stale": "stale",
}
TITLE, SAID, NAME = 40, 80, 30  # characters


def line(
    state: State,
    where: str,
    clock: str,
    queued: str,
    known: Namespace,
    frame: str,
    memory: int,
) -> str:
    """Return the line on a notebook; '' where nothing is to be said of it.

    `where` is what runs in no step, `clock` for how long, `queued` what is waited for, `frame` the name of what is
    shown of the kernel, `memory` its bytes.
    """
    mark, told = _standing(state, where, clock, queued)
    shape = known.variables[frame].shape if frame in known.variables else None
    held = (
        f"{one_line(frame, NAME)} {'×'.join(f'{n:,}' if isinstance(n, int) else n for n in shape)}"
        if shape
        else ""
    )
    size = f"{memory / 1e6:,.0f} MB" if memory else ""
    return f"{mark} " + " · ".join(filter(None, [*told, held, size])) if told else ""


def _standing(
    state: State, where: str, clock: str, queued: str
) -> tuple[str, list[str]]:
    running = state.running
    step = (
        state.plan.step(running.key)
        if running and isinstance(running.key, int)
        else None
    )
    if queued:
        return WAITS, [_next(state), one_line(queued, SAID)]
    if clock:
        return RUNS, [_step(state, step) if step else where, clock]
    if state.stop:
        failed = (
            state.plan.step(state.stop.key) if isinstance(state.stop.key, int) else None
        )
        return STOPPED, [
            _step(state, failed) if failed else "",
            f"stopped: {one_line(state.stop.error, SAID)}",
        ]
    if state.complete:
        total = len(state.plan.steps)
        skipped = sum(
            state.standing(step.id) is StepStatus.SKIPPED for step in state.plan.steps
        )
        if skipped:
            return COMPLETE, [f"complete, {total - skipped} done, {skipped} skipped"]
        return COMPLETE, [f"{total}/{total} complete"]
    if state.plan.steps and not state.left and state.open_cells:
        mark = FAILED if state.failing else RESTS
        failed_cells = [
            cell for cell in state.open_cells if cell.status == StepStatus.FAILED.value
        ]
        shown = failed_cells or state.open_cells
        more = f" and {len(shown) - 1} more" if len(shown) > 1 else ""
        first = shown[0]
        over = f"{format_count(len(state.plan.steps), 'step')} over"
        return mark, [over, f"cell {first.number}{more} {OPEN_WORDS[first.status]}"]
    last = state.plan.step(state.last) if isinstance(state.last, int) else None
    if last and state.standing(last.id) is StepStatus.FAILED:
        attempts = state.of(last.id).attempts
        return FAILED, [
            _step(state, last),
            f"failed, {attempts} of its retries used" if attempts else "failed",
        ]
    return RESTS, [_next(state)]


def _next(state: State) -> str:
    """Return the step that is to come."""
    step = next(
        (step for step in state.plan.steps if state.standing(step.id) not in OVER), None
    )
    return _step(state, step) if step else ""


def _step(state: State, step: Step) -> str:
    return f"{state.plan.position(step.id)}/{len(state.plan.steps)} {one_line(step.title, TITLE)}"


def clock(seconds: float, timeout: float) -> str:
    """Return for how long a cell runs, of its deadline."""
    took = f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
    return f"{took} of {span(timeout).removesuffix(' s') if seconds < 600 else span(timeout)}"


def frame(known: Namespace, before: str) -> str:
    """Return the name of what is shown of a kernel: the last bound of what has a shape, else the one `before`."""
    shaped = [name for name, variable in known.variables.items() if variable.shape]
    fresh = [name for name in known.rebound if name in shaped]
    if fresh or before in shaped:
        return fresh[-1] if fresh else before
    return max(shaped, key=lambda name: known.variables[name].bytes, default="")
