"""The files that list running cells: for status lines, and for the FileChanged hook.

Status lines and the hook script read these files without starting a stepper process.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from stepper.common import secure_files
from stepper.daemon import claude_code_json
from stepper.daemon.workspace.project_notebooks import Workspace
from stepper.session import status_queries
from stepper.session.session import Session


class RunningCellFiles:
    """Writes and removes the files that list running cells."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.paths = workspace.paths
        # Whether the files may exist, for example from an earlier daemon.
        self.has_lines = True
        self._next_notice_at = 0.0

    def update(self) -> None:
        """Write the running cells to the files, or remove the files if none is running.

        Scratch executions and waits for a kernel are listed too. The notice is written
        only if `_needs_notice` returns True.
        """
        sessions = list(self.workspace.sessions.values())
        lines = list(filter(None, map(status_queries.format_running, sessions)))
        if not lines:
            self.remove()
            return
        self.has_lines = True
        with contextlib.suppress(OSError):
            content = "".join(f"{line}\n" for line in lines)
            secure_files.replace(self.paths.running, content.encode("utf-8", "replace"))
            if self._needs_notice(sessions):
                self._write_notice(lines, sessions)

    def remove(self) -> None:
        """Remove the files, if they may exist."""
        if not self.has_lines:
            return
        with contextlib.suppress(OSError):
            secure_files.remove(self.paths.running)
            # Claude Code reads the notice up to 0.7 s after it was written.
            secure_files.remove(self.paths.notice)
            self.has_lines = False

    def _needs_notice(self, sessions: Iterable[Session]) -> bool:
        """Return whether the notice for the FileChanged hook must be written now.

        Each change of the notice starts a hook process, so a notice about background
        runs is only updated every `heartbeat_seconds`. Claude Code shows a notice for
        five seconds, so runs that probably finish within this time need no notice.
        """
        busy_sessions = [session for session in sessions if _is_busy(session)]
        if busy_sessions and all(map(status_queries.is_finishing_soon, busy_sessions)):
            return False
        if not all(session.runs_in_background for session in busy_sessions):
            return True
        return time.monotonic() >= self._next_notice_at

    def _write_notice(self, lines: Iterable[str], sessions: Iterable[Session]) -> None:
        """Write the notice, which contains the time because it may be shown later."""
        intervals = [
            session.outputs.load_limits().heartbeat_seconds for session in sessions
        ]
        self._next_notice_at = time.monotonic() + min(intervals)
        notice = f"{time.strftime('%H:%M:%S')} {' · '.join(lines)}"
        secure_files.replace(self.paths.notice, claude_code_json.format_notice(notice))


def _is_busy(session: Session) -> bool:
    """Return whether a notebook's kernel is running code or is queued."""
    return bool(
        session.state.running
        or session.requests.scratch_run
        or session.kernel_manager.queue_status
    )
