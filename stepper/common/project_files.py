"""A project's tree of files, walked within bounds."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

# of one walk; the seconds also bound what is asked of all its files
ENTRIES, SECONDS = 20_000, 0.25
TURN = 500  # entries of a folder that are read before the next folder's turn
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
# what tells an environment from a folder of the project
ENVIRONMENT = ("pyvenv.cfg", "conda-meta")


class Tree(NamedTuple):
    """A walk's finds, as written from the project's root."""

    files: list[str]  # whatever is not a folder, symbolic links too
    folders: list[str]
    truncated: bool = False  # there is more than was looked at


def walk(root: str) -> Tree:
    """Return a tree's files and folders, what lies near its root first; hidden folders and environments left out."""
    tree = Tree([], [])
    until, left = time.monotonic() + SECONDS, ENTRIES
    waiting = deque([("", scan_folder(root))])
    while waiting and left > 0 and time.monotonic() < until:
        prefix, rest = waiting.popleft()
        most = min(TURN, left)
        turn = list(islice(rest, most))
        left -= len(turn)
        for entry in turn:
            path = prefix + entry.name
            try:
                folder = entry.is_dir(follow_symlinks=False)
            except OSError:
                continue
            if not folder:
                tree.files.append(path)
            elif not (
                entry.name.startswith(".")
                or entry.name in SKIPPED
                or any(
                    os.path.lexists(os.path.join(entry.path, mark))
                    for mark in ENVIRONMENT
                )
            ):
                tree.folders.append(path)
                waiting.append((path + "/", scan_folder(entry.path)))
        # a folder of many thousand pictures must not use up what the others need
        if len(turn) == most:
            waiting.append((prefix, rest))
    return tree._replace(truncated=bool(waiting))


def scan_folder(folder: str) -> Iterator[os.DirEntry[str]]:
    """Give a folder's entries; none where it can't be read."""
    with suppress(OSError, ValueError), os.scandir(folder) as found:
        yield from found


def find_notebooks(project: str, folders: Iterable[str]) -> Tree:
    """Return the notebooks in folders of a project, as written from it."""
    found, cut = set[str](), False
    for folder in folders:
        tree = walk(os.path.join(project, folder))
        found.update(
            os.path.join(folder, name) for name in tree.files if name.endswith(".ipynb")
        )
        cut = cut or tree.truncated
    return Tree(sorted(found), [], cut)
