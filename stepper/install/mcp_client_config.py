"""The lines with which another agent's client starts `stepper mcp`: printed, put into its file, taken out again.

They start the hook script, or the script in stepper's environment that does the same. Both
run nothing in a checkout that this user did not set up: some clients start what a
stranger's repository names without asking. Ours are known by these scripts; the rest of a
file keeps its text.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import Paths, read_install_record
from stepper.install import claude_settings, doctor, mcp_starter, toml_config, trust
from stepper.install.install_checks import check_links
from stepper.install.install_files import (
    format_editor_command,
    read,
    remove,
    remove_empty,
    write,
)
from stepper.install.toml_config import NAME, Entry, is_ours, merge_entries

EVENT = "Mcp"
SCRIPT, STARTER = claude_settings.SCRIPT, mcp_starter.STARTER
# Started in any folder of the project: no `${…}`, which some clients take for theirs.
# In each folder upwards, as far as the repository's: this user's own starter for it,
# else the hook script where this user set stepper up or owns the repository (a
# worktree), else the starter of the main checkout of a worktree. A folder above may be
# anybody's.
SEARCH_SCRIPT = (
    's="$XDG_STATE_HOME"; [ -n "$s" ] || s="$HOME/.local/state"; '
    'p="$s/stepper/projects"; d=$(pwd -P); while :; do '
    f'm="$p$d/.stepper/env/{STARTER}"; [ ! -x "$m" ] || exec "$m" "$d"; '
    f'if [ -x "$d/{SCRIPT}" ] && {{ [ -e "$p$d/.stepper" ] || [ -O "$d/.git" ]; }}; '
    f'then exec "$d/{SCRIPT}" {EVENT}; fi; '
    'if [ -f "$d/.git" ]; then read -r _ g <"$d/.git"; '
    f'm="$p${{g%/.git/worktrees/*}}/.stepper/env/{STARTER}"; '
    '[ ! -d "$g" ] || [ ! -x "$m" ] || exec "$m" "$d"; fi; '
    'if [ -e "$d/.git" ] || [ "$d" = / ]; then '
    'echo "stepper: nothing runs here: uvx notebook-stepper install THIS_REPOSITORY '
    'sets it up" >&2; exit 1; fi; d=$(dirname "$d"); done'
)
LOCAL_PATH_NOTE = "The path is this machine's."
RESTART_NOTE = "Restart {} afterwards. Each project has an entry of its own there."


@dataclass(frozen=True)
class Client:
    """A client: its file, the key of its servers there, our entry, what is to be known.

    The file is one of the project, or, for a client `for_user`, one of this user's for all
    projects.
    """

    file: str
    key: str
    entry: Callable[[str], Entry]
    note: str = ""
    for_user: bool = False

    def path(self, paths: Paths) -> Path:
        """Return the path of the file."""
        return Path(paths.project, self.file).expanduser()

    @property
    def place(self) -> str:
        """Return the file's name, as it is shown to the user."""
        home = os.path.expanduser("~/")
        if self.for_user and self.file.startswith(home):
            return f"~/{self.file.removeprefix(home)}"
        return self.file


def _make_search_entry(**more: Any) -> Callable[[str], Entry]:
    return lambda project: {"command": "sh", "args": ["-c", SEARCH_SCRIPT], **more}


def _make_codex_entry(project: str) -> Entry:
    """Codex passes few variables on: not the one for another place of this user's records."""
    entry = {"command": "sh", "args": ["-c", SEARCH_SCRIPT], "tool_timeout_sec": 86_400}
    return {**entry, **_get_state_variable()}


def _get_state_variable() -> Entry:
    """Return the variable that the script needs where this user's records lie elsewhere."""
    state = os.environ.get("XDG_STATE_HOME")
    return {"env": {"XDG_STATE_HOME": state}} if state else {}


