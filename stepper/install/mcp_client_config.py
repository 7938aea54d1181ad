"""Add stepper's MCP server to the configuration of a client, and remove it.

`stepper mcp --config CLIENT` prints the entry, and `--install` adds the entry to the
client's file. stepper recognizes its entries by the scripts that they start. Other
parts of a file keep their formatting.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import Paths, read_install_record
from stepper.install import claude_settings, doctor, mcp_client_toml, mcp_starter, trust
from stepper.install.install_checks import check_links
from stepper.install.install_file_io import (
    format_editor_command,
    read,
    remove,
    remove_empty,
    write,
)
from stepper.install.mcp_client_toml import NAME, Entry, is_ours, merge_entries
from stepper.install.mcp_clients import STARTER, Client, get_clients


class Removal(NamedTuple):
    """The files from which entries were removed, and files that can't be changed."""

    changed: list[str]
    failed: list[str]


def configure_client(
    paths: Paths, name: str, http: int | None, install: bool
) -> dict[str, str]:
    """Return the response of `stepper mcp --config`: the entry for a client as text.

    If `install` is true, add the entry to the client's file instead, and return a
    message on the change. `name` is the name of the client. `http` is the port of
    `--http`, or None.

    Raises:
        UsageError: `http` is not None.
        StepperError: The entry can't be added.
    """
    client = get_clients()[name]
    if http is not None:
        raise UsageError(
            f"--config {name} and --http can't be used together: {name} starts the"
            " server itself",
            "stepper mcp --http PORT",
        )
    if not install:
        return {"text": _format_instructions(client, paths.project)}
    if client.is_on_windows:
        raise StepperError(
            f"{client.file} is a file on Windows, which this command does not change",
            f"stepper mcp --config {name}  # prints the lines to add",
        )
    change = add_entry(paths, name)
    text = f"{client.display_path}: {change}. {client.note}"
    return {"text": text.rstrip()}


def _format_instructions(client: Client, project: str) -> str:
    """Return the lines for a client's file, and sentences on how to add them."""
    lines = _format_entry(client, project)
    file = client.display_path
    if not client.for_user:
        file = f"{client.file} of {project}"
    install_hint = " To add them, use `--install`."
    if client.is_on_windows:
        install_hint = ""
    text = f"{lines}\n\nThese lines belong in {file}.{install_hint} {client.note}"
    return text.rstrip()


def add_entry(paths: Paths, name: str) -> str:
    """Add stepper's entry to a client's file.

    Also write the scripts that an entry starts. Before the file changes, record its
    original text, and copy a user's file that contains no entry of stepper yet. Return
    "created", "updated" or "unchanged".

    Raises:
        StepperError: The user did not set up stepper in this project, or the file
            can't be changed.
    """
    client = get_clients()[name]
    record = read_install_record(paths.project)
    if not record:
        raise StepperError(
            "you have not set up stepper in this project",
            doctor.format_install_command(paths, options=" --mcp"),
        )
    if not client.for_user:
        folder = str(Path(client.file).parent)
        has_claude_folder = not record.get("mcp_only")
        check_links(Path(paths.project), folder, client.file, claude=has_claude_folder)
    _write_starter(paths)
    path = client.get_path(paths)
    before = _read_text(path)
    after = _add_to_text(client, before, paths)
    if after == before:
        return "unchanged"
    _record_original(client, name, before, paths, record)
    if client.for_user and before is not None and STARTER not in before:
        # The file also contains other servers, possibly with their API keys.
        mode = path.stat().st_mode & 0o777
        write(_get_backup_path(path), before.encode(), mode)
    return write(path, after.encode())


def _read_text(path: Path) -> str | None:
    """Return the text of a client's file, or None if the file does not exist.

    Raises:
        StepperError: The file is not valid UTF-8.
    """
    if not path.exists():
        return None
    try:
        return read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise StepperError(
            f"{path} can't be read: {error}", format_editor_command(path)
        ) from None


def _record_original(
    client: Client,
    name: str,
    before: str | None,
    paths: Paths,
    record: dict[str, Any],
) -> None:
    """Record the original text of a client's file before stepper first changes it."""
    clients = record.get("clients", {})
    if name in clients:
        original = clients[name]
    else:
        parents = client.get_path(paths).parents
        missing_folders = sum(not folder.is_dir() for folder in parents)
        original = {
            "text": before,
            "folder": missing_folders == 0,  # for older versions of stepper
            "folders": missing_folders,
        }
    trust.save_record(paths, {**record, "clients": {**clients, name: original}})


