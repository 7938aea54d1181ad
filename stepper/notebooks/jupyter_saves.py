"""A Jupyter server on the same notebook: whether one is about, the time that it notices, what its saves may drop.

JupyterLab with collaboration takes a file over when its time grew, and saves over one whose time stayed. A save that
began before outputs were put lands on top of them: for some seconds they are looked after.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyter_core.paths import jupyter_runtime_dir

from stepper.common.errors import NotebookError
from stepper.policy.model import Cell
from stepper.session.protocols import Execution

KNOWN_SECONDS = 3.0  # how long an answer to "is a server about" holds
WATCH_SECONDS = 10.0
LOOK_SECONDS = 0.25
NUDGE_SECONDS = 1.0
# Jupyter reads times in microseconds, from a float; Claude Code compares whole
# milliseconds
NOTICED_NS = 2000
# What collaboration leaves in its folders: the server itself may be out of sight (a
# container, another user's).
TRACES = (".jupyter_ystore.db", os.path.join(".jupyter", "collaboration_sessions.json"))
ROOMS = ("pycrdt", "y_py")  # what shares documents, as it lies in a process

_known: dict[str, tuple[float, bool]] = {}


def is_server_running(path: str) -> bool:
    """Whether a Jupyter server may have the notebook open; looked up once in a few seconds."""
    until, found = _known.get(path, (0.0, False))
    if until < time.monotonic():
        real = Path(os.path.realpath(path))
        found = any(
            real.is_relative_to(server.root) for server in list_servers()
        ) or any(
            os.path.exists(folder / trace)
            for folder in real.parents
            for trace in TRACES
        )
        _known[path] = (time.monotonic() + KNOWN_SECONDS, found)
    return found


@dataclass(frozen=True)
class JupyterServer:
    """A running Jupyter server of this user's: the folder that it shows, its address without any token."""

    pid: int
    root: str
    url: str

    @property
    def reloads(self) -> bool | None:
        """Whether an open notebook is reloaded there that others wrote; None where that is not known.

        What does that is loaded into the server: collaboration's documents, of one make or the other.
        """
        try:
            maps = Path(f"/proc/{self.pid}/maps").read_text("utf-8", "replace")
        except OSError:  # not Linux
            return None
        return any(name in maps for name in ROOMS)


def list_servers() -> Iterator[JupyterServer]:
    """Yield the running servers of this user."""
    runtime = jupyter_runtime_dir()
    for record in glob.glob("[jn][pb]server-*.json", root_dir=runtime):
        # whatever stands in it
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError, AttributeError
        ):
            pid = int(record.partition("-")[2].removesuffix(".json"))
            os.kill(pid, 0)
            told = json.loads(Path(runtime, record).read_bytes())
            where = urlsplit(str(told.get("url")))
            url = f"{where.scheme}://{where.hostname}:{where.port}{where.path}"
            yield JupyterServer(
                pid, os.path.realpath(told.get("root_dir") or told["notebook_dir"]), url
            )


def find_servers_without_reload(path: str) -> list[JupyterServer]:
    """Return the servers that show a notebook, or some of a folder, and do not reload what others write there."""
    real, found = Path(os.path.realpath(path)), list[JupyterServer]()
    for server in list_servers():
        below = real.is_relative_to(server.root) or Path(server.root).is_relative_to(
            real
        )
        if below and server.reloads is False:
            found.append(server)
    return found


def compute_preserved_mtime(path: str, mtime_ns: int) -> int:
    """Return the modification time of a write that keeps it: with a server about it grows by what Jupyter notices.

    Claude Code does not see that, unless the time was at a millisecond's very end: then it asks for a new `Read`.
    """
    return mtime_ns + NOTICED_NS if is_server_running(path) else mtime_ns


@dataclass(frozen=True)
class RecentWrite:
    """Outputs that were put on a cell, and the run that had stood there before."""

    cell: Cell
    execution: Execution
    step: int | None
    before: Any


class RecentWriteMonitor:
    """Has `look` look after what was put in the last seconds, now and then, on the loop that runs.

    A room that was just at the end of a save may take the time of a put for its own save's: `nudge` is called once.
    """

    def __init__(
        self, look: Callable[[Sequence[RecentWrite]], None], nudge: Callable[[], None]
    ) -> None:
        self._look, self._nudge = look, nudge
        # while there are any, a look is due
        self._puts: dict[str, tuple[float, RecentWrite]] = {}

    def add(self, put: RecentWrite) -> None:
        """Look after it, in place of what was put on that cell before."""
        # no loop runs: nobody waits for a second look
        with contextlib.suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            loop.call_later(NUDGE_SECONDS, self._nudge)
            if not self._puts:
                loop.call_later(LOOK_SECONDS, self._fire, loop)
            self._puts[put.cell.id] = (time.monotonic() + WATCH_SECONDS, put)

    def _fire(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        self._puts = {cell: told for cell, told in self._puts.items() if told[0] > now}
        if self._puts:
            loop.call_later(LOOK_SECONDS, self._fire, loop)
            with contextlib.suppress(NotebookError):  # it is looked at again
                self._look([put for _, put in self._puts.values()])
