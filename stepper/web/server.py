"""The page's server: HTTP on 127.0.0.1 for whoever started it, GET alone, until Ctrl-C.

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
import signal
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tornado import escape, httpserver, iostream, web

from stepper.ground.errors import StepperError
from stepper.ground.paths import Paths
from stepper.web.book import Book
from stepper.web.outputs import shown, whole, widgets_of
from stepper.web.shelf import Shelf

HOST = "127.0.0.1"
LOOK_SECONDS, LIST_SECONDS = 0.15, 1.0  # between two looks at a notebook, and at all of them
BEAT_SECONDS = 10.0  # without news a line is sent, so that both sides know of each other
STATIC = {"view.js": "text/javascript; charset=utf-8", "view.css": "text/css; charset=utf-8"}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
# What a cell made: no script, nothing fetched, no origin; only our own page may frame it.
OUTPUT_POLICY = (
    "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
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

    def prepare(self) -> Awaitable[None] | None:
        """Refuse what is not the person's own page's; raise HTTPError."""
        names = [f"{name}:{self.face.port}" for name in (HOST, "localhost")]
        headers = self.request.headers
        if headers.get("Host") not in names:
            raise web.HTTPError(421)
        if self.request.method != "GET":
            raise web.HTTPError(405)
        origin = headers.get("Origin")
        if origin is not None and origin not in [f"http://{name}" for name in names]:
            raise web.HTTPError(403)
        if not self._same_user():
            raise web.HTTPError(403)
        if not self._has_key((self.get_cookie(self.face.cookie) or "").encode("utf-8", "replace")):
            self._by_key()
        return None

    def _has_key(self, given: bytes) -> bool:
        return hmac.compare_digest(given, self.face.key.encode())

    def _same_user(self) -> bool:
        stream = self.request.connection.stream  # type: ignore[union-attr]
        if not hasattr(stream, "stepper_uid"):
            stream.stepper_uid = uid_of(stream.socket)
        return stream.stepper_uid in (None, 0, os.getuid())

    def _by_key(self) -> None:
        """Let in who brings the key: it becomes a cookie, and the address loses it. Raise HTTPError for all others."""
        told = self.request.query_arguments
        if not self._has_key(told.get("key", [b""])[0]):
            raise web.HTTPError(403)
        self.set_cookie(self.face.cookie, self.face.key, httponly=True, samesite="Strict", path="/")
        self.face.used()
        where = "?".join(filter(None, ["/", urlencode([(name, told[name][0]) for name in told if name != "key"])]))
        if self.request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
            self.redirect(where, status=303)
        else:  # by a link: a browser would send no strict cookie along that way, but from a page of ours it does
            self.finish(FORWARD.format(escape.xhtml_escape(where)))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Say what went wrong, without the address: it may have the key."""
        if not isinstance(value, web.HTTPError | iostream.StreamClosedError):
            sys.stderr.write(f"stepper itself failed: {self.request.path}: {typ.__name__}: {value}\n")

    def write_error(self, status_code: int, **_: Any) -> None:
        """Say what is wrong, and no more."""
        if status_code == 405:
            self.set_header("Allow", "GET")
        told = {
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


class PageHandler(Handler):
    """The page, its script and its style sheet."""

    def get(self, name: str = "") -> None:
        """Answer one of them."""
        kind = STATIC.get(name, "text/html; charset=utf-8")
        self.set_header("Content-Type", kind)
        self.finish((Path(__file__).parent / "page" / (name or "view.html")).read_bytes())


class CellHandler(Handler):
    """A cell: its source and its outputs."""

    def get(self) -> None:
        """Answer it."""
        book, name = self.book(), self.get_query_argument("cell", "")
        cell, _, outputs = book.raw(name)
        known = next((run.run for run in reversed(book.past.runs) if run.cell == name), 0)
        begun = book.past.state.running
        source = cell.source if cell else begun.source if begun and begun.cell_id == name else None
        if source is None:
            source = book.past.told(known)["source"]
        widgets = widgets_of(book.document.raw.get("metadata")) if book.document else {}
        self.answer({"source": source or "", "outputs": shown(outputs, widgets)})


class RunHandler(Handler):
    """A run: what ran, and the report on it."""

    def get(self) -> None:
        """Answer it."""
        number = self.get_query_argument("run", "")
        self.answer(self.book().past.told(int(number) if number.isdecimal() and len(number) < 10 else 0))


class OutputHandler(Handler):
    """All of one output: a picture, a text, HTML for a frame that runs nothing."""

    def get(self) -> None:
        """Answer it."""
        number = self.get_query_argument("n", "")
        outputs = self.book().raw(self.get_query_argument("cell", ""))[2]
        found = whole(outputs, int(number)) if number.isdecimal() and len(number) < 10 else None
        if found is None:
            raise web.HTTPError(404)
        self.set_header("Content-Type", found.mime)
        self.set_header("Content-Security-Policy", OUTPUT_POLICY)
        self.clear_header("X-Frame-Options")
        self.finish(found.data)


class EventsHandler(Handler):
    """What happens, as server-sent events: each part of the page whole where it changed, of the runs those to come."""

    gone = False

    def on_connection_close(self) -> None:
        """The page was closed."""
        self.gone = True

    async def get(self) -> None:
        """Tell until the page is closed, or the server ends."""
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        face, sent, runs, beat = self.face, dict[str, bytes](), 0, time.monotonic()
        asked, shelf_at, book, listed = self.get_query_argument("notebook", ""), 0.0, None, ""
        with contextlib.suppress(iostream.StreamClosedError):
            await self._send("hello", dumped({"now": round(1000 * time.time()), "project": face.paths.project}))
            while not (self.gone or face.ending.is_set()):
                if time.monotonic() > shelf_at:
                    await face.look()
                    shelf_at = time.monotonic() + LIST_SECONDS
                name = asked or face.notebook or face.current
                if name != listed or book is None:
                    book, listed, runs = face.shelf.book(name) if name else None, name, 0
                parts: dict[str, object] = {
                    "project": {"notebooks": face.rows, "current": face.current, "trouble": face.shelf.trouble},
                    "status": None,
                }
                if book is not None:
                    await asyncio.to_thread(book.refresh)
                    told = book.runs(runs) if runs <= len(book.past.runs) else book.runs(0)
                    if told or runs > len(book.past.runs):
                        start = runs if runs <= len(book.past.runs) else 0
                        await self._send("runs", dumped({"notebook": name, "from": start, "runs": told}))
                        runs = start + len(told)
                    parts |= {"status": book.status(face.current), "cells": book.cells(), "live": book.now()}
                for part, value in parts.items():
                    data = dumped(value)
                    if sent.get(part) != data:
                        sent[part], beat = data, time.monotonic()
                        await self._send(part, data)
                if time.monotonic() > beat + BEAT_SECONDS:
                    beat = time.monotonic()
                    await self._send("beat", b"0")
                await asyncio.sleep(LOOK_SECONDS)

    async def _send(self, event: str, data: bytes) -> None:
        self.write(b"event: " + event.encode() + b"\ndata: " + data + b"\n\n")
        await self.flush()


def dumped(told: object) -> bytes:
    """Return JSON in one line; what is no text of Unicode is replaced."""
    return json.dumps(told, ensure_ascii=True, separators=(",", ":"), default=str).encode()


def uid_of(sock: socket.socket) -> int | None:
    """Return the user whose process is at the other end of a loopback connection; None where the system won't tell."""
    try:
        (here, port), (_, theirs) = sock.getsockname()[:2], sock.getpeername()[:2]
        packed = f"{struct.unpack('=I', socket.inet_aton(here))[0]:08X}"
        wanted = f"{packed}:{theirs:04X} {packed}:{port:04X}"
        with open("/proc/net/tcp", encoding="ascii") as table:
            for line in table:
                parts = line.split()
                if " ".join(parts[1:3]) == wanted:
                    return int(parts[7])
    except (OSError, ValueError, IndexError):
        return None
    return None


def application(face: Face) -> web.Application:
    """Return all addresses that there are."""
    given = {"face": face}
    routes = [
        (r"/", PageHandler, given),
        (r"/(view\.js|view\.css)", PageHandler, given),
        (r"/events", EventsHandler, given),
        (r"/cell", CellHandler, given),
        (r"/run", RunHandler, given),
        (r"/output", OutputHandler, given),
    ]
    return web.Application(
        routes, default_handler_class=Missing, default_handler_args=given, log_function=lambda _: None
    )  # fmt: skip


class Missing(Handler):
    """Whatever else is asked for."""

    def get(self) -> None:
        """Answer that there is none."""
        raise web.HTTPError(404)


def bound(port: int) -> socket.socket:
    """Return what listens on the port; raise StepperError where it can't be taken."""
    try:
        made = socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        why = f"port {port} of {HOST} can't be taken: {getattr(error, 'strerror', '') or error}"
        raise StepperError(why, "stepper view  # on any that is free; --port N names another") from None
    made.setblocking(False)
    return made


async def serve(face: Face, listening: socket.socket, opened: Callable[[], None]) -> None:
    """Answer until a signal ends it; `opened` is called once it listens."""
    server = httpserver.HTTPServer(application(face), max_body_size=1 << 16, max_header_size=1 << 15)
    server.add_socket(listening)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, face.ending.set)
    opened()
    await face.ending.wait()
    server.stop()
    await asyncio.sleep(2 * LOOK_SECONDS)  # for the streams to end
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(server.close_all_connections(), 1)
