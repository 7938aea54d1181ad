"""What install writes into files that are not only ours: settings.json, .gitignore.

Pure: data or text in, data or text out; no files. Our parts are recognised without any record: a handler by
its command, a line by its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from stepper.common import paths
from stepper.policy import notebook_globs

SCRIPT = paths.SCRIPT
# A cell ends by our rules, never by the client's: its handler may take a week
# (seconds).
CELL_TIMEOUT = 7 * 86_400
GITIGNORE_LINE = b".stepper/"

MARK = "kept text of notebook-stepper "
Json = Any  # a value of any JSON type
Data = dict[str, Json]


class Handler(NamedTuple):
    """One hook handler. `rule` is its `if`, `timeout` in seconds.

    `asks` is what the script is told, where that is not the event: a second handler of the same one. One that `wakes`
    goes on beside the agent's work, for hours, and what it says when it ends is what the agent is woken with.
    """

    event: str
    matcher: str | None
    rule: str | None
    timeout: int
    status: str | None = None
    asks: str = ""
    wakes: bool = False


# Bound to all notebooks: which ones are covered the daemon knows, from the
# configuration as it is, and the edit of
# another gets its line.
HANDLERS = (
    Handler("PreToolUse", "NotebookEdit", "NotebookEdit(**/*.ipynb)", 30),
    Handler("PreToolUse", "Write", "Write(**/*.ipynb)", 30),
    Handler("PreToolUse", "Bash", "Bash(*stepper *)", 30),
    # Shows what approving a code cell means: every `NotebookEdit` follows a `Read`, and
    # what the edit's own event says is shown after its question.
    Handler("PreToolUse", "Read", "Read(**/*.ipynb)", 30, asks="BeforeRead"),
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
        asks="Wake",
        wakes=True,
    ),
    Handler(
        "PostToolUse",
        "Write",
        "Write(**/*.ipynb)",
        CELL_TIMEOUT,
        asks="Wake",
        wakes=True,
    ),
    Handler("PostToolBatch", None, None, 30),
    Handler("SessionStart", None, None, 30),
    # names the file that changes while a cell runs …
    Handler("SessionStart", None, None, 10, asks="Watch"),
    Handler("SessionStart", None, None, CELL_TIMEOUT, asks="Rearm", wakes=True),
    Handler("FileChanged", None, None, 10),  # … and then says what stands in it
    Handler("UserPromptSubmit", None, None, 20),
    Handler("Stop", None, None, 20),
    Handler("Stop", None, None, CELL_TIMEOUT, asks="Rearm", wakes=True),
)
# What person and agent read around it: internal names of the client's, without which it
# is a "Stop hook feedback".
REWAKE = {
    "asyncRewake": True,
    "rewakeSummary": "stepper: a cell that went on has news",
    "rewakeMessage": "Of a cell that went on:",
}
SHELL_RULE = "Bash(stepper *)"


def list_permission_rules(patterns: Iterable[str]) -> list[str]:
    """Return the permission rules of `--allow`: an edit is not asked for any more, and its cell runs at once."""
    edits = []
    for told in patterns:
        named = notebook_globs.is_folder(told) and notebook_globs.base_folder(told)
        edits += (
            [f"Edit({named}/**)"]
            if named
            else [f"Edit(/{glob})" for glob in notebook_globs.expand(told)]
        )
    return [*edits, SHELL_RULE]


def build_hook_group(handler: Handler) -> Data:
    """Return `handler` as the settings hold it: a group of its own, in exec form (no shell, no quoting)."""
    spec: Data = {
        "type": "command",
        "command": "${CLAUDE_PROJECT_DIR}/" + SCRIPT,
        "args": [handler.asks or handler.event],
        "if": handler.rule,
        "timeout": handler.timeout,
        "statusMessage": handler.status,
        **(REWAKE if handler.wakes else {}),
    }
    spec = {name: value for name, value in spec.items() if value is not None}
    return (
        {"matcher": handler.matcher, "hooks": [spec]}
        if handler.matcher
        else {"hooks": [spec]}
    )


def find_shape_problem(data: object) -> str:
    """Return what in `data` is not of the shape that Claude Code reads, or "" where we can merge."""
    if not isinstance(data, dict):
        return "it does not hold an object"
    hooks, permissions = data.get("hooks", {}), data.get("permissions", {})
    for name, value in (("hooks", hooks), ("permissions", permissions)):
        if not isinstance(value, dict):
            return f"{name} is not an object"
    lists = {
        f"hooks.{handler.event}": hooks.get(handler.event, []) for handler in HANDLERS
    }
    lists["permissions.allow"] = permissions.get("allow", [])
    return next(
        (
            f"{name} is not a list"
            for name, value in lists.items()
            if not isinstance(value, list)
        ),
        "",
    )


def list_missing_handlers(data: Data) -> list[str]:
    """Return our handlers that `data` lacks or holds differently, as `event matcher`."""
    hooks = data.get("hooks", {})
    lacking = [h for h in HANDLERS if build_hook_group(h) not in hooks.get(h.event, [])]
    return [" ".join(filter(None, (h.event, h.matcher, h.asks))) for h in lacking]


def has_our_handlers(data: Data) -> bool:
    """Tell whether any handler of `data` is ours."""
    return remove_ours(data, [], {}) != data


def is_plugin_enabled(data: Data) -> bool:
    """Tell whether settings enable our plugin, of whatever marketplace."""
    enabled = data.get("enabledPlugins")
    return isinstance(enabled, dict) and any(
        name.startswith("stepper@") and on for name, on in enabled.items()
    )


def add_hooks(data: Data) -> Data:
    """Return `data` with all our handlers, after those that were there; `data` itself if it has them."""
    lists = [
        groups for groups in data.get("hooks", {}).values() if isinstance(groups, list)
    ]
    ours = [
        spec
        for groups in lists
        for item in groups
        for spec in _get_handlers(item)
        if _is_ours(spec)
    ]
    if len(ours) == len(HANDLERS) and not list_missing_handlers(data):
        return data
    clean = remove_ours(data, [], data)
    hooks = dict(clean.get("hooks", {}))
    for handler in HANDLERS:
        hooks[handler.event] = [
            *hooks.get(handler.event, []),
            build_hook_group(handler),
        ]
    return {**clean, "hooks": hooks}


def add_rules(data: Data, wanted: list[str]) -> tuple[Data, list[str]]:
    """Return `data` with the permission rules, and those that it did not have yet."""
    permissions = data.get("permissions", {})
    allow = permissions.get("allow", [])
    new = [rule for rule in wanted if rule not in allow]
    return (
        {**data, "permissions": {**permissions, "allow": [*allow, *new]}}
        if new
        else data
    ), new


def remove_ours(data: Data, rules: list[str], before: Data) -> Data:
    """Return `data` without our handlers and `rules`, and without what became empty by that and is not in `before`."""
    for name, part in data.items():
        rest = part
        for key, items in part.items() if isinstance(part, dict) else ():
            if name == "hooks":
                rest = _replace_key(
                    rest, key, _remove_our_handlers(items), before.get(name, {})
                )
            elif (name, key) == ("permissions", "allow") and isinstance(items, list):
                rest = _replace_key(
                    rest,
                    key,
                    [rule for rule in items if rule not in rules],
                    before.get(name, {}),
                )
        data = _replace_key(data, name, rest, before)
    return data


def _replace_key(data: Data, name: str, rest: Json, before: Data) -> Data:
    """Return `data` with what is left under a name, without the name where that is new: empty, and not in `before`."""
    if rest == data.get(name):
        return data
    return {
        key: rest if key == name else value
        for key, value in data.items()
        if key != name or rest or name in before
    }


def _is_ours(spec: object) -> bool:
    return isinstance(spec, dict) and str(spec.get("command", "")).endswith(
        "/" + SCRIPT
    )


def _get_handlers(item: object) -> list[Json]:
    """Return the handlers of a group; whatever is of another shape is passed over."""
    specs = item.get("hooks") if isinstance(item, dict) else None
    return specs if isinstance(specs, list) else []


def _remove_our_handlers(groups: Json) -> Json:
    """Return an event's groups without our handlers, and without the groups that held only those."""
    rest = []
    for item in groups if isinstance(groups, list) else ():
        specs = _get_handlers(item)
        others = [spec for spec in specs if not _is_ours(spec)]
        if len(others) == len(specs):
            rest.append(item)
        elif others:
            rest.append({**item, "hooks": others})
    return rest if isinstance(groups, list) else groups


