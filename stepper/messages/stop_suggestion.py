"""Suggestions for the user on errors that stopped a notebook."""

from __future__ import annotations

from stepper.common.text import one_line
from stepper.messages.quoted_output import format_span
from stepper.policy import error_classification
from stepper.policy.commands.command_lines import UNNAMED, CommandLines
from stepper.policy.model import Fault, Outcome, Verdict

FACT_LIMIT = 300  # characters of the facts about an error

# Fields in braces are filled by `fill_commands`.
GIVE_HINT = "give the agent a hint: {fix} HINT, or {skip} to skip this step"
RESUME = "{fix} HINT, or {skip} to skip this step"
ANSWER = "answer the question: {continue} ANSWER, or {fix} HINT"
TIMEOUT = (
    "let the cell do less, or give it more time (first line"
    " `{comment} stepper: timeout=10m`, or `timeout=none`), then {fix}"
)
NETWORK = "check the network and the server, then {fix}"
SERVER_BUSY = "wait until the server accepts requests again, then {fix}"
LESS_DATA = "process the data in smaller chunks"
RESTORE = "`{restore}` re-runs the cells that succeeded"
RESTORE_AND_FIX = "re-run the cells that succeeded (`{restore}`), then {fix}"

# The suggestion is the text of the first row whose label describes the error. Labels
# are those of `error_classification.list_labels`; class names have no module.
ACTIONS: tuple[tuple[str, str], ...] = (
    ("KernelStartFailed", "find the cause with `stepper doctor`, then {fix}"),
    ("OutOfMemory", LESS_DATA + ", then {fix}; " + RESTORE),
    (
        "WalltimeOver",
        "give the job more time (`time:` in .stepper/config.yaml, then"
        " `stepper trust`); " + RESTORE_AND_FIX,
    ),
    ("EndedOutside", "the cell did not cause the kernel's death: " + RESTORE_AND_FIX),
    ("KernelDied", "change the cell that killed the kernel, then {fix}; " + RESTORE),
    ("MemoryLimit", LESS_DATA + ", or raise max_memory_percent, then {fix}"),
    ("MemoryError", LESS_DATA + ", then {fix}"),
    ("SystemExit", "remove `exit()` from the cell, then {fix}"),
    (
        "KeyboardInterrupt",
        "if the cell raises KeyboardInterrupt itself, remove that code; otherwise tell"
        " the agent why it was interrupted: {fix}",
    ),
    (
        "StdinNotImplementedError",
        "put the value into the cell instead of asking for it with input(), or remove"
        " the debugger (%debug, %pdb), then {fix}",
    ),
    (
        "PermissionError",
        "give access to {filename}, or use another file, then {fix}",
    ),
    ("errno ENOSPC", "free disk space, then {fix}"),
    ("errno EDQUOT", "free disk space, then {fix}"),
    (
        "errno EMFILE",
        "close files in the cell, or allow more open files (`ulimit -n`), then {fix}",
    ),
    (
        "errno ENFILE",
        "close files on this machine, which has too many open, then {fix}",
    ),
    ("errno EIO", "check the disk or device of {filename}, then {fix}"),
)


def suggest_action(
    outcome: Outcome,
    verdict: Verdict,
    fault: Fault | None,
    comment: str = "#",
    commands: CommandLines = UNNAMED,
) -> str:
    """Return a suggestion for the user on how to resume a stopped notebook.

    The suggestion has one line. `comment` starts a comment in the notebook's language.
    """
    if fault is None:
        return fill_commands(GIVE_HINT, commands)
    if outcome is Outcome.ERROR and error_classification.asks_to_stop(fault):
        return fill_commands(ANSWER, commands)
    labels = error_classification.list_labels(fault)
    if verdict is Verdict.TRANSIENT:
        is_busy = "HTTP 429" in labels
        template = SERVER_BUSY if is_busy else NETWORK
        return fill_commands(template, commands)
    if outcome is Outcome.TIMEOUT:
        return fill_commands(TIMEOUT, commands, comment=comment)
    all_labels = labels | error_classification.list_cause_labels(fault)
    names = {label.rsplit(".", 1)[-1] for label in all_labels}
    for label, text in ACTIONS:
        if label in names:
            return fill_commands(
                text, commands, filename=_get_printable_filename(fault)
            )
    fact = one_line(fault.suggestion, FACT_LIMIT).rstrip(".")
    if fact:
        return f"{fact}; to resume: {fill_commands(RESUME, commands)}"
    return fill_commands(GIVE_HINT, commands)


def _get_printable_filename(fault: Fault) -> str:
    """Return the name of an error's file, with control characters escaped.

    Return "the file" if the name is unknown.
    """
    name = str(fault.attributes.get("filename") or "the file")
    if name.isprintable():
        return name
    return ascii(name)


def fill_commands(text: str, commands: CommandLines = UNNAMED, **values: str) -> str:
    """Fill the fields of a suggestion with the notebook's commands and other values."""
    slash_commands = {
        name: commands.slash(name) for name in ("continue", "fix", "skip")
    }
    restore = commands.terminal("restore")
    return text.format(restore=restore, **slash_commands, **values)


def suggest_more_time(
    outcome: Outcome, timeout: float, max_timeout: float, comment: str = "#"
) -> list[str]:
    """Return a list with a suggestion for a cell that timed out.

    The list is empty for other outcomes. Times are in seconds.
    """
    if outcome is not Outcome.TIMEOUT:
        return []
    if timeout >= max_timeout:
        return [
            "A cell can't have more time: the user's setting max_cell_timeout_seconds"
            f" is {max_timeout:g}."
        ]
    return [
        "To give the cell more time, add a first line such as"
        f" `{comment} stepper: timeout=10m` or `timeout=none`; the maximum is"
        f" {format_span(max_timeout)}."
    ]
