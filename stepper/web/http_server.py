"""The page's server: HTTP on 127.0.0.1, GET alone, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from tornado import httpserver, web

from stepper.common.errors import StepperError, UsageError
from stepper.web.access_control import HOST, Face, Handler
from stepper.web.event_stream import LOOK_SECONDS, EventsHandler
from stepper.web.output_rendering import shown, whole, widgets_of

STATIC = {
    "view.js": "text/javascript; charset=utf-8",
    "view.css": "text/css; charset=utf-8",
}
# What a cell made: no script, nothing fetched, no origin; only our own page may frame
# it.
OUTPUT_POLICY = (
    "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


class PageHandler(Handler):
    """The page, its script and its style sheet."""

    def get(self, name: str = "") -> None:
        """Answer one of them."""
        kind = STATIC.get(name, "text/html; charset=utf-8")
        asked = self.get_query_argument("notebook", "")
        if asked and not name and self.face.shelf.book(asked) is None:
            # the page says so, with those that are there, and shows it once it is
            self.set_status(404)
        self.set_header("Content-Type", kind)
        self.finish(
            (Path(__file__).parent / "page" / (name or "view.html")).read_bytes()
        )


class CellHandler(Handler):
    """A cell: its source and its outputs."""

    def get(self) -> None:
        """Answer it."""
        book, name = self.book(), self.get_query_argument("cell", "")
        cell, _, outputs = book.raw(name)
        known = next(
            (run.run for run in reversed(book.past.runs) if run.cell == name), 0
        )
        begun = book.past.state.running
        source = (
            cell.source
            if cell
            else begun.source
            if begun and begun.cell_id == name
            else None
        )
        if source is None:
            source = book.past.told(known)["source"]
        widgets = widgets_of(book.document.raw.get("metadata")) if book.document else {}
        self.answer({"source": source or "", "outputs": shown(outputs, widgets)})


class RunHandler(Handler):
    """A run: what ran, and the report on it."""

    def get(self) -> None:
        """Answer it."""
        number = self.get_query_argument("run", "")
        self.answer(
            self.book().past.told(
                int(number) if number.isdecimal() and len(number) < 10 else 0
            )
        )


class OutputHandler(Handler):
    """All of one output: a picture, a text, HTML for a frame that runs nothing."""

    def get(self) -> None:
        """Answer it."""
        number = self.get_query_argument("n", "")
        outputs = self.book().raw(self.get_query_argument("cell", ""))[2]
        found = (
            whole(outputs, int(number))
            if number.isdecimal() and len(number) < 10
            else None
        )
        if found is None:
            raise web.HTTPError(404)
        self.set_header("Content-Type", found.mime)
        self.set_header("Content-Security-Policy", OUTPUT_POLICY)
        self.clear_header("X-Frame-Options")
        self.finish(found.data)


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
        routes,
        default_handler_class=Missing,
        default_handler_args=given,
        log_function=lambda _: None,
    )


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
        wrong = UsageError if isinstance(error, OverflowError) else StepperError
        raise wrong(
            why, "stepper view  # on any that is free; --port N names another"
        ) from None
    made.setblocking(False)
    return made


async def serve(
    face: Face, listening: socket.socket, opened: Callable[[], None]
) -> None:
    """Answer until a signal ends it; `opened` is called once it listens."""
    server = httpserver.HTTPServer(
        application(face), max_body_size=1 << 16, max_header_size=1 << 15
    )
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
