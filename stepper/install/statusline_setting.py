"""Claude Code's status line: `install.sh --statusline` adds stepper's line.

The status line of a project replaces the user's. So stepper's script first runs the
command that it replaced, which is kept beside the record of the installation, and
uninstall restores the setting.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from stepper.common.errors import StepperError
from stepper.common.paths import Paths, get_record_folder
from stepper.install.claude_settings import SCRIPT, Data
from stepper.install.installed_files import (
    find_assets,
    read,
    read_settings,
    remove,
    write,
)

KEY = "statusLine"
COMMAND = '"${CLAUDE_PROJECT_DIR}"/' + SCRIPT + " StatusLine"
REFRESH_SECONDS = 1
LOCAL_SETTINGS = ".claude/settings.local.json"


def is_ours(setting: object) -> bool:
    """Return whether a status line runs stepper's script."""
    if not isinstance(setting, dict):
        return False
    command = str(setting.get("command", "")).replace('"', "")
    return f"/{SCRIPT} " in command


def add_status_line(paths: Paths, data: Data, record: Data) -> tuple[Data, Data]:
    """Return the settings with stepper's status line, and the updated record.

    The record contains the setting that was replaced.
    """
    current = data.get(KEY)
    if not is_ours(current):
        record = {**record, "statusline": {"before": current}}
    replaced = record.get("statusline", {}).get("before")
    if not isinstance(replaced, dict):
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
    """Return the settings with the status line that stepper's replaced, if any."""
    if not is_ours(data.get(KEY)):
        return data
    recorded = record.get("statusline")
    replaced = recorded.get("before") if isinstance(recorded, dict) else None
    restored = {}
    for name, value in data.items():
        if name != KEY:
            restored[name] = value
        elif replaced:
            restored[KEY] = replaced
    return restored


def describe_status_line(paths: Paths) -> str:
    """Return a message on the status line that was installed."""
    _, local_settings = read_settings(Path(paths.project, LOCAL_SETTINGS))
    if local_settings.get(KEY):
        return (
            f"Claude Code shows the one in {LOCAL_SETTINGS} instead: remove {KEY} there"
        )
    content = read(_get_replaced_command_path(paths))
    command = content.decode("utf-8", "replace").strip()
    return f"below your own: {command}" if command else "you had none of your own"


def write_script(env: Path) -> None:
    """Write the script that prints the line into the environment."""
    write(env / "statusline", read(find_assets("hooks") / "statusline"), 0o755)


def _get_replaced_command_path(paths: Paths) -> Path:
    return Path(get_record_folder(paths.project), "statusline.own")


def _read_user_setting() -> dict[str, Any]:
    """Return the status line of the user's own settings; raise StepperError."""
    home = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path("~/.claude").expanduser())
    path = home / "settings.json"
    try:
        setting = json.loads(read(path) or b"{}").get(KEY)
    except (OSError, ValueError, AttributeError) as error:
        raise StepperError(
            f"{path} can't be read: {error}", "fix the file, then run this again"
        ) from None
    return setting if isinstance(setting, dict) else {}
