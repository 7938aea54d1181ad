"""The script with which clients start the MCP server of a checkout, for installations without a hook script.

It lies in stepper's environment, so no file of the checkout is run. It does what the hook
script does for the event `Mcp`, of which it uses a copy.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from stepper.common.errors import StepperError
from stepper.common.paths import Paths
from stepper.install.file_edits import find_assets, read, write

# below the environment; the hook script knows it by this name
STARTER = "hooks/mcp"
SCRIPT = "hooks/stepper"


def get_starter_path(paths: Paths) -> Path:
    """Return the path of the script that starts the server."""
    return Path(paths.env, STARTER)


def write_scripts(paths: Paths, repair: str) -> None:
    """Put the script, and the hook script that it uses, into the environment.

    Where it can't start the server it names `repair`, the command that sets the checkout up.
    """
    write(Path(paths.env, SCRIPT), read(find_assets("hooks") / "stepper"), 0o755)
    write(get_starter_path(paths), _format_starter(paths, repair), 0o755)


def check_starter(paths: Paths, repair: str) -> str:
    """Return the path of the script; raise StepperError where it is missing or of another version."""
    path = get_starter_path(paths)
    script = Path(paths.env, SCRIPT)
    same = read(script) == read(find_assets("hooks") / "stepper")
    # the command that it names may be another one: the clone that it came from may be gone
    same = same and os.fsencode(SCRIPT) in read(path)
    if not same or not os.access(path, os.X_OK):
        raise StepperError(f"{path} is missing or of another version", repair)
    return str(path)


def _format_starter(paths: Paths, repair: str) -> bytes:
    script = shlex.quote(str(Path(paths.env, SCRIPT)))
    lines = [
        "#!/bin/sh",
        "# stepper (notebook-stepper): starts the MCP server of the checkout $1.",
        f"root=$1 setup={shlex.quote(repair)}",
        "set -- Mcp",
        f". {script}",
    ]
    return os.fsencode("\n".join([*lines, ""]))
