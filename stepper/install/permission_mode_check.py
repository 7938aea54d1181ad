"""The permission mode in which Claude Code starts, and its effect on notebook edits.

The modes are described in docs/development/claude-code.md.
"""

from __future__ import annotations

import os
from pathlib import Path

from stepper.common.errors import StepperError
from stepper.install import claude_settings
from stepper.install.install_file_io import read_settings
from stepper.policy.model import Limits

UNSET = "auto"  # the default of Claude Code 2.1.330
# Claude Code ignores this mode in a project's settings and starts in `default`.
UNTRUSTED = "bypassPermissions"
RUNS_IMMEDIATELY = "edits need no approval, and each code cell runs immediately"
WAITS_FOR_RUN = "cells of allowed edits wait for `stepper run`"
# The effect of each mode on an edit: usually, and if `auto_run` is `ask`.
MODES = {
    "default": (
        "each edit needs your approval; an approved code cell runs immediately",
        f"each edit needs your approval; {WAITS_FOR_RUN}",
    ),
    "acceptEdits": (RUNS_IMMEDIATELY, RUNS_IMMEDIATELY),
    "bypassPermissions": (RUNS_IMMEDIATELY, RUNS_IMMEDIATELY),
    "auto": (
        RUNS_IMMEDIATELY,
        "each code cell needs your approval and then runs immediately",
    ),
    "dontAsk": (
        "edits that no rule allows are refused; cells of other edits run immediately",
        f"edits that no rule allows are refused; {WAITS_FOR_RUN}",
    ),
    "plan": (
        "each edit needs your approval, and no cell runs",
        "each edit needs your approval, and no cell runs",
    ),
}


def get_config_folder() -> Path:
    """Return the folder of Claude Code's user settings."""
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path("~/.claude").expanduser())


def find_mode(project: Path) -> tuple[str, str]:
    """Return the configured mode and the settings file that sets the mode.

    The project's settings take precedence over the user's settings. If no file sets a
    mode, return Claude Code's default and an empty string.

    Raises:
        StepperError: A settings file can't be read.
    """
    user_folder = get_config_folder()
    for folder, name in (
        (project / ".claude", "settings.local.json"),
        (project / ".claude", "settings.json"),
        (user_folder, "settings.json"),
    ):
        permissions = read_settings(folder / name)[1].get("permissions", {})
        mode = permissions.get("defaultMode")
        if isinstance(mode, str):
            if folder != user_folder and mode == UNTRUSTED:
                mode = "default"
            return mode, str(folder / name)
    return UNSET, ""


def describe_mode(project: Path, limits: Limits) -> str:
    """Return a description of the permission mode and of its effect on edits.

    If a settings file can't be read, the description says so.
    """
    try:
        mode, file = find_mode(project)
        files = [
            read_settings(project / ".claude" / name)[1]
            for name in ("settings.json", "settings.local.json")
        ]
    except StepperError as error:
        return f"unknown: {error.message}"
    allowed = {
        rule
        for data in files
        for rule in data.get("permissions", {}).get("allow", [])
        if isinstance(rule, str)
    }
    known_mode = "default" if mode == "manual" else mode
    unknown = "stepper does not know this mode"
    usual, asking = MODES.get(known_mode, (unknown, unknown))
    if (
        known_mode == "default"
        and limits.auto_run != "ask"
        and {*claude_settings.list_permission_rules(limits.patterns)} <= allowed
    ):
        usual = f"{RUNS_IMMEDIATELY}, because the rules of --allow are set"
    origin = "Claude Code's default"
    if file:
        origin = f"permissions.defaultMode in {file}"
    effect = asking if limits.auto_run == "ask" else usual
    return f"{mode} ({origin}): {effect}"
