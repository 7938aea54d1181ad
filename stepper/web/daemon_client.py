"""Ask the project's daemon what only it knows. It is never started, kept or ended by that, and may come and go."""

from __future__ import annotations

import json
from typing import Any

from stepper import __version__
from stepper.common import wire_format
from stepper.common.errors import StepperError
from stepper.common.socket_path import HookPaths, encode_path
from stepper.hook import client

THERE, NONE, HANGS = (
    "",
    "no daemon runs: what is shown is the journal's",
    "the daemon does not answer",
)
PATIENCE_SECONDS = 3.0  # it says at once that it has heard
OTHER = "the daemon is of stepper {}, this view of {}: start the view again"


class Daemon:
    """The daemon, as one who looks on asks it; `trouble` is what keeps it from answering."""

    def __init__(self, project: str) -> None:
        self.project, self.trouble = project, NONE

    def look(
        self, notebook: str, run: int, changes: int, marks: bool
    ) -> dict[str, Any] | None:
        """Return what it knows of a notebook, None where it says nothing of it."""
        # looked for anew: the socket's folder may have been taken
        paths = HookPaths(self.project)
        told = json.dumps(
            {"notebook": notebook, "run": run, "changes": changes, "marks": marks}
        ).encode()
        try:
            sock = client.connect(paths)
            if sock is None:
                self.trouble = NONE
                return None
            about = b"look", __version__.encode(), b"", encode_path(self.project)
            sock.settimeout(PATIENCE_SECONDS)
            *_, (kind, body) = client.exchange(paths, sock, *about, told)
        except (StepperError, OSError):
            self.trouble = HANGS
            return None
        self.trouble = (
            OTHER.format(body.decode("utf-8", "replace"), __version__)
            if kind == wire_format.STALE
            else THERE
        )
        if kind != wire_format.OK:
            return None
        found = json.loads(body)
        return found if isinstance(found, dict) else None
