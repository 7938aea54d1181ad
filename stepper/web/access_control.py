"""Access control for the page: only the user who started the server has access.

The Host header of a request must contain this server, and the request must not come
from a page of another origin. The request must also contain the cookie. The browser
gets the cookie when it opens the address with the key. On Linux, the client's process
must belong to the same user or to root, because cookies are shared between ports, and
other users may have seen the key.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import secrets
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from tornado import escape, iostream, web

from stepper.common.paths import Paths
from stepper.web.notebook_view_state import NotebookView
from stepper.web.project_notebook_list import NotebookList

HOST = "127.0.0.1"
HTTP_PORT = 80  # the port that browsers omit in the Host header
PAGE_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "frame-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ]
)
SECURITY_HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
REDIRECT_PAGE = (
    '<!doctype html><meta charset="utf-8">'
    '<meta http-equiv="refresh" content="0;url={}"><title>stepper</title>\n'
)
ERROR_TEXTS = {
    400: "the request is invalid",
    403: (
        "only the user who started `stepper view` can open this page: use the address"
        " with the key that `stepper view` printed"
    ),
    404: "not found",
    405: "this page is read-only",
    421: "the request is for another server",
}
INTERNAL_ERROR_TEXT = "internal error in stepper"
# The tables of TCP connections on Linux. IPv6 sockets have addresses such as
# ::ffff:127.0.0.1, which end with the IPv4 address.
CONNECTION_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
# The columns of these tables.
LOCAL_ADDRESS = 1
REMOTE_ADDRESS = 2
USER_ID = 7


class ViewServer:
    """The state that all requests share.

    `notebook` is the name of the notebook to show, or an empty string for the current
    notebook.
    """

    def __init__(
        self,
        paths: Paths,
        notebooks: NotebookList,
        notebook: str,
    ) -> None:
        self.paths = paths
        self.notebooks = notebooks
        self.notebook = notebook
        self.key = secrets.token_urlsafe(32)
        self.port = 0
        self.on_key_used: Callable[[], None] = lambda: None
        self.rows: list[dict[str, Any]] = []
        self.current_name = ""
        self.stop_event = asyncio.Event()

    @property
    def cookie(self) -> str:
        """The name of the cookie, which contains the port.

        Browsers share cookies between all ports of a host.
        """
        return f"stepper-{self.port}"

    @property
    def hosts(self) -> list[str]:
        """The valid values of the Host header."""
        names = [HOST, "localhost"]
        if self.port == HTTP_PORT:
            return names
        return [f"{name}:{self.port}" for name in names]

    @property
    def address(self) -> str:
        """The address of the page, including the key."""
        return f"http://{HOST}:{self.port}/?key={self.key}"

    async def refresh(self) -> None:
        """Update the rows of all notebooks, and the name of the current notebook."""
        self.current_name = self.notebooks.find_current()
        self.rows = await asyncio.to_thread(self.notebooks.refresh_rows)


class ViewHandler(web.RequestHandler):
    """The base class of all request handlers: checks access, and formats errors."""

    def initialize(self, server: ViewServer) -> None:
        """Set the shared state. Called by tornado."""
        self.server = server

    def set_default_headers(self) -> None:
        """Set the security headers of all responses, including errors."""
        self.clear_header("Server")
        for name, value in SECURITY_HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> None:
        """Check access before a request is handled. Called by tornado.

        A request with the key gets the cookie and a redirect. Raise HTTPError if access
        is denied.
        """
        hosts = self.server.hosts
        headers = self.request.headers
        if headers.get("Host") not in hosts:
            raise web.HTTPError(421)
        if self.request.method != "GET":
            raise web.HTTPError(405)
        origin = headers.get("Origin")
        own_origins = [f"http://{host}" for host in hosts]
        if origin is not None and origin not in own_origins:
            raise web.HTTPError(403)
        if not self._is_same_user():
            raise web.HTTPError(403)
        keys = self.request.query_arguments.get("key")
        if keys:
            self._exchange_key(keys[0])
            return
        cookie = self.get_cookie(self.server.cookie) or ""
        if not self._is_key(cookie.encode("utf-8", "replace")):
            raise web.HTTPError(403)

    def _is_key(self, value: bytes) -> bool:
        """Return whether a value is the server's key, in constant time."""
        return hmac.compare_digest(value, self.server.key.encode())

    def _is_same_user(self) -> bool:
        """Return whether the client's process belongs to this user or to root.

        Return True if the owner is unknown. The owner is cached for the connection.
        """
        stream = self.request.connection.stream  # type: ignore[union-attr]
        if not hasattr(stream, "stepper_uid"):
            stream.stepper_uid = get_peer_uid(stream.socket)
        return stream.stepper_uid in (None, 0, os.getuid())

    def _exchange_key(self, value: bytes) -> None:
        """Set the cookie, and redirect to the address without the key.

        `value` is the key in the request. Raise HTTPError if the key is wrong.
        """
        if not self._is_key(value):
            raise web.HTTPError(403)
        self.set_cookie(
            self.server.cookie,
            self.server.key,
            httponly=True,
            samesite="Strict",
            path="/",
        )
        self.server.on_key_used()
        target = self._get_address_without_key()
        fetch_site = self.request.headers.get("Sec-Fetch-Site", "none")
        if fetch_site in ("none", "same-origin"):
            self.redirect(target, status=303)
            return
        # After a link from another site, the browser does not send a strict cookie with
        # a redirect, but it sends the cookie with a request from this page.
        self.finish(REDIRECT_PAGE.format(escape.xhtml_escape(target)))

    def _get_address_without_key(self) -> str:
        """Return the address of the page with all arguments except the key."""
        arguments = self.request.query_arguments
        values = {name: arguments[name] for name in arguments if name != "key"}
        if values:
            return f"/?{urlencode(values, doseq=True)}"
        return "/"

    def log_exception(
        self,
        typ: Any,
        value: Any,
        tb: Any,
    ) -> None:
        """Log an unexpected exception. Called by tornado.

        The log does not contain the query of the address, which may contain the key.
        """
        if isinstance(value, web.HTTPError | iostream.StreamClosedError):
            return
        message = f"{self.request.path}: {typ.__name__}: {value}"
        sys.stderr.write(f"internal error in stepper: {message}\n")

    def write_error(self, status_code: int, **_: Any) -> None:
        """Send an error response with a short text."""
        if status_code == 405:
            self.set_header("Allow", "GET")
        text = ERROR_TEXTS.get(status_code, INTERNAL_ERROR_TEXT)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code}: {text}\n")

    def get_view(self) -> NotebookView:
        """Return the view of the requested notebook.

        Raise HTTPError if the notebook does not exist.
        """
        name = self.get_query_argument("notebook", "")
        view = self.server.notebooks.get_view(name)
        if view is None:
            raise web.HTTPError(404)
        return view

    def send_json(self, value: object) -> None:
        """Send a JSON response."""
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(encode_json(value))


