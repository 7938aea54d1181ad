"""Fault → one action for the person, for the last line of a stop."""

from __future__ import annotations

import errno

from stepper.core import classify
from stepper.core.model import Fault, Outcome, Verdict

ELSE = "tell the agent what it lacks and /fix, or /skip this step"
# The first row whose class stands in the fault's MRO decides.
ACTIONS: tuple[tuple[str, str], ...] = (
    ("KernelStartFailed", "stepper doctor  # then /fix"),
    ("KernelDied", "change the cell that ended the kernel, then /fix and run the steps before it again: `stepper run`"),
    ("MemoryLimit", "let the cell work on less data at a time, or raise max_memory_percent, then /fix"),
    ("MemoryError", "let the cell work on less data at a time, then /fix"),
    ("SystemExit", "take exit() out of the cell, then /fix"),
    ("StdinNotImplementedError", "put the value into the cell instead of asking for it with input(), then /fix"),
    ("PermissionError", "give access to {filename}, or name another place, then /fix"),
)


def action(outcome: Outcome, verdict: Verdict, fault: Fault | None) -> str:
    """Return what a person can do about a fault that stopped the notebook."""
    if fault is None:
        return ELSE
    names = {name.rsplit(".", 1)[-1] for name in fault.mro}
    if classify.asks_to_stop(fault):
        return "decide what the message asks, tell the agent, then /continue or /fix"
    if "OSError" in names and fault.attributes.get("errno") in classify.FATAL_ERRNOS:
        full = fault.attributes.get("errno") in (errno.ENOSPC, errno.EDQUOT)
        return ("free disk space" if full else "see to the machine's files and devices") + ", then /fix"
    if verdict is Verdict.TRANSIENT:
        return "see whether the network and the server are there, then /fix"
    if outcome is Outcome.TIMEOUT:
        return "let the cell do less, or give it more time (first line `# stepper: timeout=10m`), then /fix"
    for name, text in ACTIONS:
        if name in names:
            return text.format(filename=fault.attributes.get("filename") or "the file")
    return ELSE