def _make_workspace_entry(**more: Any) -> Callable[[str], Entry]:
    """Return the entry of a client that names the open folder, and starts servers in any other."""
    folder = "${workspaceFolder}"

    def entry(project: str) -> Entry:
        if _has_hook_script(project):
            return {**more, "command": f"{folder}/{SCRIPT}", "args": [EVENT]}
        walk = f'cd "$1" || exit; {SEARCH_SCRIPT}'
        return {**more, "command": "sh", "args": ["-c", walk, NAME, folder]}

    return entry


def _make_path_entry(**more: Any) -> Callable[[str], Entry]:
    """Return the entry of a client that starts servers in any folder."""

    def entry(project: str) -> Entry:
        if _has_hook_script(project):
            return {**more, "command": f"{project}/{SCRIPT}", "args": [EVENT]}
        return {**more, **_make_starter_entry(project)}

    return entry


def _has_hook_script(project: str) -> bool:
    """Whether the installation has the hook script, which one for MCP alone and the plugin's have not."""
    record = read_install_record(project)
    return not (record.get("mcp_only") or record.get("plugin"))


def _make_starter_entry(project: str) -> Entry:
    starter = mcp_starter.get_starter_path(Paths(Paths(project).environment_checkout))
    return {"command": str(starter), "args": [project]}


def _make_user_entry(project: str) -> Entry:
    return {**_make_starter_entry(project), **_get_state_variable()}


def get_wsl_distribution() -> str:
    """Return the name of the Linux in Windows that this is, '' where it is none."""
    return os.environ.get("WSL_DISTRO_NAME", "")


def _make_claude_desktop_entry(project: str) -> Entry:
    """Return the entry of Claude Desktop, which runs on Windows beside a Linux in WSL."""
    distribution = get_wsl_distribution()
    if not distribution:
        return _make_user_entry(project)
    entry = _make_user_entry(project)
    variables = [f"{name}={value}" for name, value in entry.get("env", {}).items()]
    environ = ["env", *variables] if variables else []
    command = [*environ, entry["command"], *entry["args"]]
    return {"command": "wsl.exe", "args": ["-d", distribution, "-e", *command]}


def _find_claude_desktop_file() -> str:
    if get_wsl_distribution():
        return r"%APPDATA%\Claude\claude_desktop_config.json"
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    if sys.platform == "darwin":
        folder = os.path.expanduser("~/Library/Application Support")
    return os.path.join(folder, "Claude", "claude_desktop_config.json")


def get_clients() -> dict[str, Client]:
    """Return the clients by name; where the files of some lie depends on the environment."""
    return {
        "claude": Client(
            ".mcp.json",
            "mcpServers",
            _make_search_entry(alwaysLoad=True),
            "Claude Code asks once whether to start it.",
        ),
        "cursor": Client(".cursor/mcp.json", "mcpServers", _make_workspace_entry()),
        "codex": Client(
            ".codex/config.toml",
            "mcp_servers",
            _make_codex_entry,
            "It holds in a trusted project.",
        ),
        "gemini": Client(
            ".gemini/settings.json",
            "mcpServers",
            _make_search_entry(timeout=86_400_000),
        ),
        "vscode": Client(
            ".vscode/mcp.json", "servers", _make_workspace_entry(type="stdio")
        ),
        "zed": Client(
            ".zed/settings.json",
            "context_servers",
            _make_path_entry(source="custom", env={}),
            LOCAL_PATH_NOTE,
        ),
        "jupyter-ai": Client(
            ".jupyter/mcp_settings.json",
            "mcp_servers",
            _make_path_entry(name=NAME),
            LOCAL_PATH_NOTE,
        ),
        "claude-desktop": Client(
            _find_claude_desktop_file(),
            "mcpServers",
            _make_claude_desktop_entry,
            RESTART_NOTE.format("Claude Desktop"),
            for_user=True,
        ),
        "windsurf": Client(
            os.path.expanduser("~/.codeium/windsurf/mcp_config.json"),
            "mcpServers",
            _make_user_entry,
            RESTART_NOTE.format("Windsurf"),
            for_user=True,
        ),
    }


