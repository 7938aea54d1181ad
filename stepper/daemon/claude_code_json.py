"""Claude Code's hook JSON: parsed payloads, and responses as JSON.

Only this module and `hook/hook_output` contain Claude Code's field names, which were
determined by tests: see docs/development/claude-code.md.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable
from typing import Any

from stepper.common.paths import MAX_PATH_CHARACTERS, is_possible_path
from stepper.hook.hook_output import (
    SILENT,
    encode_json,
    format_context,
    format_failure,
    format_new_notebook,
    get_object,
    get_text,
    remove_notebook_copies,
)
from stepper.messages.digest.notebook_digest import DigestPart
from stepper.policy.commands.command_lines import PROGRAM, replace_program
from stepper.policy.model import CellEdit, Consent, FileWrite

# Includes the functions of `hook_output`, so that the daemon uses one module.
__all__ = [
    "SILENT",
    "Event",
    "PayloadError",
    "add_plugin_note",
    "add_skill_notes",
    "format_context",
    "format_decision",
    "format_failure",
    "format_new_notebook",
    "format_notice",
    "format_read",
    "format_text",
    "format_user_line",
    "remove_notebook_copies",
    "use_terminal_commands",
]

SHORT_TEXT = 200  # the maximum length of a name or an id, in characters
# The user's consent by permission mode. In other modes, Claude Code asks before each
# edit.
CONSENTS = {
    "acceptEdits": Consent.GIVEN,
    "bypassPermissions": Consent.GIVEN,
    "auto": Consent.DELEGATED,
    "plan": Consent.WITHHELD,
}
# Tools that may change files without a hook event for the change.
SHELLS = (
    "Bash",
    "PowerShell",
    "BashOutput",
    "TaskOutput",
    "KillShell",
    "Monitor",
    "Agent",
    "Task",
)
STEPPER_COMMAND = re.compile(r"/(?:stepper:)?(?:continue|fix|skip|new-notebook)(?!\S)")
SLASH_COMMAND = re.compile(r"/[\w:-]+(?!\S)")
SKILLS = ("continue", "fix", "skip")  # the slash commands that texts mention

# The fields of an edit's payload that `Event.change` needs.
EDIT_FIELDS = (
    "session_id",
    "permission_mode",
    "hook_event_name",
    "tool_name",
    "tool_use_id",
)
EDIT_OBJECT_FIELDS = {
    "tool_input": (
        "notebook_path",
        "file_path",
        "edit_mode",
        "cell_id",
        "cell_type",
        "new_source",
    ),
    "tool_response": ("cell_id", "cell_type"),
}


class PayloadError(ValueError):
    """The payload does not have the format of Claude Code's hooks."""


