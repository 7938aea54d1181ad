"""Detection of external changes: edits by a shell, a script or git.

The agent gets a report on external changes, but no cell runs because of them. The scan
marker is a file that lists the folders to check. The hook script sends a request to the
daemon only if a notebook in these folders is newer than the scan marker.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from stepper.common import secure_files
from stepper.common.errors import NotebookError, StepperError, UsageError
from stepper.common.paths import Paths
from stepper.common.text import format_count
from stepper.daemon.workspace.notebook_paths import NotebookPaths
from stepper.messages import external_changes as messages
from stepper.notebooks import jupyter_saves
from stepper.session import replaced_notebook, undelivered_reports
from stepper.session.session import Session

# The time between two full scans, as a multiple of the duration of a scan.
SCAN_PAUSE_FACTOR = 50
# If a full scan takes no longer than this, every scan is a full scan.
QUICK_SCAN_SECONDS = 0.01
# The number of folders that the hook script checks. It also checks their subfolders
# unless the line in the scan marker begins with `/`.
MAX_FOLDERS = 200
# The limit for reading changed notebooks in one check. The next check reads the others,
# for example after a git checkout.
READ_SECONDS = 0.5
MAX_NAMED = 3  # notebooks in one report


class FileState(NamedTuple):
    """The modification time in nanoseconds and the size in bytes of a notebook."""

    mtime_ns: int
    size: int


# The states of notebooks by path.
FileStates = dict[str, FileState]


class ExternalChanges:
    """Detects changes of a project's notebooks that stepper did not make."""

    def __init__(
        self,
        paths: Paths,
        notebook_paths: NotebookPaths,
        get_session: Callable[[str], Session],
    ) -> None:
        self.marker = paths.scan_marker
        self.project = paths.project
        self.notebook_paths = notebook_paths
        self.get_session = get_session
        # The notebooks as they were last reported.
        self.reported: FileStates = {}
        self.is_started = False
        self.folders: list[str] = []  # the folders that the hook script checks
        self.next_full_scan = 0.0
        # The index's `read_count` when the folders were listed; -1 before that.
        self.read_count = -1
        self.marker_text = b""
        # The patterns whose notebooks are all in `reported`.
        self.patterns: list[str] = []
        self.last_check_ns = time.time_ns()
        # Whether a scan since the last check, or the scan of that check, left folders
        # out.
        self.is_incomplete = False

    def start(self) -> None:
        """Mark notebooks as reported unless they are newer than the scan marker.

        If a former daemon did not write a scan marker, mark all existing notebooks. If
        the project can't be scanned, do nothing.
        """
        with contextlib.suppress(StepperError, OSError):
            notebooks = self._scan()
            self.reported = notebooks
            self.is_started = True
            self.patterns = self.notebook_paths.list_patterns()
            with contextlib.suppress(FileNotFoundError):
                marker_ns = os.stat(self.marker).st_mtime_ns
                self.reported = _select_older(notebooks, marker_ns)
            self._write_marker(notebooks)

    def report_changes(self, used_shell: bool = False) -> list[str]:
        """Return report lines on notebooks with external changes.

        The last line is the number of other changed notebooks if there are more than
        MAX_NAMED. Each change is reported once. If a Jupyter server is running, its
        user may have saved the notebook. In this case, changes are reported only if
        `used_shell` is true, which means that the agent ran a shell command. Otherwise,
        they are ignored.
        """
        if not self.is_started:
            self.start()
        lines: list[str] = []
        with contextlib.suppress(StepperError, OSError):
            notebooks = self._scan()
            was_incomplete = self.is_incomplete
            self._add_newly_covered(notebooks, was_incomplete)
            postponed = self._report(notebooks, used_shell, lines)
            still_reported = {}
            for path, state in self.reported.items():
                # A notebook in a folder that the scan left out may still exist.
                if was_incomplete and path not in notebooks:
                    still_reported[path] = state
            for path, state in notebooks.items():
                if path not in postponed:
                    still_reported[path] = state
            self.reported = still_reported
            self.is_started = True
            self._write_marker(notebooks)
        return _shorten_report(lines)

    def _add_newly_covered(self, notebooks: FileStates, was_incomplete: bool) -> None:
        """Mark notebooks as reported that earlier scans could not find.

        These are notebooks that match new patterns or, if `was_incomplete` is true,
        notebooks that have not changed since the last check.
        """
        patterns = self.notebook_paths.list_patterns()
        if self.patterns != patterns:
            self.reported = {**notebooks, **self.reported}
            self.patterns = patterns
        self.is_incomplete = self.notebook_paths.is_incomplete
        if was_incomplete:
            # In a project that is too large for one scan, each scan finds notebooks
            # that existed before.
            older = _select_older(notebooks, self.last_check_ns - 1)
            self.reported = {**older, **self.reported}
        self.last_check_ns = time.time_ns()

    def _report(
        self, notebooks: FileStates, used_shell: bool, lines: list[str]
    ) -> set[str]:
        """Append report lines on changed notebooks to `lines`.

        Return the paths of the notebooks that are postponed to the next check.
        """
        postponed: set[str] = set()
        deadline = time.monotonic() + READ_SECONDS
        for path in sorted(self._select_changed(notebooks)):
            if time.monotonic() > deadline:
                postponed.add(path)
                continue
            # If the path is not valid, a command that names the notebook reports it.
            with contextlib.suppress(UsageError):
                session = self.get_session(path)
                # The running cell may have changed the notebook.
                if session.requests.is_locked:
                    postponed.add(path)
                elif used_shell or not jupyter_saves.is_server_running(path):
                    line = _take_report_line(session)
                    if line:
                        lines.append(line)
        return postponed

    def find_changed(self) -> set[str]:
        """Return the paths of the notebooks that have changed since the last report.

        Return an empty set if the project can't be scanned.
        """
        with contextlib.suppress(StepperError, OSError):
            return self._select_changed(self._scan())
        return set()

    def ignore_own_change(self, path: str, changed_before: set[str]) -> None:
        """Mark the notebook at `path`, which a stepper command wrote, as reported.

        `changed_before` contains the paths of notebooks with external changes before
        the command. If it contains `path`, the notebook is not marked.
        """
        with contextlib.suppress(StepperError, OSError):
            notebooks = self._scan()
            if not self.is_started or path not in notebooks:
                return
            if path not in changed_before:
                self.reported[path] = notebooks[path]
                self._write_marker(notebooks)

    def _select_changed(self, notebooks: FileStates) -> set[str]:
        """Return the paths of the notebooks that changed after they were reported."""
        changed: set[str] = set()
        for path, state in notebooks.items():
            if self.reported.get(path) != state:
                changed.add(path)
        return changed

    def _scan(self) -> FileStates:
        """Scan the project's folders, and return the state of each notebook.

        If a full scan takes long, most calls check only the folders that contain
        notebooks.
        """
        start = time.monotonic()
        patterns = self.notebook_paths.list_patterns()
        index = self.notebook_paths.index
        if start < self.next_full_scan and patterns == index.patterns:
            index.refresh_folders(self.folders)
        else:
            index.refresh(patterns)
            duration = time.monotonic() - start
            self.next_full_scan = 0.0
            if duration > QUICK_SCAN_SECONDS:
                self.next_full_scan = start + duration * SCAN_PAUSE_FACTOR
        self.is_incomplete = self.is_incomplete or index.is_incomplete
        if self.read_count != index.read_count:
            self.read_count = index.read_count
            self.folders = self._list_folders()
        return _read_states(index.list_notebooks())

    def _list_folders(self) -> list[str]:
        """Return the folders that the hook script must check."""
        folders = set(self.notebook_paths.index.list_notebook_folders())
        for folder in self.notebook_paths.list_folders():
            folders.add(os.path.normpath(folder))
        # Folders near the root of the project come first.
        ordered = sorted(folders, key=lambda path: (path.count(os.sep), path))
        return ordered[:MAX_FOLDERS]

    def _write_marker(self, notebooks: FileStates) -> None:
        """Write the folders to the scan marker, and set its modification time."""
        index = self.notebook_paths.index
        lines = []
        for folder in self.folders:
            prefix = "/" if index.is_crowded(folder) else ""
            name = os.path.relpath(folder, self.project)
            lines.append(f"{prefix}{name}\n")
        text = os.fsencode("".join(lines))
        if text != self.marker_text or not os.path.lexists(self.marker):
            secure_files.replace(self.marker, text)
            self.marker_text = text
        marker_ns = self._choose_marker_time(notebooks)
        os.utime(self.marker, ns=(marker_ns, marker_ns), follow_symlinks=False)

    def _choose_marker_time(self, notebooks: FileStates) -> int:
        """Return the modification time for the scan marker, in nanoseconds.

        This is the time of the newest notebook, including notebooks that match no
        pattern. If some changes have not been reported, the time is earlier than these
        changes.
        """
        uncovered_paths = self.notebook_paths.index.find_uncovered(self.folders)
        uncovered = _read_states(uncovered_paths - notebooks.keys())
        states = [*notebooks.values(), *uncovered.values()]
        latest_ns = max((state.mtime_ns for state in states), default=0)
        marker_ns = min(latest_ns, time.time_ns())
        for path in self._select_changed(notebooks):
            before_change_ns = notebooks[path].mtime_ns - 1
            marker_ns = min(marker_ns, before_change_ns)
        return marker_ns


