"""Fault → one action of the person, for the last line of a stop."""

from __future__ import annotations

from stepper.policy import classify
from stepper.policy.model import Fault, Outcome, Verdict

ELSE = "tell the agent what it lacks and /fix, or /skip this step"
DECIDE = "decide what the message asks, tell the agent, then /continue or /fix"
TIMEOUT = "let the cell do less, or give it more time (first line `# stepper: timeout=10m`), then /fix"
NETWORK = "see whether the network and the server are there, then /fix"

# By the words of classify.words, classes without their module. The first row whose word the fault has decides.
ACTIONS: tuple[tuple[str, str], ...] = (
    ("KernelStartFailed", "stepper doctor  # then /fix"),
    (
        "OutOfMemory",
        "let the cell work on less data at a time, then /fix; `stepper restore` runs the steps before it again",
    ),
    (
        "KernelDied",
        "change the cell that ended the kernel, then /fix; `stepper restore` runs the steps before it again",
    ),
    ("MemoryLimit", "let the cell work on less data at a time, or raise max_memory_percent, then /fix"),
    ("MemoryError", "let the cell work on less data at a time, then /fix"),
    ("SystemExit", "take exit() out of the cell, then /fix"),
    ("KeyboardInterrupt", "say why the cell was interrupted, or take the interrupt out of it, then /fix"),
    (
        "StdinNotImplementedError",
        "put the value into the cell instead of asking for it with input(), or take the debugger (%debug, %pdb) out,"
        " then /fix",
    ),
    ("PermissionError", "give access to {filename}, or name another place, then /fix"),
    ("errno ENOSPC", "free disk space, then /fix"),
    ("errno EDQUOT", "free disk space, then /fix"),
    ("errno EMFILE", "let the cell close its files, or allow more of them (`ulimit -n`), then /fix"),
    ("errno ENFILE", "see to the machine's open files, then /fix"),
    ("errno EIO", "see to the disk or device of {filename}, then /fix"),
)


def action(outcome: Outcome, verdict: Verdict, fault: Fault | None) -> str:
    """Return what a person can do about a fault that stopped the notebook; one line."""
    if fault is None:
        return ELSE
    if outcome is Outcome.ERROR and classify.asks_to_stop(fault):
        return DECIDE
    if verdict is Verdict.TRANSIENT:
        if "HTTP 429" in classify.words(fault):
            return "wait until the server takes requests again, then /fix"
        return NETWORK
    if outcome is Outcome.TIMEOUT:
        return TIMEOUT
    words = {word.rsplit(".", 1)[-1] for word in classify.words(fault) | classify.causes(fault)}
    for word, text in ACTIONS:
        if word in words:
            return text.format(filename=_printable(fault.attributes.get("filename")) or "the file")
    return ELSE


def _printable(name: object) -> str:
    """Return a file's name such that it stays on its line: a name may hold line breaks and escapes."""
    text = "" if name is None else str(name)
    return text if text.isprintable() else ascii(text)