def _write_starter(paths: Paths) -> None:
    """Write the scripts that clients start into the environment.

    An older version may have created the environment without them.
    """
    owner = Paths(paths.environment_checkout)
    # An environment that `stepper trust` accepted is a link: do not write there.
    if os.path.isdir(owner.env) and not os.path.islink(owner.env):
        mcp_starter.write_scripts(owner, doctor.format_install_command(owner))


def _get_backup_path(path: Path) -> Path:
    """Return the path of the copy of a user's file before stepper changes it."""
    return path.with_name(f"{path.name}.before-stepper")


def remove_entries(paths: Paths, record: dict[str, Any]) -> Removal:
    """Remove stepper's entries from the files of all clients.

    The result also lists files that mention stepper's scripts and can't be parsed or
    changed.
    """
    removal = Removal([], [])
    for name, client in get_clients().items():
        original = record.get("clients", {}).get(name, {})
        path = client.get_path(paths)
        text = ""
        try:
            text = read(path).decode("utf-8")
            remaining = _remove_from_text(client, text, original.get("text"), paths)
            if remaining != text:
                _write_remaining(client, path, remaining, original)
                removal.changed.append(client.display_path)
        except (StepperError, OSError, ValueError, RecursionError):
            if STARTER in text or claude_settings.SCRIPT in text:
                removal.failed.append(client.display_path)
    return removal


def _write_remaining(
    client: Client, path: Path, text: str | None, original: dict[str, Any]
) -> None:
    """Write the text that remains without stepper's entry.

    If `text` is None, remove the file and the folders that stepper created. Remove the
    backup of a user-level file if no entry of stepper remains in the file.
    """
    if text is not None:
        write(path, text.encode())
    else:
        remove(path)
    if client.for_user and STARTER not in (text or ""):
        remove(_get_backup_path(path))
    if text is None:
        created_count = original.get("folders")
        if created_count is None:
            # Older records only say whether the closest folder existed.
            created_count = 0 if original.get("folder", True) else 1
        for folder in [*path.parents][:created_count]:
            remove_empty(folder)


def _format_entry(client: Client, project: str) -> str:
    """Return the lines that the user can add to a client's configuration file."""
    entry = client.make_entry(project)
    if client.is_toml:
        return mcp_client_toml.format_table(entry).rstrip()
    name = _choose_server_name(client, Paths(project), {})
    servers: Any = [entry] if "name" in entry else {name: entry}
    return json.dumps({client.key: servers}, indent=2, ensure_ascii=False)


def _choose_server_name(client: Client, paths: Paths, servers: dict[str, Any]) -> str:
    """Return the name of stepper's server in a client's configuration file.

    `servers` are the servers in the file. In a file for all projects, each project has
    its own server. If the file does not contain this project's server yet, return a
    name that no other project uses.
    """
    if not client.for_user:
        return NAME
    folder = re.sub(r"[^A-Za-z0-9_-]+", "-", os.path.basename(paths.project)).strip("-")
    name = f"{NAME}-{folder or 'project'}"
    for current_name, server in servers.items():
        if _is_for_project(server, paths):
            return current_name
    candidate = name
    number = 1
    while is_ours(servers.get(candidate)):  # a project with the same folder name
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def _is_for_project(entry: object, paths: Paths) -> bool:
    """Return whether an entry of a user's file starts this project's server."""
    if not is_ours(entry) or not isinstance(entry, dict):
        return False
    arguments = entry.get("args")
    return isinstance(arguments, list) and arguments[-1:] == [paths.project]


