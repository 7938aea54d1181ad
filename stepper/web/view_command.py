"""`stepper view`: serve the page, and open it in the browser."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import sys
import webbrowser

import psutil

from stepper.common import secure_files
from stepper.common.errors import StepperError
from stepper.common.paths import Paths
from stepper.hook import daemon_client
from stepper.web.access_control import HOST, REDIRECT_PAGE, ViewServer
from stepper.web.http_server import bind_socket, serve
from stepper.web.project_notebook_list import NotebookList

REDIRECT_FILE = re.compile(r"view-(\d+)\.html")
DISPLAY_VARIABLES = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")


def view(
    paths: Paths,
    notebook: str | None,
    port: int,
    quiet: bool,
) -> None:
    """Serve the page until Ctrl-C is pressed.

    `port` is 0 for a free port. If `quiet` is true, don't open a browser. Raise
    StepperError if the notebook does not exist or the port is not available.
    """
    notebooks = NotebookList(paths)
    name = ""
    if notebook:
        name = notebooks.resolve_name(notebook, daemon_client.get_current_folder())
    listener = bind_socket(port)
    # The browser opens a private file that redirects to the address. The address must
    # not be an argument of the browser, because all users can see the arguments of
    # processes, and the address contains the key.
    redirect_path = os.path.join(paths.runtime, f"view-{os.getpid()}.html")
    _remove_stale_redirects(paths.runtime)
    # tornado would log addresses with the key.
    logging.getLogger("tornado").setLevel(logging.CRITICAL)
    server = ViewServer(paths, notebooks, name)
    _, server.port = listener.getsockname()
    server.on_key_used = lambda: remove_file(redirect_path)

    def announce() -> None:
        """Print the address, and open it in the browser."""
        sys.stdout.write(
            f"stepper: serving {name or 'the current notebook'} at {server.address}\n"
            f"         The page is read-only and available only to you, on {HOST}."
            " To stop the server, press Ctrl-C.\n"
        )
        sys.stdout.flush()
        if not quiet and _has_browser():
            with contextlib.suppress(StepperError, OSError, webbrowser.Error):
                paths.create_runtime_folder()
                page = REDIRECT_PAGE.format(server.address)
                secure_files.replace(redirect_path, page.encode())
                webbrowser.open(f"file://{redirect_path}")

    try:
        asyncio.run(serve(server, listener, announce))
    finally:
        remove_file(redirect_path)


def _remove_stale_redirects(folder: str) -> None:
    """Remove the redirect files of views that were killed."""
    try:
        names = os.listdir(folder)
    except OSError:  # the folder does not exist yet
        return
    for name in names:
        match = REDIRECT_FILE.fullmatch(name)
        if match and not psutil.pid_exists(int(match[1])):
            remove_file(os.path.join(folder, name))


def remove_file(path: str) -> None:
    """Remove a file if possible."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _has_browser() -> bool:
    """Return whether a browser can open a window.

    Without a display, the browser would start in the terminal.
    """
    if sys.platform == "darwin":
        return True
    return any(map(os.environ.get, DISPLAY_VARIABLES))
