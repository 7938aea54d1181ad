"""Measure how long a cell ran, from the timestamps of the kernel's messages."""

from __future__ import annotations

from collections.abc import Mapping

from stepper.policy.model import parse_moment

# Reports mention waiting times from this on.
NOTABLE_SECONDS = 2.0
# The clocks of the kernel and of stepper may differ by this.
TOLERANCE_SECONDS = 0.1


def measure_busy_seconds(timings: Mapping[str, str], elapsed: float) -> float:
    """Return how long the kernel was busy with a request that took `elapsed` seconds.

    `timings` has the keys of nbclient's cell metadata, such as `iopub.status.busy`. If
    the timings are missing, imprecise or impossible, return `elapsed`.
    """
    try:
        busy = parse_moment(timings["iopub.status.busy"])
        idle = parse_moment(timings["iopub.status.idle"])
        seconds = (idle - busy).total_seconds()
    except (KeyError, ValueError, TypeError):
        return elapsed
    # Some kernels send whole seconds, which are less precise than `elapsed`.
    is_precise = bool(busy.microsecond or idle.microsecond)
    is_possible = 0.0 <= seconds <= elapsed + TOLERANCE_SECONDS
    return seconds if is_precise and is_possible else elapsed


def note_waiting_time(
    busy_seconds: float, elapsed: float, has_reconnected: bool
) -> list[str]:
    """Return a note on the time that a request waited, in addition to the cell's run.

    The list is empty if the time is short.
    """
    waiting_seconds = elapsed - busy_seconds
    if waiting_seconds < NOTABLE_SECONDS:
        return []
    reason = "before and after the execution"
    if has_reconnected:
        reason = "while the connection to the kernel was down"
    return [f"the time does not include {waiting_seconds:.1f} s {reason}"]
