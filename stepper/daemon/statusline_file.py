"""The file with the texts for clients' status lines.

Status lines read the file without a request to the daemon. The first line contains the
daemon's process ID and the time until which the file is valid: some seconds while a
cell runs, otherwise as long as the daemon runs. Each further line contains the text for
one client session, and starts with the session's ID. The text that starts with `-` is
for all other sessions.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass

from stepper.common import secure_files
from stepper.daemon.workspace.project_notebooks import Workspace
from stepper.messages import statusline
from stepper.session import status_queries
from stepper.session.session import Session

VALID_SECONDS = 10  # of a file that was written while a cell runs
ALWAYS = 9_999_999_999  # valid as long as the daemon runs
# The minimum time between two measurements of a kernel's memory, because they delay
# steps.
MEMORY_SECONDS = 5.0


@dataclass
class KernelDisplay:
    """The facts about a notebook's kernel in its status line."""

    frame: str = ""  # the name of the variable with the shape that is shown
    memory: int = 0  # in bytes
    # The kernel and its executions at the last measurement of the memory.
    measured_state: tuple[object, ...] = ()
    next_measurement: float = 0.0


class StatusLineFile:
    """Writes the file for status lines. Call `update` once a second."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.path = workspace.paths.statusline
        self.displays: dict[str, KernelDisplay] = {}
        # None until the first update, because a former daemon may have left a file.
        self.written_text: str | None = None
        # Whether a line shows a running cell or a wait for a kernel.
        self.has_running = False

    def update(self, measure_memory: bool = True) -> None:
        """Write the file if a line has changed or a cell is running.

        Remove the file if no notebook has a status line. If `measure_memory` is true,
        measure the kernels' memory again, but not more often than every MEMORY_SECONDS.
        """
        lines: list[str] = []
        has_running = False
        for owner, name in self.workspace.currents.get_all().items():
            session = self.workspace.sessions.get(name)
            if session is None:
                continue
            text = self._format_line(session, measure_memory)
            if not text:
                continue
            has_running = has_running or _is_active(session)
            lines.append(f"{owner or '-'} {text}\n")
        self.has_running = has_running
        text = "".join(lines)
        if text == self.written_text and not has_running:
            return
        self.written_text = text
        with contextlib.suppress(OSError):
            if text:
                self._write(text)
            else:
                secure_files.remove(self.path)

    def _write(self, text: str) -> None:
        """Write the file: the first line, and then `text`."""
        valid_until = ALWAYS
        if self.has_running:
            valid_until = int(time.time()) + VALID_SECONDS
        content = f"{os.getpid()} {valid_until}\n{text}"
        secure_files.replace(self.path, content.encode("utf-8", "replace"))

    def remove(self) -> None:
        """Remove the file, so that status lines show nothing."""
        with contextlib.suppress(OSError):
            secure_files.remove(self.path)

    def _format_line(self, session: Session, measure_memory: bool) -> str:
        """Return the status line of a notebook.

        Return an empty string if there is nothing to show.
        """
        running = status_queries.get_running(session)
        is_running = running is not None
        display = self._update_display(session, is_running, measure_memory)
        queued = session.kernel_manager.queue_status
        cell_name = ""
        elapsed = ""
        if running:
            cell_name = running.name
            elapsed = statusline.format_clock(running.seconds, running.timeout)
        queue_text = queued.text if queued else ""
        return statusline.format_status_line(
            session.state,
            running=cell_name,
            clock=elapsed,
            queue_reason=queue_text,
            namespace=session.namespace_tracker.current,
            frame=display.frame,
            memory=display.memory,
        )

    def _update_display(
        self, session: Session, is_running: bool, measure_memory: bool
    ) -> KernelDisplay:
        """Update and return the facts about a notebook's kernel."""
        kernel = session.kernel_manager.kernel
        namespace = session.namespace_tracker.current
        display = self.displays.setdefault(session.name, KernelDisplay())
        now = time.monotonic()
        kernel_id = kernel.id if kernel else None
        # The memory can only have changed if one of these values has changed.
        state = (
            kernel_id,
            session.state.next_run,
            is_running,
            len(session.state.external_executions),
        )
        may_have_changed = is_running or state != display.measured_state
        can_measure = measure_memory and now > display.next_measurement
        if can_measure and may_have_changed:
            display.measured_state = state
            display.next_measurement = now + MEMORY_SECONDS
            display.memory = kernel.measure_memory() if kernel else 0
        if kernel:
            display.frame = statusline.choose_frame(namespace, display.frame)
        else:
            display.frame = ""
        return display


def _is_active(session: Session) -> bool:
    """Return whether a cell is running or waiting for the kernel."""
    return bool(
        session.state.running
        or session.requests.scratch_run
        or session.kernel_manager.external_wait
        or session.kernel_manager.queue_status
    )
