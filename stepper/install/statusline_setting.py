"""The status line of Claude Code, by `install.sh --statusline` alone: the person's own, and a line below it.

A project's replaces the person's own, wherever that stands. What it replaces is kept with the record of the install:
its command as a file that ours runs first, all of it to be given back.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from stepper.common.errors import StepperError
from stepper.common.paths import Paths, record_folder
from stepper.install.claude_settings import SCRIPT, Data
from stepper.install.install_files import (
    find_assets,
    read,
    read_settings,
    remove,
    write,
)

KEY = "statusLine"
COMMAND = '"${CLAUDE_PROJECT_DIR}"/' + SCRIPT + " StatusLine"
REFRESH_SECONDS = 1


def is_ours(told: object) -> bool:
    """Whether a status line is stepper's."""
    return isinstance(told, dict) and f"/{SCRIPT} " in str(
        told.get("command", "")
    ).replace('"', "")


def add_status_line(paths: Paths, data: Data, note: Data) -> tuple[Data, Data]:
    """Return the settings with our status line, and the note of the install with what it replaces in them."""
    there = data.get(KEY)
    note = note if is_ours(there) else {**note, "statusline": {"before": there}}
    before = note.get("statusline", {}).get("before")
    own = before if isinstance(before, dict) else _read_user_setting()
    keep = {name: value for name, value in own.items() if name == "padding"}
    file, command = (
        Path(record_folder(paths.project), "statusline.own"),
        own.get("command"),
    )
    if isinstance(command, str) and command.strip():
        write(file, (command.rstrip() + "\n").encode(), 0o600)
    else:
        remove(file)
    ours = {
        "type": "command",
        "command": COMMAND,
        "refreshInterval": REFRESH_SECONDS,
        **keep,
    }
    return {**data, KEY: ours}, note


def restore_status_line(data: Data, note: Data) -> Data:
    """Return the settings without our status line: with the one that it had replaced in them."""
    if not is_ours(data.get(KEY)):
        return data
    told = note.get("statusline")
    before = told.get("before") if isinstance(told, dict) else None
    return {
        name: before if name == KEY else value
        for name, value in data.items()
        if name != KEY or before
    }


def describe_status_line(paths: Paths) -> str:
    """Return what is to be known of the status line that was put there."""
    local = read_settings(Path(paths.project, ".claude/settings.local.json"))[1].get(
        KEY
    )
    if local:
        return (
            "the one in .claude/settings.local.json is shown in its stead: take it"
            " out there"
        )
    own = (
        read(Path(record_folder(paths.project), "statusline.own"))
        .decode("utf-8", "replace")
        .strip()
    )
    return f"below your own: {own}" if own else "you had none of your own"


def write_script(env: Path) -> None:
    """Put into the environment what prints the line."""
    write(env / "statusline", read(find_assets("hooks") / "statusline"), 0o755)


def _read_user_setting() -> dict[str, Any]:
    home = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path("~/.claude").expanduser())
    try:
        told = json.loads(read(home / "settings.json") or b"{}").get(KEY)
    except (OSError, ValueError, AttributeError) as error:
        raise StepperError(
            f"{home / 'settings.json'} can't be read: {error}",
            "mend it, then run this again",
        ) from None
    return told if isinstance(told, dict) else {}
