"""The search for the new path of a renamed notebook, or for its former session.

A notebook counts as renamed if it contains cells that ran in a session, and the
session's own notebook is missing or contains none of these cells. Cells are compared by
id. If the session knows the inode number of its notebook, the number decides: a renamed
file keeps its inode number, but a copy has a different inode number.
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

# The numbers of journals that are compared, starting with the latest: journals of
# missing notebooks, and of notebooks that may have been replaced.
MAX_MISSING_NOTEBOOKS = 10
MAX_REPLACED_NOTEBOOKS = 3
# Limits of a search through the notebooks. MIN_READ_NOTEBOOKS are always read.
MAX_SEARCH_SECONDS = 0.5
MAX_READ_NOTEBOOKS = 200
MIN_READ_NOTEBOOKS = 20


class FormerSession(NamedTuple):
    """The session that ran the cells of a notebook under its former name."""

    session: Session
    is_only_match: bool  # whether no other session matches equally well


class RenameSearch:
    """Finds the new path of a session's notebook, or a notebook's former session."""

    def __init__(self, records: NotebookRecords) -> None:
        self.records = records
        self.notebook_paths = records.notebook_paths
        self.sessions = records.sessions

    def find_new_path(self, session: Session, excluded: str = "") -> str | None:
        """Return the path to which the notebook of a session was renamed.

        Return None if no notebook matches, or if several match equally well. The path
        `excluded` is not considered.
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
        """Return the former session of the notebook at a path.

        `cells` are the notebook's cell hashes. Return None if no other session ran any
        of these cells.
        """
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
        """Return whether the notebook of `former` was certainly renamed to `path`.

        `cells` are the cell hashes of the notebook at `path`. The rename is uncertain
        if another notebook matches equally well.
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
        """Return whether the notebook at `path` is only a copy of a session's notebook.

        This is known if the session's own notebook, by its inode number, is at another
        path.
        """
        inode = former.file.inode
        if not inode or inode == get_inode(path):
            return False
        candidates = self._find_candidates(former, excluded=path)
        return _includes_inode(candidates, inode)

    def find_missing_original(self, path: str) -> str | None:
        """Return the former path of the notebook at `path` if it was renamed.

        This is the path of the missing notebook with the most cells in common. Return
        None if no missing notebook has any of the cells.
        """
        cells = self.records.get_cell_hashes(path)
        if not cells:
            return None
        best_path = None
        highest_count = 0
        notebooks = self.records.list_notebooks_with_journals()
        missing_notebooks = (
            notebook for notebook in notebooks if not os.path.lexists(notebook)
        )
        for notebook in itertools.islice(missing_notebooks, MAX_MISSING_NOTEBOOKS):
            run_cells = self.records.get_run_hashes(notebook)
            count = notebook_identity.count_unchanged(cells, run_cells)
            if count > highest_count:
                best_path = notebook
                highest_count = count
        return best_path

    def _iterate_displaced(self, excluded: str) -> Iterator[str]:
        """Yield the paths of sessions and journals with a missing or replaced notebook.

        The path `excluded` is left out.
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
        """Return whether the notebook that ran at a path is missing or was replaced."""
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
        """Return the possible new paths of the notebook of a session.

        The keys are the paths. The values are the numbers of cells that have not
        changed since they ran.
        """
        run_cells = notebook_identity.list_run_hashes(session.state)
        deadline = time.monotonic() + MAX_SEARCH_SECONDS
        candidates: dict[str, int] = {}
        own_path = session.file.path
        for index, path in enumerate(self._list_possible_paths(own_path)):
            if index >= MIN_READ_NOTEBOOKS and time.monotonic() > deadline:
                break
            if path in (own_path, excluded):
                continue
            cells = self.records.get_cell_hashes(path) or {}
            count = notebook_identity.count_unchanged(cells, run_cells)
            if count and not self._has_own_session(path, cells):
                candidates[path] = count
        return candidates

    def _list_possible_paths(self, path: str) -> list[str]:
        """Return the notebooks of the last search, and all in the folder of a path.

        The most recently changed notebooks come first. The number is limited to
        MAX_READ_NOTEBOOKS.
        """
        folder = os.path.dirname(path)
        paths: set[str] = set()
        for name in self.notebook_paths.list_known():
            paths.add(os.path.join(self.records.paths.project, name))
        # The index may be older than the rename.
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name.endswith(".ipynb"):
                    paths.add(os.path.join(folder, name))
        change_times: dict[str, int] = {}
        for notebook in paths:
            with contextlib.suppress(OSError, UsageError):
                resolved = self.notebook_paths.resolve(notebook)
                change_times[resolved] = os.stat(resolved).st_ctime_ns
        newest_first = sorted(change_times, key=change_times.__getitem__, reverse=True)
        return newest_first[:MAX_READ_NOTEBOOKS]

    def _has_own_session(self, path: str, cells: Hashes) -> bool:
        """Return whether the session of a path belongs to the notebook at that path.

        `cells` are the notebook's cells. The session belongs to the notebook if one of
        these cells ran in the session. A session in which no cell ran belongs to the
        notebook if the session has a kernel.
        """
        run_cells = self.records.get_run_hashes(path)
        if run_cells:
            return not notebook_identity.is_different_notebook(cells, run_cells)
        session = self.records.get_session(path)
        return self.records.has_kernel(session)


def _includes_inode(paths: Iterable[str], inode: int) -> bool:
    """Return whether one of the files has this inode number."""
    return any(get_inode(path) == inode for path in paths)
