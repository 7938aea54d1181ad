"""The rows of `stepper list`, kept for notebooks of which no session is open.

Such a notebook has no kernel, so its row depends on its file, its journal and the
configuration alone. The row is used again while these three are unchanged.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace
from typing import Protocol

from stepper.common.paths import Paths
from stepper.daemon.config import Config
from stepper.daemon.notebook_paths import NotebookPaths
from stepper.notebooks.document import get_file_signature
from stepper.policy.model import Limits
from stepper.session import responses, status_queries
from stepper.session.session import Session


class Notebooks(Protocol):
    """What the rows need of the project's notebooks."""

    paths: Paths
    config: Config
    notebook_paths: NotebookPaths
    sessions: dict[str, Session]

    def glance(self, path: str, follow: bool = True) -> Session:
        """Return the session of a notebook, for a look alone."""


@dataclass(frozen=True)
class KeptRow:
    """A row, and what it was made from."""

    row: responses.NotebookEntry
    limits: Limits
    notebook: tuple[int, ...]
    journal_path: str
    journal: tuple[int, ...]


class NotebookRows:
    """Makes the rows, by the notebooks' names."""

    def __init__(self, notebooks: Notebooks) -> None:
        self.notebooks = notebooks
        self._kept: dict[str, KeptRow] = {}

    async def row(self, name: str, current: str | None) -> responses.NotebookEntry:
        """Return a notebook's row; raise OSError where its file is gone, UsageError where its name is refused."""
        notebooks = self.notebooks
        path = os.path.join(notebooks.paths.project, name)
        kept = self._kept.pop(name, None)  # put back below where it still holds
        about = os.stat(path)
        age = round(max(0.0, time.time() - about.st_mtime), 1)
        limits = notebooks.config.limits()
        if kept is not None and self._holds(kept, limits, get_file_signature(about)):
            self._kept[name] = kept
            is_current = kept.row.notebook == current
            return replace(kept.row, current=is_current, age_s=age)
        path = notebooks.notebook_paths.resolve(path)
        journal_path = os.path.join(
            notebooks.paths.journals,
            f"{notebooks.notebook_paths.get_store(path)}.jsonl",
        )
        journal = _signature(journal_path)  # before the journal is read
        session = notebooks.glance(path, follow=False)
        row = await status_queries.get_entry(session, session.name == current, age)
        if session.name not in notebooks.sessions:
            self._kept[name] = KeptRow(
                row, limits, get_file_signature(about), journal_path, journal
            )
        return row

    def _holds(self, kept: KeptRow, limits: Limits, notebook: tuple[int, ...]) -> bool:
        """Whether nothing that the row was made from has changed."""
        return (
            kept.row.notebook not in self.notebooks.sessions
            and kept.limits is limits
            and kept.notebook == notebook
            and kept.journal == _signature(kept.journal_path)
        )


def _signature(path: str) -> tuple[int, ...]:
    """Return what tells one state of a file from another, () where there is none."""
    with contextlib.suppress(OSError):
        return get_file_signature(os.stat(path))
    return ()
