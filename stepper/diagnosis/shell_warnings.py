"""Warnings on shell commands: exit codes, and packages for another interpreter.

The facts come from the helper in the kernel (`in_kernel/shell_commands`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from signal import Signals
from typing import Any

from stepper.common.dataclass_decode import decode_valid_items
from stepper.common.text import one_line
from stepper.diagnosis.project_facts import ProjectEnvironment

# Characters of a command, of a line of output and of a whole warning.
MAX_COMMAND = 80
MAX_OUTPUT_LINE = 120
MAX_WARNING = 600
OUTPUT_LINES = 3
# A shell's message on a failed line. The shell continues after the line, and the exit
# code of a `%%bash` cell is the exit code of its last line.
SHELL_ERROR = re.compile(r"^(?:\S*/)?(?:ba|da|k|z)?sh: (?:line )?\d+: .+", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """A shell command as reported by the helper. The field names are JSON keys.

    `into` is the interpreter for which the command installed the requirements `wanted`,
    or empty if the kernel's interpreter lacks pip. `own` is the kernel's interpreter.
    """

    text: str
    code: int = 0
    # The line of the cell, or 0 if the command is not in this cell.
    line: int = 0
    count: int = 1
    tail: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    into: str = ""
    own: str = ""


def format_command_warnings(facts: Any, environment: ProjectEnvironment) -> list[str]:
    """Return a warning for each command.

    Commands that install packages for another interpreter come first.
    """
    commands = decode_valid_items(Command, facts)
    commands = sorted(commands, key=lambda command: not command.into)
    return [_format_warning(command, environment) for command in commands]


def format_shell_errors(outputs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a list with a warning that quotes a shell's own messages on stderr.

    A shell writes these messages about lines of a script that failed. Return an empty
    list if there are no such messages.
    """
    errors = []
    for output in outputs:
        if output.get("name") != "stderr":
            continue
        text = str(output.get("text"))
        for match in SHELL_ERROR.finditer(text):
            error = one_line(match[0], MAX_OUTPUT_LINE)
            errors.append(error)
    if not errors:
        return []
    last_errors = " / ".join(errors[-OUTPUT_LINES:])
    return [f'a shell could not run part of its script: "{last_errors}"']


def _format_warning(command: Command, environment: ProjectEnvironment) -> str:
    """Return the warning on a command: its line, its problems, and how to fix them."""
    parts = []
    if command.into:
        target = one_line(command.into, MAX_OUTPUT_LINE)
        kernel = one_line(command.own, MAX_OUTPUT_LINE)
        parts.append(
            f"installs packages for {target}, not for this kernel's interpreter "
            f"{kernel}"
        )
    if command.code:
        failure = _format_failure(command)
        parts.append(failure)
    install = ""
    if command.wanted and command.own:
        install = environment.build_install_command(command.own, *command.wanted)
    if install:
        parts.append(f"to install for this kernel, run: {install}")
    location = ""
    if command.line:
        location = f"line {command.line}: "
    text = one_line(command.text, MAX_COMMAND)
    details = "; ".join(parts)
    return one_line(f"{location}`{text}` {details}", MAX_WARNING)


def _format_failure(command: Command) -> str:
    """Return a verb phrase on the exit code, with the last lines of the output."""
    text = _format_exit(command.code)
    if command.count > 1:
        text += f" ({command.count} times)"
    lines = [one_line(line, MAX_OUTPUT_LINE) for line in command.tail]
    output_lines = [line for line in lines if line]
    if output_lines:
        output = " / ".join(output_lines[-OUTPUT_LINES:])
        text += f'; its last output: "{output}"'
    return text


def _format_exit(code: int) -> str:
    """Return a verb phrase on an exit code, which is negative after a signal."""
    if code >= 0:
        return f"failed with exit code {code}"
    try:
        return f"was killed by {Signals(-code).name} (exit code {code})"
    except ValueError:
        # IPython turns each exit code above 128 into 128 - code.
        return f"failed with exit code {128 - code}"
