"""`stepper attach`: show how to attach to a kernel, or start a console for it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any

from stepper.common.errors import StepperError
from stepper.common.paths import Paths
from stepper.hook import daemon_client

CONSOLE = "jupyter-console"
INSTALL_CONSOLE = (
    "uv tool install jupyter-console"
    "  # or, in any environment: pip install jupyter-console"
)


def attach(
    paths: Paths,
    console: bool,
    notebook: str | None = None,
) -> Any:
    """Return instructions on how to attach to a notebook's kernel.

    With `console`, replace this process with a console that is attached to the kernel.
    Raise StepperError if there is no kernel, or if no console can be started.
    """
    request = json.dumps({"notebook": notebook})
    body = daemon_client.send_request(paths, b"attach", request.encode())
    response = json.loads(body or b"null")
    if not console:
        return response
    connection_file = response["file"]
    if connection_file is None:
        url = response["url"]
        hint = ""
        if url:
            hint = f"To attach to the kernel, open JupyterLab at {url}"
        raise StepperError(
            "a console can't attach to this kernel: the kernel has no connection file"
            " on this machine",
            hint,
        )
    program = _find_console(response["python"])
    if program is None:
        message = f"{CONSOLE} is not installed, but {response['console']} needs it"
        raise StepperError(message, INSTALL_CONSOLE)
    sys.stdout.flush()
    arguments = [program, "--existing", connection_file]
    return os.execv(program, arguments)  # noqa: S606  # no shell


def _find_console(python: str) -> str | None:
    """Return the path of jupyter-console.

    The kernel's own environment is searched first, then PATH, then stepper's
    environment.
    """
    folders = [
        os.path.dirname(python),
        os.environ.get("PATH", os.defpath),
        os.path.dirname(sys.executable),
    ]
    return shutil.which(CONSOLE, path=os.pathsep.join(folders))
