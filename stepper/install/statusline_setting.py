"""The setting of Claude Code's status line, for `install.sh --statusline`.

The status line of a project replaces the status line of the user. For this reason,
stepper's script first runs the replaced command, which is stored next to the
installation record. Uninstall restores the setting.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepper.common.errors import StepperError
from stepper.common.paths import Paths, get_record_folder
from stepper.install.claude_settings import SCRIPT, Data
from stepper.install.install_file_io import (
    find_assets,
    read,
    read_settings,
    remove,
    write,
)
from stepper.install.permission_mode_check import get_config_folder

KEY = "statusLine"
COMMAND = '"${CLAUDE_PROJECT_DIR}"/' + SCRIPT + " StatusLine"
REFRESH_SECONDS = 1
LOCAL_SETTINGS = ".claude/settings.local.json"


def is_ours(setting: object) -> bool:
    """Return whether the setting of a status line runs stepper's script."""
    if not isinstance(setting, dict):
        return False
    command = str(setting.get("command", "")).replace('"', "")
    return f"/{SCRIPT} " in command


def add_status_line(paths: Paths, data: Data, record: Data) -> tuple[Data, Data]:
    """Return the settings with stepper's status line, and the record of the change.

    The record contains the replaced setting. The replaced command is written to a file
    for stepper's script. Without a replaced command, this file is removed.

    Raises:
        StepperError: The user's settings can't be read.
    """
    current = data.get(KEY)
    if not is_ours(current):
        record = {**record, "statusline": {"before": current}}
    replaced = record.get("statusline", {}).get("before")
    if not isinstance(replaced, dict):  # the project had no status line
        replaced = _read_user_setting()
    command = replaced.get("command")
    path = _get_replaced_command_path(paths)
    if isinstance(command, str) and command.strip():
        write(path, (command.rstrip() + "\n").encode(), 0o600)
    else:
        remove(path)
    setting = {
        "type": "command",
        "command": COMMAND,
        "refreshInterval": REFRESH_SECONDS,
    }
    if "padding" in replaced:
        setting["padding"] = replaced["padding"]
    return {**data, KEY: setting}, record


def restore_status_line(data: Data, record: Data) -> Data:
    """Return the settings without stepper's status line.

    If stepper replaced another status line, the result contains this status line at the
    same position.
    """
    if not is_ours(data.get(KEY)):
        return data
    recorded = record.get("statusline")
    replaced = None
    if isinstance(recorded, dict):
        replaced = recorded.get("before")
    restored = {}
    for name, value in data.items():
        if name != KEY:
            restored[name] = value
        elif replaced:
            restored[KEY] = replaced
    return restored


def describe_status_line(paths: Paths) -> str:
    """Return a message on the installed status line."""
    _, local_settings = read_settings(Path(paths.project, LOCAL_SETTINGS))
    if local_settings.get(KEY):
        return (
            f"Claude Code shows the status line of {LOCAL_SETTINGS} instead: to show"
            f" stepper's, remove {KEY} from this file"
        )
    content = read(_get_replaced_command_path(paths))
    command = content.decode("utf-8", "replace").strip()
    if not command:
        return "installed"
    return f"installed below the output of your own command: {command}"


def write_script(env: Path) -> None:
    """Write the script of the status line into the environment."""
    write(env / "statusline", read(find_assets("hooks") / "statusline"), 0o755)


def _get_replaced_command_path(paths: Paths) -> Path:
    """Return the path of the file with the command of the replaced status line."""
    return Path(get_record_folder(paths.project), "statusline.own")


def _read_user_setting() -> dict[str, Any]:
    """Return the status line of the user's settings, or an empty dictionary.

    Raises:
        StepperError: The settings can't be read.
    """
    path = get_config_folder() / "settings.json"
    try:
        setting = json.loads(read(path) or b"{}").get(KEY)
    except (OSError, ValueError, AttributeError) as error:
        raise StepperError(
            f"{path} can't be read: {error}", f"fix {path}, then install again"
        ) from None
    if isinstance(setting, dict):
        return setting
    return {}
