"""Messages about the effect of an interrupt on the cell and on the kernel."""

from __future__ import annotations

from stepper.policy.model import Outcome, Run

NOTHING_RUNS = "no cell is running"
NO_KERNEL_YET = "its kernel had not started yet"
WHILE_STARTING = "the cell does not run; its kernel starts and stays available"
START_FAILED = "the cell did not run: its kernel could not be started"
OTHER_CLIENT = (
    "the cell did not run: it was waiting for another client's execution, which"
    " continues"
)
NO_RETRY = "the cell is not retried; the kernel keeps its variables"


def format_withdrawn(result: str) -> str:
    """Return a message on a cell whose kernel was not started, because of an interrupt.

    `result` is the result of cancelling the start.
    """
    return f"the cell did not run: {NO_KERNEL_YET}; {result}"


def format_withdrawing(queue_state: str) -> str:
    """Return a message on a cell while the start of its kernel is being cancelled."""
    return (
        "the cell will not run: it was interrupted before its kernel started;"
        f" {queue_state}"
    )


def format_finished(target: str, run: Run | None, is_alive: bool) -> str:
    """Return the effect of an interrupt on an execution that has finished.

    `target` names the execution. `run` is the run of the cell, or None for a scratch
    execution. `is_alive` says whether the kernel is still running.
    """
    if not is_alive:
        return (
            f"{target} was interrupted, and the kernel exited: its variables are lost"
        )
    if run is not None and run.outcome is not Outcome.CANCELLED:
        return (
            f"{target} had finished before the interrupt; the kernel keeps its"
            " variables"
        )
    return f"interrupted {target}; the kernel keeps its variables"


def format_pending(target: str) -> str:
    """Return a message on an execution that an interrupt has not stopped yet."""
    return f"an interrupt was sent; {target} has not stopped yet"


def format_disconnected(target: str, trouble: str) -> str:
    """Return a message on an interrupt that waits for the connection to the kernel.

    `trouble` says why the kernel is unreachable.
    """
    return f"{trouble}; {target} will be interrupted when the connection is restored"
