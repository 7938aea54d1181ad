"""Our entry among a client's servers, and its table in a file of TOML: changed as text, read before and after."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from stepper.common.errors import StepperError
from stepper.install import claude_settings, mcp_starter
from stepper.install.install_files import format_editor_command

NAME = "stepper"
Entry = dict[str, Any]
TABLES = "mcp_servers"  # of a TOML file
HEADER = re.compile(rf"""\s*\[\s*{TABLES}\s*\.\s*(["']?){NAME}\1\s*\]\s*(#.*)?""")


def is_ours(entry: object) -> bool:
    """Tell whether an entry starts one of our scripts."""
    if not isinstance(entry, dict):
        return False
    text = json.dumps(entry, default=str)
    starter = f"/.stepper/env/{mcp_starter.STARTER}"
    return claude_settings.SCRIPT in text or starter in text


def merge_entries(there: Entry, entry: Entry) -> Entry:
    """Return our entry with what the person put beside it."""
    env, ours = there.get("env"), entry.get("env")
    return {
        **there,
        **entry,
        **(
            {"env": {**env, **ours}}
            if isinstance(env, dict) and ours is not None
            else {}
        ),
    }


def format_table(entry: Entry, header: str = f"[{TABLES}.{NAME}]\n") -> str:
    """Return our table: strings, numbers and lists of strings JSON writes as TOML does."""

    def pairs_of(pairs: Entry) -> list[str]:
        return [
            f"{name} = {json.dumps(value, ensure_ascii=False, default=str)}"
            for name, value in pairs.items()
        ]

    lines = pairs_of({name: value for name, value in entry.items() if name != "env"})
    lines += (
        [f"env = {{ {', '.join(pairs_of(entry['env']))} }}"] if entry.get("env") else []
    )
    return header + "\n".join([*lines, ""])


def _parse(text: str) -> Entry | None:
    """Return a document's data, None where this Python reads no TOML; raise ValueError."""
    if sys.version_info >= (3, 11):
        import tomllib

        try:
            return tomllib.loads(text)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
    return None


def _is_valid(text: str) -> bool:
    try:
        return _parse(text) is not None
    except ValueError:
        return False


def add_table(text: str, entry: Entry, path: Path, taken: StepperError) -> str:
    """Return a document with our table; raise StepperError where that would not be just what was meant."""
    lines = format_table(entry)
    by_hand = f"{format_editor_command(path)}  # and see that it has:\n{lines}"
    try:
        data = _parse(text)
    except ValueError as error:
        raise StepperError(f"{path} can't be read: {error}", by_hand) from None
    if data is None:
        if text.strip() and lines not in text:
            raise StepperError(
                f"{path} is left as it is: Python before 3.11 can't read it", by_hand
            )
        return text if text.strip() else lines
    servers = data.get(TABLES, {})
    there = servers.get(NAME) if isinstance(servers, dict) else None
    if there is None:
        ends = "\n" if text and not text.endswith("\n") else ""
        gap = "\n" if text and not text.endswith("\n\n") else ""
        wanted, new = entry, f"{text}{ends}{gap}{lines}"
    elif not is_ours(there):
        raise taken
    else:
        wanted = merge_entries(there, entry)
        ours = {name: wanted[name] for name in entry}
        new = (
            text
            if wanted == there
            else "".join(_update_table(part, ours) for part in _split_tables(text))
        )
    if not (
        _is_valid(new)
        and isinstance(servers, dict)
        and _parse(new) == {**data, TABLES: {**servers, NAME: wanted}}
    ):
        raise StepperError(
            f"{path} has {TABLES} in a spelling that is not changed here", by_hand
        )
    return new


def _update_table(part: str, ours: Entry) -> str:
    """Return our table with our keys as they are now and all other lines as they were; any other part as it is."""
    header, *lines = part.splitlines(keepends=True) or [""]
    if not HEADER.fullmatch(header.rstrip()):
        return part
    kept, begun = "", ""
    for line in lines:
        begun += line
        if _is_valid(begun):  # else its value goes on
            kept += begun if not {*(_parse(begun) or ())} & {*ours} else ""
            begun = ""
    return format_table(ours, header) + kept


def remove_table(text: str, lines: str) -> str:
    """Return a document without our tables; as it is where they are not ours, or stand in one with others."""
    data = _parse(text)
    if data is None:
        rest = text.replace(lines, "", 1)
        return text if NAME in rest else rest
    servers = data.get(TABLES)
    if not isinstance(servers, dict) or not is_ours(servers.get(NAME)):
        return text
    rest, gone = "", False
    for part in _split_tables(text):
        found = _parse(part) or {}
        if [*found] == [TABLES] and [*found[TABLES]] == [NAME]:
            gone = True
        else:
            # no second gap
            kept = (
                part.lstrip("\r\n")
                if gone and (not rest or rest.endswith("\n\n"))
                else part
            )
            rest, gone = rest + kept, gone and not kept
    rest = rest.removesuffix("\n") if gone and rest.endswith("\n\n") else rest
    left = {
        **data,
        TABLES: {name: each for name, each in servers.items() if name != NAME},
    }
    return (
        rest
        if _is_valid(rest) and {TABLES: {}, **(_parse(rest) or {})} == left
        else text
    )


def _split_tables(text: str) -> list[str]:
    """Return what is before all tables, each table, and what follows each of them: blank lines, comments."""
    tables, parts = [""], list[str]()
    for line in text.splitlines(keepends=True):
        # else it is within a value
        if line.lstrip().startswith("[") and _is_valid(tables[-1]):
            tables.append("")
        tables[-1] += line
    for table in tables:
        lines = table.splitlines(keepends=True)
        end = len(lines)
        while end and (
            not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")
        ):
            end -= 1
        # its last line only looks like a comment
        end = end if _is_valid("".join(lines[:end])) else len(lines)
        parts += ["".join(lines[:end]), "".join(lines[end:])]
    return parts