# --- the settings as text: a diff shows only what was added
# ------------------------------------------------


def parse(text: str) -> Json:
    """Return the JSON document in `text`; raise ValueError, also where an object has a key twice."""
    return json.loads(text, object_pairs_hook=_build_object)


def _build_object(pairs: list[tuple[str, Json]]) -> Data:
    names = [name for name, _ in pairs]
    if len({*names}) < len(names):
        raise ValueError(f"an object has the key {max(names, key=names.count)!r} twice")
    return dict(pairs)


def render(data: Data, old: str = "{}\n") -> str:
    """Return `data` as text. What is equal in `old` keeps its text; the rest takes its indent."""
    indent, body, texts = re.search(r'\n([ \t]+)"', old), old.strip(), list[str]()
    before, after = old.split(body) if body else ("", "")
    new = json.dumps(
        _mark_unchanged_parts(data, body, texts),
        indent=indent[1] if indent else 2,
        ensure_ascii=False,
    )
    new = new.replace("\n", "\r\n") if "\r\n" in old else new
    # a key is kept too, and may be called as a mark is
    return (
        before
        + re.sub(rf'"{MARK}(\d+)"(?!:)', lambda found: texts[int(found[1])], new)
        + after
    )


def _mark_unchanged_parts(new: Json, source: str, texts: list[str]) -> Json:
    """Return `new` with a mark for each part that is equal in `source`; its text is added to `texts`."""
    old = json.loads(source) if source else None
    # == takes True for 1, and dicts in any order
    if source and json.dumps(old) == json.dumps(new):
        texts.append(source)
        return f"{MARK}{len(texts) - 1}"
    parts = (
        _split_members(source)
        if isinstance(old, (dict, list)) and isinstance(old, type(new))
        else {}
    )
    if isinstance(new, dict):
        return {
            name: _mark_unchanged_parts(value, parts.get(name, ""), texts)
            for name, value in new.items()
        }
    if isinstance(new, list):  # an item keeps its text wherever it moved to
        known = {json.dumps(json.loads(text)): text for text in parts.values()}
        return [
            _mark_unchanged_parts(item, known.get(json.dumps(item), ""), texts)
            for item in new
        ]
    return new


