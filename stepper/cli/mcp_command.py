"""`stepper mcp`: run the MCP server, or configure a client for it.

The server is imported only when the command runs.
"""

from __future__ import annotations

from typing import Any

from stepper.cli.main import import_object
from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import Paths


def mcp(
    paths: Paths,
    http: int | None,
    config: str | None,
    install: bool,
) -> dict[str, Any] | None:
    """Run the MCP server until the client disconnects, or configure a client.

    `http` is a port for HTTP. If it is None, the server uses standard input and output.
    `config` is the name of a client to configure. In this case, return the client's
    configuration entry, and write the entry to the client's configuration if `install`
    is true. Otherwise, return None. Raise StepperError if the MCP extra is not
    installed or the client can't be configured, and UsageError for `install` without
    `config`.
    """
    if config is not None:
        configure = import_object("stepper.install.mcp_client_config:configure_client")
        return dict(configure(paths, config, http, install))
    if install:
        raise UsageError(
            "--install needs --config with the name of a client",
            "stepper mcp --config cursor --install",
        )
    if http is None:
        serve = _import_server(paths, "stepper.mcp.server:serve")
        serve(paths.project)
    else:
        serve = _import_server(paths, "stepper.mcp.http_server:serve")
        serve(paths.project, http)
    return None


def _import_server(paths: Paths, name: str) -> Any:
    """Return the `serve` function of a server.

    Raise StepperError if the MCP SDK is not installed.
    """
    try:
        return import_object(name)
    except ModuleNotFoundError as error:
        module = error.name or ""
        if module.partition(".")[0] == "stepper":
            raise
        format_command = import_object("stepper.install.doctor:format_install_command")
        raise StepperError(
            f"the MCP extra is not installed: the module {module} is missing",
            format_command(paths, options=" --mcp"),
        ) from None
