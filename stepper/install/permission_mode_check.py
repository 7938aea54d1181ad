"""The permission mode in which Claude Code starts, and its effect on notebook edits.

The modes are described in docs/development/claude-code.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from stepper.common.errors import StepperError
from stepper.install import claude_settings
from stepper.install.install_file_io import read_settings
from stepper.policy.model import Limits

UNSET = "auto"  # the default of Claude Code 2.1.330
# Claude Code ignores this mode in a project's settings and starts in `default`.
UNTRUSTED = "bypassPermissions"
RUNS_IMMEDIATELY = "edits need no approval, and each code cell runs immediately"
NOT_UNTIL_RUN = "until you run `stepper run`"


class ModeEffect(NamedTuple):
    """The effect of a permission mode on an edit.

    `with_ask` applies if `auto_run` is `ask`, and `usual` otherwise.
    """

    usual: str
    with_ask: str


MODES = {
    "default": ModeEffect(
        "each edit needs your approval; an approved code cell runs immediately",
        "each edit needs your approval; an approved code cell does not run"
        f" {NOT_UNTIL_RUN}",
    ),
    "acceptEdits": ModeEffect(RUNS_IMMEDIATELY, RUNS_IMMEDIATELY),
    "bypassPermissions": ModeEffect(RUNS_IMMEDIATELY, RUNS_IMMEDIATELY),
    "auto": ModeEffect(
        RUNS_IMMEDIATELY,
        "each code cell needs your approval and then runs immediately",
    ),
    "dontAsk": ModeEffect(
        "edits that no rule allows are refused; the cells of other edits run"
        " immediately",
        "edits that no rule allows are refused; the cells of other edits do not run"
        f" {NOT_UNTIL_RUN}",
    ),
    "plan": ModeEffect(
        "each edit needs your approval, and no cell runs",
        "each edit needs your approval, and no cell runs",
    ),
}
UNKNOWN_EFFECT = "stepper does not know this mode"
# Other names that Claude Code accepts for a mode.
ALIASES = {"manual": "default"}


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
    project_files = [
        project / ".claude/settings.local.json",
        project / ".claude/settings.json",
    ]
    user_file = get_config_folder() / "settings.json"
    for file in (*project_files, user_file):
        mode = _read_permissions(file).get("defaultMode")
        if isinstance(mode, str):
            if file != user_file and mode == UNTRUSTED:
                mode = "default"
            return mode, str(file)
    return UNSET, ""


def _read_permissions(file: Path) -> dict[str, Any]:
    """Return the permissions in a settings file, or an empty dictionary.

    Raises:
        StepperError: The file can't be read.
    """
    _, settings = read_settings(file)
    permissions: dict[str, Any] = settings.get("permissions", {})
    return permissions


def describe_mode(project: Path, limits: Limits) -> str:
    """Return a description of the permission mode and of its effect on edits.

    If a settings file can't be read, the description says so.
    """
    try:
        mode, file = find_mode(project)
        allowed_rules = _list_allowed_rules(project)
    except StepperError as error:
        return f"unknown: {error.message}"
    known_mode = ALIASES.get(mode, mode)
    mode_effect = MODES.get(known_mode, ModeEffect(UNKNOWN_EFFECT, UNKNOWN_EFFECT))
    stepper_rules = set(claude_settings.list_permission_rules(limits.patterns))
    if limits.auto_run == "ask":
        effect = mode_effect.with_ask
    elif known_mode == "default" and stepper_rules <= allowed_rules:
        effect = f"{RUNS_IMMEDIATELY}, because the rules of --allow are set"
    else:
        effect = mode_effect.usual
    origin = "Claude Code's default"
    if file:
        origin = f"permissions.defaultMode in {file}"
    return f"{mode} ({origin}): {effect}"


def _list_allowed_rules(project: Path) -> set[str]:
    """Return the permission rules that the project's settings allow.

    Raises:
        StepperError: A settings file can't be read.
    """
    rules: set[str] = set()
    for name in ("settings.json", "settings.local.json"):
        permissions = _read_permissions(project / ".claude" / name)
        for rule in permissions.get("allow", []):
            if isinstance(rule, str):
                rules.add(rule)
    return rules
