"""Claude Code's hook JSON, as far as the hook process needs it.

Only this module and `daemon/claude_code_json` contain Claude Code's field names, which
were determined by tests: see docs/development/claude-code.md. The hook process imports
this module if the daemon can't respond, or to wait until it can notify the agent.
"""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any

from stepper.common.errors import StepperError
from stepper.common.text import clean
from stepper.messages.marks import FAILED_MARK
from stepper.messages.run_report import Report, format_not_run
from stepper.policy.commands.command_lines import CommandLines

PROBLEM_LIMIT = 2000  # the maximum length of a new notebook's problem, in characters
SILENT = b""
ORIGINAL_FILE = b'"original_file":"'  # the start of the first copy in a payload
NEW_NOTEBOOK = re.compile(r"new\s+notebook\s+(\S.*)", re.IGNORECASE | re.DOTALL)


def get_object(data: Any, key: str) -> dict[str, Any]:
    """Return the object at a key, or an empty object if the value is not an object."""
    value = None
    if isinstance(data, dict):
        value = data.get(key)
    if isinstance(value, dict):
        return value
    return {}


def get_text(data: Any, key: str) -> str:
    """Return the string at a key, or an empty string if the value is not a string."""
    value = None
    if isinstance(data, dict):
        value = data.get(key)
    if isinstance(value, str):
        return value
    return ""


def encode_json(data: dict[str, Any]) -> bytes:
    """Return an object as JSON, encoded as UTF-8."""
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "replace")


def remove_notebook_copies(data: bytes) -> bytes:
    """Return a payload without the two copies of the notebook in `tool_response`.

    The daemon reads the file instead. Quotes in JSON strings are escaped, so the
    patterns never match inside a string. If the keys have another order, the payload is
    returned unchanged.
    """
    # The index of a missing part is -1.
    response = data.find(b'"tool_response":{')
    copies_start = data.find(ORIGINAL_FILE, response)
    copies_end = data.rfind(b'"},"tool_use_id":"')
    # Everything that the daemon reads comes before the copies.
    cell_id = data.find(b'"cell_id":"', response, copies_start)
    is_expected_order = 0 <= response < cell_id < copies_start < copies_end
    is_quote_escaped = data[copies_end - 1 : copies_end] == b"\\"
    if not is_expected_order or is_quote_escaped:
        return data
    return data[:copies_start] + ORIGINAL_FILE + data[copies_end:]


def format_context(event: str, report: Report | None) -> bytes:
    """Return a hook's output with a report.

    The output contains context for the agent and a line for the user, or stops the
    agent. It is empty if the report is None.
    """
    if report is None:
        return SILENT
    if report.stop:
        return encode_json({"continue": False, "stopReason": report.stop})
    context = {"hookEventName": event, "additionalContext": report.text}
    output: dict[str, Any] = {"hookSpecificOutput": context}
    if report.line:
        output["systemMessage"] = report.line
    return encode_json(output)


def format_new_notebook(prompt: str) -> bytes:
    """Return the output of UserPromptSubmit for the prompt `new notebook PROBLEM`.

    The output is empty for other prompts.
    """
    match = NEW_NOTEBOOK.fullmatch(prompt.strip())
    if not match:
        return SILENT
    problem = clean(match[1])[:PROBLEM_LIMIT]
    text = (
        "stepper: the user asks for a new notebook, as with /new-notebook. The skill"
        ' stepping-notebooks explains how: make a plan, run `stepper new "PROBLEM"'
        f" --step TITLE …`, then write one cell after the other. The problem: {problem}"
    )
    return format_context("UserPromptSubmit", Report(text))


def respond_without_daemon(event: str, data: bytes) -> bytes:
    """Return the output of a hook that got no response from a daemon.

    The output is empty, except for the prompt `new notebook PROBLEM`.
    """
    if event != "UserPromptSubmit":
        return SILENT
    try:
        prompt = get_text(json.loads(data), "prompt")
    except ValueError:
        return SILENT
    return format_new_notebook(prompt)


def format_failure(
    event: str, error: Exception, data: bytes = b"", project: str = ""
) -> bytes:
    """Return the output of a hook that failed.

    The output is empty unless the event is PostToolUse. `data` is the event's payload,
    which contains the notebook's path. `project` is the path of the project.
    """
    if event != "PostToolUse":
        return SILENT
    if not isinstance(error, StepperError):
        error = StepperError(f"{type(error).__name__}: {error}")
    hint = error.hint or ".stepper/env/bin/stepper doctor"
    report = format_not_run(error.message, hint)
    if error.accepted:  # the daemon accepted the request, so the cell may have run
        history = CommandLines(_get_edited_notebook(data, project)).shell("history")
        text = report.text.replace(
            "was NOT run", f"may or may not have run (see `{history}`)", 1
        )
        line = f"{FAILED_MARK} stepper failed: {error.message}"
        report = Report(text, line, ok=False)
    return format_context(event, report)


def _get_edited_notebook(data: bytes, project: str) -> str:
    """Return the path of the edited notebook, relative to the project if possible.

    Return an empty string if the payload contains no path.
    """
    try:
        arguments = get_object(json.loads(data), "tool_input")
    except ValueError:
        return ""
    path = get_text(arguments, "notebook_path") or get_text(arguments, "file_path")
    if posixpath.isabs(path):
        return posixpath.relpath(path, project)
    return path
