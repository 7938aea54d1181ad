"""Claude Code's JSON ↔ our values: the only file that knows its field names. Measured, see docs/claude-code.md."""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any

from stepper.ground.text import clean
from stepper.policy.model import CellEdit, Consent, FileWrite
from stepper.words.report import Report, not_run

SILENT = b""
# The modes in which the person has accepted edits beforehand, or wants nothing done yet; in all others each is asked.
CONSENTS = {
    "acceptEdits": Consent.GIVEN,
    "bypassPermissions": Consent.GIVEN,
    "auto": Consent.GIVEN,
    "plan": Consent.WITHHELD,
}
COMMAND = re.compile(r"/(?:stepper:)?(?:continue|fix|skip|new-notebook)(?!\S)")
NEW_NOTEBOOK = re.compile(r"new\s+notebook\s+(\S.*)", re.IGNORECASE | re.DOTALL)


class PayloadError(ValueError):
    """The payload is not what Claude Code sends."""


Change = CellEdit | FileWrite


def _text(data: dict[str, Any], key: str, default: str | None = None) -> str:
    value = data.get(key, default)
    if not isinstance(value, str):
        raise PayloadError(f"the hook's payload has no text in `{key}`")
    return value


def _object(data: dict[str, Any], key: str, default: Any = None) -> dict[str, Any]:
    value = data.get(key, default)
    if not isinstance(value, dict):
        raise PayloadError(f"the hook's payload has no object in `{key}`")
    return value


def _word(data: dict[str, Any], key: str, default: str = "", limit: int | None = 200) -> str:
    """Return a text's beginning, the default for anything else."""
    value = data.get(key)
    return value[:limit] if isinstance(value, str) and value else default


def _path(data: dict[str, Any], key: str) -> str:
    """Return a path that a file can have; raise PayloadError."""
    value = _text(data, key)
    if not _possible(value):
        raise PayloadError(f"the hook's payload has a path in `{key}` that no file can have")
    return value


def _possible(path: str) -> bool:
    try:
        return b"\0" not in path.encode("utf-8", "surrogateescape") and len(path) < 4096
    except UnicodeEncodeError:
        return False


def payload(data: Any) -> dict[str, Any]:
    """Return the payload as a dict; raise PayloadError for anything else."""
    if not isinstance(data, dict):
        raise PayloadError("the hook's payload is not a JSON object")
    return data


def lean(data: bytes) -> bytes:
    """Return a payload without the two copies of the notebook that close `tool_response`: the daemon reads the file.

    A bare quote never stands inside a JSON string, so these patterns are found between strings alone; where the keys
    come in another order nothing is cut.
    """
    answer = data.find(b'"tool_response":{')
    start = data.find(b'"original_file":"', answer)
    end = data.rfind(b'"},"tool_use_id":"')
    known = data.find(b'"cell_id":"', answer, start)  # all that is asked for stands before the copies
    if not 0 <= answer < known < start < end or data[end - 1 : end] == b"\\":
        return data
    return data[:start] + b'"original_file":"' + data[end:]


def change(data: dict[str, Any]) -> Change:
    """Return what a PreToolUse or PostToolUse of NotebookEdit or Write tells; raise PayloadError.

    After an insert the new cell's id stands in `tool_response` alone; before it, `cell_id` names the cell above.
    """
    given, answered = _object(data, "tool_input"), data.get("tool_response")
    answered = answered if isinstance(answered, dict) else {}
    common: dict[str, Any] = {
        "tool_use_id": _word(data, "tool_use_id") or None,
        "session": _word(data, "session_id"),
        "consent": consent(data),
    }
    tool = _text(data, "tool_name")
    if tool == "Write":
        return FileWrite(_path(given, "file_path"), _word(given, "content", limit=None), **common)
    if tool != "NotebookEdit":
        raise PayloadError(f"the hook's payload is about the tool {tool[:100]!r}")
    how = _word(given, "edit_mode", "replace")
    named, own = given.get("cell_id"), answered.get("cell_id")
    cell_id = own or (None if how == "insert" else named)
    cell_type = answered.get("cell_type") or given.get("cell_type")
    return CellEdit(
        _path(given, "notebook_path"),
        cell_id if isinstance(cell_id, str) else None,
        named if how == "insert" and isinstance(named, str) else None,
        cell_type if isinstance(cell_type, str) else None,
        how,
        _word(given, "new_source", limit=None),
        **common,
    )


