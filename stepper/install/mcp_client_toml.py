"""The table of stepper's MCP server in the TOML file of a client (Codex).

tomlkit keeps the user's formatting and comments. It is installed in stepper's
environment, in which `stepper mcp --config` runs. `uninstall` runs in any Python and
loads tomlkit from stepper's environment.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepper.common.errors import StepperError
from stepper.common.paths import Paths
from stepper.install import claude_settings, mcp_starter
from stepper.install.install_file_io import format_editor_command

NAME = "stepper"
SERVERS = "mcp_servers"  # the key of a client's servers
# Replaces the removed table until the blank lines around the table are adjusted.
PLACEHOLDER = "\0"

Entry = dict[str, Any]


def is_ours(entry: object) -> bool:
    """Return whether the entry of a server starts one of stepper's scripts."""
    if not isinstance(entry, dict):
        return False
    text = json.dumps(entry, default=str)
    starter = f"/.stepper/env/{mcp_starter.STARTER}"
    return claude_settings.SCRIPT in text or starter in text


def merge_entries(current: Entry, new: Entry) -> Entry:
    """Return the new entry, with the keys and variables that the user added."""
    merged = {**current, **new}
    current_env = current.get("env")
    new_env = new.get("env")
    if isinstance(current_env, dict) and new_env is not None:
        merged["env"] = {**current_env, **new_env}
    return merged


def format_table(entry: Entry) -> str:
    """Return the TOML table of stepper's server."""
    lines = [f"[{SERVERS}.{NAME}]"]
    for key, value in entry.items():
        if key != "env":
            lines.append(f"{key} = {_format_value(value)}")
    if entry.get("env"):
        variables = [
            f"{name} = {_format_value(value)}" for name, value in entry["env"].items()
        ]
        lines.append(f"env = {{ {', '.join(variables)} }}")
    return "\n".join([*lines, ""])


def _format_value(value: Any) -> str:
    """Return a string, number or list of strings as TOML, which equals JSON here."""
    return json.dumps(value, ensure_ascii=False, default=str)


def load_tomlkit(paths: Paths) -> Any:
    """Import tomlkit, if necessary from stepper's environment.

    Raises:
        StepperError: stepper's environment does not contain tomlkit.
    """
    with contextlib.suppress(ImportError):
        return importlib.import_module("tomlkit")
    original_path = list(sys.path)
    sys.path += map(str, Path(paths.env).glob("lib/python*/*-packages"))
    try:
        return importlib.import_module("tomlkit")
    except ImportError:
        raise StepperError(
            f"the package tomlkit, which edits TOML files, is missing in {paths.env}"
        ) from None
    finally:
        sys.path[:] = original_path


def add_table(
    text: str, entry: Entry, path: Path, paths: Paths, name_error: StepperError
) -> str:
    """Return the text of a TOML file with stepper's server.

    Keys that the user added to the server are kept. `path` is the file.

    Raises:
        StepperError: The file is not valid, or another server has the name; in this
            case, the error is `name_error`.
    """
    tomlkit = load_tomlkit(paths)
    table = format_table(entry)
    hint = f"{format_editor_command(path)}  # add these lines:\n{table}"
    try:
        document = tomlkit.parse(text)
    except (ValueError, RecursionError) as error:
        raise StepperError(f"{path} can't be read: {error}", hint) from None
    servers = document.get(SERVERS, {})
    if not isinstance(servers, dict):
        raise StepperError(f"{path}: {SERVERS} is not a table", hint)
    current = servers.get(NAME)
    if current is None:
        appended = _append_table(text, table)
        if _parse(tomlkit, appended) is not None:
            return appended
        # The servers are an inline table, which must contain the new server.
        servers[NAME] = _make_inline_table(tomlkit, entry)
        return str(document.as_string())
    if not is_ours(_to_plain(current)):
        raise name_error
    merged = merge_entries(_to_plain(current), entry)
    for key in entry:
        if _to_plain(current.get(key)) != merged[key]:
            current[key] = _make_value(tomlkit, merged[key])
    return str(document.as_string())


