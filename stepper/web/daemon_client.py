"""The client that requests a notebook's live state from the project's daemon.

A view never starts or stops the daemon. The daemon may start and exit at any time.
"""

from __future__ import annotations

import json
from typing import Any

from stepper import __version__
from stepper.common import wire_format
from stepper.common.errors import StepperError
from stepper.common.hook_paths import HookPaths, encode_path
from stepper.hook import daemon_client

# view.js recognizes this text by its start.
NOT_RUNNING = "No daemon is running, so this view shows only the journal."
NOT_RESPONDING = "The daemon does not respond."
OTHER_VERSION = (
    "The daemon has version {}, but this view has version {}. Restart this view."
)
TIMEOUT_SECONDS = 3.0  # the daemon acknowledges a request immediately
REQUEST = b"look"


class DaemonClient:
    """Requests snapshots from the daemon.

    `error` is the reason why the last request failed, or an empty string.
    """

    def __init__(self, project: str) -> None:
        self.project = project
        self.error = NOT_RUNNING

    def request_snapshot(
        self,
        notebook: str,
        run: int,
        changes: int,
        *,
        marks: bool,
    ) -> dict[str, Any] | None:
        """Return the live state of a notebook, or None if the request fails.

        Set `error` to the reason why the daemon can't be used, or to an empty string if
        the daemon responded, even if the response is an error. `run` and `changes` are
        those of the caller's last snapshot: the response contains outputs only if they
        have changed since then. If `marks` is true, the response also contains the
        stale cells.
        """
        request = json.dumps(
            {"notebook": notebook, "run": run, "changes": changes, "marks": marks}
        )
        try:
            response = self._exchange(request.encode())
        except (StepperError, OSError):
            self.error = NOT_RESPONDING
            return None
        if response is None:
            self.error = NOT_RUNNING
            return None
        kind, body = response
        self.error = ""
        if kind == wire_format.STALE:
            # The body of this response is the daemon's version.
            daemon_version = body.decode("utf-8", "replace")
            self.error = OTHER_VERSION.format(daemon_version, __version__)
        if kind != wire_format.OK:
            return None
        snapshot = json.loads(body)
        if isinstance(snapshot, dict):
            return snapshot
        return None

    def _exchange(self, request: bytes) -> tuple[bytes, bytes] | None:
        """Return the kind and body of the response, or None if no daemon is running.

        Raise StepperError or OSError if the daemon does not respond.
        """
        # The path of the socket may change if another user took its folder.
        paths = HookPaths(self.project)
        sock = daemon_client.connect(paths)
        if sock is None:
            return None
        sock.settimeout(TIMEOUT_SECONDS)
        version = __version__.encode()
        folder = encode_path(self.project)
        parts = (REQUEST, version, b"", folder, request)
        # Messages before the last one are progress events.
        *_, response = daemon_client.exchange(paths, sock, *parts)
        return response
