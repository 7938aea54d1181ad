"""The HTTP server of `stepper view`, which accepts only GET requests on 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from tornado import httpserver, web

from stepper.common.errors import StepperError, UsageError
from stepper.web.access_control import HOST, ViewHandler, ViewServer
from stepper.web.event_stream import CHECK_SECONDS, EventsHandler
from stepper.web.notebook_view_state import NotebookView
from stepper.web.output_rendering import (
    get_full_output,
    get_widget_models,
    render_outputs,
)

PAGE_FOLDER = Path(__file__).parent / "page"
PAGE_FILE = "view.html"
HTML_TYPE = "text/html; charset=utf-8"
STATIC_TYPES = {
    "view.js": "text/javascript; charset=utf-8",
    "view.css": "text/css; charset=utf-8",
}
# The policy for the HTML of an output: no scripts, no requests, no origin, and only
# the page of this server may show the HTML in a frame.
OUTPUT_POLICY = "; ".join(
    [
        "sandbox",
        "default-src 'none'",
        "img-src data:",
        "style-src 'unsafe-inline'",
        "font-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
    ]
)
MAX_DIGITS = 9
MAX_BODY_BYTES = 1 << 16
MAX_HEADER_BYTES = 1 << 15
# The time for event streams to finish when the server stops.
STREAM_SECONDS = 2 * CHECK_SECONDS
CLOSE_SECONDS = 1
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class PageHandler(ViewHandler):
    """Sends the page, its script and its style sheet."""

    def get(self, name: str = "") -> None:
        """Send the file `name`, or the page if `name` is empty."""
        if not name and self._is_notebook_missing():
            # The page reports this, and shows the notebook as soon as it exists.
            self.set_status(404)
        self.set_header("Content-Type", STATIC_TYPES.get(name, HTML_TYPE))
        path = PAGE_FOLDER / (name or PAGE_FILE)
        self.finish(path.read_bytes())

    def _is_notebook_missing(self) -> bool:
        """Return whether the address names a notebook that does not exist."""
        notebook = self.get_query_argument("notebook", "")
        return bool(notebook) and self.server.notebooks.get_view(notebook) is None


class CellHandler(ViewHandler):
    """Sends the source and the outputs of a cell."""

    def get(self) -> None:
        """Send the source and the outputs as JSON."""
        view = self.get_view()
        cell_id = self.get_query_argument("cell", "")
        outputs = view.get_cell(cell_id).outputs
        metadata = None
        if view.document is not None:
            metadata = view.document.raw.get("metadata")
        widget_models = get_widget_models(metadata)
        response = {
            "source": _find_source(view, cell_id),
            "outputs": render_outputs(outputs, widget_models),
        }
        self.send_json(response)


def _find_source(view: NotebookView, cell_id: str) -> str:
    """Return the source of a cell in the file, or else in its latest run.

    Return an empty string if the source is unknown.
    """
    cell = view.get_cell(cell_id).cell
    if cell is not None:
        return cell.source
    running = view.history.state.running
    if running is not None and running.cell_id == cell_id:
        return running.source
    for run in reversed(view.history.runs):
        if run.cell == cell_id:
            source = view.history.read_run(run.run)["source"]
            return str(source or "")
    return ""


class RunHandler(ViewHandler):
    """Sends the source and the report of a run."""

    def get(self) -> None:
        """Send the source and the report as JSON."""
        number = _parse_number(self.get_query_argument("run", ""))
        run = self.get_view().history.read_run(number or 0)
        self.send_json(run)


class OutputHandler(ViewHandler):
    """Sends a complete output: an image, a text, or HTML for a sandboxed frame."""

    def get(self) -> None:
        """Send the output; raise HTTPError if it does not exist."""
        cell_id = self.get_query_argument("cell", "")
        index = _parse_number(self.get_query_argument("n", ""))
        if index is None:
            raise web.HTTPError(404)
        outputs = self.get_view().get_cell(cell_id).outputs
        output = get_full_output(outputs, index)
        if output is None:
            raise web.HTTPError(404)
        self.set_header("Content-Type", output.mime)
        self.set_header("Content-Security-Policy", OUTPUT_POLICY)
        self.clear_header("X-Frame-Options")
        self.finish(output.data)


class NotFoundHandler(ViewHandler):
    """Responds to requests for unknown addresses."""

    def get(self) -> None:
        """Raise HTTPError with the status 404."""
        raise web.HTTPError(404)


def _parse_number(text: str) -> int | None:
    """Return a number in an address, or None if the text is not a number."""
    if text.isdecimal() and len(text) <= MAX_DIGITS:
        return int(text)
    return None


def create_application(server: ViewServer) -> web.Application:
    """Return the application with all its routes."""
    arguments = {"server": server}
    handlers: dict[str, type[ViewHandler]] = {
        r"/": PageHandler,
        r"/(view\.js|view\.css)": PageHandler,
        r"/events": EventsHandler,
        r"/cell": CellHandler,
        r"/run": RunHandler,
        r"/output": OutputHandler,
    }
    routes = [(pattern, handler, arguments) for pattern, handler in handlers.items()]
    return web.Application(
        routes,
        default_handler_class=NotFoundHandler,
        default_handler_args=arguments,
        log_function=lambda _: None,
    )


def bind_socket(port: int) -> socket.socket:
    """Return a listening socket; raise StepperError if the port is not available."""
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        reason = error.strerror or str(error)
        raise _make_port_error(StepperError, port, reason) from None
    except OverflowError as error:  # the number is not a valid port
        raise _make_port_error(UsageError, port, str(error)) from None
    listener.setblocking(False)
    return listener


def _make_port_error(
    error_class: type[StepperError],
    port: int,
    reason: str,
) -> StepperError:
    """Return the error of a class for a port that can't be opened."""
    return error_class(
        f"port {port} of {HOST} is not available: {reason}",
        "stepper view  # chooses a free port",
    )


async def serve(
    server: ViewServer,
    listener: socket.socket,
    on_start: Callable[[], None],
) -> None:
    """Serve requests until a signal sets the server's stop event.

    `on_start` is called as soon as the server accepts connections. Event streams have
    STREAM_SECONDS to finish. Other open connections are closed.
    """
    http_server = httpserver.HTTPServer(
        create_application(server),
        max_body_size=MAX_BODY_BYTES,
        max_header_size=MAX_HEADER_BYTES,
    )
    http_server.add_socket(listener)
    loop = asyncio.get_running_loop()
    for signal_number in STOP_SIGNALS:
        loop.add_signal_handler(signal_number, server.stop_event.set)
    on_start()
    await server.stop_event.wait()
    http_server.stop()
    await asyncio.sleep(STREAM_SECONDS)
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(http_server.close_all_connections(), CLOSE_SECONDS)
