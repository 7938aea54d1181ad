"""Changes to Claude Code's settings.json and to .gitignore.

The functions convert data or text and do not access files. They recognize stepper's
parts without the install record: a handler by its command, a line by its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from stepper.common import paths
from stepper.policy.configuration import notebook_globs

SCRIPT = paths.SCRIPT
# In seconds. The timeout is so long that only stepper's own limits stop a cell.
CELL_TIMEOUT = 7 * 86_400
GITIGNORE_LINE = b".stepper/"

MARK = "unchanged text of notebook-stepper "
DEFAULT_INDENT = "  "
Json = Any  # a value of any JSON type
Data = dict[str, Json]


class Handler(NamedTuple):
    """A hook handler of Claude Code.

    `rule` is the value of `if`, `timeout` is in seconds, and `status` is the message
    while the handler runs. `argument` is the argument of the hook script, by default
    the name of the event. `notifies` means that the handler runs in the background for
    hours, and that Claude Code notifies the agent with its output when it exits.
    """

    event: str
    matcher: str | None
    rule: str | None
    timeout: int
    status: str | None = None
    argument: str = ""
    notifies: bool = False


# The handlers match all notebooks. The daemon reads the current configuration and
# explains why the cells of a notebook that is not included do not run.
HANDLERS = (
    Handler("PreToolUse", "NotebookEdit", "NotebookEdit(**/*.ipynb)", 30),
    Handler("PreToolUse", "Write", "Write(**/*.ipynb)", 30),
    Handler("PreToolUse", "Bash", "Bash(*stepper *)", 30),
    # Prepares the read of a large notebook. It also explains that approving a code cell
    # runs the cell: each `NotebookEdit` follows a `Read`, and the output of the edit's
    # own event appears only after the permission question.
    Handler("PreToolUse", "Read", "Read(**/*.ipynb)", 10, argument="BeforeRead"),
    Handler(
        "PostToolUse",
        "NotebookEdit",
        "NotebookEdit(**/*.ipynb)",
        CELL_TIMEOUT,
        "Running cell…",
    ),
    Handler(
        "PostToolUse", "Write", "Write(**/*.ipynb)", CELL_TIMEOUT, "Running cells…"
    ),
    Handler(
        "PostToolUse",
        "NotebookEdit",
        "NotebookEdit(**/*.ipynb)",
        CELL_TIMEOUT,
        argument="Wake",
        notifies=True,
    ),
    Handler(
        "PostToolUse",
        "Write",
        "Write(**/*.ipynb)",
        CELL_TIMEOUT,
        argument="Wake",
        notifies=True,
    ),
    # Replaces the output of Read with a digest.
    Handler("PostToolUse", "Read", "Read(**/*.ipynb)", 10, argument="AfterRead"),
    Handler(
        "PostToolUseFailure", "Read", "Read(**/*.ipynb)", 10, argument="ReadFailed"
    ),
    Handler("PostToolBatch", None, None, 30),
    Handler("SessionStart", None, None, 30),
    # Names the file that changes while a cell runs.
    Handler("SessionStart", None, None, 10, argument="Watch"),
    Handler("SessionStart", None, None, CELL_TIMEOUT, argument="Rearm", notifies=True),
    # Prints the contents of that file.
    Handler("FileChanged", None, None, 10),
    Handler("UserPromptSubmit", None, None, 20),
    Handler("Stop", None, None, 20),
    Handler("Stop", None, None, CELL_TIMEOUT, argument="Rearm", notifies=True),
)
# Texts that the user and the agent see with a notification. The names are internal to
# Claude Code; without them the notification is labelled "Stop hook feedback".
REWAKE = {
    "asyncRewake": True,
    "rewakeSummary": "stepper: report on a background cell",
    "rewakeMessage": "Background cell:",
}
SHELL_RULE = "Bash(stepper *)"


def list_permission_rules(patterns: Iterable[str]) -> list[str]:
    """Return the permission rules of `--allow`, for the patterns of notebooks.

    With these rules, Claude Code edits notebooks without approval, and edited cells run
    immediately.
    """
    rules = []
    for pattern in patterns:
        folder = ""
        if notebook_globs.is_folder(pattern):
            folder = notebook_globs.get_base_folder(pattern)
        if folder:
            rules.append(f"Edit({folder}/**)")
        else:
            rules += [f"Edit(/{glob})" for glob in notebook_globs.expand(pattern)]
    return [*rules, SHELL_RULE]


def build_hook_group(handler: Handler) -> Data:
    """Return the settings entry of a handler.

    Each handler has its own group. The command has the exec form, which uses no shell.
    """
    spec: Data = {
        "type": "command",
        "command": "${CLAUDE_PROJECT_DIR}/" + SCRIPT,
        "args": [handler.argument or handler.event],
        "if": handler.rule,
        "timeout": handler.timeout,
        "statusMessage": handler.status,
    }
    if handler.notifies:
        spec |= REWAKE
    spec = {name: value for name, value in spec.items() if value is not None}
    if handler.matcher:
        return {"matcher": handler.matcher, "hooks": [spec]}
    return {"hooks": [spec]}


def find_shape_problem(data: object) -> str:
    """Return the reason why hooks can't be merged into `data`, or an empty string."""
    if not isinstance(data, dict):
        return "the top level is not a JSON object"
    hooks = data.get("hooks", {})
    permissions = data.get("permissions", {})
    for name, value in (("hooks", hooks), ("permissions", permissions)):
        if not isinstance(value, dict):
            return f"{name} is not an object"
    lists = {
        f"hooks.{handler.event}": hooks.get(handler.event, []) for handler in HANDLERS
    }
    lists["permissions.allow"] = permissions.get("allow", [])
    for name, value in lists.items():
        if not isinstance(value, list):
            return f"{name} is not a list"
    return ""


