"""`stepper mcp`: starts the face of other agents, or sets a client of theirs up. Loaded for that command alone."""

from __future__ import annotations

import os
from typing import Any

from stepper.cli.main import loaded
from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import Paths
from stepper.install.file_edits import assets


def statusline(paths: Paths) -> None:
    """Become what prints the line: the same script as where no Python is started for it."""
    script = str(assets("hooks") / "statusline")
    os.execv("/bin/sh", ["sh", script, paths.project])  # noqa: S606  # our own script


def mcp(
    paths: Paths, http: int | None, config: str | None, install: bool
) -> dict[str, Any] | None:
    """Serve until the client leaves, or return what was set up, or is to be; raise StepperError."""
    if config is not None:
        return dict(
            loaded("stepper.install.mcp_client_config:told")(
                paths, config, http, install
            )
        )
    if install:
        raise UsageError(
            "--install needs a client", "stepper mcp --config cursor --install"
        )
    try:
        serve = loaded(
            "stepper.mcp.server:serve"
            if http is None
            else "stepper.mcp.http_server:serve"
        )
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "stepper":
            raise
        mend = loaded("stepper.install.doctor:install_command")(paths, more=" --mcp")
        raise StepperError(
            f"the extra that MCP needs is not installed ({error.name} is missing)", mend
        ) from None
    serve(paths.project) if http is None else serve(paths.project, http)
    return None
