"""The options of install.sh. This module uses only the standard library."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import tempfile

from stepper.common.errors import UsageError
from stepper.common.paths import read_install_record
from stepper.install.install_file_io import PACKAGE
from stepper.policy.configuration import notebook_globs

HELP = "./install.sh --help"
FLAGS = (
    "allow",
    "add-ipykernel",
    "editable",
    "uninstall",
    "demo",
    "link",
    "mcp",
    "mcp-only",
    "statusline",
    "plugin",
    "remade",
)
# Options that can't be used with --mcp-only, and the reasons.
NOT_WITH_MCP_ONLY = {
    "allow": "--allow adds permission rules to Claude Code's settings",
    "statusline": "the status line belongs to Claude Code",
    "plugin": "the plugin provides hooks and skills",
    "demo": "the demo needs Claude Code's hooks",
    "uninstall": "--uninstall removes every kind of installation",
}


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the options of install.sh, with absolute paths.

    For a demo without a target, a temporary folder is created.

    Raises:
        UsageError: The arguments are not valid.
    """
    options = _parse(arguments)
    _check_combinations(options)
    _check_patterns(options.notebooks)
    if options.python is not None:
        python = options.python
        if os.sep not in python:
            python = shutil.which(python) or python
        # Links are not resolved: the link in a venv identifies the venv.
        options.python = os.path.abspath(python)
    _choose_target(options)
    record = read_install_record(options.target)
    # A later installation keeps MCP support. The plugin also starts the MCP server.
    needs_mcp = options.mcp_only or options.plugin or bool(record.get("mcp"))
    options.mcp = options.mcp or needs_mcp
    return options


def _parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the arguments, without the checks of their values.

    Raises:
        UsageError: An argument is unknown or has no value.
    """
    parser = argparse.ArgumentParser(
        prog="install.sh", add_help=False, allow_abbrev=False, exit_on_error=False
    )
    parser.add_argument("target", nargs="?")
    parser.add_argument("--python")
    parser.add_argument("--notebooks", nargs="+", default=[])
    for name in FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--source", default=str(PACKAGE.parent))
    parser.add_argument("--planned")  # the target as `plan` resolved it
    try:
        options, unknown = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UsageError(str(error), HELP) from None
    if unknown:
        raise UsageError(f"unexpected arguments: {' '.join(unknown)}", HELP)
    return options


def _check_combinations(options: argparse.Namespace) -> None:
    """Raise UsageError if options can't be used together."""
    if options.demo and options.uninstall:
        raise UsageError("--demo and --uninstall can't be used together", HELP)
    if not options.mcp_only:
        return
    for name, reason in NOT_WITH_MCP_ONLY.items():
        if getattr(options, name):
            raise UsageError(
                f"--mcp-only and --{name} can't be used together: {reason}", HELP
            )


def _check_patterns(patterns: list[str]) -> None:
    """Raise UsageError if a pattern of `--notebooks` is not valid."""
    for pattern in patterns:
        if os.path.isabs(pattern):
            raise UsageError(
                f"--notebooks {pattern}: patterns must be relative to the repository",
                "./install.sh REPOSITORY --notebooks …",
            )
        if not notebook_globs.is_valid(pattern):
            raise UsageError(
                f"--notebooks {pattern}: the pattern is not a folder or glob inside the"
                " repository",
                HELP,
            )


def _choose_target(options: argparse.Namespace) -> None:
    """Set the options `target`, an absolute path, and `scratch`.

    `scratch` means that the target is a temporary folder. The target of a demo is
    created, unless `--planned` names a target that an earlier call created.
    """
    options.scratch = options.demo and options.target is None
    if not options.planned:
        if options.scratch:
            options.target = tempfile.mkdtemp(prefix="stepper-demo-")
        elif options.demo:
            _create_folder(options.target)
    options.target = os.path.realpath(options.planned or options.target or ".")


def _create_folder(target: str) -> None:
    """Create the folder of a demo, if it does not exist.

    Raises:
        UsageError: The folder can't be created.
    """
    if os.path.lexists(target):
        return
    try:
        os.makedirs(target)
    except OSError as error:
        shown = shlex.quote(target)
        raise UsageError(
            f"the folder {shown} could not be created: {error.strerror}",
            f"mkdir -p {shown}",
        ) from None
