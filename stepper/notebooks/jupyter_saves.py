"""Cooperation with Jupyter servers that have the same notebook open.

JupyterLab with real-time collaboration reloads a file if its modification time has
increased. Otherwise JupyterLab overwrites the file. A save that began before stepper
wrote outputs also overwrites them, so recent writes are checked for some seconds.
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
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from jupyter_core.paths import jupyter_runtime_dir

from stepper.common.errors import NotebookError
from stepper.policy.execution_result import Execution
from stepper.policy.model import Cell

CACHE_SECONDS = 3.0  # how long the result of `is_server_running` is cached
MONITOR_SECONDS = 10.0  # how long a write is checked
CHECK_SECONDS = 0.25  # between two checks
NUDGE_SECONDS = 1.0  # from a write to the change of the modification time
# Jupyter reads modification times in microseconds, from a float. Claude Code compares
# whole milliseconds.
NOTICED_NS = 2000
# Files that collaboration leaves in its folders. The server itself may be invisible,
# for example in a container.
COLLABORATION_FILES = (
    ".jupyter_ystore.db",
    os.path.join(".jupyter", "collaboration_sessions.json"),
)
# Libraries that a server with real-time collaboration has loaded.
COLLABORATION_LIBRARIES = ("pycrdt", "y_py")
SERVER_FILES = "[jn][pb]server-*.json"


class CachedResult(NamedTuple):
    """Whether a server was running.

    `expires_at` is the time of the next check (monotonic clock).
    """

    expires_at: float
    is_running: bool


_cache: dict[str, CachedResult] = {}


def is_server_running(path: str) -> bool:
    """Return whether a Jupyter server may have the notebook open.

    The result is cached for some seconds.
    """
    cached_result = _cache.get(path)
    if cached_result is None or cached_result.expires_at < time.monotonic():
        is_running = _detect_server(path)
        expires_at = time.monotonic() + CACHE_SECONDS
        cached_result = CachedResult(expires_at, is_running)
        _cache[path] = cached_result
    return cached_result.is_running


def _detect_server(path: str) -> bool:
    """Return whether a running server or a file of a server is found for a notebook."""
    real_path = Path(os.path.realpath(path))
    if any(real_path.is_relative_to(server.root) for server in list_servers()):
        return True
    for folder in real_path.parents:
        for name in COLLABORATION_FILES:
            if os.path.exists(folder / name):
                return True
    return False


@dataclass(frozen=True)
class JupyterServer:
    """A running Jupyter server of this user.

    `root` is the folder that the server serves. `url` is its address without secrets.
    """

    pid: int
    root: str
    url: str

    @property
    def reloads(self) -> bool | None:
        """Whether the server reloads open notebooks that other programs changed.

        A server with real-time collaboration reloads them. Its process has loaded one
        of COLLABORATION_LIBRARIES. The value is None if the process cannot be
        inspected.
        """
        try:
            maps = Path(f"/proc/{self.pid}/maps").read_text("utf-8", "replace")
        except OSError:  # not Linux
            return None
        return any(name in maps for name in COLLABORATION_LIBRARIES)


def list_servers() -> Iterator[JupyterServer]:
    """Yield the running Jupyter servers of this user."""
    runtime_dir = jupyter_runtime_dir()
    for name in glob.glob(SERVER_FILES, root_dir=runtime_dir):
        server = _read_server(Path(runtime_dir, name))
        if server is not None:
            yield server


def _read_server(path: Path) -> JupyterServer | None:
    """Return the server of a runtime file.

    Return None if the file is invalid or the server is not running.
    """
    try:
        return _parse_server(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _parse_server(path: Path) -> JupyterServer:
    """Return the server of a runtime file, such as `jpserver-1234.json`.

    Raise OSError if the process does not exist. For an invalid file, raise one of the
    exceptions that `_read_server` handles.
    """
    _, _, pid_text = path.stem.partition("-")
    pid = int(pid_text)
    os.kill(pid, 0)  # raises OSError if the process does not exist
    info = json.loads(path.read_bytes())
    root = info.get("root_dir") or info["notebook_dir"]
    address = urlsplit(str(info.get("url")))
    # Leave out a name and a password, and the query, which may contain the token.
    host = address.netloc.rpartition("@")[2]
    url = f"{address.scheme}://{host}{address.path}"
    return JupyterServer(pid, os.path.realpath(root), url)


def find_servers_without_reload(path: str) -> list[JupyterServer]:
    """Return the servers that serve a notebook, but do not reload it after a change.

    `path` is a notebook, or a folder with notebooks.
    """
    real_path = Path(os.path.realpath(path))
    servers = []
    for server in list_servers():
        is_below_root = real_path.is_relative_to(server.root)
        contains_root = Path(server.root).is_relative_to(real_path)
        if (is_below_root or contains_root) and server.reloads is False:
            servers.append(server)
    return servers


def compute_preserved_mtime(path: str, mtime_ns: int) -> int:
    """Return the modification time for a write that preserves it.

    If a Jupyter server is running, add NOTICED_NS, so that the server notices the
    write. Claude Code notices the difference, and requires a new `Read`, only if the
    time reaches the next millisecond.
    """
    if is_server_running(path):
        return mtime_ns + NOTICED_NS
    return mtime_ns


@dataclass(frozen=True)
class RecentWrite:
    """A write of outputs to a cell.

    `before` is the run signature of the cell before the write (`get_run_signature`).
    """

    cell: Cell
    execution: Execution
    step: int | None
    before: Any


class MonitoredWrite(NamedTuple):
    """A recent write, which is checked until `deadline` (monotonic clock)."""

    deadline: float
    write: RecentWrite


class RecentWriteMonitor:
    """Calls `check` repeatedly with the writes of the last seconds, in the event loop.

    The monitor also calls `nudge` once after each write, to increase the file's
    modification time: a Jupyter server that was just saving the notebook may take the
    time of the write for the time of its own save, and miss the write.
    """

    def __init__(
        self,
        check: Callable[[Sequence[RecentWrite]], None],
        nudge: Callable[[], None],
    ) -> None:
        self._check = check
        self._nudge = nudge
        # By cell id. While there are writes, a check is scheduled.
        self._writes: dict[str, MonitoredWrite] = {}

    def add(self, write: RecentWrite) -> None:
        """Start to check a write, which replaces an earlier write to the same cell."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no event loop, so no later check
            return
        loop.call_later(NUDGE_SECONDS, self._nudge)
        if not self._writes:
            loop.call_later(CHECK_SECONDS, self._run_check, loop)
        deadline = time.monotonic() + MONITOR_SECONDS
        self._writes[write.cell.id] = MonitoredWrite(deadline, write)

    def _run_check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check the recent writes, and schedule the next check if there are any."""
        now = time.monotonic()
        self._writes = {
            cell_id: monitored_write
            for cell_id, monitored_write in self._writes.items()
            if monitored_write.deadline > now
        }
        if not self._writes:
            return
        loop.call_later(CHECK_SECONDS, self._run_check, loop)
        writes = [monitored_write.write for monitored_write in self._writes.values()]
        with contextlib.suppress(NotebookError):  # the next check tries again
            self._check(writes)
