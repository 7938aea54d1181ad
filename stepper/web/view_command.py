"""`stepper view`: the server, and the browser on it."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import logging
import os
import sys
import webbrowser

import psutil

from stepper.common import private_files
from stepper.common.errors import StepperError
from stepper.common.paths import Paths
from stepper.hook import client
from stepper.web.access_control import FORWARD, HOST, Face
from stepper.web.http_server import bound, serve
from stepper.web.notebook_list import Shelf


def view(paths: Paths, notebook: str | None, port: int, quiet: bool) -> None:
    """Serve the page until Ctrl-C; raise StepperError where it can't be."""
    shelf = Shelf(paths)
    named = shelf.named(notebook, client.current_folder()) if notebook else ""
    listening = bound(port)
    # A file of the user's alone leads the browser there: an address on a command line
    # is everybody's to read.
    lead = os.path.join(paths.runtime, f"view-{os.getpid()}.html")
    # of views that were killed
    for left in glob.glob(os.path.join(glob.escape(paths.runtime), "view-*.html")):
        if not psutil.pid_exists(
            int("".join(filter(str.isdecimal, os.path.basename(left))) or 0)
        ):
            remove(left)

    def opened() -> None:
        sys.stdout.write(
            f"stepper: {named or 'the current notebook'} at {face.address}\n"
            f"         for you alone, on {HOST}, read only; Ctrl-C ends it\n"
        )
        sys.stdout.flush()
        if not quiet and _has_browser():
            with contextlib.suppress(StepperError, OSError, webbrowser.Error):
                paths.create_runtime_folder()
                private_files.replace(lead, FORWARD.format(face.address).encode())
                webbrowser.open("file://" + lead)

    async def work() -> None:
        await serve(face, listening, opened)

    # it would say addresses, with the key in them
    logging.getLogger("tornado").setLevel(logging.CRITICAL)
    face = Face(paths, shelf, named)
    face.port, face.used = listening.getsockname()[1], lambda: remove(lead)
    try:
        asyncio.run(work())
    finally:
        remove(lead)


def remove(lead: str) -> None:
    """Remove the file that led the browser, if it is there."""
    with contextlib.suppress(OSError):
        os.unlink(lead)


def _has_browser() -> bool:
    """Whether a browser would have a screen: one in the terminal would take the terminal."""
    return sys.platform == "darwin" or any(
        map(os.environ.get, ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
    )
