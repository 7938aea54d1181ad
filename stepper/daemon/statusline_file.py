"""The lines of clients' status lines, kept in a file: whoever shows them starts no Python and asks no daemon.

The first line of the file is the daemon's process and until when its words hold: while a cell runs for some seconds,
else as long as that process lives. Each further one has the session of Claude Code that it is for, `-` for all others.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass

from stepper.common import private_files
from stepper.daemon.project_notebooks import Workspace
from stepper.messages import statusline
from stepper.session import status_queries
from stepper.session.session import Session

HOLDS_SECONDS = 10  # from a look at what runs
ALWAYS = 9_999_999_999  # as long as the daemon lives
# at least, between two looks at the memory of a kernel: no step is to wait for one
WEIGH_SECONDS = 5.0


@dataclass
class Shown:
    """What is shown of a notebook's kernel, and at what it was looked last."""

    frame: str = ""
    memory: int = 0
    mark: tuple[object, ...] = ()
    due: float = 0.0


class StatusLines:
    """Keeps the file. To be called each second."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace, self.path = workspace, workspace.paths.statusline
        self.shown: dict[str, Shown] = {}
        self.told = "?"  # a former daemon's may be there
        self.runs = False  # whether a line says that something runs or waits

    def look(self, weigh: bool = True) -> None:
        """Write what has changed; while something runs its clock does.

        With `weigh` the memory of the kernels is measured again where that is due.
        """
        lines, runs = list[str](), False
        for session, name in self.workspace.currents().items():
            found = self.workspace.sessions.get(name)
            if found is not None and (text := self._line(found, weigh)):
                runs = runs or bool(
                    found.state.running
                    or found.looks
                    or found.keeper.waits
                    or found.keeper.queued
                )
                lines.append(f"{session or '-'} {text}\n")
        self.runs = runs
        told = "".join(lines)
        if told == self.told and not runs:
            return
        self.told = told
        with contextlib.suppress(OSError):
            if not told:
                private_files.remove(self.path)
                return
            until = int(time.time()) + HOLDS_SECONDS if runs else ALWAYS
            private_files.replace(
                self.path, f"{os.getpid()} {until}\n{told}".encode("utf-8", "replace")
            )

    def end(self) -> None:
        """Have nothing shown any more."""
        with contextlib.suppress(OSError):
            private_files.remove(self.path)

    def _line(self, session: Session, weigh: bool) -> str:
        now, queued = status_queries.running(session), session.keeper.queued
        shown = self.shown.setdefault(session.name, Shown())
        known, kernel, clock = (
            session.namespace,
            session.keeper.kernel,
            time.monotonic(),
        )
        mark = (
            kernel and kernel.id,
            session.state.next_run,
            now is None,
            len(session.state.external_executions),
        )
        if weigh and clock > shown.due and (now or mark != shown.mark):
            shown.mark, shown.due = mark, clock + WEIGH_SECONDS
            shown.memory = kernel.memory() if kernel else 0
        shown.frame = statusline.choose_frame(known, shown.frame) if kernel else ""
        said = statusline.format_clock(now.seconds, now.timeout) if now else ""
        told = now.name if now else ""
        return statusline.format_status_line(
            session.state,
            told,
            said,
            queued.text if queued else "",
            known,
            shown.frame,
            shown.memory,
        )
