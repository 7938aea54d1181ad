"""The lines with which another agent's client starts `stepper mcp`: printed, put into its file, taken out again.

They start the hook script, which runs nothing in a checkout that this user did not set up: some clients start what a
stranger's repository names without asking. Ours are known by that script; the rest of a file keeps its text.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import Paths, read_install_record
from stepper.install import claude_settings, doctor, toml_config, trust
from stepper.install.file_edits import editor, read, remove, remove_empty, write
from stepper.install.install_checks import check_links
from stepper.install.toml_config import NAME, Entry, is_ours, merged

EVENT = "Mcp"
# Started in any folder of the project: no `${…}`, which some clients take for theirs.
# The script runs where this user
# set stepper up, else in the repository (a worktree) that is theirs: a folder above it
# may be anybody's.
WALK = (
    's="$XDG_STATE_HOME"; [ -n "$s" ] || s="$HOME/.local/state"; d=$(pwd -P); '
    f'until [ -x "$d/{claude_settings.SCRIPT}" ] && {{ [ -e "$s/stepper/projects$d/.stepper" ] || [ -O "$d/.git" ]; }}; do '
    'if [ -e "$d/.git" ] || [ "$d" = / ]; then '
    'echo "stepper: nothing runs here: uvx notebook-stepper install THIS_REPOSITORY sets it up" >&2; exit 1; fi; '
    'd=$(dirname "$d"); done; '
    f'exec "$d/{claude_settings.SCRIPT}" {EVENT}'
)


@dataclass(frozen=True)
class Client:
    """A client: its file in the project, the key of its servers there, our entry, what is to be known."""

    file: str
    key: str
    entry: Callable[[str], Entry]
    note: str = ""


def _walking(**more: Any) -> Callable[[str], Entry]:
    return lambda project: {"command": "sh", "args": ["-c", WALK], **more}


def _codex(project: str) -> Entry:
    """Codex hands on a few variables alone: where this user's installs are recorded, if elsewhere, is not of them."""
    state = os.environ.get("XDG_STATE_HOME")
    entry = {"command": "sh", "args": ["-c", WALK], "tool_timeout_sec": 86_400}
    return {**entry, "env": {"XDG_STATE_HOME": state}} if state else entry


def _at(folder: str = "", **more: Any) -> Callable[[str], Entry]:
    return lambda project: {
        **more,
        "command": f"{folder or project}/{claude_settings.SCRIPT}",
        "args": [EVENT],
    }


CLIENTS = {
    "claude": Client(
        ".mcp.json",
        "mcpServers",
        _walking(alwaysLoad=True),
        "Claude Code asks once whether to start it.",
    ),
    "cursor": Client(".cursor/mcp.json", "mcpServers", _at("${workspaceFolder}")),
    "codex": Client(
        ".codex/config.toml", "mcp_servers", _codex, "It holds in a trusted project."
    ),
    "gemini": Client(
        ".gemini/settings.json", "mcpServers", _walking(timeout=86_400_000)
    ),
    "vscode": Client(
        ".vscode/mcp.json", "servers", _at("${workspaceFolder}", type="stdio")
    ),
    "zed": Client(
        ".zed/settings.json",
        "context_servers",
        _at(source="custom", env={}),
        "The path is this machine's.",
    ),
    "jupyter-ai": Client(
        ".jupyter/mcp_settings.json",
        "mcp_servers",
        _at(name=NAME),
        "The path is this machine's.",
    ),
}


def told(paths: Paths, name: str, http: int | None, install: bool) -> dict[str, str]:
    """Return what to put where, or put it there and return what was done; raise StepperError."""
    client = CLIENTS[name]
    if http is not None:
        raise UsageError(
            f"--config {name} is for a server that the client starts itself",
            "stepper mcp --http PORT",
        )
    lines = _alone(client, paths.project)
    if not install:
        where = f"{client.file} of {paths.project}"
        return {
            "text": f"{lines}\n\nThese lines belong in {where}; `--install` puts them there. {client.note}".rstrip()
        }
    done = put(paths, name)
    return {"text": " ".join(filter(None, [f"{client.file}: {done}.", client.note]))}


