"""The search for the counterpart of a renamed notebook.

A notebook counts as the renamed one of a journal if it contains the cells that ran, by
id, and the journal's own notebook is missing or contains none of them. If the inode
number of the journal's notebook is known, it decides: a rename keeps it, a copy does
not.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stepper.common.errors import UsageError
from stepper.daemon.workspace.notebook_records import NotebookRecords, get_inode
from stepper.policy import notebook_identity
from stepper.policy.notebook_identity import Hashes
from stepper.session.session import Session

# Journals that are compared, those used last: of missing notebooks, …
MAX_MISSING_NOTEBOOKS = 10
# … and of notebooks that another one may have replaced.
MAX_REPLACED_NOTEBOOKS = 3
# Limits of a search through the notebooks. The first few are read in any case.
MAX_SEARCH_SECONDS = 0.5
MAX_READ_NOTEBOOKS = 200
MIN_READ_NOTEBOOKS = 20


class FormerSession(NamedTuple):
    """The session that the cells of a notebook belong to."""

    session: Session
    is_only_match: bool  # whether no other session matches as well


class RenameSearch:
    """Finds the new path of a session, or the former session of a notebook."""

    def __init__(self, records: NotebookRecords) -> None:
        self.records = records
        self.notebook_paths = records.notebook_paths
        self.sessions = records.sessions

    def find_new_path(self, session: Session, excluded: str = "") -> str | None:
        """Return the path to which the notebook of a session was renamed.

        The path `excluded` is not considered. The result is None if there is no such
        notebook, or if several match equally well.
        """
        candidates = self._find_candidates(session, excluded)
        inode = session.file.inode
        if inode:
            for path in candidates:
                if get_inode(path) == inode:
                    return path
        highest_count = max(candidates.values(), default=0)
        best_paths = [
            path for path, count in candidates.items() if count == highest_count
        ]
        if len(best_paths) != 1:
            return None
        return best_paths[0]

    def find_former_session(self, path: str, cells: Hashes) -> FormerSession | None:
        """Return the session that ran the cells of the notebook at a path, if any."""
        best_path = ""
        highest_count = 0
        is_only_match = False
        for displaced_path in self._iterate_displaced(path):
            run_cells = self.records.get_run_hashes(displaced_path)
            count = notebook_identity.count_unchanged(cells, run_cells)
            if count > highest_count:
                best_path = displaced_path
                highest_count = count
                is_only_match = True
            elif count and count == highest_count:
                is_only_match = False
        if not best_path:
            return None
        session = self.records.get_session(best_path)
        return FormerSession(session, is_only_match)

    def is_certain(self, former: Session, path: str, cells: Hashes) -> bool:
        """Return whether no notebook but the one at `path` can be the renamed one.

        A copy has the same cells, but another inode number.
        """
        inode = former.file.inode
        if inode and inode == get_inode(path):
            return True
        rivals = self._find_candidates(former, excluded=path)
        if inode and _includes_inode(rivals, inode):
            return False
        run_cells = notebook_identity.list_run_hashes(former.state)
        count = notebook_identity.count_unchanged(cells, run_cells)
        return all(rival_count < count for rival_count in rivals.values())

    def is_copy(self, path: str, former: Session) -> bool:
        """Return whether the notebook of a session was renamed to another path.

        Then the notebook at `path` is a copy.
        """
        inode = former.file.inode
        if not inode or inode == get_inode(path):
            return False
        candidates = self._find_candidates(former, excluded=path)
        return _includes_inode(candidates, inode)

    def find_missing_original(self, path: str) -> str | None:
        """Return the path of the missing notebook that the notebook at `path` matches.

        The result is None if there is no such notebook.
        """
        cells = self.records.get_cell_hashes(path)
        if not cells:
            return None
        best_path = None
        highest_count = 0
        notebooks = self.records.list_notebooks_with_journals()
        missing = (notebook for notebook in notebooks if not os.path.lexists(notebook))
        for notebook in itertools.islice(missing, MAX_MISSING_NOTEBOOKS):
            run_cells = self.records.get_run_hashes(notebook)
            count = notebook_identity.count_unchanged(cells, run_cells)
            if count > highest_count:
                best_path = notebook
                highest_count = count
        return best_path

    def _iterate_displaced(self, excluded: str) -> Iterator[str]:
        """Yield the paths that have a session or a journal, but not their notebook.

        The notebook of such a path is missing or was replaced by another one.
        """
        open_paths = [session.file.path for session in self.sessions.values()]
        for path in open_paths:
            if path != excluded and self._is_displaced(path):
                yield path
        missing_count = 0
        existing_count = 0
        for path in self.records.list_notebooks_with_journals():
            if path in open_paths or path == excluded:
                continue
            if missing_count >= MAX_MISSING_NOTEBOOKS:
                return
            if not os.path.lexists(path):
                missing_count += 1
            elif existing_count < MAX_REPLACED_NOTEBOOKS:
                existing_count += 1
            else:
                continue
            if self._is_displaced(path):
                yield path

    def _is_displaced(self, path: str) -> bool:
        """Return whether the notebook that ran at a path is no longer there."""
        session = self.sessions.get(self.records.paths.relpath(path))
        if session is not None:
            inode = session.file.inode
            if inode and inode == get_inode(path):
                return False
        run_cells = self.records.get_run_hashes(path)
        if not run_cells:
            return False
        if not os.path.lexists(path):
            return True
        cells = self.records.get_cell_hashes(path)
        if cells is None:
            return False
        return notebook_identity.is_different_notebook(cells, run_cells)

    def _find_candidates(self, session: Session, excluded: str) -> dict[str, int]:
        """Return the notebooks to which the notebook of a session may be renamed.

        The values are the numbers of their cells that are unchanged since they ran.
        """
        run_cells = notebook_identity.list_run_hashes(session.state)
        deadline = time.monotonic() + MAX_SEARCH_SECONDS
        candidates: dict[str, int] = {}
        own_path = session.file.path
        for index, path in enumerate(self._list_nearby(own_path)):
            if index >= MIN_READ_NOTEBOOKS and time.monotonic() > deadline:
                break
            if path in (own_path, excluded):
                continue
            cells = self.records.get_cell_hashes(path) or {}
            count = notebook_identity.count_unchanged(cells, run_cells)
            if count and not self._has_own_session(path, cells):
                candidates[path] = count
        return candidates

    def _list_nearby(self, path: str) -> list[str]:
        """Return the project's notebooks that are in the folder of a path or indexed.

        The notebooks that changed last come first.
        """
        folder = os.path.dirname(path)
        paths = set[str]()
        for name in self.notebook_paths.list_known():
            paths.add(os.path.join(self.records.paths.project, name))
        # The index may be older than the rename.
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name.endswith(".ipynb"):
                    paths.add(os.path.join(folder, name))
        change_times: dict[str, int] = {}
        for each in paths:
            with contextlib.suppress(OSError, UsageError):
                resolved = self.notebook_paths.resolve(each)
                change_times[resolved] = os.stat(resolved).st_ctime_ns
        newest_first = sorted(change_times, key=change_times.__getitem__, reverse=True)
        return newest_first[:MAX_READ_NOTEBOOKS]

    def _has_own_session(self, path: str, cells: Hashes) -> bool:
        """Return whether the notebook at a path belongs to the session of that path."""
        run_cells = self.records.get_run_hashes(path)
        if run_cells:
            return not notebook_identity.is_different_notebook(cells, run_cells)
        session = self.records.get_session(path)
        return self.records.has_kernel(session)


def _includes_inode(paths: Iterable[str], inode: int) -> bool:
    return any(get_inode(path) == inode for path in paths)
