"""`stepper trust`: show the programs that a checkout would run, and accept them."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from stepper.cli.terminal import print_text
from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import Paths
from stepper.common.text import escape_controls
from stepper.install import trust
from stepper.install.trust import Offer

TRUST_WITHOUT_PROMPT = "stepper trust --yes"
INDENT = " " * 15  # of the description below an item
SCRIPT_DESCRIPTION = (
    "Claude Code runs this script (see .claude/settings.json); the script does nothing"
    " until you accept it"
)


def accept(paths: Paths, yes: bool) -> dict[str, Any]:
    """Record the acceptance of the checkout's programs, after the user's confirmation.

    If `yes` is true, don't ask the user. Raise StepperError if the user declines, and
    UsageError if there is no terminal for the question.
    """
    offer = trust.examine(paths)
    if offer.is_new and not yes:
        print_text("\n".join(describe(paths, offer)), err=True)
        has_terminal = sys.stdin.isatty() and sys.stderr.isatty()
        if not has_terminal:
            raise UsageError(
                "nothing was accepted: the confirmation needs a terminal",
                TRUST_WITHOUT_PROMPT,
            )
        if not click.confirm("Accept this?", default=False, err=True):
            raise StepperError("nothing was accepted")
    return trust.accept(paths, offer)


def describe(paths: Paths, offer: Offer) -> list[str]:
    """Return the lines that describe an offer to the user."""
    project = escape_controls(paths.project)
    lines = [f"Accept the following for your user account, in {project}:"]
    if offer.python:
        lines += _describe_interpreter(paths, offer)
    if offer.env:
        lines += _describe_environment(paths, offer)
    if offer.hook_script:
        lines.append(f"  hooks        {_format_path(paths, offer.hook_script)}")
        lines.append(f"{INDENT}{SCRIPT_DESCRIPTION}")
    for name, definition in offer.kernels.items():
        text = json.dumps(definition, ensure_ascii=False)
        note = _format_note(definition in offer.new_kernels)
        lines.append(f"  kernels.{escape_controls(name)}: {text}{note}")
    for name, value in offer.settings.items():
        text = json.dumps(value, ensure_ascii=False)
        lines.append(f"  {name}: {text}  (.stepper/config.yaml)")
    return lines


def _describe_interpreter(paths: Paths, offer: Offer) -> list[str]:
    """Return the lines on the interpreter of the kernels."""
    origin = "the project's environment"
    if offer.python_is_configured:
        origin = "`python:` in .stepper/config.yaml"
    path = _format_path(paths, offer.python)
    note = _format_note(offer.is_python_new)
    return [
        f"  interpreter  {path}{note}",
        f"{INDENT}runs the cells ({origin})",
    ]


def _describe_environment(paths: Paths, offer: Offer) -> list[str]:
    """Return the lines on stepper's environment.

    The lines name the executed files of an environment that install.sh did not create.
    """
    files = "created by install.sh"
    if offer.env == paths.env_link:
        names = map(paths.relpath, offer.env_files)
        files = escape_controls(", ".join(names))
    path = _format_path(paths, offer.env)
    note = _format_note(not offer.record)
    return [
        f"  environment  {path}{note}",
        f"{INDENT}runs the hooks, the daemon and the `stepper` command ({files})",
    ]


def _format_path(paths: Paths, path: str) -> str:
    """Return a path for display, with the target if the path is a link.

    A path in the project is shown relative to the project.
    """
    name = path
    if path.startswith(paths.project + os.sep):
        name = paths.relpath(path)
    text = escape_controls(name)
    target = os.path.realpath(path)
    if target != path:
        text += f" → {escape_controls(target)}"
    return text


def _format_note(is_new: bool) -> str:
    """Return the note on an item that the user accepted before, or an empty string."""
    return "" if is_new else "  (accepted before)"
