"""Parsing of Claude Code's hook payloads, and the JSON that its hooks print.

This is the only module that knows Claude Code's field names; they were measured, see
docs/development/claude-code.md.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable
from typing import Any

from stepper.common.errors import StepperError
from stepper.common.text import clean
from stepper.messages.run_report import Report, format_not_run
from stepper.policy.commands.command_lines import PROGRAM, CommandLines, replace_program
from stepper.policy.model import CellEdit, Consent, FileWrite

PROBLEM_LIMIT = 2000  # characters of the problem of a new notebook
SILENT = b""
# The permission modes in which the user has approved edits in advance, lets the client
# decide, or wants nothing to run yet. In all others, the client asks for each edit.
CONSENTS = {
    **dict.fromkeys(("acceptEdits", "bypassPermissions"), Consent.GIVEN),
    "auto": Consent.DELEGATED,
    "plan": Consent.WITHHELD,
}
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
COMMAND = re.compile(r"/(?:stepper:)?(?:continue|fix|skip|new-notebook)(?!\S)")
SKILLS = ("continue", "fix", "skip")  # the slash commands that texts name
NEW_NOTEBOOK = re.compile(r"new\s+notebook\s+(\S.*)", re.IGNORECASE | re.DOTALL)


# What is asked again of an edit's payload: all but what is only of its file.
ASKED = ("session_id", "permission_mode", "hook_event_name", "tool_name", "tool_use_id")
ASKED_OF = {
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

    Access to a required field that is missing or invalid raises PayloadError.
    """

    def __init__(self, data: Any, client: str = "") -> None:
        if not isinstance(data, dict):
            raise PayloadError("the hook's payload is not a JSON object")
        self.data, self.client = data, client  # the process that tells it
        self.session = _word(data, "session_id")
        mode = _word(data, "permission_mode")
        self.consent = CONSENTS.get(mode, Consent.ASKED)
        self.asks_each = mode == "default"
        self.of_subagent = bool(_word(data, "agent_id"))
        self.begins = _word(data, "hook_event_name") == "SessionStart"
        # of a SessionStart: the user has seen what came before
        self.goes_on = _word(data, "source") == "compact"
        self.last_message = _word(data, "last_assistant_message", limit=None)
        self.is_shell = data.get("tool_name") == "Bash"

    @property
    def prompt(self) -> str:
        """The user's prompt."""
        return _text(self.data, "prompt").strip()

    @property
    def is_notification(self) -> bool:
        """Whether Claude Code wrote the prompt after a message of an async hook."""
        return self.prompt.startswith("<task-notification>")

    @property
    def is_command(self) -> bool:
        """Whether the prompt is a slash command of stepper for the agent."""
        return bool(COMMAND.match(self.prompt))

    @property
    def is_slash(self) -> bool:
        """Whether the prompt is a slash command of any plugin, not a path."""
        return bool(re.match(r"/[\w:-]+(?!\S)", self.prompt))

    @property
    def shell_command(self) -> str:
        """The command of a Bash call."""
        return _text(self.tool_input, "command")

    @property
    def tool_input(self) -> dict[str, Any]:
        """The input of a tool call."""
        if not isinstance(self.data.get("tool_input"), dict):
            raise PayloadError("the hook's payload has no object in `tool_input`")
        return _object(self.data, "tool_input")

    @property
    def change(self) -> CellEdit | FileWrite:
        """The edit in a PreToolUse or PostToolUse event of NotebookEdit or Write.

        After an insert, only `tool_response` has the new cell's id: `cell_id` is the id
        of the cell above.
        """
        given, answered = self.tool_input, _object(self.data, "tool_response")
        used = _word(self.data, "tool_use_id") or None
        common: dict[str, Any] = {
            "tool_use_id": used,
            "session": self.session,
            "consent": self.consent,
        }
        tool = _text(self.data, "tool_name")
        if tool == "Write":
            return FileWrite(
                _path(given, "file_path"), _word(given, "content", limit=None), **common
            )
        if tool != "NotebookEdit":
            raise PayloadError(f"the hook's payload is about the tool {tool[:100]!r}")
        how, named = (
            _word(given, "edit_mode") or "replace",
            _word(given, "cell_id", limit=None) or None,
        )
        own = _word(answered, "cell_id", limit=None) or (
            None if how == "insert" else named
        )
        above = named if how == "insert" else None
        kind = _word(answered, "cell_type") or _word(given, "cell_type") or None
        source = _word(given, "new_source", limit=None)
        return CellEdit(
            _path(given, "notebook_path"), own, above, kind, how, source, **common
        )

    @property
    def read_path(self) -> str:
        """The file that a Read is about to read."""
        return _path(self.tool_input, "file_path")

    @property
    def asked_again(self) -> bytes:
        """The payload of an edit without the notebook's contents.

        A hook process that waits for hours keeps only this in memory.
        """
        small: dict[str, Any] = {name: _word(self.data, name) for name in ASKED}
        for part, names in ASKED_OF.items():
            values = _object(self.data, part)
            small[part] = {name: values[name] for name in names if name in values}
        return _dump(small)

    @property
    def used_shell(self) -> bool:
        """Whether a call of a PostToolBatch may have changed files without an event."""
        for call in self._tool_calls:
            name = _word(call, "tool_name")
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
    def last_edits(self) -> set[str]:
        """The notebooks whose last call in a PostToolBatch was an edit.

        The paths are absolute.

        Claude Code accepts a new modification time only after an edit. After a Read, it
        assumes that another program changed the file and refuses the next edit.
        """
        folder = _word(self.data, "cwd", 4096) or "/"
        edited: set[str] = set()
        for call in self._tool_calls:
            arguments = _object(call, "tool_input")
            name = _word(arguments, "notebook_path", limit=None)
            name = name or _word(arguments, "file_path", limit=None)
            if not name:
                continue
            path = posixpath.join(folder, name)
            tool = call.get("tool_name")
            if tool in ("NotebookEdit", "Write") and _possible(path):
                edited.add(path)
            elif tool == "Read":
                edited.discard(path)
        return edited


