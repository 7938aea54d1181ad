"""Walk a project's files within limits on time and on the number of entries."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

# Limits of one walk. Callers also use SECONDS for the work that they do on its files.
ENTRIES = 20_000
SECONDS = 0.25
TURN = 500  # entries of a folder that are read before those of the next folder
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
# A folder that contains one of these is a Python environment.
ENVIRONMENT_MARKERS = ("pyvenv.cfg", "conda-meta")


class Tree(NamedTuple):
    """The paths that were found, relative to the root of the walk."""

    files: list[str]  # everything but folders, symbolic links included
    folders: list[str]
    truncated: bool = False  # whether the walk reached one of its limits


def walk(root: str) -> Tree:
    """Return the files and folders below `root`, the nearest ones first.

    Hidden folders and Python environments are skipped.
    """
    tree = Tree([], [])
    deadline = time.monotonic() + SECONDS
    remaining_count = ENTRIES
    queue = deque([("", scan_folder(root))])
    while queue and remaining_count > 0 and time.monotonic() < deadline:
        prefix, entries = queue.popleft()
        turn_limit = min(TURN, remaining_count)
        turn_entries = list(islice(entries, turn_limit))
        remaining_count -= len(turn_entries)
        for entry in turn_entries:
            path = prefix + entry.name
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
            except OSError:
                continue
            if not is_folder:
                tree.files.append(path)
            elif is_project_folder(entry.name, entry.path):
                tree.folders.append(path)
                queue.append((path + "/", scan_folder(entry.path)))
        # A folder with thousands of images must not use up the limit of the others.
        if len(turn_entries) == turn_limit:
            queue.append((prefix, entries))
    is_truncated = bool(queue)
    return tree._replace(truncated=is_truncated)


def is_project_folder(name: str, path: str) -> bool:
    """Return whether a folder is neither hidden nor a Python environment."""
    if name.startswith(".") or name in SKIPPED:
        return False
    return not is_environment(path)


def is_environment(folder: str) -> bool:
    """Return whether a folder is a Python environment of venv or conda."""
    markers = [os.path.join(folder, name) for name in ENVIRONMENT_MARKERS]
    return any(map(os.path.lexists, markers))


def scan_folder(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder; yield nothing if it cannot be read."""
    with suppress(OSError, ValueError), os.scandir(folder) as entries:
        yield from entries


def find_notebooks(project: str, folders: Iterable[str]) -> Tree:
    """Return the notebooks in folders of a project, as paths relative to the project.

    `folders` of the result is empty.
    """
    paths = set[str]()
    is_truncated = False
    for folder in folders:
        tree = walk(os.path.join(project, folder))
        for name in tree.files:
            if name.endswith(".ipynb"):
                paths.add(os.path.join(folder, name))
        is_truncated = is_truncated or tree.truncated
    return Tree(sorted(paths), [], is_truncated)
