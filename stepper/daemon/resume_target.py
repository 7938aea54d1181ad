"""Which notebook a command resumes that names none: the only stopped one. Where several are stopped, none is.

`continue`, `fix` and `skip` in a terminal, the slash commands, the plain words and `lift_stop` all ask here.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from stepper.common.errors import UsageError
from stepper.daemon.project_notebooks import Workspace
from stepper.messages import command_messages
from stepper.policy.commands.command_lines import CommandLines
from stepper.session import user_commands
from stepper.session.session import Session

LONGEST = 200  # characters of a message that is put into the commands to choose from


@dataclass(frozen=True)
class Resume:
    """A command that resumes a notebook: its name, the user's message, how the user types commands.

    `face` is `shell`, `slash` (in Claude Code) or `tool` (the user is asked through MCP).
    """

    command: str
    message: str
    face: str


async def target(workspace: Workspace, cwd: str, owner: str, asked: Resume) -> Session:
    """Return the notebook that a command without a notebook acts on.

    That is the stopped notebook, else the current one. Raise UsageError where several are stopped, or there is none.
    """
    stopped = await workspace.stopped()
    current = _current(workspace, owner)
    if current is not None and _reopens(current, asked):
        return current
    if len(stopped) > 1:
        raise _several(stopped, asked)
    if stopped:
        return stopped[0]
    return workspace.named(None, cwd, owner)


def _current(workspace: Workspace, owner: str) -> Session | None:
    name = workspace.current(owner)
    return workspace.sessions.get(name) if name else None


def _reopens(session: Session, asked: Resume) -> bool:
    """Whether `continue step 3` is about a skipped step of the notebook, and no stop."""
    step = user_commands.find_skipped_step(session, asked.message)
    return asked.command == "continue" and step is not None


def _several(stopped: Sequence[Session], asked: Resume) -> UsageError:
    """Return the error that lists the stopped notebooks, with the command for each."""
    why = command_messages.format_ambiguous_resume(
        [(session.name, session.state.stop) for session in stopped], asked.command
    )
    commands = [_typed(CommandLines(session.name), asked) for session in stopped]
    return UsageError(why, "\n".join([_how(asked.face), *commands]))


def _how(face: str) -> str:
    if face == "tool":
        return "To ask the user about one of them, call one of these:"
    verb = "type" if face == "slash" else "run"
    return f"To resume one of them, {verb} one of these:"


def _typed(commands: CommandLines, asked: Resume) -> str:
    message = " ".join(asked.message.split())
    if len(message) > LONGEST:
        message = command_messages.RESUME_ARGUMENTS[asked.command]
    if asked.face == "tool":
        return f"`lift_stop` with `notebook: {commands.notebook}`"
    if asked.face == "slash":
        return commands.slash(asked.command, message)
    words = shlex.quote(message) if message else ""
    return commands.shell(asked.command, words)
