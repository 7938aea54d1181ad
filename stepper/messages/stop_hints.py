"""Fault → one action of the person, for the last line of a stop."""

from __future__ import annotations

from stepper.common.text import one_line
from stepper.messages.quoted_output import span
from stepper.policy import error_classification
from stepper.policy.commands.command_lines import UNNAMED, CommandLines
from stepper.policy.model import Fault, Outcome, Verdict

ELSE = "tell the agent what it lacks: {fix} HINT, or {skip} to leave this step out"
RESUME = "{fix} HINT, or {skip} to leave this step out"
FACT_LIMIT = 300  # characters of what stepper knows of a fault
DECIDE = "answer what the message asks: {continue} ANSWER, or {fix} HINT"
TIMEOUT = "let the cell do less, or give it more time (first line `{comment} stepper: timeout=10m`, or `timeout=none`), then {fix}"
NETWORK = "see whether the network and the server are there, then {fix}"

BUSY = "wait until the server takes requests again, then {fix}"
LESS = "let the cell work on less data at a time"
AGAIN = "`{restore}` runs the steps before it again"
BUILT = AGAIN + ", then {fix}"

# Texts have fields for the commands, see `filled`. By the words of
# error_classification.list_labels, classes without their module. The first row whose word
# the fault has decides.
ACTIONS: tuple[tuple[str, str], ...] = (
    ("KernelStartFailed", "stepper doctor  # then {fix}"),
    ("OutOfMemory", LESS + ", then {fix}; " + AGAIN),
    (
        "WalltimeOver",
        "give the job more time (`time:` in .stepper/config.yaml, then `stepper trust`); "
        + BUILT,
    ),
    ("EndedOutside", "nothing in the cell ended the kernel: " + BUILT),
    ("KernelDied", "change the cell that ended the kernel, then {fix}; " + AGAIN),
    ("MemoryLimit", LESS + ", or raise max_memory_percent, then {fix}"),
    ("MemoryError", LESS + ", then {fix}"),
    ("SystemExit", "take exit() out of the cell, then {fix}"),
    (
        "KeyboardInterrupt",
        "say why the cell was interrupted, or take the interrupt out of it, then {fix}",
    ),
    (
        "StdinNotImplementedError",
        "put the value into the cell instead of asking for it with input(), or take the debugger (%debug, %pdb) out,"
        " then {fix}",
    ),
    ("PermissionError", "give access to {filename}, or name another place, then {fix}"),
    ("errno ENOSPC", "free disk space, then {fix}"),
    ("errno EDQUOT", "free disk space, then {fix}"),
    (
        "errno EMFILE",
        "let the cell close its files, or allow more of them (`ulimit -n`), then {fix}",
    ),
    ("errno ENFILE", "see to the machine's open files, then {fix}"),
    ("errno EIO", "see to the disk or device of {filename}, then {fix}"),
)


def action(
    outcome: Outcome,
    verdict: Verdict,
    fault: Fault | None,
    comment: str = "#",
    commands: CommandLines = UNNAMED,
) -> str:
    """Return what a user can do about a fault that stopped the notebook; one line.

    A `comment` begins with that in the notebook's language.
    """
    if fault is None:
        return filled(ELSE, commands)
    if outcome is Outcome.ERROR and error_classification.asks_to_stop(fault):
        return filled(DECIDE, commands)
    if verdict is Verdict.TRANSIENT:
        busy = "HTTP 429" in error_classification.list_labels(fault)
        return filled(BUSY if busy else NETWORK, commands)
    if outcome is Outcome.TIMEOUT:
        return filled(TIMEOUT, commands, comment=comment)
    words = {
        word.rsplit(".", 1)[-1]
        for word in error_classification.list_labels(fault)
        | error_classification.list_cause_labels(fault)
    }
    name = str(fault.attributes.get("filename") or "the file")
    # it stays on its line: it may hold line breaks and escapes
    name = name if name.isprintable() else ascii(name)
    found = next((text for word, text in ACTIONS if word in words), "")
    if found:
        return filled(found, commands, filename=name)
    fact = one_line(fault.suggestion, FACT_LIMIT).rstrip(".")
    if fact:
        return f"{fact}; to resume: {filled(RESUME, commands)}"
    return filled(ELSE, commands)


def filled(text: str, commands: CommandLines = UNNAMED, **values: str) -> str:
    """Return a text of this module with the commands of a notebook, and other values, in its fields."""
    typed = {name: commands.slash(name) for name in ("continue", "fix", "skip")}
    return text.format(restore=commands.terminal("restore"), **typed, **values)


def more_time(
    outcome: Outcome, timeout: float, most: float, comment: str = "#"
) -> list[str]:
    """Return how a cell that met its deadline gets more time, in a list; empty for all others."""
    if outcome is not Outcome.TIMEOUT:
        return []
    if timeout >= most:
        return [
            f"No cell gets more time: max_cell_timeout_seconds, the user's setting, is {most:g}."
        ]
    return [
        f"More time: a first line `{comment} stepper: timeout=10m` or `timeout=none`, {span(most)} at most."
    ]
