"""`stepper attach`: asks the daemon what attaches to a kernel; with `--console` this process becomes that console."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any

from stepper.common.errors import StepperError
from stepper.common.paths import Paths
from stepper.hook import client

CONSOLE = "jupyter-console"


def attach(paths: Paths, console: bool, notebook: str | None = None) -> Any:
    """Return what attaches to the notebook's kernel, or become a console on it; raise StepperError."""
    told = json.loads(
        client.ask(paths, b"attach", json.dumps({"notebook": notebook}).encode())
        or b"null"
    )
    if not console:
        return told
    if told["file"] is None:
        raise StepperError(
            "no console on this machine attaches to it",
            f"JupyterLab at {told['url']} does",
        )
    # The kernel's own packages are the likeliest to have one; that of any other Python
    # does as well.
    folders = [
        os.path.dirname(told["python"]),
        os.environ.get("PATH", os.defpath),
        os.path.dirname(sys.executable),
    ]
    program = shutil.which(CONSOLE, path=os.pathsep.join(folders))
    if program is None:
        mend = "uv tool install jupyter-console  # or, in any environment: pip install jupyter-console"
        raise StepperError(
            f"{CONSOLE} is not installed: {told['console']} needs it", mend
        )
    sys.stdout.flush()
    return os.execv(program, [program, "--existing", told["file"]])  # noqa: S606  # that program, and no shell