def print_or_add_entry(
    paths: Paths, name: str, http: int | None, install: bool
) -> dict[str, str]:
    """Return what to put where, or put it there and return what was done; raise StepperError."""
    client = get_clients()[name]
    if http is not None:
        raise UsageError(
            f"--config {name} is for a server that the client starts itself",
            "stepper mcp --http PORT",
        )
    on_windows = client.for_user and client.file.startswith("%")
    if not install:
        lines = _format_entry(client, paths.project)
        where = client.place
        if not client.for_user:
            where = f"{client.file} of {paths.project}"
        how = "" if on_windows else "; `--install` puts them there"
        text = f"{lines}\n\nThese lines belong in {where}{how}. {client.note}"
        return {"text": text.rstrip()}
    if on_windows:
        raise StepperError(
            f"{client.file} is a file on Windows, which this command does not change",
            f"stepper mcp --config {name}  # prints the lines to add",
        )
    done = add_entry(paths, name)
    return {"text": " ".join(filter(None, [f"{client.place}: {done}.", client.note]))}


def add_entry(paths: Paths, name: str) -> str:
    """Put a client's lines into its file; return made, updated or unchanged. Raise StepperError."""
    client, project = get_clients()[name], Path(paths.project)
    note = read_install_record(paths.project)
    if not note:
        raise StepperError(
            "stepper is not set up here by you",
            doctor.format_install_command(paths, more=" --mcp"),
        )
    if not client.for_user:
        folder = str(Path(client.file).parent)
        claude = not note.get("mcp_only")
        check_links(project, folder, client.file, claude=claude)
    _write_starter(paths)
    path = client.path(paths)
    before = read(path).decode("utf-8") if path.exists() else None
    new = _add_to_text(client, before, paths)
    if new == before:
        return "unchanged"
    known = note.get("clients", {})
    missing = [folder for folder in path.parents if not folder.is_dir()]
    first = {"text": before, "folder": not missing, "folders": len(missing)}
    kept = known.get(name, first)
    trust.save_record(paths, {**note, "clients": {**known, name: kept}})
    if client.for_user and before is not None and STARTER not in before:
        # it is not only ours, and it may hold other servers' keys
        write(_get_backup_path(path), before.encode(), path.stat().st_mode & 0o777)
    return write(path, new.encode())


def _write_starter(paths: Paths) -> None:
    """Write the script that clients start, where an older version made the environment."""
    lender = Paths(paths.environment_checkout)
    # one that `stepper trust` accepted is a link: nothing is written there
    if os.path.isdir(lender.env) and not os.path.islink(lender.env):
        mcp_starter.write_scripts(lender, doctor.format_install_command(lender))


def _get_backup_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.before-stepper")


def remove_entries(paths: Paths, note: dict[str, Any]) -> list[str]:
    """Take our lines out of all clients' files; return those that were changed. Files that can't be read stay."""
    done = []
    for name, client in get_clients().items():
        path, before = client.path(paths), note.get("clients", {}).get(name, {})
        try:
            there = read(path).decode("utf-8")
            rest = _remove_from_text(client, there, before.get("text"), paths)
        except (StepperError, OSError, ValueError):
            continue
        if rest == there:
            continue
        if rest is None:
            remove(path)
        else:
            write(path, rest.encode())
        if client.for_user and STARTER not in (rest or ""):
            remove(_get_backup_path(path))
        if rest is None:
            made = before.get("folders", int(not before.get("folder", True)))
            for folder in [*path.parents][:made]:
                remove_empty(folder)
        done.append(client.place)
    return done


def _format_entry(client: Client, project: str) -> str:
    entry = client.entry(project)
    if client.file.endswith(".toml"):
        return toml_config.format_table(entry).rstrip()
    name = _choose_server_name(client, Paths(project), {})
    servers: Any = [entry] if "name" in entry else {name: entry}
    return json.dumps({client.key: servers}, indent=2, ensure_ascii=False)


