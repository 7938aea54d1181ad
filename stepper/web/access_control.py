"""Who may ask: whoever started the page, and nobody else.

Each request must name this server in Host, come from no foreign page (Origin), bring the cookie that the address's key
became, and, where the system tells (Linux), come from a process of the same user or of root: cookies know no ports, and
a key may be seen by somebody.
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
from stepper.web.notebook_list import Shelf
from stepper.web.notebook_view import Book

HOST = "127.0.0.1"
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
FORWARD = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={}"><title>stepper</title>\n'


class Face:
    """What all requests share."""

    def __init__(self, paths: Paths, shelf: Shelf, notebook: str) -> None:
        self.paths, self.shelf, self.notebook = paths, shelf, notebook
        self.key, self.port = secrets.token_urlsafe(32), 0
        self.used: Callable[[], None] = lambda: None  # called when the key came
        self.rows: list[dict[str, Any]] = []
        self.current = ""
        self.ending = asyncio.Event()

    @property
    def cookie(self) -> str:
        """The cookie's name: the ports of one host share them."""
        return f"stepper-{self.port}"

    @property
    def hosts(self) -> list[str]:
        """What a browser calls this server: it leaves out HTTP's own port."""
        return [
            f"{name}:{self.port}" if self.port != 80 else name
            for name in (HOST, "localhost")
        ]

    @property
    def address(self) -> str:
        """The address with the key."""
        return f"http://{HOST}:{self.port}/?key={self.key}"

    async def look(self) -> None:
        """Bring up to date what is known of all notebooks, while somebody looks on."""
        self.current = self.shelf.current()
        self.rows = await asyncio.to_thread(self.shelf.rows)


class Handler(web.RequestHandler):
    """A request that may be answered."""

    def initialize(self, face: Face) -> None:
        """Take what all share."""
        self.face = face

    def set_default_headers(self) -> None:
        """Say with each answer, errors too, what a browser may do with it."""
        self.clear_header("Server")
        for name, value in {
            "Content-Security-Policy": PAGE_POLICY,
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }.items():
            self.set_header(name, value)

    def prepare(self) -> None:
        """Refuse what is not the person's own page's; raise HTTPError."""
        names, headers = self.face.hosts, self.request.headers
        if headers.get("Host") not in names:
            raise web.HTTPError(421)
        if self.request.method != "GET":
            raise web.HTTPError(405)
        origin = headers.get("Origin")
        if origin is not None and origin not in [f"http://{name}" for name in names]:
            raise web.HTTPError(403)
        if not self._same_user():
            raise web.HTTPError(403)
        if given := self.request.query_arguments.get("key"):
            self._by_key(given[0])
        elif not self._has_key(
            (self.get_cookie(self.face.cookie) or "").encode("utf-8", "replace")
        ):
            raise web.HTTPError(403)

    def _has_key(self, given: bytes) -> bool:
        return hmac.compare_digest(given, self.face.key.encode())

    def _same_user(self) -> bool:
        stream = self.request.connection.stream  # type: ignore[union-attr]
        if not hasattr(stream, "stepper_uid"):
            stream.stepper_uid = uid_of(stream.socket)
        return stream.stepper_uid in (None, 0, os.getuid())

    def _by_key(self, given: bytes) -> None:
        """Let in who brings the key: it becomes a cookie, and the address loses it. Raise HTTPError for all others."""
        if not self._has_key(given):
            raise web.HTTPError(403)
        told = self.request.query_arguments
        self.set_cookie(
            self.face.cookie, self.face.key, httponly=True, samesite="Strict", path="/"
        )
        self.face.used()
        where = "?".join(
            filter(
                None,
                [
                    "/",
                    urlencode(
                        [(name, told[name][0]) for name in told if name != "key"]
                    ),
                ],
            )
        )
        if self.request.headers.get("Sec-Fetch-Site", "none") in (
            "none",
            "same-origin",
        ):
            self.redirect(where, status=303)
        else:
            # by a link: a browser would send no strict cookie along that way, but from
            # a page of ours it does
            self.finish(FORWARD.format(escape.xhtml_escape(where)))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Say what went wrong, without the address: it may have the key."""
        if not isinstance(value, web.HTTPError | iostream.StreamClosedError):
            sys.stderr.write(
                f"stepper itself failed: {self.request.path}: {typ.__name__}: {value}\n"
            )

    def write_error(self, status_code: int, **_: Any) -> None:
        """Say what is wrong, and no more."""
        if status_code == 405:
            self.set_header("Allow", "GET")
        told = {
            400: "this is nothing that the page asks for",
            403: "this page is for whoever started it: open the address that `stepper view` printed, with its key",
            404: "there is nothing here",
            405: "this page is read only",
            421: "this is not the server that the request names",
        }.get(status_code, "stepper itself failed")
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code}: {told}\n")

    def book(self) -> Book:
        """Return the notebook that is asked for; raise HTTPError."""
        found = self.face.shelf.book(self.get_query_argument("notebook", ""))
        if found is None:
            raise web.HTTPError(404)
        return found

    def answer(self, told: object) -> None:
        """Answer JSON."""
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(dumped(told))


def dumped(told: object) -> bytes:
    """Return JSON in one line; what is no text of Unicode is replaced."""
    return json.dumps(
        told, ensure_ascii=True, separators=(",", ":"), default=str
    ).encode()


def uid_of(sock: socket.socket) -> int | None:
    """Return the user whose process is at the other end of a loopback connection; None where the system won't tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        here, port = sock.getsockname()[:2]
        packed = f"{struct.unpack('=I', socket.inet_aton(here))[0]:08X}"
        ends = f"{packed}:{sock.getpeername()[1]:04X}", f"{packed}:{port:04X}"
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):  # there as ::ffff:127.0.0.1
            with open(table, encoding="ascii") as lines:
                for parts in map(str.split, lines):
                    if parts[1].endswith(ends[0]) and parts[2].endswith(ends[1]):
                        return int(parts[7])
    return None