class Event:
    """A hook event of Claude Code.

    `client_pid` is the process ID of the Claude Code process, or an empty string if it
    is unknown. Raise PayloadError if `data` is not an object. Properties raise
    PayloadError if a required field of the payload is missing or invalid.
    """

    def __init__(self, data: Any, client_pid: str = "") -> None:
        if not isinstance(data, dict):
            raise PayloadError("the hook's payload is not a JSON object")
        self.data = data
        self.client_pid = client_pid
        self.session = _get_short_text(data, "session_id")
        mode = _get_short_text(data, "permission_mode")
        self.consent = CONSENTS.get(mode, Consent.ASKED)
        self.asks_for_each_edit = mode == "default"
        self.is_from_subagent = bool(get_text(data, "agent_id"))
        self.is_session_start = get_text(data, "hook_event_name") == "SessionStart"
        source = get_text(data, "source")
        # Whether a SessionStart follows a compaction. The user has seen earlier
        # messages.
        self.is_after_compaction = source == "compact"
        # Whether the agent of a SessionStart has worked before in this session.
        self.continues_session = source in ("compact", "resume")
        self.last_message = get_text(data, "last_assistant_message")
        self.is_shell_call = data.get("tool_name") == "Bash"

    @property
    def prompt(self) -> str:
        """The user's prompt."""
        return _require_text(self.data, "prompt").strip()

    @property
    def is_notification(self) -> bool:
        """Whether Claude Code wrote the prompt after a message of an async hook."""
        return self.prompt.startswith("<task-notification>")

    @property
    def is_stepper_command(self) -> bool:
        """Whether the prompt starts with a command of stepper that starts work."""
        return bool(STEPPER_COMMAND.match(self.prompt))

    @property
    def is_slash_command(self) -> bool:
        """Whether the prompt starts with a slash command, not with a path."""
        return bool(SLASH_COMMAND.match(self.prompt))

    @property
    def shell_command(self) -> str:
        """The command of a Bash call."""
        return _require_text(self.tool_input, "command")

    @property
    def tool_input(self) -> dict[str, Any]:
        """The input of a tool call."""
        if not isinstance(self.data.get("tool_input"), dict):
            raise PayloadError(
                "`tool_input` of the hook's payload is missing or not an object"
            )
        return get_object(self.data, "tool_input")

    @property
    def change(self) -> CellEdit | FileWrite:
        """The edit in a PreToolUse or PostToolUse event of NotebookEdit or Write."""
        arguments = self.tool_input
        tool = _require_text(self.data, "tool_name")
        if tool == "Write":
            return self._parse_write(arguments)
        if tool == "NotebookEdit":
            return self._parse_cell_edit(arguments)
        tool_name = tool[:100]
        raise PayloadError(
            f"the hook's payload is for the tool {tool_name!r}, but NotebookEdit or"
            " Write is expected"
        )

    @property
    def _tool_use_id(self) -> str | None:
        """The ID of the tool call, or None if it is unknown."""
        return _get_short_text(self.data, "tool_use_id") or None

    def _parse_write(self, arguments: dict[str, Any]) -> FileWrite:
        """Return the write of a file from the arguments of the tool Write."""
        return FileWrite(
            notebook=_require_path(arguments, "file_path"),
            content=get_text(arguments, "content"),
            tool_use_id=self._tool_use_id,
            session=self.session,
            consent=self.consent,
        )

    def _parse_cell_edit(self, arguments: dict[str, Any]) -> CellEdit:
        """Return the edit of a cell.

        For an insert, `tool_response` contains the id of the new cell, and `tool_input`
        contains the id of the cell above the new cell.
        """
        response = get_object(self.data, "tool_response")
        mode = _get_short_text(arguments, "edit_mode") or "replace"
        named_cell = get_text(arguments, "cell_id") or None
        cell_id = get_text(response, "cell_id") or None
        cell_above = None
        if mode == "insert":
            cell_above = named_cell
        else:
            cell_id = cell_id or named_cell
        cell_type = _get_short_text(response, "cell_type")
        cell_type = cell_type or _get_short_text(arguments, "cell_type")
        return CellEdit(
            notebook=_require_path(arguments, "notebook_path"),
            cell_id=cell_id,
            after=cell_above,
            cell_type=cell_type or None,
            mode=mode,
            source=get_text(arguments, "new_source"),
            tool_use_id=self._tool_use_id,
            session=self.session,
            consent=self.consent,
        )

    @property
    def read_path(self) -> str:
        """The path of the file that the Read tool reads."""
        return _require_path(self.tool_input, "file_path")

    @property
    def read_lines(self) -> tuple[int, int | None]:
        """The number of the first line that Read shows, and the number of lines.

        The number of lines is None if Read shows all further lines.
        """
        offset = self.tool_input.get("offset")
        limit = self.tool_input.get("limit")
        if not isinstance(offset, int):
            offset = 1
        if not isinstance(limit, int) or limit <= 0:
            limit = None
        return offset, limit

    @property
    def tool_error(self) -> str:
        """The error of a tool call that failed."""
        return get_text(self.data, "error")

    @property
    def edit_payload(self) -> bytes:
        """The payload of an edit, without the contents of the notebook.

        Hook processes may wait for hours, so they keep only this short payload.
        """
        fields: dict[str, Any] = {}
        for name in EDIT_FIELDS:
            fields[name] = _get_short_text(self.data, name)
        for part, names in EDIT_OBJECT_FIELDS.items():
            values = get_object(self.data, part)
            fields[part] = {name: values[name] for name in names if name in values}
        return encode_json(fields)

    @property
    def used_shell(self) -> bool:
        """Whether a PostToolBatch has a call of an MCP tool or a tool in SHELLS."""
        for call in self._tool_calls:
            name = get_text(call, "tool_name")
            if name in SHELLS or name.startswith("mcp__"):
                return True
        return False

    @property
    def _tool_calls(self) -> list[dict[str, Any]]:
        """The calls of a PostToolBatch."""
        calls = self.data.get("tool_calls")
        if not isinstance(calls, list):
            return []
        return [call for call in calls if isinstance(call, dict)]

    @property
    def paths_edited_last(self) -> set[str]:
        """The absolute paths of files for which the last call in a batch was an edit.

        Claude Code accepts a new modification time only after an edit. After a Read, it
        assumes that another program changed the file and refuses the next edit.
        """
        folder = get_text(self.data, "cwd")[:MAX_PATH_CHARACTERS] or "/"
        edited: set[str] = set()
        for call in self._tool_calls:
            arguments = get_object(call, "tool_input")
            name = get_text(arguments, "notebook_path")
            name = name or get_text(arguments, "file_path")
            if not name:
                continue
            path = posixpath.join(folder, name)
            tool = call.get("tool_name")
            if tool in ("NotebookEdit", "Write") and is_possible_path(path):
                edited.add(path)
            elif tool == "Read":
                edited.discard(path)
        return edited


