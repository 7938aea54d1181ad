"""`stepper trust`: shows what a checkout names to run, asks, and records it as accepted."""

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

YES = "stepper trust --yes"


def accept(paths: Paths, yes: bool) -> dict[str, Any]:
    """Record what the checkout names as accepted once the user has agreed; return it.

    Raise StepperError, with nothing recorded, if the user did not agree; UsageError if there is nobody to ask.
    """
    offer = trust.examine(paths)
    if offer.is_new and not yes:
        print_text("\n".join(describe(paths, offer)), err=True)
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(
                "nothing was accepted: there is no terminal to ask on", YES
            )
        if not click.confirm("Accept this?", default=False, err=True):
            raise StepperError("nothing was accepted")
    return trust.record(paths, offer)


def describe(paths: Paths, offer: Offer) -> list[str]:
    """Return the lines on what would be accepted."""
    lines = [
        f"To be accepted for your user account, in {escape_controls(paths.project)}:"
    ]
    if offer.python:
        why = "`python:` in .stepper/config.yaml"
        if not offer.python_is_configured:
            why = "the project's environment"
        new = _mark(offer.is_python_new)
        lines += [
            f"  interpreter  {_path(paths, offer.python)}{new}",
            f"               runs the cells ({why})",
        ]
    if offer.env:
        files = ", ".join(paths.relpath(path) for path in offer.env_files)
        if offer.env != paths.env_link:
            files = "as install.sh made it"
        lines += [
            f"  environment  {_path(paths, offer.env)}{_mark(not offer.known)}",
            f"               runs the hooks, the daemon and the command line ({escape_controls(files)})",
        ]
    if offer.hooks:
        lines += [
            f"  hooks        {_path(paths, offer.hooks)}",
            "               Claude Code runs it, as .claude/settings.json says; without your acceptance it does nothing",
        ]
    for name, definition in offer.kernels.items():
        told = json.dumps(definition, ensure_ascii=False)
        new = _mark(definition in offer.new_kernels)
        lines.append(f"  kernels.{escape_controls(name)}: {told}{new}")
    for name, value in offer.settings.items():
        told = json.dumps(value, ensure_ascii=False)
        lines.append(f"  {name}: {told}  (.stepper/config.yaml)")
    return lines


def _path(paths: Paths, path: str) -> str:
    """Return a path, relative to the project where it lies there, and what it leads to."""
    inside = path.startswith(paths.project + os.sep)
    told = paths.relpath(path) if inside else path
    real = os.path.realpath(path)
    leads = f" → {escape_controls(real)}" if real != path else ""
    return f"{escape_controls(told)}{leads}"


def _mark(new: bool) -> str:
    return "" if new else "  (accepted before)"
