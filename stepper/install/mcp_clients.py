"""The MCP clients that stepper can configure, and their server entries.

An entry starts the hook script or the equivalent script in stepper's environment
(`mcp_starter`). Both scripts refuse to run in a checkout that this user did not set up,
because some clients start the servers of any repository without approval.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepper.common.paths import Paths, read_install_record
from stepper.install import claude_settings, mcp_starter
from stepper.install.mcp_client_toml import NAME, SERVERS, Entry

EVENT = "Mcp"
SCRIPT = claude_settings.SCRIPT
STARTER = mcp_starter.STARTER
# A client may start this script in any folder of the project. The script contains no
# `${…}`, which some clients replace themselves. In each folder from the current folder
# up to the repository's folder, it tries in this order:
# 1. this user's starter for the folder;
# 2. the hook script, if this user set up stepper there or owns the repository (a
#    worktree): a folder above may belong to anyone;
# 3. the starter of the main checkout of a worktree.
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
    'echo "stepper: the MCP server was not started: stepper is not set up here. '
    'To set up this repository, run: uvx notebook-stepper install THIS_REPOSITORY" '
    '>&2; exit 1; fi; d=$(dirname "$d"); done'
)
LOCAL_PATH_NOTE = "The path is valid on this machine only."
RESTART_NOTE = "Restart {} afterwards. Each project has its own entry in this file."


@dataclass(frozen=True)
class Client:
    """An MCP client.

    `file` is the path of its configuration, relative to the project; `for_user` means
    that this file of the user applies to all projects. `key` is the key of the servers
    in the file. `make_entry` returns stepper's entry for a project. `note` is shown to
    the user.
    """

    file: str
    key: str
    make_entry: Callable[[str], Entry]
    note: str = ""
    for_user: bool = False

    @property
    def is_toml(self) -> bool:
        """Whether the file is TOML; other files are JSON."""
        return self.file.endswith(".toml")

    @property
    def is_on_windows(self) -> bool:
        """Whether the file is on Windows, outside of WSL."""
        return self.file.startswith("%")

    @property
    def display_path(self) -> str:
        """The path of the file in messages."""
        home = os.path.expanduser("~/")
        if self.for_user and self.file.startswith(home):
            return f"~/{self.file.removeprefix(home)}"
        return self.file

    def get_path(self, paths: Paths) -> Path:
        """Return the path of the file."""
        return Path(paths.project, self.file).expanduser()


def _bind_search_entry(**options: Any) -> Callable[[str], Entry]:
    """Return the `make_entry` of a client that starts servers within the project.

    `options` are further keys of the entry.
    """
    command = {"command": "sh", "args": ["-c", SEARCH_SCRIPT]}
    return lambda project: {**command, **options}


def _make_codex_entry(project: str) -> Entry:
    """Return the entry for Codex, which passes only few environment variables."""
    entry = {"command": "sh", "args": ["-c", SEARCH_SCRIPT], "tool_timeout_sec": 86_400}
    return {**entry, **_get_state_variable()}


def _get_state_variable() -> Entry:
    """Return the part of an entry that sets XDG_STATE_HOME, if the user has set it."""
    state = os.environ.get("XDG_STATE_HOME")
    if state:
        return {"env": {"XDG_STATE_HOME": state}}
    return {}


def _bind_workspace_entry(**options: Any) -> Callable[[str], Entry]:
    """Return the `make_entry` of a client that replaces `${workspaceFolder}`."""
    folder = "${workspaceFolder}"

    def make_entry(project: str) -> Entry:
        """Return the entry, with the hook script if the project has this script."""
        if _has_hook_script(project):
            return {**options, "command": f"{folder}/{SCRIPT}", "args": [EVENT]}
        search = f'cd "$1" || exit; {SEARCH_SCRIPT}'
        return {**options, "command": "sh", "args": ["-c", search, NAME, folder]}

    return make_entry


def _bind_path_entry(**options: Any) -> Callable[[str], Entry]:
    """Return the `make_entry` of a client that starts servers in any folder."""

    def make_entry(project: str) -> Entry:
        """Return the entry, with the absolute path of a script."""
        if _has_hook_script(project):
            return {**options, "command": f"{project}/{SCRIPT}", "args": [EVENT]}
        return {**options, **_make_starter_entry(project)}

    return make_entry


def _has_hook_script(project: str) -> bool:
    """Return whether the project has the hook script.

    Installations with `--mcp-only` or `--plugin` do not have the script.
    """
    record = read_install_record(project)
    return not (record.get("mcp_only") or record.get("plugin"))


def _make_starter_entry(project: str) -> Entry:
    """Return an entry that starts the script in stepper's environment."""
    starter = mcp_starter.get_starter_path(Paths(Paths(project).environment_checkout))
    return {"command": str(starter), "args": [project]}


def _make_user_entry(project: str) -> Entry:
    """Return the entry in a file for all projects of the user."""
    return {**_make_starter_entry(project), **_get_state_variable()}


def get_wsl_distribution() -> str:
    """Return the name of the Linux distribution in WSL, or an empty string."""
    return os.environ.get("WSL_DISTRO_NAME", "")


def _make_claude_desktop_entry(project: str) -> Entry:
    """Return the entry for Claude Desktop, which may run on Windows outside of WSL."""
    distribution = get_wsl_distribution()
    entry = _make_user_entry(project)
    if not distribution:
        return entry
    variables = [f"{name}={value}" for name, value in entry.get("env", {}).items()]
    prefix = ["env", *variables] if variables else []
    command = [*prefix, entry["command"], *entry["args"]]
    return {"command": "wsl.exe", "args": ["-d", distribution, "-e", *command]}


def _find_claude_desktop_file() -> str:
    """Return the path of Claude Desktop's configuration. In WSL, it is on Windows."""
    if get_wsl_distribution():
        return r"%APPDATA%\Claude\claude_desktop_config.json"
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    if sys.platform == "darwin":
        folder = os.path.expanduser("~/Library/Application Support")
    return os.path.join(folder, "Claude", "claude_desktop_config.json")


def get_clients() -> dict[str, Client]:
    """Return the clients by name. Some paths depend on environment variables."""
    return {
        "claude": Client(
            ".mcp.json",
            "mcpServers",
            _bind_search_entry(alwaysLoad=True),
            "Claude Code asks once whether to start the server.",
        ),
        "cursor": Client(".cursor/mcp.json", "mcpServers", _bind_workspace_entry()),
        "codex": Client(
            ".codex/config.toml",
            SERVERS,
            _make_codex_entry,
            "Codex reads this file only in a trusted project.",
        ),
        "gemini": Client(
            ".gemini/settings.json",
            "mcpServers",
            _bind_search_entry(timeout=86_400_000),
        ),
        "vscode": Client(
            ".vscode/mcp.json", "servers", _bind_workspace_entry(type="stdio")
        ),
        "zed": Client(
            ".zed/settings.json",
            "context_servers",
            _bind_path_entry(source="custom", env={}),
            LOCAL_PATH_NOTE,
        ),
        "jupyter-ai": Client(
            ".jupyter/mcp_settings.json",
            "mcp_servers",
            _bind_path_entry(name=NAME),
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
