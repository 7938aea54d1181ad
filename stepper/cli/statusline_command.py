"""`stepper statusline`: print the status line of Claude Code."""

from __future__ import annotations

import os

from stepper.common.paths import Paths
from stepper.install.install_file_io import find_assets


def statusline(paths: Paths) -> None:
    """Replace this process with the script that prints the status line."""
    script = str(find_assets("hooks") / "statusline")
    arguments = ["sh", script, paths.project]
    os.execv("/bin/sh", arguments)  # noqa: S606  # the script is ours