def _object(data: Any, key: str) -> dict[str, Any]:
    """Return the object at a key, an empty one if the value is not an object."""
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, dict) else {}


def _text(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise PayloadError(f"the hook's payload has no text in `{key}`")
    return value


def _word(data: dict[str, Any], key: str, limit: int | None = 200) -> str:
    """Return the first `limit` characters of a text, '' for any other value."""
    value = data.get(key)
    return value[:limit] if isinstance(value, str) else ""


def _path(data: dict[str, Any], key: str) -> str:
    value = _text(data, key)
    if not _possible(value):
        raise PayloadError(
            f"the hook's payload has a path in `{key}` that no file can have"
        )
    return value


def _possible(path: str) -> bool:
    try:
        return b"\0" not in path.encode("utf-8", "surrogateescape") and len(path) < 4096
    except UnicodeEncodeError:
        return False


def remove_notebook_copies(data: bytes) -> bytes:
    """Return a payload without the two copies of the notebook in `tool_response`.

    The daemon reads the file instead. Quotes in JSON strings are escaped, so the
    patterns never match inside a string. If the keys have another order, the payload is
    returned unchanged.
    """
    response = data.find(b'"tool_response":{')
    start = data.find(b'"original_file":"', response)
    end = data.rfind(b'"},"tool_use_id":"')
    # Everything that the daemon reads comes before the copies.
    cell_id = data.find(b'"cell_id":"', response, start)
    is_escaped = data[end - 1 : end] == b"\\"
    if is_escaped or not 0 <= response < cell_id < start < end:
        return data
    return data[:start] + b'"original_file":"' + data[end:]


def format_context(event: str, report: Report | None) -> bytes:
    """Return a hook's output: context for the agent, a line for the user, or a stop."""
    if report is None:
        return SILENT
    if report.stop:
        return _dump({"continue": False, "stopReason": report.stop})
    context = {"hookEventName": event, "additionalContext": report.text}
    output: dict[str, Any] = {"hookSpecificOutput": context}
    if report.line:
        output["systemMessage"] = report.line
    return _dump(output)


def use_terminal_commands(output: bytes, program: str) -> bytes:
    """Return a hook's output with commands that work in the user's terminal."""
    if program == PROGRAM or PROGRAM.encode() not in output:
        return output
    values = json.loads(output)
    for name in ("systemMessage", "stopReason"):
        if name in values:
            values[name] = replace_program(values[name], program)
    return _dump(values)


def _list_texts(values: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Return the texts that mention commands, as (object, key)."""
    context = _object(values, "hookSpecificOutput")
    return [(values, "stopReason"), (context, "additionalContext")]


def add_plugin_note(output: bytes) -> bytes:
    """Return a hook's output with a note on the name of /continue in a plugin."""
    if b"/continue" not in output:
        return output
    values = json.loads(output)
    for holder, name in _list_texts(values):
        if "/continue" in holder.get(name, ""):
            holder[name] += (
                "\n(Type /stepper:continue here: a bare /continue is the client's own"
                " command.)"
            )
    return _dump(values)


def add_skill_notes(output: bytes, is_another: Callable[[str], bool]) -> bytes:
    """Return a hook's output with a note on each command that is another skill's name.

    `is_another` returns whether the project has a skill of this name that stepper did
    not install.
    """
    mentioned = [skill for skill in SKILLS if f"/{skill}".encode() in output]
    others = [skill for skill in mentioned if is_another(skill)]
    if not others:
        return output
    values = json.loads(output)
    for holder, name in _list_texts(values):
        text = holder.get(name, "")
        for skill in others:
            if re.search(rf"(?<![\w./-])/{skill}(?![\w./-])", text):
                holder[name] += (
                    f"\n(/{skill} is another skill in this project. Instead, run in a"
                    f" terminal: stepper {skill})"
                )
    return _dump(values)


def format_user_line(line: str) -> bytes:
    """Return a hook's output with a line for the user alone; empty without a line."""
    return _dump({"systemMessage": line}) if line else SILENT


def format_decision(decision: str, reason: str, line: str = "") -> bytes:
    """Return a PreToolUse hook's output with the decision `deny`, `allow` or `ask`."""
    output: dict[str, Any] = {}
    if line:
        output["systemMessage"] = line
    output["hookSpecificOutput"] = {
        "hookEventName": "PreToolUse",
        "permissionDecision": decision,
        "permissionDecisionReason": reason,
    }
    return _dump(output)


def format_new_notebook(event: Event) -> bytes:
    """Return the output of UserPromptSubmit for the prompt `new notebook PROBLEM`."""
    match = NEW_NOTEBOOK.fullmatch(event.prompt)
    if not match:
        return SILENT
    problem = clean(match[1])[:PROBLEM_LIMIT]
    text = (
        "stepper: the user asks for a new notebook, as with /new-notebook. The skill"
        ' stepping-notebooks explains how: make a plan, run `stepper new "PROBLEM"'
        f" --step TITLE …`, then write one cell after the other. The problem: {problem}"
    )
    return format_context("UserPromptSubmit", Report(text))


def format_notice(line: str) -> bytes:
    """Return the output of FileChanged: Claude Code shows the line for five seconds."""
    return _dump({"systemMessage": line}) + b"\n"


def respond_without_daemon(event: str, data: bytes) -> bytes:
    """Return the output of a hook if no daemon runs and none should be started."""
    try:
        if event == "UserPromptSubmit":
            return format_new_notebook(Event(json.loads(data)))
    except ValueError:
        pass
    return SILENT


def format_failure(
    event: str, error: Exception, data: bytes = b"", project: str = ""
) -> bytes:
    """Return the output of a hook that failed; it is empty unless a cell was edited.

    `data` is the event's payload, which contains the notebook's path.
    """
    if event != "PostToolUse":
        return SILENT
    if not isinstance(error, StepperError):
        error = StepperError(f"{type(error).__name__}: {error}")
    hint = error.hint or ".stepper/env/bin/stepper doctor"
    report = format_not_run(error.message, hint)
    if error.accepted:  # the daemon had the request, so the cell may have run
        history = CommandLines(_edited_notebook(data, project)).shell("history")
        text = report.text.replace(
            "was NOT run", f"may or may not have run (see `{history}`)", 1
        )
        report = Report(text, f"✗ stepper failed: {error.message}", ok=False)
    return format_context(event, report)


def _edited_notebook(data: bytes, project: str) -> str:
    """Return the notebook that a payload names, relative to the project, or ''."""
    try:
        path = Event(json.loads(data)).change.notebook
    except ValueError:
        return ""
    return posixpath.relpath(path, project) if posixpath.isabs(path) else path


def _dump(data: dict[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "replace")