def encode_json(value: object) -> bytes:
    """Return a value as JSON on one line, in ASCII.

    NaN and infinity become null, because JSON has neither and browsers reject them.
    """
    encoder = json.JSONEncoder(separators=(",", ":"), default=str, allow_nan=False)
    try:
        text = encoder.encode(value)
    except ValueError:
        standard = json.loads(json.dumps(value, default=str), parse_constant=_get_null)
        text = encoder.encode(standard)
    return text.encode()


def _get_null(constant: str) -> None:
    """Return None for one of the constants NaN, Infinity and -Infinity."""


def get_peer_uid(sock: socket.socket) -> int | None:
    """Return the user ID of the process at the other end of a loopback connection.

    Return None if the user ID is unknown, for example on systems without /proc.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        host, port = sock.getsockname()[:2]
        peer_port = sock.getpeername()[1]
        # Both ends have the same host. In the tables, the host is an integer in the
        # byte order of the machine, in hexadecimal digits.
        (host_number,) = struct.unpack("=I", socket.inet_aton(host))
        own_address = f"{host_number:08X}:{port:04X}"
        peer_address = f"{host_number:08X}:{peer_port:04X}"
        for table in CONNECTION_TABLES:
            uid = _find_connection_uid(table, peer_address, own_address)
            if uid is not None:
                return uid
    return None


def _find_connection_uid(
    table: str,
    local: str,
    remote: str,
) -> int | None:
    """Return the user ID of the owner of a connection's socket.

    `local` and `remote` are addresses in the format of `table`, a file in /proc/net.
    Return None if the table does not contain the connection.
    """
    with open(table, encoding="ascii") as lines:
        for line in lines:
            fields = line.split()
            is_local_end = fields[LOCAL_ADDRESS].endswith(local)
            if is_local_end and fields[REMOTE_ADDRESS].endswith(remote):
                return int(fields[USER_ID])
    return None