def _append_table(text: str, table: str) -> str:
    """Append a table to a text, after one blank line."""
    if not text:
        return table
    line_end = "" if text.endswith("\n") else "\n"
    blank_line = "" if text.endswith("\n\n") else "\n"
    return f"{text}{line_end}{blank_line}{table}"


def _make_inline_table(tomlkit: Any, entry: Entry) -> Any:
    """Return an entry as a tomlkit inline table."""
    table = tomlkit.inline_table()
    for key, value in entry.items():
        table[key] = _make_value(tomlkit, value)
    return table


def _make_value(tomlkit: Any, value: Any) -> Any:
    """Return a value for a tomlkit document; a dictionary becomes an inline table."""
    if isinstance(value, dict):
        return _make_inline_table(tomlkit, value)
    return value


def _to_plain(value: Any) -> Any:
    """Return a tomlkit value as plain Python data."""
    if hasattr(value, "unwrap"):
        return value.unwrap()
    return value


def _parse(tomlkit: Any, text: str) -> Entry | None:
    """Return the data of a TOML text, or None if it is not valid."""
    try:
        data: Entry = tomlkit.parse(text).unwrap()
    except ValueError:
        return None
    return data


def remove_table(text: str, paths: Paths) -> str:
    """Return the text of a TOML file without stepper's server and its subtables.

    Comments below the table are kept, because they belong to the next table.

    Raises:
        StepperError: stepper's environment does not contain tomlkit.
        ValueError: The file is not valid, or the table can't be removed.
    """
    tomlkit = load_tomlkit(paths)
    document = tomlkit.parse(text)
    data = document.unwrap()
    servers = data.get(SERVERS)
    if not isinstance(servers, dict) or not is_ours(servers.get(NAME)):
        return text
    _replace_server(document.body, tomlkit.ws)
    before, *parts = str(document.as_string()).split(PLACEHOLDER)
    remaining_text = before
    for part in parts:
        remaining_text = _join_without_gap(remaining_text, part)
    # Check that only stepper's server was removed. If it was the only server, the table
    # of servers was removed with it.
    del servers[NAME]
    remaining = _parse(tomlkit, remaining_text)
    if remaining is None or {SERVERS: {}, **remaining} != {**data, SERVERS: servers}:
        raise ValueError(f"[{SERVERS}.{NAME}] can't be removed")
    return remaining_text


def _replace_server(body: list[Any], make_whitespace: Callable[[str], Any]) -> None:
    """Replace stepper's server by a placeholder in each table of servers.

    `body` is the body of a document, which may contain several tables of servers. From
    an inline table, the server is deleted without a placeholder.
    """
    for key, table in body:
        if key is None or key.key != SERVERS or NAME not in table:
            continue
        if not _has_header(table):
            del table[NAME]
            continue
        inner_body = table.value.body
        for index, (name, item) in enumerate(inner_body):
            if name is not None and name.key == NAME:
                text = PLACEHOLDER + _pop_comments_below(item)
                inner_body[index] = (None, make_whitespace(text))


def _has_header(item: Any) -> bool:
    """Return whether an item is a table with a header, not an inline table."""
    return hasattr(item, "is_super_table")


def _pop_comments_below(item: Any) -> str:
    """Remove and return the blank lines and comments at the end of a table."""
    body = getattr(item.value, "body", None)
    if not body or not _has_header(item):
        return ""
    last_key, last_item = body[-1]
    if last_key is not None:  # a value, or a subtable with comments at its end
        return _pop_comments_below(last_item)
    body.pop()
    text: str = last_item.as_string()
    return _pop_comments_below(item) + text


def _join_without_gap(before: str, after: str) -> str:
    """Join the texts around a removed table without a second blank line."""
    ends_with_gap = not before or before.endswith("\n\n")
    if ends_with_gap:
        after = after.lstrip("\r\n")
    if not after and before.endswith("\n\n"):
        before = before.removesuffix("\n")
    return before + after