def _split_members(source: str) -> dict[Json, str]:
    """Return the text of each member of the JSON object or array in `source`, by key or index."""
    decoder = json.JSONDecoder()
    parts: dict[Json, str] = {}
    at = _skip_separators(source, 1)
    while source[at] not in "]}":
        name: Json = len(parts)
        if source[0] == "{":
            name, at = decoder.raw_decode(source, at)
            at = _skip_separators(source, at)
        _, end = decoder.raw_decode(source, at)
        parts[name] = source[at:end]
        at = _skip_separators(source, end)
    return parts


def _skip_separators(source: str, at: int) -> int:
    """Return where the next name, value or end begins, from `at` on."""
    while source[at] in " \t\r\n,:":
        at += 1
    return at


# --- .gitignore: bytes, because it may be in any encoding
# -------------------------------------------------


def add_ignore_line(content: bytes) -> bytes:
    """Return a .gitignore that covers `.stepper/`; a missing last line end stays missing (see `unignore`)."""
    if any(line.strip().strip(b"/") == b".stepper" for line in content.split(b"\n")):
        return content
    eol = b"\r\n" if b"\r\n" in content else b"\n"
    if not content or content.endswith(b"\n"):
        return content + GITIGNORE_LINE + eol
    return content + eol + GITIGNORE_LINE


def remove_ignore_line(content: bytes) -> bytes:
    """Return a .gitignore without the line that `ignore` adds."""
    lines = content.split(b"\n")
    rest = [line for line in lines if line.rstrip(b"\r") != GITIGNORE_LINE]
    if len(rest) == len(lines):
        return content
    text = b"\n".join(rest)
    # ours was the last line and had no line end: then the one before it had none either
    return text.removesuffix(b"\r") if lines[-1] == GITIGNORE_LINE else text
