"""The choice of the notebook for a resuming command without a notebook name.

The command resumes the stopped notebook. If several notebooks are stopped, the user has
to name one. This rule applies to `continue`, `fix` and `skip` in a terminal, to slash
commands, to plain words and to the MCP tool `lift_stop`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from stepper.common.errors import UsageError
from stepper.daemon.workspace.project_notebooks import Workspace
from stepper.messages import command_messages
from stepper.policy.commands.command_lines import CommandLines
from stepper.session import notebook_commands
from stepper.session.session import Session

# The maximum length of a user's message that is repeated in suggested commands.
MAX_MESSAGE_CHARACTERS = 200


@dataclass(frozen=True)
class ResumeCommand:
    """A command that resumes a notebook, with the user's message.

    `interface` is `shell` for a terminal command, `slash` for a slash command in Claude
    Code, or `tool` for the MCP tool `lift_stop`.
    """

    name: str
    message: str
    interface: str


async def find_target(
    workspace: Workspace, cwd: str, owner: str, command: ResumeCommand
) -> Session:
    """Return the session that a command without a notebook name resumes.

    If the command reopens a skipped step of the current notebook, this is the session
    of the current notebook. Otherwise, it is the session of the stopped notebook or, if
    none is stopped, of the current notebook. Raise UsageError if several notebooks are
    stopped, or if there is no current notebook.
    """
    stopped = await workspace.open_stopped_sessions()
    current = _get_current(workspace, owner)
    if current is not None and _reopens_step(current, command):
        return current
    if len(stopped) > 1:
        raise _build_several_stopped_error(stopped, command)
    if stopped:
        return stopped[0]
    return workspace.find_session(None, cwd, owner)


def _get_current(workspace: Workspace, owner: str) -> Session | None:
    """Return the open session of a client's current notebook, or None."""
    name = workspace.currents.get(owner)
    if name:
        return workspace.sessions.get(name)
    return None


def _reopens_step(session: Session, command: ResumeCommand) -> bool:
    """Return whether a command reopens a skipped step, as in `continue step 3`."""
    step = notebook_commands.find_skipped_step(session, command.message)
    return command.name == "continue" and step is not None


def _build_several_stopped_error(
    stopped: Sequence[Session], command: ResumeCommand
) -> UsageError:
    """Return the error that lists the stopped notebooks and a command for each."""
    message = command_messages.format_ambiguous_resume(
        [(session.name, session.state.stop) for session in stopped], command.name
    )
    choices = [_format_command(CommandLines(item.name), command) for item in stopped]
    hint = "\n".join([_format_instruction(command.interface), *choices])
    return UsageError(message, hint)


def _format_instruction(interface: str) -> str:
    """Return the line above the suggested commands or calls."""
    if interface == "tool":
        return "To ask the user about one of the notebooks, make one of these calls:"
    verb = "type" if interface == "slash" else "run"
    return f"To resume one of the notebooks, {verb} one of these commands:"


def _format_command(commands: CommandLines, command: ResumeCommand) -> str:
    """Return a command as the user enters it, or the tool call of an agent."""
    message = " ".join(command.message.split())
    if len(message) > MAX_MESSAGE_CHARACTERS:
        message = command_messages.RESUME_ARGUMENTS[command.name]
    if command.interface == "tool":
        return f"`lift_stop` with `notebook: {commands.notebook}`"
    if command.interface == "slash":
        return commands.slash(command.name, message)
    argument = ""
    if message:
        argument = shlex.quote(message)
    return commands.shell(command.name, argument)