def last_edits(data: dict[str, Any]) -> set[str]:
    """Return the notebooks whose last call in a message was an edit, from a PostToolBatch; paths are absolute.

    The client accepts a new time from outside after an edit alone: after a Read it takes the file for changed by
    somebody else and refuses the next edit.
    """
    calls = data.get("tool_calls")
    edited: set[str] = set()
    for call in calls if isinstance(calls, list) else []:
        given = call.get("tool_input") if isinstance(call, dict) else None
        path = (given.get("notebook_path") or given.get("file_path")) if isinstance(given, dict) else None
        if not isinstance(path, str):
            continue
        path = posixpath.join(_word(data, "cwd", "/", 4096), path)
        if not _possible(path):
            continue
        if call.get("tool_name") in ("NotebookEdit", "Write"):
            edited.add(path)
        elif call.get("tool_name") == "Read":
            edited.discard(path)
    return edited


def session(data: dict[str, Any]) -> str:
    """Return the id of the session that the event belongs to."""
    return _word(data, "session_id")


def shell_command(data: dict[str, Any]) -> str:
    """Return the command of a Bash call; raise PayloadError."""
    return _text(_object(data, "tool_input"), "command")


def is_shell(data: dict[str, Any]) -> bool:
    """Whether the event is about a Bash call."""
    return data.get("tool_name") == "Bash"


def prompt(data: dict[str, Any]) -> str:
    """Return what the person wrote; raise PayloadError."""
    return _text(data, "prompt")


def is_command(data: dict[str, Any]) -> bool:
    """Whether the person's prompt is one of the slash commands that give work to do."""
    return bool(COMMAND.match(prompt(data).strip()))


def mode(data: dict[str, Any]) -> str:
    """Return the permission mode: default, plan, acceptEdits, bypassPermissions …"""
    return _word(data, "permission_mode", "default")


def consent(data: dict[str, Any]) -> Consent:
    """Return what the person said of edits, by the permission mode."""
    return CONSENTS.get(mode(data), Consent.ASKED)


def last_message(data: dict[str, Any]) -> str:
    """Return the agent's last message of a turn."""
    return _word(data, "last_assistant_message", limit=None)


def answer(event: str, report: Report | None) -> bytes:
    """Return what the hook prints: context for the agent and a line for the person, or the stop alone."""
    if report is None:
        return SILENT
    if report.stop:
        return _dump({"continue": False, "stopReason": report.stop})
    said: dict[str, Any] = {"hookSpecificOutput": {"hookEventName": event, "additionalContext": report.text}}
    if report.line:
        said["systemMessage"] = report.line
    return _dump(said)


def decided(decision: str, reason: str) -> bytes:
    """Return what a PreToolUse hook prints to `deny` a call or to have the client `ask` the person."""
    told = {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": reason}
    return _dump({"hookSpecificOutput": told})


def new_notebook(data: dict[str, Any]) -> bytes:
    """Return what a UserPromptSubmit hook prints for the plain words `new notebook PROBLEM`; else nothing."""
    found = NEW_NOTEBOOK.fullmatch(prompt(data).strip())
    if not found:
        return SILENT
    said = (
        "stepper: the person asks for a new notebook, as with /new-notebook. The skill stepping-notebooks tells how:"
        f' plan, `stepper new "PROBLEM" --step TITLE …`, then cell by cell. The problem: {clean(found[1])[:2000]}'
    )
    return answer("UserPromptSubmit", Report(said))


def alone(event: str, payload_bytes: bytes) -> bytes:
    """Return what the hook process answers where no daemon runs and none is to be started."""
    if event != "UserPromptSubmit":
        return SILENT
    try:
        return new_notebook(payload(json.loads(payload_bytes)))
    except ValueError:
        return SILENT


def go_on(reason: str) -> bytes:
    """Return what a Stop hook prints to send the agent on."""
    return _dump({"decision": "block", "reason": reason})


def _dump(data: dict[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "replace")


def failed(event: str, error: Exception, accepted: bool) -> bytes:
    """Return what the hook process prints where no answer came from the daemon.

    Only an event that concerns a cell speaks. `accepted` says that the daemon had taken the request, so that the
    cell may have run.
    """
    if event != "PostToolUse":
        return SILENT
    hint = getattr(error, "hint", "") or ".stepper/env/bin/stepper doctor"
    reason = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
    report = not_run(reason, hint)
    if accepted:
        text = report.text.replace("was NOT run", "may or may not have run (`stepper history` tells)", 1)
        report = Report(text, f"✗ stepper failed: {reason}", ok=False)
    return answer(event, report)
