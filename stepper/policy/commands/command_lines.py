"""How texts write the commands for one notebook: in a shell and as slash commands of Claude Code.

A command without a notebook acts on the current one. Where the project has several notebooks, the current one may be
another, so each command names its own. No other module puts a notebook's name into a command.

In an agent's shell `stepper` is on the PATH. In the user's terminal it may not be: what the user is to run there is
written with the `program` that works in it, and texts that are read there alone with `called_as`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, fields

from stepper.policy.commands.cli_commands import COMMANDS

PROGRAM = "stepper"
# a command in a text; `stepper fix: 3 fresh retries` is none
CALLED = re.compile(
    rf"(?<![\w./-]){PROGRAM}(?= (?:{'|'.join({name.split()[0] for name in COMMANDS})})\b(?!:))"
)


@dataclass(frozen=True)
class CommandLines:
    """The commands for one notebook. `notebook` is its name, '' while the project has no other notebook.

    `program` calls stepper in the user's terminal.
    """

    notebook: str = ""
    program: str = PROGRAM

    def shell(self, command: str, words: str = "") -> str:
        """Return a command for the shell of whoever reads it: `stepper fix --notebook a.ipynb "HINT"`.

        `command` may have options (`run --stale`); `words` are its further arguments, quoted as the shell needs them.
        """
        name = _name(command)
        options = command.removeprefix(name).strip()
        parts = [PROGRAM, name, self._argument(name), options, words]
        return " ".join(filter(None, parts))

    def terminal(self, command: str, words: str = "") -> str:
        """Return a command for the user's terminal."""
        return called_as(self.shell(command, words), self.program)

    def slash(self, command: str, words: str = "") -> str:
        """Return a slash command as it is typed in Claude Code: `/fix a.ipynb HINT`."""
        quoted = f'"{self.notebook}"' if " " in self.notebook else self.notebook
        return " ".join(filter(None, [f"/{command}", quoted, words]))

    def _argument(self, name: str) -> str:
        """Return the notebook as that command takes it, '' if the command takes none."""
        row = COMMANDS[name].arguments
        taken = next((each for each in fields(row) if each.name == "notebook"), None)
        if taken is None or not self.notebook:
            return ""
        quoted = shlex.quote(self.notebook)
        is_option = "about" in taken.metadata
        return f"--notebook {quoted}" if is_option else quoted


def called_as(text: str, program: str) -> str:
    """Return a text whose commands work where `program` calls stepper; lines of cells (`| `) stay as they are."""
    if program == PROGRAM or PROGRAM not in text:
        return text
    return "\n".join(
        line if line.startswith("| ") else CALLED.sub(lambda _: program, line)
        for line in text.split("\n")
    )


def _name(command: str) -> str:
    """Return the name of the command that a command line begins with: of one or two words."""
    words = command.split()
    pair = " ".join(words[:2])
    return pair if pair in COMMANDS else words[0]


UNNAMED = CommandLines()
