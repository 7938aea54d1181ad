"""An index of a project's notebooks: which notebooks lie in which folder.

A folder is read again only when its stamp (times and inode) has changed: adding, removing or renaming a file or folder
changes its folder's time. A notebook that is written in place does not, so callers look at the notebooks themselves.
Reading is bounded per call; what was left out is read by the next calls.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from stepper.common import project_files
from stepper.policy import notebook_globs

MOST_FOLDERS = 20_000  # in the index; further ones are left out
# a folder that changed this shortly before it was read may have changed once more since
RACY_NS = 50_000_000
# entries of a folder's folders: more than the hook script may list at the end of each
# message
CROWDED = 2_000


class Folder:
    """What one folder holds, as paths; `stamp` is None where the folder must be read again."""

    __slots__ = ("aside", "below", "books", "count", "others", "stamp")

    def __init__(self) -> None:
        self.stamp: tuple[int, int, int] | None = None
        self.books: list[str] = []  # notebooks that a pattern covers
        self.others: list[str] = []  # notebooks that none covers
        self.below: list[str] = []  # folders that are searched
        # folders that are not: environments, packages, links
        self.aside: list[str] = []
        self.count = 0  # entries


class NotebookIndex:
    """The folders of one project in which notebooks may lie, as they were when they were last looked at."""

    def __init__(self, project: str) -> None:
        self.project = project
        self.patterns: Sequence[str] = ()
        self.heads: list[str] = []  # the folders in which the search begins
        self.folders: dict[str, Folder] = {}
        self.cut = False  # whether some folders have not been read yet
        self.reads = 0  # how many folders were read so far

    def refresh(
        self,
        patterns: Sequence[str],
        seconds: float | None = None,
        entries: int | None = None,
    ) -> None:
        """Look at every folder; read those that are new or changed, within these bounds (else those of `walk`)."""
        if [*patterns] != self.patterns:
            self.patterns = [*patterns]
            self.folders = {}
        self.heads = [
            self._path(head)
            for head in notebook_globs.base_folders(patterns)
            if not head.startswith("..")
        ]
        _Refresh(
            self,
            self.heads,
            seconds or project_files.SECONDS,
            entries or project_files.ENTRIES,
        ).run()

    def refresh_folders(self, folders: Iterable[str]) -> None:
        """Look at these folders and at the folders in them; all others are taken as they were."""
        looked = dict.fromkeys(folder for folder in folders if folder in self.folders)
        for folder in [*looked]:
            looked.update(
                dict.fromkeys(
                    [*self.folders[folder].below, *self.folders[folder].aside]
                )
            )
        _Refresh(
            self,
            self.heads,
            project_files.SECONDS,
            project_files.ENTRIES,
            looked.keys(),
        ).run()

    def notebooks(self) -> list[str]:
        """Return the paths of the notebooks that a pattern covers."""
        return [book for folder in self.folders.values() for book in folder.books]

    def folders_of_notebooks(self) -> list[str]:
        """Return the folders that hold such notebooks."""
        return [path for path, folder in self.folders.items() if folder.books]

    def others(self, folders: Iterable[str]) -> set[str]:
        """Return the notebooks in these folders, and in the folders in them, that no pattern covers."""
        found = set[str]()
        for path in folders:
            if path in self.folders:
                folder = self.folders[path]
                found.update(folder.others)
                if not self.is_crowded(path):
                    for child in (*folder.below, *folder.aside):
                        if child in self.folders:
                            found.update(self.folders[child].others)
        return found

    def is_crowded(self, path: str) -> bool:
        """Return whether the folders of a folder hold more entries than the hook script may list."""
        folder = self.folders.get(path)
        if folder is None:
            return False
        children = (self.folders.get(child) for child in (*folder.below, *folder.aside))
        return sum(child.count for child in children if child) >= CROWDED

    def _path(self, head: str) -> str:
        return os.path.join(self.project, head) if head else self.project


class _Refresh:
    """One look at the folders of an index, those near the project's root first."""

    def __init__(
        self,
        index: NotebookIndex,
        heads: Sequence[str],
        seconds: float,
        entries: int,
        looked: Iterable[str] | None = None,
    ) -> None:
        self.index = index
        self.looked = looked  # the folders to look at; None for all
        self.until = time.monotonic() + seconds
        self.left = entries
        self.reached: dict[str, Folder] = {}
        # path, whether it is searched
        self.waiting = deque((head, True) for head in heads)
        self.large = deque[
            tuple[str, Folder, Iterator[os.DirEntry[str]], tuple[int, int, int] | None]
        ]()
        self.cut = False

    def run(self) -> None:
        """Go through the folders, then put them into the index."""
        while self.waiting or self.large:
            if self.waiting:
                self._look(*self.waiting.popleft())
            elif self._may_read():
                self._read_on(*self.large.popleft())
            else:
                self.cut = True
                self.large.clear()
        self.index.folders = self.reached
        self.index.cut = self.cut

    def _may_read(self) -> bool:
        return self.left > 0 and time.monotonic() < self.until

    def _look(self, path: str, searched: bool) -> None:
        """Take a folder as it was, or read it where it has changed."""
        if path in self.reached:
            return
        if len(self.reached) >= MOST_FOLDERS:
            self.cut = True
            return
        known = self.index.folders.get(path)
        if known is not None and self.looked is not None and path not in self.looked:
            self._take(path, known)
            return
        try:
            about = os.stat(path)
        except (OSError, ValueError):
            return  # it is gone
        stamp = (about.st_mtime_ns, about.st_ctime_ns, about.st_ino)
        if known is not None and known.stamp == stamp:
            self._take(path, known)
        elif self._may_read():
            if (
                abs(time.time_ns() - max(stamp[:2])) < RACY_NS
                or stamp[0] > time.time_ns()
            ):
                self._read(path, searched, None)
            else:
                self._read(path, searched, stamp)
        else:
            self.cut = True
            if known is not None:
                self._take(path, known)

    def _take(self, path: str, folder: Folder) -> None:
        self.reached[path] = folder
        self.waiting.extend((child, True) for child in folder.below)
        self.waiting.extend((child, False) for child in folder.aside)

    def _read(
        self, path: str, searched: bool, stamp: tuple[int, int, int] | None
    ) -> None:
        """Read a folder; one that is not searched is only asked for its notebooks."""
        self.index.reads += 1
        folder = Folder()
        self.reached[path] = folder
        marks = (os.path.join(path, mark) for mark in project_files.ENVIRONMENT_MARKERS)
        if searched and (
            path in self.index.heads or not any(map(os.path.lexists, marks))
        ):
            self._read_on(path, folder, project_files.scan_folder(path), stamp)
            return
        for entry in islice(project_files.scan_folder(path), CROWDED):
            folder.count += 1
            if entry.name.endswith(".ipynb"):
                folder.others.append(entry.path)
        self.left -= folder.count
        folder.stamp = stamp

    def _read_on(
        self,
        path: str,
        folder: Folder,
        entries: Iterator[os.DirEntry[str]],
        stamp: tuple[int, int, int] | None,
    ) -> None:
        """Read the next entries of a folder; a folder of many thousand pictures must not use up what others need."""
        turn = list(islice(entries, project_files.TURN))
        self.left -= len(turn)
        folder.count += len(turn)
        below = list[str]()
        aside = list[str]()
        former = self.index.folders.get(path)
        books = frozenset(former.books) if former else frozenset[str]()
        for entry in turn:
            name = entry.name
            if name.endswith(".ipynb"):
                self._add(folder, entry, books)
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
                is_link = not is_folder and entry.is_symlink() and entry.is_dir()
            except OSError:
                continue
            if name.startswith(".") or not (is_folder or is_link):
                continue
            if is_link or name in project_files.SKIPPED:
                aside.append(entry.path)
            else:
                below.append(entry.path)
        folder.below += below
        folder.aside += aside
        self.waiting.extend((child, True) for child in below)
        self.waiting.extend((child, False) for child in aside)
        if len(turn) == project_files.TURN:
            self.large.append((path, folder, entries, stamp))
        else:
            folder.stamp = stamp

    def _add(
        self, folder: Folder, entry: os.DirEntry[str], former: frozenset[str]
    ) -> None:
        """Put a notebook into its folder; `former` are those that were known to be covered."""
        path = entry.path
        name = path[len(self.index.project) + 1 :]
        is_covered = path in former or notebook_globs.includes(
            self.index.patterns, name
        )
        if is_covered and not entry.is_dir(follow_symlinks=False):
            folder.books.append(path)
        else:
            folder.others.append(path)