def _shorten_report(lines: list[str]) -> list[str]:
    """Return the first lines of a report, and the number of other notebooks."""
    other_count = len(lines) - MAX_NAMED
    if other_count <= 0:
        return lines
    other_notebooks = format_count(other_count, "more notebook")
    return [*lines[:MAX_NAMED], f"stepper: {other_notebooks} not listed here"]


def _select_older(notebooks: FileStates, time_ns: int) -> FileStates:
    """Return the notebooks that did not change after `time_ns`."""
    older = {}
    for path, state in notebooks.items():
        if state.mtime_ns <= time_ns:
            older[path] = state
    return older


def _read_states(paths: Iterable[str]) -> FileStates:
    """Return the states of the notebooks that exist."""
    states: FileStates = {}
    for path in paths:
        with contextlib.suppress(OSError):  # the file may have been deleted
            status = os.stat(path)
            states[path] = FileState(status.st_mtime_ns, status.st_size)
    return states


def _take_report_line(session: Session) -> str:
    """Return a report line on a notebook's changed cells, and mark them as reported.

    Return an empty string if each cell ran with its current source or was reported
    before. If the notebook can't be read, the line contains the reason.
    """
    try:
        document, cells = undelivered_reports.update_changed_cells(session)
    except NotebookError as error:
        return messages.format_unreadable(session.name, error.message)
    replaced_notebook.record_agent_version(session)
    unreported = undelivered_reports.pop_unreported_cells(session, cells)
    if not unreported:
        return ""
    # The execution count of each cell's last run here.
    counts = {run.cell_id: run.execution_count for run in session.state.runs}
    changed_cells = [cell for cell in unreported if cell.id in counts]
    new_cells = [cell for cell in unreported if cell.id not in counts]
    # The cells that still show the output of the source that ran.
    outdated_cells = []
    for cell in changed_cells:
        count = counts[cell.id]
        displayed = document.get_displayed_execution_count(cell)
        if displayed is not None and displayed == count:
            outdated_cells.append(cell)
    return messages.format_changed(
        session.name, changed_cells, new_cells, outdated_cells
    )