def _parse_settings(text: str, path: Path, lines: str) -> dict[str, Any]:
    """Parse a client's JSON file.

    Raises:
        StepperError: The file is not valid. The hint shows `lines`, which the user can
            add.
    """
    try:
        data = claude_settings.parse(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise StepperError(
            f"{path} can't be read (it may contain comments): {error}",
            f"{format_editor_command(path)}  # add these lines:\n{lines}",
        ) from None
    if not isinstance(data, dict):
        raise StepperError(
            f"{path} does not contain a JSON object", format_editor_command(path)
        )
    return data


def _add_to_text(client: Client, text: str | None, paths: Paths) -> str:
    """Return the text of a client's file with stepper's entry.

    Raises:
        StepperError: The file is not valid, or another server has the name.
    """
    path = client.get_path(paths)
    entry = client.make_entry(paths.project)
    if client.is_toml:
        name_error = _make_name_error(path, NAME)
        return mcp_client_toml.add_table(text or "", entry, path, paths, name_error)
    data = _parse_settings(text or "", path, _format_entry(client, paths.project))
    servers: Any
    new_servers: Any
    if "name" in entry:  # the client has a list of servers
        servers = data.get(client.key, [])
        if not isinstance(servers, list):
            raise _make_type_error(path, f"{client.key} is not a list")
        new_servers = _add_to_list(servers, entry, path)
    else:
        servers = data.get(client.key, {})
        if not isinstance(servers, dict):
            raise _make_type_error(path, f"{client.key} is not an object")
        name = _choose_server_name(client, paths, servers)
        new_servers = _add_to_object(servers, name, entry, path)
    if new_servers == servers:
        return text or ""
    original = text if text and text.strip() else "{}\n"
    return claude_settings.render({**data, client.key: new_servers}, original)


def _make_type_error(path: Path, problem: str) -> StepperError:
    """Return the error for a value of the wrong type in a client's file."""
    return StepperError(f"{path}: {problem}", format_editor_command(path))


def _add_to_list(servers: list[Any], entry: Entry, path: Path) -> list[Any]:
    """Return a list of servers with stepper's entry.

    A list that already contains the entry is returned unchanged. Otherwise, the entry
    is the last item.

    Raises:
        StepperError: Another server has the name.
    """
    other_servers = []
    merged_entry = entry
    for server in servers:
        if not isinstance(server, dict) or server.get("name") != NAME:
            other_servers.append(server)
            continue
        if not is_ours(server):
            raise _make_name_error(path, NAME)
        merged_entry = merge_entries(server, merged_entry)
    has_one_entry = len(other_servers) + 1 == len(servers)
    if has_one_entry and merged_entry in servers:
        return servers
    return [*other_servers, merged_entry]


def _add_to_object(
    servers: dict[str, Any], name: str, entry: Entry, path: Path
) -> dict[str, Any]:
    """Return `servers`, a JSON object by server name, with stepper's entry added.

    An existing entry of stepper is merged with the new one.

    Raises:
        StepperError: Another server has the name.
    """
    if name in servers:
        current = servers[name]
        if not is_ours(current):
            raise _make_name_error(path, name)
        entry = merge_entries(current, entry)
    return {**servers, name: entry}


def _make_name_error(path: Path, name: str) -> StepperError:
    """Return the error for another server with the name of stepper's server."""
    return StepperError(
        f"{path} contains another server called {name}",
        f"{format_editor_command(path)}  # rename this server, then repeat the command",
    )


def _remove_from_text(
    client: Client, text: str, original: str | None, paths: Paths
) -> str | None:
    """Return the text of a client's file without stepper's entries.

    `original` is the text before stepper's first change, or None if stepper created the
    file. Return `original` if stepper's entries are the only change.
    """
    if client.is_toml:
        remaining = mcp_client_toml.remove_table(text, paths)
        if remaining == text:
            return text
        is_original = remaining.strip() == (original or "").strip()
        return original if is_original else remaining
    data = _parse_settings(text, Path(client.file), "")
    servers = data.get(client.key)
    remaining_servers = _remove_our_servers(client, servers, paths)
    if remaining_servers == servers:
        return text
    original_data = {}
    if original and original.strip():
        original_data = claude_settings.parse(original)
    new_data = {**data, client.key: remaining_servers}
    if not remaining_servers and client.key not in original_data:
        del new_data[client.key]
    # Compared as text, because the order of the keys is significant.
    is_original = json.dumps(new_data) == json.dumps(original_data)
    if is_original:
        return original
    return claude_settings.render(new_data, text)


def _remove_our_servers(client: Client, servers: Any, paths: Paths) -> Any:
    """Return a list or object of servers without stepper's servers.

    In a file for all projects, only this project's servers are removed. A value of
    another type is returned unchanged.
    """
    if isinstance(servers, list):
        return [
            server
            for server in servers
            if not (is_ours(server) and server.get("name") == NAME)
        ]
    if not isinstance(servers, dict):
        return servers
    remaining = {}
    for name, server in servers.items():
        is_removable = name == NAME and is_ours(server)
        if client.for_user:
            is_removable = _is_for_project(server, paths)
        if not is_removable:
            remaining[name] = server
    return remaining


def format_config_usage(project: str) -> str:
    """Return the usage line of the command that adds stepper's server to a client."""
    return (
        f"cd {shlex.quote(project)} && .stepper/env/bin/stepper mcp --config CLIENT"
        " --install"
    )


def describe_clients() -> str:
    """Return the values of CLIENT in the usage line."""
    names = ", ".join(get_clients())
    return f"CLIENT is one of: {names}; without --install, the entry is only printed"