def _require_text(data: dict[str, Any], key: str) -> str:
    """Return the string at a key; raise PayloadError if there is none."""
    value = data.get(key)
    if not isinstance(value, str):
        raise PayloadError(f"`{key}` of the hook's payload is missing or not a string")
    return value


def _get_short_text(data: dict[str, Any], key: str) -> str:
    """Return the first SHORT_TEXT characters of the string at a key, or ""."""
    return get_text(data, key)[:SHORT_TEXT]


def _require_path(data: dict[str, Any], key: str) -> str:
    """Return the path at a key; raise PayloadError if there is no valid path."""
    value = _require_text(data, key)
    if not is_possible_path(value):
        message = f"`{key}` of the hook's payload is not a valid path"
        raise PayloadError(message)
    return value


def use_terminal_commands(output: bytes, program: str) -> bytes:
    """Return a hook's output in which commands for the user start with `program`.

    `program` is how the user's shell calls stepper. Texts for the agent are unchanged.
    """
    if program == PROGRAM or PROGRAM.encode() not in output:
        return output
    values = json.loads(output)
    for name in ("systemMessage", "stopReason"):
        if name in values:
            values[name] = replace_program(values[name], program)
    return encode_json(values)


def _map_texts(output: bytes, change: Callable[[str], str]) -> bytes:
    """Return a hook's output with `change` applied to its texts.

    The texts are `stopReason`, which the user sees, and `additionalContext` for the
    agent.
    """
    values = json.loads(output)
    context = get_object(values, "hookSpecificOutput")
    for texts, key in ((values, "stopReason"), (context, "additionalContext")):
        if key in texts:
            texts[key] = change(texts[key])
    return encode_json(values)


def add_plugin_note(output: bytes) -> bytes:
    """Return a hook's output with a note that /continue has another name in a plugin.

    The note is added to texts that mention /continue.
    """
    if b"/continue" not in output:
        return output

    def add_note(text: str) -> str:
        """Return a text with the note, if the text mentions /continue."""
        if not _mentions(text, "continue"):
            return text
        return (
            f"{text}\n(Type /stepper:continue instead of /continue, which is a command"
            " of the client.)"
        )

    return _map_texts(output, add_note)


def add_skill_notes(output: bytes, is_other_skill: Callable[[str], bool]) -> bytes:
    """Return a hook's output with notes on slash commands of other skills.

    A note is added for each mentioned command if `is_other_skill` returns True: the
    project has a skill with the command's name that stepper did not install.
    """
    mentioned = [skill for skill in SKILLS if f"/{skill}".encode() in output]
    other_skills = [skill for skill in mentioned if is_other_skill(skill)]
    if not other_skills:
        return output

    def add_notes(text: str) -> str:
        """Return a text with a note for each command that it mentions."""
        notes = [
            f"\n(/{skill} is another skill in this project. Instead, run in a"
            f" terminal: stepper {skill})"
            for skill in other_skills
            if _mentions(text, skill)
        ]
        return text + "".join(notes)

    return _map_texts(output, add_notes)


def _mentions(text: str, skill: str) -> bool:
    """Return whether a text contains the slash command of a skill.

    A path such as `notebooks/fix.ipynb` contains no slash command.
    """
    return re.search(rf"(?<![\w./-])/{skill}(?![\w/-]|\.\w)", text) is not None


def format_user_line(line: str) -> bytes:
    """Return a hook's output with a line for the user only.

    If the line is empty, the output is empty too.
    """
    if line:
        return encode_json({"systemMessage": line})
    return SILENT


def format_decision(decision: str, reason: str, line: str = "") -> bytes:
    """Return a PreToolUse hook's output with a decision and its reason.

    `decision` is `deny`, `allow` or `ask`; `line` is an additional line for the user.
    """
    output: dict[str, Any] = {}
    if line:
        output["systemMessage"] = line
    output["hookSpecificOutput"] = {
        "hookEventName": "PreToolUse",
        "permissionDecision": decision,
        "permissionDecisionReason": reason,
    }
    return encode_json(output)


def format_text(event: str, text: str) -> bytes:
    """Return a hook's output with a text for the agent."""
    context = {"hookEventName": event, "additionalContext": text}
    return encode_json({"hookSpecificOutput": context})


def format_read(path: str, part: DigestPart) -> bytes:
    """Return a PostToolUse hook's output that replaces the output of Read.

    `path` is the path in the input of Read, and `part` the text to show.
    """
    file = {
        "filePath": path,
        "content": part.text,
        "numLines": part.count,
        "startLine": part.start,
        "totalLines": part.total,
    }
    output = {
        "hookEventName": "PostToolUse",
        "updatedToolOutput": {"type": "text", "file": file},
    }
    return encode_json({"hookSpecificOutput": output})


def format_notice(line: str) -> bytes:
    """Return a FileChanged hook's output with a line for the user.

    Claude Code shows the line for five seconds.
    """
    return encode_json({"systemMessage": line}) + b"\n"
