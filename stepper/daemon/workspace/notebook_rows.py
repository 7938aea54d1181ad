"""The rows of `stepper list`, cached for notebooks without an open session.

A notebook without an open session has no kernel, so its row depends only on its file,
its journal and the configuration. The row is reused while these are unchanged.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Protocol

from stepper.common.paths import Paths
from stepper.daemon.config import Config
from stepper.daemon.workspace.notebook_paths import NotebookPaths
from stepper.notebooks.file_state import (
    FileSignature,
    get_file_signature,
    read_file_signature,
)
from stepper.policy.model import Limits
from stepper.session import responses, status_queries
from stepper.session.session import Session


class Notebooks(Protocol):
    """The part of the workspace that this module uses."""

    paths: Paths
    config: Config
    notebook_paths: NotebookPaths
    sessions: dict[str, Session]

    def peek_session(self, path: str, follow: bool = True) -> Session:
        """Return the session of the notebook at a path, for reading."""


@dataclass(frozen=True)
class CachedRow:
    """A row with the limits and the file signatures from which it was built."""

    row: responses.NotebookEntry
    limits: Limits
    notebook: FileSignature
    journal_path: str
    journal: FileSignature | None  # None if there is no journal


class NotebookRows:
    """Builds and caches the rows of notebooks."""

    def __init__(self, notebooks: Notebooks) -> None:
        self.notebooks = notebooks
        self._cache: dict[str, CachedRow] = {}

    async def get_row(self, name: str, current: str | None) -> responses.NotebookEntry:
        """Return the row of the notebook `name`; `current` is the current notebook.

        Raise OSError if the notebook's file is missing, and UsageError if its path is
        not valid.
        """
        notebooks = self.notebooks
        path = os.path.join(notebooks.paths.project, name)
        cached = self._cache.pop(name, None)
        status = os.stat(path)
        signature = get_file_signature(status)
        age = round(max(0.0, time.time() - status.st_mtime), 1)
        limits = notebooks.config.load_limits()
        if cached is not None and self._is_valid(cached, limits, signature):
            self._cache[name] = cached
            is_current = cached.row.notebook == current
            return replace(cached.row, current=is_current, age_s=age)
        path = notebooks.notebook_paths.resolve(path)
        store = notebooks.notebook_paths.get_store(path)
        journal_path = os.path.join(notebooks.paths.journals, f"{store}.jsonl")
        # Determined before the journal is read, so a later change invalidates the row.
        journal = read_file_signature(journal_path)
        session = notebooks.peek_session(path, follow=False)
        row = await status_queries.get_entry(session, session.name == current, age)
        if session.name not in notebooks.sessions:
            self._cache[name] = CachedRow(row, limits, signature, journal_path, journal)
        return row

    def _is_valid(
        self, cached: CachedRow, limits: Limits, notebook: FileSignature
    ) -> bool:
        """Return whether the limits, the notebook and the journal are unchanged.

        A cached row is never valid for a notebook with an open session.
        """
        if cached.row.notebook in self.notebooks.sessions:
            return False
        if cached.limits is not limits or cached.notebook != notebook:
            return False
        return cached.journal == read_file_signature(cached.journal_path)
