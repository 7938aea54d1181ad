"""How long a cell itself ran, by the kernel's own messages, and what a report says of the rest."""

from __future__ import annotations

from collections.abc import Mapping

from stepper.policy.model import instant

# of waiting, from which on reports mention it
NOTABLE_SECONDS = 2.0
# by which the kernel's time may exceed what stepper measured: two clocks
TOLERANCE_SECONDS = 0.1


def own_seconds(timings: Mapping[str, str], elapsed: float) -> float:
    """Return how long the kernel was busy with a request that took `elapsed` seconds.

    `timings` are those of nbclient, from the headers of the kernel's messages. Without
    them, or if they can't be right, return `elapsed`.
    """
    try:
        busy = instant(timings["iopub.status.busy"])
        idle = instant(timings["iopub.status.idle"])
        own = (idle - busy).total_seconds()
    except (KeyError, ValueError, TypeError):
        return elapsed
    # a kernel that stamps whole seconds says less than a clock here
    exact = bool(busy.microsecond or idle.microsecond)
    possible = 0.0 <= own <= elapsed + TOLERANCE_SECONDS
    return own if exact and possible else elapsed


def waiting_note(own: float, elapsed: float, reconnected: bool) -> list[str]:
    """Return a note on the time that passed besides the execution, if it is notable."""
    waited = elapsed - own
    if waited < NOTABLE_SECONDS:
        return []
    what = "while the connection to the kernel was down"
    besides = what if reconnected else "before and after the execution"
    return [f"the time does not include {waited:.1f} s {besides}"]