def _choose_server_name(client: Client, paths: Paths, servers: dict[str, Any]) -> str:
    """Return the name of our server. In a file for all projects each of them has its own."""
    if not client.for_user:
        return NAME
    folder = re.sub(r"[^A-Za-z0-9_-]+", "-", os.path.basename(paths.project)).strip("-")
    name = f"{NAME}-{folder or 'project'}"
    names = [name, *(f"{name}-{number}" for number in range(2, 100))]
    mine = [each for each in names if _is_for_project(servers.get(each), paths)]
    free = [each for each in names if not is_ours(servers.get(each))]
    return [*mine, *free, name][0]


def _is_for_project(entry: object, paths: Paths) -> bool:
    """Whether an entry in a file for all projects starts the server of this project."""
    if not is_ours(entry) or not isinstance(entry, dict):
        return False
    arguments = entry.get("args")
    return isinstance(arguments, list) and arguments[-1:] == [paths.project]


def _parse_settings(text: str, path: Path, lines: str) -> dict[str, Any]:
    try:
        data = claude_settings.parse(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        why = f"{path} can't be read, maybe for its comments: {error}"
        raise StepperError(
            why, f"{format_editor_command(path)}  # and add:\n{lines}"
        ) from None
    if not isinstance(data, dict):
        raise StepperError(
            f"{path} does not hold an object", format_editor_command(path)
        )
    return data


def _add_to_text(client: Client, text: str | None, paths: Paths) -> str:
    """Return a file's text with our lines; raise StepperError where another server has our name."""
    path, entry = client.path(paths), client.entry(paths.project)
    if client.file.endswith(".toml"):
        return toml_config.add_table(
            text or "", entry, path, _make_name_error(path, NAME)
        )
    data = _parse_settings(text or "", path, _format_entry(client, paths.project))
    servers = data.get(client.key, [] if "name" in entry else {})
    if not isinstance(servers, list if "name" in entry else dict):
        raise StepperError(
            f"{path}: {client.key} is of another kind than it should be",
            format_editor_command(path),
        )
    name = NAME
    if isinstance(servers, list):
        same = [
            each
            for each in servers
            if isinstance(each, dict) and each.get("name") == NAME
        ]
        rest = [each for each in servers if each not in same]
    else:
        name = _choose_server_name(client, paths, servers)
        same = [servers[name]] if name in servers else []
    for each in same:
        if not is_ours(each):
            raise _make_name_error(path, name)
        entry = merge_entries(each, entry)
    if same == [entry]:
        return text or ""
    new: Any = [*rest, entry] if isinstance(servers, list) else {**servers, name: entry}
    return claude_settings.render(
        {**data, client.key: new}, text if text and text.strip() else "{}\n"
    )


def _make_name_error(path: Path, name: str) -> StepperError:
    return StepperError(
        f"{path} has another server called {name}",
        f"{format_editor_command(path)}  # rename it, then run this again",
    )


def _remove_from_text(
    client: Client, text: str, before: str | None, paths: Paths
) -> str | None:
    """Return a file's text without our lines, None where nothing is left of it that was there before."""
    if client.file.endswith(".toml"):
        rest = toml_config.remove_table(
            text, toml_config.format_table(_make_codex_entry(""))
        )
        if rest == text:
            return text
        if before is not None and rest.strip() == before.strip():
            return before
        return rest if rest.strip() else before
    data = _parse_settings(text, Path(client.file), "")
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
            if not _is_removable(client, name, each, paths)
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


def _is_removable(client: Client, name: str, entry: object, paths: Paths) -> bool:
    if client.for_user:
        return _is_for_project(entry, paths)
    return name == NAME and is_ours(entry)


def format_config_command(project: str) -> str:
    """Return what install says of it."""
    names = "|".join(get_clients())
    return (
        f"cd {shlex.quote(project)} && .stepper/env/bin/stepper mcp --config"
        f" {names} [--install]"
    )
