"""The records of notebooks: sessions, journals, kernel records and cell hashes.

Cell hashes are read from a notebook or a journal and cached until the file changes,
because a search for a renamed notebook compares many hashes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from stepper.common.errors import NotebookError
from stepper.common.paths import Paths
from stepper.daemon.workspace.notebook_paths import NotebookPaths
from stepper.notebooks.file_state import FileState, read_file_state
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy import notebook_identity
from stepper.policy.notebook_identity import Hashes
from stepper.session.session import Session

MAX_CACHED_FILES = 200


class CachedHashes(NamedTuple):
    """The cell hashes of a file, and the file's state before they were read.

    `state` is None if the file is missing.
    """

    state: FileState | None
    hashes: Hashes


class NotebookRecords:
    """Access to the records of a project's notebooks, by the notebooks' paths."""

    def __init__(
        self,
        paths: Paths,
        notebook_paths: NotebookPaths,
        sessions: dict[str, Session],
        open_session: Callable[[str, str], Session],
    ) -> None:
        self.paths = paths
        self.notebook_paths = notebook_paths
        self.sessions = sessions
        self._open_session = open_session
        self._notebook_hashes: dict[str, CachedHashes] = {}  # by path
        self._journal_hashes: dict[str, CachedHashes] = {}  # by store

    def get_session(self, path: str) -> Session:
        """Return the session of the notebook at a path.

        If no session is open, return a new one without adding it to the open sessions.
        """
        name = self.paths.relpath(path)
        session = self.sessions.get(name)
        if session is not None:
            return session
        return self._open_session(name, path)

    def open_session(self, path: str) -> Session:
        """Open a new session for a path, replacing the session that is open."""
        name = self.paths.relpath(path)
        session = self._open_session(name, path)
        self.sessions[name] = session
        return session

    def has_kernel(self, session: Session) -> bool:
        """Return whether a session has a kernel or a kernel record."""
        if session.kernel_manager.kernel is not None:
            return True
        store = self.notebook_paths.get_store(session.file.path)
        record = os.path.join(self.paths.kernels, f"{store}.json")
        return os.path.lexists(record)

    def get_cell_hashes(self, path: str) -> Hashes | None:
        """Return the hashes of a notebook's code cells.

        Return None if the notebook can't be read.
        """
        file_state = read_file_state(path)
        cached = self._notebook_hashes.get(path)
        if cached is not None and cached.state == file_state:
            return cached.hashes
        file = IpynbFile(path)
        try:
            cells = file.read_uncached().cells
        except NotebookError:
            return None
        hashes = notebook_identity.hash_code_cells(cells)
        _add_to_cache(self._notebook_hashes, path, CachedHashes(file_state, hashes))
        return hashes

    def get_run_hashes(self, path: str) -> Hashes:
        """Return the hashes of the cells that ran in the notebook at a path.

        The hashes come from the open session, or else from the journal.
        """
        session = self.sessions.get(self.paths.relpath(path))
        if session is not None:
            return notebook_identity.list_run_hashes(session.state)
        store = self.notebook_paths.get_store(path)
        journal = os.path.join(self.paths.journals, f"{store}.jsonl")
        file_state = read_file_state(journal)
        cached = self._journal_hashes.get(store)
        if cached is not None and cached.state == file_state:
            return cached.hashes
        hashes: Hashes = {}
        if file_state is not None:
            notebook_state = self.get_session(path).state
            hashes = notebook_identity.list_run_hashes(notebook_state)
        _add_to_cache(self._journal_hashes, store, CachedHashes(file_state, hashes))
        return hashes

    def list_notebooks_with_journals(self) -> list[str]:
        """Return the paths of notebooks with a journal, most recently used first."""
        journals: list[tuple[float, str]] = []
        for folder, _, names in os.walk(self.paths.journals):
            for name in names:
                if not name.endswith(".jsonl"):
                    continue
                journal = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    notebook = self._get_notebook_of_journal(journal)
                    modified_at = os.stat(journal).st_mtime
                    journals.append((modified_at, notebook))
        journals.sort(reverse=True)
        return [notebook for _, notebook in journals]

    def _get_notebook_of_journal(self, journal: str) -> str:
        """Return the path of the notebook with the journal at a path."""
        journal_name = os.path.relpath(journal, self.paths.journals)
        store_name = Path(journal_name).with_suffix(".ipynb")
        return self.notebook_paths.get_path_of_store(str(store_name))


def _add_to_cache(
    cache: dict[str, CachedHashes],
    key: str,
    entry: CachedHashes,
) -> None:
    """Add an entry to a cache. If the cache is full, remove all other entries."""
    if len(cache) >= MAX_CACHED_FILES:
        cache.clear()
    cache[key] = entry


def get_inode(path: str) -> int:
    """Return the inode number of a file, or 0 if the file can't be accessed."""
    file_state = read_file_state(path)
    if file_state is not None:
        return file_state.inode
    return 0
