"""The notebook that a resuming command without a notebook acts on: the stopped one.

If several notebooks are stopped, the user has to name one. `continue`, `fix` and `skip`
in a terminal, the slash commands, the plain words and `lift_stop` all use this rule.
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

# The maximum length of a message that is repeated in the commands to choose from.
MAX_MESSAGE_CHARACTERS = 200


@dataclass(frozen=True)
class ResumeCommand:
    """A command that resumes a notebook, with the user's message.

    `interface` says how commands are given: `shell`, `slash` (in Claude Code) or `tool`
    (the user is asked through MCP).
    """

    name: str
    message: str
    interface: str


async def find_target(
    workspace: Workspace, cwd: str, owner: str, command: ResumeCommand
) -> Session:
    """Return the session of the notebook that a command without a notebook acts on.

    That is the stopped notebook, or else the current one. Raise UsageError if several
    notebooks are stopped, or if there is no notebook.
    """
    stopped = await workspace.open_stopped_sessions()
    current = _get_current(workspace, owner)
    if current is not None and _reopens_step(current, command):
        return current
    if len(stopped) > 1:
        raise _several_stopped_error(stopped, command)
    if stopped:
        return stopped[0]
    return workspace.find_session(None, cwd, owner)


def _get_current(workspace: Workspace, owner: str) -> Session | None:
    name = workspace.currents.get(owner)
    return workspace.sessions.get(name) if name else None


def _reopens_step(session: Session, command: ResumeCommand) -> bool:
    """Return whether a command reopens a skipped step: `continue step 3`."""
    step = notebook_commands.find_skipped_step(session, command.message)
    return command.name == "continue" and step is not None


def _several_stopped_error(
    stopped: Sequence[Session], command: ResumeCommand
) -> UsageError:
    """Return the error that lists the stopped notebooks, with the command for each."""
    message = command_messages.format_ambiguous_resume(
        [(session.name, session.state.stop) for session in stopped], command.name
    )
    choices = [_format_command(CommandLines(item.name), command) for item in stopped]
    hint = "\n".join([_format_instruction(command.interface), *choices])
    return UsageError(message, hint)


def _format_instruction(interface: str) -> str:
    if interface == "tool":
        return "To ask the user about one of them, call one of these:"
    verb = "type" if interface == "slash" else "run"
    return f"To resume one of them, {verb} one of these:"


def _format_command(commands: CommandLines, command: ResumeCommand) -> str:
    """Return a command as the user, or the agent through MCP, gives it."""
    message = " ".join(command.message.split())
    if len(message) > MAX_MESSAGE_CHARACTERS:
        message = command_messages.RESUME_ARGUMENTS[command.name]
    if command.interface == "tool":
        return f"`lift_stop` with `notebook: {commands.notebook}`"
    if command.interface == "slash":
        return commands.slash(command.name, message)
    argument = shlex.quote(message) if message else ""
    return commands.shell(command.name, argument)
