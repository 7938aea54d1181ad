"""An index of a project's notebooks by folder.

A folder is read again only if its stamp (times and inode) has changed: adding, removing
or renaming a file changes the time of its folder. Writing a notebook in place does not,
so callers check the notebooks themselves. A refresh reads a limited number of entries;
the next refresh reads the remaining entries.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from stepper.common import project_walk
from stepper.policy.configuration import notebook_globs

MAX_FOLDERS = 20_000  # in the index; further folders are left out
# A folder that changed shortly before it was read may have changed again since then
# without a new time stamp.
RACY_NS = 50_000_000
# Entries in the subfolders of a folder: the hook script must not list more than this
# after each message.
CROWDED_ENTRIES = 2_000


class Stamp(NamedTuple):
    """The modification and change times of a folder, and its inode number."""

    mtime_ns: int
    ctime_ns: int
    inode: int


class Folder:
    """The contents of a folder, as paths.

    If `stamp` is None, the folder must be read again.
    """

    __slots__ = (
        "covered",
        "entry_count",
        "stamp",
        "subfolders",
        "uncovered",
        "unsearched",
    )

    def __init__(self) -> None:
        self.stamp: Stamp | None = None
        self.covered: list[str] = []  # notebooks that match a pattern
        self.uncovered: list[str] = []  # other notebooks
        self.subfolders: list[str] = []  # folders that are searched
        # Folders that are not searched: environments, packages and links.
        self.unsearched: list[str] = []
        self.entry_count = 0

    @property
    def children(self) -> list[str]:
        """The paths of all direct subfolders."""
        return [*self.subfolders, *self.unsearched]


class PartialFolder(NamedTuple):
    """A folder that is being read. `entries` yields the entries to read next."""

    path: str
    folder: Folder
    entries: Iterator[os.DirEntry[str]]
    stamp: Stamp | None


class NotebookIndex:
    """The folders of a project that may contain notebooks, as of the last refresh."""

    def __init__(self, project: str) -> None:
        self.project = project
        self.patterns: Sequence[str] = ()
        self.roots: list[str] = []  # the folders in which the search starts
        self.folders: dict[str, Folder] = {}
        self.is_incomplete = False  # whether some folders are not read yet
        self.read_count = 0  # the number of folders read so far

    def refresh(
        self,
        patterns: Sequence[str],
        seconds: float | None = None,
        entries: int | None = None,
    ) -> None:
        """Check every folder, and read folders that are new or changed.

        Stop reading after `seconds`, or after `entries` folder entries. The defaults
        are the limits of `project_walk.walk`.
        """
        if [*patterns] != self.patterns:
            self.patterns = [*patterns]
            self.folders = {}
        self.roots = [
            os.path.join(self.project, root) if root else self.project
            for root in notebook_globs.list_base_folders(patterns)
            if not root.startswith("..")
        ]
        refresh = _Refresh(
            self,
            seconds or project_walk.SECONDS,
            entries or project_walk.ENTRIES,
        )
        refresh.run()

    def refresh_folders(self, folders: Iterable[str]) -> None:
        """Update only these folders and their direct subfolders."""
        checked: set[str] = set()
        for path in folders:
            folder = self.folders.get(path)
            if folder is not None:
                checked.add(path)
                checked.update(folder.children)
        refresh = _Refresh(
            self,
            project_walk.SECONDS,
            project_walk.ENTRIES,
            checked,
        )
        refresh.run()

    def list_notebooks(self) -> list[str]:
        """Return the paths of the notebooks that match a pattern."""
        paths = []
        for folder in self.folders.values():
            paths += folder.covered
        return paths

    def list_notebook_folders(self) -> list[str]:
        """Return the folders with at least one notebook that matches a pattern."""
        return [path for path, folder in self.folders.items() if folder.covered]

    def find_uncovered(self, folders: Iterable[str]) -> set[str]:
        """Return the paths of notebooks in these folders that match no pattern.

        The direct subfolders are searched too, unless they have too many entries.
        """
        notebooks: set[str] = set()
        for path in folders:
            folder = self.folders.get(path)
            if folder is None:
                continue
            notebooks.update(folder.uncovered)
            if self.is_crowded(path):
                continue
            for child in self._iterate_subfolders(folder):
                notebooks.update(child.uncovered)
        return notebooks

    def is_crowded(self, path: str) -> bool:
        """Return whether the subfolders have at least CROWDED_ENTRIES entries in total.

        The hook script does not list the subfolders of a crowded folder.
        """
        folder = self.folders.get(path)
        if folder is None:
            return False
        subfolders = self._iterate_subfolders(folder)
        entry_count = sum(child.entry_count for child in subfolders)
        return entry_count >= CROWDED_ENTRIES

    def _iterate_subfolders(self, folder: Folder) -> Iterator[Folder]:
        """Yield the direct subfolders of a folder that are in the index."""
        for path in folder.children:
            if path in self.folders:
                yield self.folders[path]


class _Refresh:
    """One pass over the folders of an index, beginning with the topmost ones."""

    def __init__(
        self,
        index: NotebookIndex,
        seconds: float,
        entries: int,
        checked: Iterable[str] | None = None,
    ) -> None:
        self.index = index
        self.checked = checked  # the folders to check, None for all
        self.deadline = time.monotonic() + seconds
        self.entries_left = entries
        self.folders: dict[str, Folder] = {}  # the new contents of the index
        # Paths, and whether the folder is searched or only listed.
        self.pending = deque((root, True) for root in index.roots)
        self.partial = deque[PartialFolder]()
        self.is_incomplete = False

    def run(self) -> None:
        """Visit the folders, and store the result in the index."""
        while self.pending or self.partial:
            if self.pending:
                path, is_searched = self.pending.popleft()
                self._visit(path, is_searched)
            elif self._can_read():
                self._read_entries(self.partial.popleft())
            else:
                self.is_incomplete = True
                self.partial.clear()
        self.index.folders = self.folders
        self.index.is_incomplete = self.is_incomplete

    def _can_read(self) -> bool:
        """Return whether the limits of this refresh allow further reads."""
        return self.entries_left > 0 and time.monotonic() < self.deadline

    def _visit(self, path: str, is_searched: bool) -> None:
        """Keep a folder of the index if it is unchanged; otherwise read the folder.

        A folder is also kept if this refresh does not check it, or if it has changed
        but no more entries may be read in this refresh. If `is_searched` is false,
        only the notebooks in the folder are listed.
        """
        if path in self.folders:
            return
        if len(self.folders) >= MAX_FOLDERS:
            self.is_incomplete = True
            return
        folder = self.index.folders.get(path)
        is_checked = self.checked is None or path in self.checked
        if folder is not None and not is_checked:
            self._keep(path, folder)
            return
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return  # the folder was removed or cannot be accessed
        stamp = Stamp(status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        if folder is not None and folder.stamp == stamp:
            self._keep(path, folder)
        elif self._can_read():
            reliable_stamp = None if _is_racy(stamp) else stamp
            self._read(path, is_searched, reliable_stamp)
        else:
            self.is_incomplete = True
            if folder is not None:
                self._keep(path, folder)

    def _keep(self, path: str, folder: Folder) -> None:
        """Copy a folder from the former contents of the index."""
        self.folders[path] = folder
        self._add_pending(folder.subfolders, folder.unsearched)

    def _add_pending(self, subfolders: list[str], unsearched: list[str]) -> None:
        """Visit these folders later; `unsearched` are only listed."""
        self.pending.extend((child, True) for child in subfolders)
        self.pending.extend((child, False) for child in unsearched)

    def _read(self, path: str, is_searched: bool, stamp: Stamp | None) -> None:
        """Read a folder.

        In an environment or a folder that is not searched, only list the notebooks
        among the first CROWDED_ENTRIES entries.
        """
        self.index.read_count += 1
        folder = Folder()
        self.folders[path] = folder
        entries = project_walk.scan_folder(path)
        if is_searched and (
            path in self.index.roots or not project_walk.is_environment(path)
        ):
            self._read_entries(PartialFolder(path, folder, entries, stamp))
            return
        for entry in islice(entries, CROWDED_ENTRIES):
            folder.entry_count += 1
            if entry.name.endswith(".ipynb"):
                folder.uncovered.append(entry.path)
        self.entries_left -= folder.entry_count
        folder.stamp = stamp

    def _read_entries(self, partial: PartialFolder) -> None:
        """Read the next entries of a folder, and postpone the remaining entries.

        Folders take turns, so a folder with thousands of images does not use up the
        limits before other folders are read.
        """
        path, folder, entries, stamp = partial
        batch = list(islice(entries, project_walk.TURN))
        self.entries_left -= len(batch)
        folder.entry_count += len(batch)
        subfolders: list[str] = []
        unsearched: list[str] = []
        former_covered: frozenset[str] = frozenset()
        former_folder = self.index.folders.get(path)
        if former_folder is not None:
            former_covered = frozenset(former_folder.covered)
        for entry in batch:
            if entry.name.endswith(".ipynb"):
                self._add_notebook(folder, entry, former_covered)
            if entry.name.startswith("."):
                continue
            try:
                if not entry.is_dir():
                    continue
                is_link = entry.is_symlink()
            except OSError:
                continue
            if is_link or entry.name in project_walk.SKIPPED:
                unsearched.append(entry.path)
            else:
                subfolders.append(entry.path)
        folder.subfolders += subfolders
        folder.unsearched += unsearched
        self._add_pending(subfolders, unsearched)
        if len(batch) == project_walk.TURN:
            self.partial.append(partial)
        else:
            folder.stamp = stamp

    def _add_notebook(
        self, folder: Folder, entry: os.DirEntry[str], former_covered: frozenset[str]
    ) -> None:
        """Add a notebook to its folder.

        The paths in `former_covered` are known to match a pattern.
        """
        path = entry.path
        is_covered = path in former_covered
        if not is_covered:
            name = path.removeprefix(f"{self.index.project}/")
            is_covered = notebook_globs.includes(self.index.patterns, name)
        if is_covered and not entry.is_dir(follow_symlinks=False):
            folder.covered.append(path)
        else:
            folder.uncovered.append(path)


def _is_racy(stamp: Stamp) -> bool:
    """Return whether a folder changed too recently for a reliable stamp."""
    now = time.time_ns()
    latest_ns = max(stamp.mtime_ns, stamp.ctime_ns)
    return abs(now - latest_ns) < RACY_NS or stamp.mtime_ns > now
