"""The script that starts the MCP server of installations without a hook script.

The script is in stepper's environment: clients do not run files of the checkout. It
runs a copy of the hook script with the event `Mcp`.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from stepper.common.errors import StepperError
from stepper.common.paths import Paths
from stepper.install.install_file_io import find_assets, read, write

# Relative to the environment. The hook script contains this name too.
STARTER = "hooks/mcp"
SCRIPT = "hooks/stepper"


def get_starter_path(paths: Paths) -> Path:
    """Return the path of the script that starts the server."""
    return Path(paths.env, STARTER)


def write_scripts(paths: Paths, repair: str) -> None:
    """Write the start script and its copy of the hook script into the environment.

    `repair` is the command that sets up the checkout. The script prints this command if
    the server can't be started.
    """
    write(Path(paths.env, SCRIPT), read(find_assets("hooks") / "stepper"), 0o755)
    write(get_starter_path(paths), _format_starter(paths, repair), 0o755)


def check_starter(paths: Paths, repair: str) -> str:
    """Check the start script, and return its path.

    `repair`, the command that sets up the checkout, is the hint of the error.

    Raises:
        StepperError: The script is missing, not executable or from another version of
            stepper.
    """
    path = get_starter_path(paths)
    script = Path(paths.env, SCRIPT)
    is_copy_current = read(script) == read(find_assets("hooks") / "stepper")
    # Not compared in full: the repair command differs if the source clone was removed.
    starts_copy = os.fsencode(SCRIPT) in read(path)
    if not (is_copy_current and starts_copy and os.access(path, os.X_OK)):
        raise StepperError(
            f"{path} is missing, not executable or from another version of stepper",
            repair,
        )
    return str(path)


def _format_starter(paths: Paths, repair: str) -> bytes:
    """Return the text of the start script.

    The start script sources the copy of the hook script, which reads the variables
    `root` and `setup` and takes the event from `$1`.
    """
    script = shlex.quote(str(Path(paths.env, SCRIPT)))
    lines = [
        "#!/bin/sh",
        "# stepper (notebook-stepper): starts the MCP server of the checkout $1.",
        f"root=$1 setup={shlex.quote(repair)}",
        "set -- Mcp",
        f". {script}",
    ]
    text = "\n".join(lines)
    return os.fsencode(f"{text}\n")
