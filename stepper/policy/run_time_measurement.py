"""Measure how long a cell ran, from the timestamps of the kernel's messages."""

from __future__ import annotations

from collections.abc import Mapping

from stepper.policy.model import parse_moment

# Reports mention waiting times of at least this length.
NOTABLE_SECONDS = 2.0
# The clocks of the kernel and of stepper may differ by this much.
TOLERANCE_SECONDS = 0.1


def measure_busy_seconds(timings: Mapping[str, str], elapsed: float) -> float:
    """Return the seconds that the kernel was busy with a request.

    `timings` has the keys of nbclient's cell metadata, such as `iopub.status.busy`.
    `elapsed` is the total time of the request in seconds, which is returned if the
    timings are missing, imprecise or impossible.
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
    busy_seconds: float, elapsed: float, *, has_reconnected: bool
) -> list[str]:
    """Return a note on the time that a request waited before or after the cell ran.

    `elapsed` is the total time of the request in seconds. `has_reconnected` says that
    the connection to the kernel was lost and restored. Return an empty list if the
    waiting time is less than NOTABLE_SECONDS.
    """
    waiting_seconds = elapsed - busy_seconds
    if waiting_seconds < NOTABLE_SECONDS:
        return []
    reason = "before and after the execution"
    if has_reconnected:
        reason = "while the connection to the kernel was down"
    return [f"the time does not include {waiting_seconds:.1f} s {reason}"]