def list_missing_handlers(data: Data) -> list[str]:
    """Return the names of stepper's handlers that the settings do not contain.

    A handler with another timeout or command is missing too. A name consists of the
    event, the matcher and the argument of the hook script.
    """
    hooks = data.get("hooks", {})
    names = []
    for handler in HANDLERS:
        if build_hook_group(handler) not in hooks.get(handler.event, []):
            parts = (handler.event, handler.matcher, handler.argument)
            names.append(" ".join(filter(None, parts)))
    return names


def has_our_handlers(data: Data) -> bool:
    """Return whether the settings contain a handler of stepper."""
    return remove_ours(data, [], {}) != data


def is_plugin_enabled(data: Data) -> bool:
    """Return whether the settings enable stepper's plugin from any marketplace."""
    plugins = data.get("enabledPlugins")
    if not isinstance(plugins, dict):
        return False
    for name, is_enabled in plugins.items():
        if name.startswith("stepper@") and is_enabled:
            return True
    return False


def add_hooks(data: Data) -> Data:
    """Return the settings with stepper's handlers, after all other handlers.

    If the settings already contain exactly these handlers, nothing is changed.
    """
    count = _count_our_handlers(data)
    if count == len(HANDLERS) and not list_missing_handlers(data):
        return data
    other_settings = remove_ours(data, [], data)
    hooks = dict(other_settings.get("hooks", {}))
    for handler in HANDLERS:
        hooks[handler.event] = [
            *hooks.get(handler.event, []),
            build_hook_group(handler),
        ]
    return {**other_settings, "hooks": hooks}


def _count_our_handlers(data: Data) -> int:
    """Return the number of stepper's handlers in the settings, of all versions."""
    count = 0
    for groups in data.get("hooks", {}).values():
        if isinstance(groups, list):
            for group in groups:
                count += sum(map(_is_ours, _get_handlers(group)))
    return count


def add_rules(data: Data, rules: list[str]) -> tuple[Data, list[str]]:
    """Return the settings with permission rules, and the rules that were missing."""
    permissions = data.get("permissions", {})
    allow = permissions.get("allow", [])
    new_rules = [rule for rule in rules if rule not in allow]
    if not new_rules:
        return data, []
    new_permissions = {**permissions, "allow": [*allow, *new_rules]}
    return {**data, "permissions": new_permissions}, new_rules


def remove_ours(data: Data, rules: list[str], before: Data) -> Data:
    """Return the settings without stepper's handlers and without `rules`.

    Objects and lists that become empty are also removed, unless the original settings
    `before` contain them.
    """
    hooks = data.get("hooks")
    if isinstance(hooks, dict):
        original_hooks = before.get("hooks", {})
        remaining_hooks = hooks
        for event, groups in hooks.items():
            remaining_groups = _remove_our_handlers(groups)
            remaining_hooks = _replace_key(
                remaining_hooks, event, remaining_groups, original_hooks
            )
        data = _replace_key(data, "hooks", remaining_hooks, before)
    permissions = data.get("permissions")
    if isinstance(permissions, dict) and isinstance(permissions.get("allow"), list):
        remaining_rules = [rule for rule in permissions["allow"] if rule not in rules]
        remaining_permissions = _replace_key(
            permissions, "allow", remaining_rules, before.get("permissions", {})
        )
        data = _replace_key(data, "permissions", remaining_permissions, before)
    return data


def _replace_key(data: Data, name: str, new_value: Json, before: Data) -> Data:
    """Return a copy of `data` with a new value for a key.

    If the new value is empty and `before` does not have the key, the key is removed.
    """
    if new_value == data.get(name):
        return data
    is_kept = bool(new_value) or name in before
    replaced = {}
    for key, value in data.items():
        if key != name:
            replaced[key] = value
        elif is_kept:
            replaced[key] = new_value
    return replaced


def _is_ours(handler: object) -> bool:
    """Return whether a handler in the settings runs stepper's hook script."""
    if not isinstance(handler, dict):
        return False
    return str(handler.get("command", "")).endswith(f"/{SCRIPT}")


def _get_handlers(group: object) -> list[Json]:
    """Return the handlers of a group, or an empty list if the group is malformed."""
    handlers = None
    if isinstance(group, dict):
        handlers = group.get("hooks")
    if isinstance(handlers, list):
        return handlers
    return []


