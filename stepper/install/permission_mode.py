"""The permission mode in which Claude Code starts, and its effect on notebook edits.

The modes are described in docs/development/claude-code.md.
"""

from __future__ import annotations

import os
from pathlib import Path

from stepper.common.errors import StepperError
from stepper.install import claude_settings
from stepper.install.installed_files import read_settings
from stepper.policy.model import Limits

UNSET = "auto"  # Claude Code 2.1.330 uses it if no settings file names a mode
# Claude Code ignores this mode in a project's settings and starts in `default`.
UNTRUSTED = "bypassPermissions"
RUNS_IMMEDIATELY = "edits are not asked for, and each code cell runs at once"
WAITS_FOR_RUN = "cells of allowed edits wait for `stepper run`"
# What becomes of an edit in each mode, and where `auto_run` is `ask`.
MODES = {
    "default": (
        "each edit is asked for: saying yes to a code cell runs it at once",
        f"each edit is asked for; {WAITS_FOR_RUN}",
    ),
    "acceptEdits": (RUNS_IMMEDIATELY, RUNS_IMMEDIATELY),
    "bypassPermissions": (RUNS_IMMEDIATELY, RUNS_IMMEDIATELY),
    "auto": (
        RUNS_IMMEDIATELY,
        "each code cell is asked for: saying yes runs it at once",
    ),
    "dontAsk": (
        "edits that no rule allows are refused; cells of the others run at once",
        f"edits that no rule allows are refused; {WAITS_FOR_RUN}",
    ),
    "plan": (
        "each edit is asked for, and no cell runs",
        "each edit is asked for, and no cell runs",
    ),
}


def get_config_folder() -> Path:
    """Return the folder of the client's own settings."""
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path("~/.claude").expanduser())


def find_mode(project: Path) -> tuple[str, str]:
    """Return the configured mode and the settings file that sets it.

    The settings of the project take precedence over those of the user.

    Raises:
        StepperError: A settings file can't be read.
    """
    own = get_config_folder()
    for folder, name in (
        (project / ".claude", "settings.local.json"),
        (project / ".claude", "settings.json"),
        (own, "settings.json"),
    ):
        permissions = read_settings(folder / name)[1].get("permissions", {})
        mode = permissions.get("defaultMode")
        if isinstance(mode, str):
            if folder != own and mode == UNTRUSTED:
                mode = "default"
            return mode, str(folder / name)
    return UNSET, ""


def describe_mode(project: Path, limits: Limits) -> str:
    """Return a description of the mode and of its effect on an edit."""
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
    usual, asking = MODES.get(
        "default" if mode == "manual" else mode,
        ("unknown to stepper", "unknown to stepper"),
    )
    if (
        mode in ("default", "manual")
        and limits.auto_run != "ask"
        and {*claude_settings.list_permission_rules(limits.patterns)} <= allowed
    ):
        usual = f"the rules of --allow are there: {RUNS_IMMEDIATELY}"
    why = (
        f"permissions.defaultMode in {file}"
        if file
        else "what Claude Code starts in without permissions.defaultMode"
    )
    return f"{mode} ({why}): {asking if limits.auto_run == 'ask' else usual}"
