"""Format the commands that messages contain, as shell commands and slash commands.

A command without a notebook acts on the current notebook. If the project has several
notebooks, each printed command contains the name of a notebook, which only this module
adds.

In an agent's shell, `stepper` is on the PATH. In the user's terminal, it may not be on
the PATH: `terminal` and `replace_program` return commands that work there.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, fields

from stepper.policy.commands.cli_commands import COMMANDS
from stepper.policy.commands.command_schema import is_positional

PROGRAM = "stepper"
FIRST_WORDS = {name.split()[0] for name in COMMANDS}
# A command in a text, but not a message such as `stepper fix: 3 fresh retries`.
COMMAND = re.compile(rf"(?<![\w./-]){PROGRAM}(?= (?:{'|'.join(FIRST_WORDS)})\b(?!:))")
# Starts the lines of a report that quote cells and outputs.
QUOTE_PREFIX = "| "


@dataclass(frozen=True)
class CommandLines:
    """Formats commands for one notebook.

    `notebook` is the name of the notebook, or empty if the project has no other
    notebook. `program` is the command that calls stepper in the user's terminal.
    """

    notebook: str = ""
    program: str = PROGRAM

    def shell(self, command: str, words: str = "") -> str:
        """Return a shell command, such as `stepper fix --notebook a.ipynb "HINT"`.

        `command` is the name of the command, optionally with options (`run --stale`).
        `words` are further arguments, which must be quoted for the shell.
        """
        name = _find_name(command)
        options = command.removeprefix(name).strip()
        parts = [PROGRAM, name, self._format_notebook(name), options, words]
        return " ".join(filter(None, parts))

    def terminal(self, command: str, words: str = "") -> str:
        """Return a shell command for the user's terminal."""
        return replace_program(self.shell(command, words), self.program)

    def slash(self, command: str, words: str = "") -> str:
        """Return a slash command of Claude Code, such as `/fix a.ipynb HINT`."""
        notebook = self.notebook
        if " " in notebook:
            notebook = f'"{notebook}"'
        parts = [f"/{command}", notebook, words]
        return " ".join(filter(None, parts))

    def _format_notebook(self, command: str) -> str:
        """Return the notebook argument of a command, quoted for the shell.

        Return an empty string if no name is needed, or if the command has no such
        argument.
        """
        if not self.notebook:
            return ""
        arguments = COMMANDS[command].arguments
        for argument in fields(arguments):
            # `verify` takes several notebooks.
            if argument.name in ("notebook", "notebooks"):
                quoted_name = shlex.quote(self.notebook)
                if is_positional(argument):
                    return quoted_name
                return f"--notebook {quoted_name}"
        return ""


def replace_program(text: str, program: str) -> str:
    """Return a text with `program` instead of `stepper` in its commands.

    Lines that quote cells or outputs are not changed.
    """
    if program == PROGRAM or PROGRAM not in text:
        return text
    lines = [_replace_in_line(line, program) for line in text.split("\n")]
    return "\n".join(lines)


def _replace_in_line(line: str, program: str) -> str:
    """Replace `stepper` in the commands of a line that is not a quotation."""
    if line.startswith(QUOTE_PREFIX):
        return line
    return COMMAND.sub(lambda _: program, line)


def _find_name(command_line: str) -> str:
    """Return the name of the command in a command line, such as `plan add`."""
    words = command_line.split()
    first_two = " ".join(words[:2])
    return first_two if first_two in COMMANDS else words[0]


UNNAMED = CommandLines()
