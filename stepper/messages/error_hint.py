"""Sentences for the hints of errors.

A hint is either a sentence or a shell command, optionally with a comment. The sentence
for a command says whether the command shows the cause or fixes the error.
"""

from __future__ import annotations

import re

# Commands that show the cause of an error.
INSPECTION_COMMANDS = (
    "command -v",
    "curl",
    "df",
    "git status",
    "jupyter kernelspec list",
    "ls",
    "lsof",
    "ping",
    "python -m json.tool",
    "sinfo",
    "squeue",
    "ssh",
    "stepper kernels",
    "stepper list",
    "stepper plan",
    "stepper status",
)
REPAIR_PROGRAMS = (
    "${EDITOR:-vi}",
    "chmod",
    "chown",
    "claude",
    "cp",
    "export",
    "git",
    "jupyter",
    "kill",
    "mkdir",
    "module",
    "mv",
    "notebook-stepper",
    "pip",
    "pipx",
    "python",
    "rm",
    "scancel",
    "ssh-keygen",
    "stepper",
    "sudo",
    "unset",
    "uv",
    "uvx",
)
# A command that repairs something on another machine.
REMOTE_REPAIR = re.compile(r"ssh .*\b(?:pip install|ensurepip|kill -9)\b")
# The path of a program, such as ./install.sh or .venv/bin/python; it may be quoted.
PROGRAM_PATH = re.compile(r"'?[\w.~-]*/\S+")


def format_hint(hint: str) -> str:
    """Return the sentence for a hint.

    The sentence for a command says what the command is for. A hint that is a sentence
    or has several lines is returned unchanged.
    """
    if "\n" in hint:
        return hint
    if REMOTE_REPAIR.match(hint):
        return f"To fix this, run: {hint}"
    program = hint.partition(" ")[0]
    if any(_starts_with_command(hint, command) for command in INSPECTION_COMMANDS):
        return f"To see the cause, run: {hint}"
    if program in REPAIR_PROGRAMS or PROGRAM_PATH.fullmatch(program):
        return f"To fix this, run: {hint}"
    return hint


def _starts_with_command(hint: str, command: str) -> bool:
    """Return whether a hint is a command, possibly with arguments."""
    return hint == command or hint.startswith(f"{command} ")
