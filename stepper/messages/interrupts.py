"""The texts on an interrupt that was asked for: what it did to the cell and to the kernel."""

from __future__ import annotations

from stepper.policy.model import Outcome, Run

NOTHING_RUNS = "no cell is running"
NO_KERNEL_YET = "its kernel had not started yet"
WHILE_STARTING = "the cell does not run; its kernel starts and stays available"
START_FAILED = "the cell did not run: its kernel could not be started"
OTHER_CLIENT = (
    "the cell did not run: it was waiting for another client's execution, which goes on"
)
NO_RETRY = "the cell is not retried; the kernel keeps its variables"


def withdrawn(result: str) -> str:
    """Return what an interrupt did while a kernel waited in a queue."""
    return f"the cell did not run: {NO_KERNEL_YET}; {result}"


def withdrawing(queued: str) -> str:
    """Return that giving up a queued kernel takes longer than an answer may."""
    return f"the cell does not run: {NO_KERNEL_YET}; {queued}"


def of_run(what: str, run: Run | None, alive: bool) -> str:
    """Return what an interrupt did to an execution that has ended."""
    if not alive:
        return (
            f"{what} was interrupted, and the kernel has ended: its variables are lost"
        )
    if run is not None and run.outcome is not Outcome.CANCELLED:
        return f"{what} had ended before the interrupt; the kernel keeps its variables"
    return f"interrupted {what}; the kernel keeps its variables"


def sent(what: str) -> str:
    """Return that an execution has not ended yet although it was interrupted."""
    return f"an interrupt was sent; {what} has not ended yet"


def line_down(what: str, trouble: str) -> str:
    """Return that an interrupt waits for the connection to the kernel."""
    return f"{trouble}. {what} is interrupted when the connection is back"