def put(paths: Paths, name: str) -> str:
    """Put a client's lines into its file; return made, updated or unchanged. Raise StepperError."""
    client, project, note = (
        CLIENTS[name],
        Path(paths.project),
        read_install_record(paths.project),
    )
    if not note:
        raise StepperError(
            "stepper is not set up here by you",
            doctor.install_command(paths, more=" --mcp"),
        )
    check_links(project, str(Path(client.file).parent), client.file)
    path = project / client.file
    before = read(path).decode("utf-8") if path.exists() else None
    new = _with(client, before, paths)
    if new != before:
        known = note.get("clients", {})
        kept = known.get(name, {"text": before, "folder": path.parent.is_dir()})
        trust.remember(paths, {**note, "clients": {**known, name: kept}})
    return write(path, new.encode())


def take(paths: Paths, note: dict[str, Any]) -> list[str]:
    """Take our lines out of all clients' files; return those that were changed. Files that can't be read stay."""
    project, done = Path(paths.project), []
    for name, client in CLIENTS.items():
        path, before = project / client.file, note.get("clients", {}).get(name, {})
        try:
            there = read(path).decode("utf-8")
            rest = _without(client, there, before.get("text"))
        except (StepperError, OSError, ValueError):
            continue
        if rest == there:
            continue
        if rest is None:
            remove(path)
            if not before.get("folder", True):
                remove_empty(path.parent)
        else:
            write(path, rest.encode())
        done.append(client.file)
    return done


def _alone(client: Client, project: str) -> str:
    if client.file.endswith(".toml"):
        return toml_config.written(client.entry(project)).rstrip()
    entry = client.entry(project)
    servers: Any = [entry] if "name" in entry else {NAME: entry}
    return json.dumps({client.key: servers}, indent=2)


def _parsed(text: str, path: Path, lines: str) -> dict[str, Any]:
    try:
        data = claude_settings.parse(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        why = f"{path} can't be read, maybe for its comments: {error}"
        raise StepperError(why, f"{editor(path)}  # and add:\n{lines}") from None
    if not isinstance(data, dict):
        raise StepperError(f"{path} does not hold an object", editor(path))
    return data


def _with(client: Client, text: str | None, paths: Paths) -> str:
    """Return a file's text with our lines; raise StepperError where another server has our name."""
    path, entry = Path(paths.project, client.file), client.entry(paths.project)
    taken = StepperError(
        f"{path} has another server called {NAME}",
        f"{editor(path)}  # rename it, then run this again",
    )
    if client.file.endswith(".toml"):
        return toml_config.put(text or "", entry, path, taken)
    data = _parsed(text or "", path, _alone(client, paths.project))
    servers = data.get(client.key, [] if "name" in entry else {})
    if not isinstance(servers, list if "name" in entry else dict):
        raise StepperError(
            f"{path}: {client.key} is of another kind than it should be", editor(path)
        )
    if isinstance(servers, list):
        same = [
            each
            for each in servers
            if isinstance(each, dict) and each.get("name") == NAME
        ]
        rest = [each for each in servers if each not in same]
    else:
        same = [servers[NAME]] if NAME in servers else []
    for each in same:
        if not is_ours(each):
            raise taken
        entry = merged(each, entry)
    if same == [entry]:
        return text or ""
    new: Any = [*rest, entry] if isinstance(servers, list) else {**servers, NAME: entry}
    return claude_settings.render(
        {**data, client.key: new}, text if text and text.strip() else "{}\n"
    )


def _without(client: Client, text: str, before: str | None) -> str | None:
    """Return a file's text without our lines, None where nothing is left of it that was there before."""
    if client.file.endswith(".toml"):
        rest = toml_config.cut(text, toml_config.written(_codex("")))
        if rest == text:
            return text
        return (
            before
            if before is not None and rest.strip() == before.strip()
            else rest
            if rest.strip()
            else before
        )
    data = _parsed(text, Path(client.file), "")
    servers = data.get(client.key)
    left: Any = servers
    if isinstance(servers, list):
        left = [
            each
            for each in servers
            if not (
                isinstance(each, dict) and each.get("name") == NAME and is_ours(each)
            )
        ]
    elif isinstance(servers, dict):
        left = {
            name: each
            for name, each in servers.items()
            if name != NAME or not is_ours(each)
        }
    if left == servers:
        return text
    known = claude_settings.parse(before) if before and before.strip() else {}
    rest_data = {
        name: left if name == client.key else value for name, value in data.items()
    }
    if not left and client.key not in known:
        del rest_data[client.key]
    if json.dumps(rest_data) == json.dumps(known):
        return before
    return claude_settings.render(rest_data, text) if rest_data else before


def hint(project: str) -> str:
    """Return what install says of it."""
    return f"cd {shlex.quote(project)} && .stepper/env/bin/stepper mcp --config {'|'.join(CLIENTS)} [--install]"
