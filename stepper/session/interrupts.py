"""Interrupts running code for a user or an agent, and reports the effect.

The response is sent when the execution has finished or the request for the kernel is
withdrawn, or after a time limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from stepper.common.errors import KernelUnreachableError
from stepper.common.text import one_line
from stepper.messages import interrupts
from stepper.messages.quoted_output import TROUBLE_LIMIT
from stepper.policy.journal_events import RunStarted
from stepper.session import responses
from stepper.session.session import Session
from stepper.session.session_state.kernel_manager import Activity

# How long the response waits for the result: longer than stepper waits for a kernel
# that ignores an interrupt.
RESPONSE_SECONDS = 7.0
POLL_SECONDS = 0.05
WAITS_FOR_KERNEL = (Activity.QUEUED, Activity.STARTING)


async def interrupt(session: Session) -> responses.InterruptResponse:
    """Interrupt the running code or the start of the kernel.

    The text of the response describes the effect. Raise KernelUnreachableError if the
    interrupt is delayed until the kernel can be reached.
    """
    manager = session.kernel_manager
    activity = manager.activity
    running = session.state.running
    scratch_run = session.requests.scratch_run
    is_interrupted = await session.interrupt()
    problem = ""
    if manager.kernel is not None:
        problem = manager.kernel.unreachable_reason
    target = "the code"
    if running:
        target = f"cell {running.number or '?'}"
    if problem and (is_interrupted or running):
        raise KernelUnreachableError(
            interrupts.format_disconnected(target, one_line(problem, TROUBLE_LIMIT))
        )
    if not is_interrupted:
        return responses.InterruptResponse(
            session.name, interrupted=False, text=interrupts.NOTHING_RUNS
        )
    if activity is Activity.RUNNING:
        has_finished = await _wait_until(
            lambda: (
                session.state.running is not running
                or session.requests.scratch_run is not scratch_run
            )
        )
        text = _describe_interrupted_run(
            session, target, running, has_finished=has_finished
        )
    elif activity is Activity.NONE:
        text = interrupts.NO_RETRY
    elif activity is Activity.OTHER_CLIENT:
        await _wait_until(lambda: manager.activity is not activity)
        text = interrupts.OTHER_CLIENT
    else:
        await _wait_until(lambda: manager.activity not in WAITS_FOR_KERNEL)
        text = _describe_interrupted_start(session)
    return responses.InterruptResponse(session.name, interrupted=True, text=text)


async def _wait_until(condition: Callable[[], bool]) -> bool:
    """Wait up to RESPONSE_SECONDS for a condition; return whether it is true."""
    deadline = time.monotonic() + RESPONSE_SECONDS
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(POLL_SECONDS)
    return condition()


def _describe_interrupted_run(
    session: Session, target: str, running: RunStarted | None, *, has_finished: bool
) -> str:
    """Return a text on the effect of an interrupt on a cell or a scratch execution.

    `target` names the interrupted code. `running` is the run of the cell, or None for a
    scratch execution. `has_finished` means that the code is no longer running.
    """
    if not has_finished:
        return interrupts.format_pending(target)
    run = None
    if running and running.run:
        run = session.state.find_run(running.run)
    has_kernel = session.kernel_manager.kernel is not None
    return interrupts.format_finished(target, run, has_kernel)


def _describe_interrupted_start(session: Session) -> str:
    """Return a text on the effect of an interrupt on a queued or starting kernel."""
    manager = session.kernel_manager
    if manager.withdrawal_result:
        return interrupts.format_withdrawn(manager.withdrawal_result)
    if manager.is_starting and manager.queue_status:
        return interrupts.format_withdrawing(manager.queue_status.text)
    if manager.is_starting or manager.kernel is not None:
        return interrupts.WHILE_STARTING
    return interrupts.START_FAILED
