"""The MCP server over HTTP on loopback (`stepper mcp --http PORT`).

Requests need a key. The key is stored with this user's record of the project: the
configuration of a client stays valid after a restart of the server.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import sys

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from stepper.common import secure_files
from stepper.common.errors import StepperError
from stepper.common.paths import Paths
from stepper.mcp.server import ProjectServer

HOST = "127.0.0.1"
PATH = "/mcp"
SHUTDOWN_SECONDS = 2  # for sending the last responses
MAX_PENDING_CONNECTIONS = 100
KEY_BYTES = 32


def serve(project: str, port: int) -> None:
    """Serve clients over HTTP on a port until the user presses Ctrl-C.

    Port 0 selects a free port. Print the address and the key. This changes the working
    directory of the process to the project.

    Raises:
        StepperError: The port is not available, or the key can't be stored.
    """
    os.chdir(project)
    key = load_or_create_key(project)
    listening_socket = open_socket(port)
    bound_port = listening_socket.getsockname()[1]
    server = ProjectServer(project)
    app = require_key(create_application(server, bound_port), key)
    sys.stdout.write(
        f"stepper: serving MCP for {project} at http://{HOST}:{bound_port}{PATH}."
        f" Requests need this header:\n  Authorization: Bearer {key}\n"
    )
    sys.stdout.flush()
    config = uvicorn.Config(
        app,
        log_level="error",
        lifespan="on",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    uvicorn.Server(config).run(sockets=[listening_socket])


def open_socket(port: int) -> socket.socket:
    """Return a socket that listens on a port of HOST.

    Raises:
        StepperError: The port is not available.
    """
    # asyncio sets TCP_NODELAY only if the protocol is IPPROTO_TCP. Without it, each
    # response waits 40 ms for the client's delayed ACK.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((HOST, port))
        # The server must accept connections before the user can read the key.
        sock.listen(MAX_PENDING_CONNECTIONS)
    except (OSError, OverflowError) as error:
        sock.close()
        reason = getattr(error, "strerror", "") or error
        raise StepperError(
            f"port {port} of {HOST} is not available: {reason}",
            "stepper mcp --http 0  # selects a free port",
        ) from None
    return sock


def load_or_create_key(project: str) -> str:
    """Return this user's key for the project; create the key if there is none.

    An empty file, as after a power failure, contains no key.

    Raises:
        StepperError: The key can't be read or stored.
    """
    path = os.path.join(os.path.dirname(Paths(project).install_record), "mcp-key")
    try:
        key = ""
        if os.path.lexists(path):
            key = secure_files.read(path).decode("ascii", "replace").strip()
        if not key:
            key = secrets.token_urlsafe(KEY_BYTES)
            secure_files.replace(path, key.encode())
        return key
    except OSError as error:
        raise StepperError(
            f"could not read or write the key file {path}: {error.strerror}",
            getattr(error, "hint", ""),
        ) from error


def create_application(server: ProjectServer, port: int) -> ASGIApp:
    """Return an ASGI application that serves MCP.

    The application refuses requests with an unexpected Host header, and requests from
    web pages of other origins.
    """
    hosts = [f"{name}:{port}" for name in (HOST, "localhost")]
    security = TransportSecuritySettings(
        allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts]
    )
    return server.create_server().streamable_http_app(
        streamable_http_path=PATH, transport_security=security
    )


def require_key(app: ASGIApp, key: str) -> ASGIApp:
    """Wrap an application to refuse requests without the key."""
    expected_header = f"Bearer {key}".encode()

    async def check_key(scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, or respond with the status 401."""
        headers = dict(scope.get("headers", ()))
        header = headers.get(b"authorization", b"")
        # A scope of this type contains the events of the server itself: start and stop.
        is_lifespan = scope["type"] == "lifespan"
        if is_lifespan or hmac.compare_digest(header, expected_header):
            await app(scope, receive, send)
            return
        message = (
            "The request needs the key that this server printed when it started:"
            " Authorization: Bearer KEY\n"
        )
        refusal = PlainTextResponse(message, 401, {"WWW-Authenticate": "Bearer"})
        await refusal(scope, receive, send)

    return check_key
