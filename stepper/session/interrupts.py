"""An interrupt that a user or an agent requests, and its result.

The response is sent when the execution has finished or the kernel request is withdrawn,
so that it reports what happened.
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
from stepper.session.kernel_manager import Activity
from stepper.session.session import Session

# for which the answer waits: longer than a kernel has that ignores an interrupt
ANSWER_SECONDS = 7.0
LOOK_SECONDS = 0.05
WAITS_FOR_KERNEL = (Activity.QUEUED, Activity.STARTING)


async def interrupt(session: Session) -> responses.InterruptResponse:
    """Interrupt what runs, or waits for its kernel; return what that did.

    Raise KernelUnreachableError if the interrupt waits for the connection to the kernel.
    """
    activity = session.kernel_manager.activity
    running = session.state.running
    looks = session.scratch_run
    interrupted = await session.interrupt()
    kernel = session.kernel_manager.kernel
    trouble = kernel.unreachable_reason if kernel is not None else ""
    what = f"cell {running.number or '?'}" if running else "the code"
    if trouble and (interrupted or running):
        raise KernelUnreachableError(
            interrupts.format_disconnected(what, one_line(trouble, TROUBLE_LIMIT))
        )
    if not interrupted:
        return responses.InterruptResponse(session.name, False, interrupts.NOTHING_RUNS)
    if activity is Activity.RUNNING:

        def over() -> bool:
            return (
                session.state.running is not running or session.scratch_run is not looks
            )

        ended = await _wait(over)
        text = _of_run(session, what, running, ended)
    elif activity is Activity.NONE:
        text = interrupts.NO_RETRY
    elif activity is Activity.OTHER_CLIENT:
        await _wait(lambda: session.kernel_manager.activity is not activity)
        text = interrupts.OTHER_CLIENT
    else:
        await _wait(lambda: session.kernel_manager.activity not in WAITS_FOR_KERNEL)
        text = _of_start(session)
    return responses.InterruptResponse(session.name, True, text)


async def _wait(over: Callable[[], bool]) -> bool:
    """Wait a limited time until `over` is true; return whether it is."""
    until = time.monotonic() + ANSWER_SECONDS
    while not over() and time.monotonic() < until:
        await asyncio.sleep(LOOK_SECONDS)
    return over()


def _of_run(
    session: Session, what: str, running: RunStarted | None, ended: bool
) -> str:
    """Return the effect of an interrupt on a cell or a scratch execution."""
    if not ended:
        return interrupts.format_pending(what)
    runs = reversed(session.state.runs)
    number = running.run if running else 0
    run = next((run for run in runs if number and run.run == number), None)
    return interrupts.format_finished(
        what, run, session.kernel_manager.kernel is not None
    )


def _of_start(session: Session) -> str:
    """Return the effect of an interrupt on a queued or starting kernel."""
    keeper = session.kernel_manager
    if keeper.withdrawal_result:
        return interrupts.format_withdrawn(keeper.withdrawal_result)
    if keeper.is_starting:
        queued = keeper.queue_status
        starting = interrupts.WHILE_STARTING
        return interrupts.format_withdrawing(queued.text) if queued else starting
    if keeper.kernel is None:
        return interrupts.START_FAILED
    return interrupts.WHILE_STARTING
