"""Messages about a requested interrupt: its effect on the cell and on the kernel."""

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
    """Return the effect on a queued kernel; `result` is that of the withdrawal."""
    return f"the cell did not run: {NO_KERNEL_YET}; {result}"


def format_withdrawing(queue_state: str) -> str:
    """Return that withdrawing a queued kernel takes longer than a response may."""
    return f"the cell does not run: {NO_KERNEL_YET}; {queue_state}"


def format_finished(target: str, run: Run | None, is_alive: bool) -> str:
    """Return the effect on an execution that has finished.

    `target` names the execution; `is_alive`: its kernel still runs.
    """
    if not is_alive:
        return (
            f"{target} was interrupted, and the kernel has ended: its variables are"
            " lost"
        )
    if run is not None and run.outcome is not Outcome.CANCELLED:
        return (
            f"{target} had ended before the interrupt; the kernel keeps its variables"
        )
    return f"interrupted {target}; the kernel keeps its variables"


def format_pending(target: str) -> str:
    """Return that an interrupted execution has not finished yet."""
    return f"an interrupt was sent; {target} has not ended yet"


def format_disconnected(target: str, trouble: str) -> str:
    """Return that an interrupt waits for the connection to the kernel."""
    return f"{trouble}. {target} is interrupted when the connection is back"
