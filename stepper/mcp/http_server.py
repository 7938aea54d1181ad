"""The same on loopback (`--http PORT`): for whoever has the key, from a page of nobody's.

The key lies with this user's record of the project, so that a client's configuration holds across starts.
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

from stepper.common import private_files
from stepper.common.errors import StepperError
from stepper.common.paths import Paths
from stepper.mcp.server import Face

HOST = "127.0.0.1"
PATH = "/mcp"
ENDING_SECONDS = 2  # for answers on their way


def serve(project: str, port: int) -> None:
    """Serve clients over HTTP until the person ends it; port 0 is any that is free. Raise StepperError."""
    os.chdir(project)
    listening = bound(port)
    port, key = listening.getsockname()[1], own_key(project)
    app = guarded(application(Face(project), port), key)
    sys.stdout.write(
        f"stepper: MCP for {project} at http://{HOST}:{port}{PATH}, for whoever sends this header:\n"
        f"  Authorization: Bearer {key}\n"
    )
    sys.stdout.flush()
    config = uvicorn.Config(
        app, log_level="error", lifespan="on", timeout_graceful_shutdown=ENDING_SECONDS
    )
    uvicorn.Server(config).run(sockets=[listening])


def bound(port: int) -> socket.socket:
    """Return a socket on the port; raise StepperError where it can't be taken."""
    # IPPROTO_TCP named: asyncio sets TCP_NODELAY on the connections of such a socket
    # alone, and without that each answer waits 40 ms for the client's delayed ACK.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((HOST, port))
        sock.listen(100)  # before the key is printed
    except (OSError, OverflowError) as error:
        sock.close()
        why = f"port {port} of {HOST} can't be taken: {getattr(error, 'strerror', '') or error}"
        raise StepperError(why, "stepper mcp --http 0  # any that is free") from None
    return sock


def own_key(project: str) -> str:
    """Return this user's key for the project, made once; raise StepperError where it can't be kept."""
    path = os.path.join(os.path.dirname(Paths(project).install_record), "mcp-key")
    try:
        if not os.path.lexists(path):
            private_files.replace(path, secrets.token_urlsafe(32).encode())
        return private_files.read(path).decode().strip()
    except OSError as error:
        raise StepperError(
            f"{path} can't be kept: {error.strerror}", getattr(error, "hint", "")
        ) from error


def application(face: Face, port: int) -> ASGIApp:
    """Return the SDK's application: a request's Host and, where a browser sends one, Origin must be ours."""
    names = [f"{name}:{port}" for name in (HOST, "localhost")]
    security = TransportSecuritySettings(
        allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names]
    )
    return face.server().streamable_http_app(
        streamable_http_path=PATH, transport_security=security
    )


def guarded(app: ASGIApp, key: str) -> ASGIApp:
    """Return the application for those who have the key."""
    wanted = f"Bearer {key}".encode()

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "http" and not hmac.compare_digest(given, wanted):
            why = (
                "this server needs the key that it printed: Authorization: Bearer KEY\n"
            )
            refused = PlainTextResponse(why, 401, {"WWW-Authenticate": "Bearer"})
            await refused(scope, receive, send)
        else:
            await app(scope, receive, send)

    return guard
