"""Notebooks that were changed by other means than the client's edits: a shell, a script, git. Nothing runs here.

The hook script starts nothing while no notebook is newer than the file `seen`, whose lines are the folders to look in.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable

from stepper.common import private_files
from stepper.common.errors import NotebookError, StepperError, UsageError
from stepper.common.paths import Paths
from stepper.daemon.notebook_paths import Places
from stepper.messages import external_changes as words
from stepper.notebooks import jupyter_saves
from stepper.session import replaced_notebook, undelivered_reports
from stepper.session.session import Session

WALK_SHARE = 50  # how many times what a walk took is waited before the next one
QUICK_SECONDS = 0.01  # a look at all folders that takes no longer is taken each time
# of which the hook script looks into each, and one level deeper but where the line
# begins with `/`
FOLDERS_SEEN = 200
# of one look: what a checkout changed besides waits for the next one
READ_SECONDS = 0.5
TOLD = 3  # notebooks named at once

Seen = dict[str, tuple[int, int]]  # a notebook's path → its time (ns) and size


class Elsewhere:
    """What becomes of a project's notebooks besides stepper's work."""

    def __init__(
        self, paths: Paths, places: Places, session: Callable[[str], Session]
    ) -> None:
        self.seen, self.project, self.places, self.session = (
            paths.scan_marker,
            paths.project,
            places,
            session,
        )
        self.known: Seen | None = None
        # where notebooks were found, when the project is walked again
        self.folders, self.walk_at = list[str](), 0.0
        self.reads = -1  # those of the index when the folders were listed
        self.named = b""  # what stands in `seen`
        self.patterns = list[str]()  # of which all notebooks are known
        self.looked = time.time_ns()
        self.incomplete = False  # whether a look since the last one left folders out

    def begin(self) -> None:
        """Take all that a former daemon has seen as known; without one, all that is there."""
        with contextlib.suppress(StepperError, OSError):
            books = self._scan()
            self.known, self.patterns = books, self.places.patterns()
            with contextlib.suppress(FileNotFoundError):
                last = os.stat(self.seen).st_mtime_ns
                self.known = {
                    path: about for path, about in books.items() if about[0] <= last
                }
            self._note(books)

    def look(self, shell: bool = False) -> list[str]:
        """Return a line for each notebook with cells that were changed by other means and have not run.

        What a person may have saved in Jupyter is told where a `shell` was used alone. No change is told twice.
        """
        if self.known is None:
            self.begin()
        lines, busy = list[str](), list[str]()
        with contextlib.suppress(StepperError, OSError):
            books = self._scan()
            # what is covered from now on did not change
            if self.patterns != (patterns := self.places.patterns()):
                self.known, self.patterns = {**books, **(self.known or {})}, patterns
            cut = self.incomplete
            self.incomplete = self.places.cut
            # of too large a project each look finds others: what is old was there
            # before
            if cut:
                found = {
                    path: about
                    for path, about in books.items()
                    if about[0] < self.looked
                }
                self.known = {**found, **(self.known or {})}
            self.looked, until = time.time_ns(), time.monotonic() + READ_SECONDS
            for path in sorted(self._changed(books)):
                if time.monotonic() > until:
                    busy.append(path)
                    continue
                with contextlib.suppress(UsageError):
                    session = self.session(path)
                    # a run is under way: the next look sees it
                    if session.lock.locked():
                        busy.append(path)
                    elif shell or not jupyter_saves.is_server_running(path):
                        lines += _line(session)
            lost = {
                path: about
                for path, about in (self.known or {}).items()
                if cut and path not in books
            }
            self.known = {
                **lost,
                **{path: about for path, about in books.items() if path not in busy},
            }
            self._note(books)
        more = (
            [f"stepper: and {len(lines) - TOLD} more notebooks"]
            if len(lines) > TOLD
            else []
        )
        return [*lines[:TOLD], *more]

    def waiting(self) -> set[str]:
        """Return the notebooks that were changed since the last look."""
        with contextlib.suppress(StepperError, OSError):
            return self._changed(self._scan())
        return set()

    def wrote(self, path: str, waiting: set[str]) -> None:
        """A command of stepper's wrote a notebook: where it was not `waiting` before, that is no change."""
        with contextlib.suppress(StepperError, OSError):
            books = self._scan()
            if self.known is not None and path in books and path not in waiting:
                self.known[path] = books[path]
                self._note(books)

    def _changed(self, books: Seen) -> set[str]:
        return {
            path
            for path, about in books.items()
            if (self.known or {}).get(path) != about
        }

    def _scan(self) -> Seen:
        """Return the notebooks there are. Looking at all folders is done now and then only where that takes long."""
        began, patterns = time.monotonic(), self.places.patterns()
        index = self.places.index
        if began < self.walk_at and patterns == index.patterns:
            index.refresh_folders(self.folders)
        else:
            index.refresh(patterns)
            took = time.monotonic() - began
            self.walk_at = began + took * WALK_SHARE if took > QUICK_SECONDS else 0.0
        self.incomplete = self.incomplete or index.cut
        if self.reads != index.reads:
            self.reads = index.reads
            folders = {
                *map(os.path.normpath, self.places.folders()),
                *index.folders_of_notebooks(),
            }
            self.folders = sorted(
                folders, key=lambda folder: (folder.count(os.sep), folder)
            )[:FOLDERS_SEEN]
        return _seen(index.notebooks())

    def _note(self, books: Seen) -> None:
        """Have the hook script look for what is newer than all that is known, and than what no pattern covers there."""
        index = self.places.index
        names = [
            index.is_crowded(folder) * "/" + os.path.relpath(folder, self.project)
            for folder in self.folders
        ]
        named = os.fsencode("".join(f"{name}\n" for name in names))
        if named != self.named or not os.path.lexists(self.seen):
            private_files.replace(self.seen, named)
            self.named = named
        others = _seen(index.others(self.folders) - books.keys())
        latest = max(
            (mtime for mtime, _ in [*books.values(), *others.values()]), default=0
        )
        waiting = [books[path][0] - 1 for path in self._changed(books)]
        at = min(latest, time.time_ns(), *waiting)
        os.utime(self.seen, ns=(at, at), follow_symlinks=False)


def _seen(paths: Iterable[str]) -> Seen:
    found = Seen()
    for path in paths:
        try:
            about = os.stat(path)
        except OSError:  # it is gone by now
            continue
        found[path] = about.st_mtime_ns, about.st_size
    return found


def _line(session: Session) -> list[str]:
    """Return the line on a notebook that was changed; none where each of its cells ran as it stands, or was told of."""
    try:
        document, cells = undelivered_reports.compare_with_runs(session)
    except NotebookError as error:
        return [words.format_unreadable(session.name, error.message)]
    replaced_notebook.record_agent_version(session)
    if not (fresh := undelivered_reports.take_unreported_cells(session, cells)):
        return []
    # of the last run that it had here
    counts = {run.cell_id: run.execution_count for run in session.state.runs}
    parts = (
        [cell for cell in fresh if cell.id in counts],
        [cell for cell in fresh if cell.id not in counts],
    )
    stale = [
        cell
        for cell in parts[0]
        if document.get_displayed_execution_count(cell) == counts[cell.id] is not None
    ]
    return [words.format_changed(session.name, *parts, stale)]