def _remove_our_handlers(groups: Json) -> Json:
    """Return the groups of an event without stepper's handlers.

    A group that contained no other handlers is removed. A value that is not a list is
    returned unchanged.
    """
    if not isinstance(groups, list):
        return groups
    remaining_groups = []
    for group in groups:
        handlers = _get_handlers(group)
        other_handlers = [handler for handler in handlers if not _is_ours(handler)]
        if len(other_handlers) == len(handlers):
            remaining_groups.append(group)
        elif other_handlers:
            remaining_groups.append({**group, "hooks": other_handlers})
    return remaining_groups


# --- settings as text: a diff shows only the additions


def parse(text: str) -> Json:
    """Parse a JSON document.

    Raises:
        ValueError: The text is not valid JSON, or an object has a duplicate key.
    """
    return json.loads(text, object_pairs_hook=_build_object)


def _build_object(pairs: list[tuple[str, Json]]) -> Data:
    """Return the dictionary of a JSON object; raise ValueError for a duplicate key."""
    names = [name for name, _ in pairs]
    if len({*names}) < len(names):
        duplicate = max(names, key=names.count)
        raise ValueError(f"an object has the key {duplicate!r} twice")
    return dict(pairs)


def render(data: Data, old: str = "{}\n") -> str:
    """Format `data` as JSON.

    Parts that are equal in the JSON document `old` keep their formatting. Other parts
    use the indentation and the line ends of `old`.
    """
    first_indentation = re.search(r'\n([ \t]+)"', old)
    indent = first_indentation[1] if first_indentation else DEFAULT_INDENT
    old_document = old.strip()
    unchanged_parts: list[str] = []
    marked_data = _mark_unchanged_parts(data, old_document, unchanged_parts)
    document = json.dumps(marked_data, indent=indent, ensure_ascii=False)
    if "\r\n" in old:
        document = document.replace("\n", "\r\n")
    # A key may have the text of a mark, but only values are marks.
    document = re.sub(
        rf'"{MARK}(\d+)"(?!:)',
        lambda match: unchanged_parts[int(match[1])],
        document,
    )
    if not old_document:
        return document
    # Keep the whitespace around the document.
    before, _, after = old.partition(old_document)
    return before + document + after


def _mark_unchanged_parts(new: Json, source: str, texts: list[str]) -> Json:
    """Return `new` with a mark instead of each part that is equal in `source`.

    The source texts of the equal parts are appended to `texts`. A mark contains the
    index of its text.
    """
    old = json.loads(source) if source else None
    # == would accept True for 1, and dictionaries in another order.
    if source and json.dumps(old) == json.dumps(new):
        texts.append(source)
        return f"{MARK}{len(texts) - 1}"
    parts = {}
    if isinstance(old, (dict, list)) and isinstance(old, type(new)):
        parts = _split_members(source)
    if isinstance(new, dict):
        return {
            name: _mark_unchanged_parts(value, parts.get(name, ""), texts)
            for name, value in new.items()
        }
    if isinstance(new, list):
        # An item keeps its text even if its position changed.
        old_texts = {json.dumps(json.loads(text)): text for text in parts.values()}
        return [
            _mark_unchanged_parts(item, old_texts.get(json.dumps(item), ""), texts)
            for item in new
        ]
    return new


def _split_members(source: str) -> dict[Json, str]:
    """Return the texts of the members of a JSON object or array, by key or index."""
    decoder = json.JSONDecoder()
    parts: dict[Json, str] = {}
    start = _skip_separators(source, 1)  # after the opening bracket
    while source[start] not in "]}":
        name: Json = len(parts)
        if source[0] == "{":  # an object: the name of the member comes first
            name, start = decoder.raw_decode(source, start)
            start = _skip_separators(source, start)
        _, end = decoder.raw_decode(source, start)
        parts[name] = source[start:end]
        start = _skip_separators(source, end)
    return parts


def _skip_separators(source: str, start: int) -> int:
    """Return the index of the next key, value or closing bracket from `start` on."""
    index = start
    while source[index] in " \t\r\n,:":
        index += 1
    return index


# --- .gitignore: bytes, because the file may have any encoding


def add_ignore_line(content: bytes) -> bytes:
    """Return the contents of a .gitignore with the line `.stepper/`.

    If the file does not end with a newline, the result does not either: this allows
    `remove_ignore_line` to restore the original bytes.
    """
    for line in content.split(b"\n"):
        if line.strip().strip(b"/") == b".stepper":
            return content
    line_end = b"\r\n" if b"\r\n" in content else b"\n"
    if not content or content.endswith(b"\n"):
        return content + GITIGNORE_LINE + line_end
    return content + line_end + GITIGNORE_LINE


def remove_ignore_line(content: bytes) -> bytes:
    """Return the contents of a .gitignore without the line of `add_ignore_line`."""
    lines = content.split(b"\n")
    remaining_lines = [line for line in lines if line.rstrip(b"\r") != GITIGNORE_LINE]
    if len(remaining_lines) == len(lines):
        return content
    remaining = b"\n".join(remaining_lines)
    if lines[-1] == GITIGNORE_LINE:
        # The file had no newline at its end before the line was added.
        return remaining.removesuffix(b"\r")
    return remaining
