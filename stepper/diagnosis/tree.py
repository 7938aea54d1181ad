"""A project's tree of files, walked within bounds; how alike names are and how far apart folders lie."""

from __future__ import annotations

import os
import time
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from typing import NamedTuple

LONGEST = 4096  # characters of a path that the system takes
ENTRIES, SECONDS = 20_000, 0.25  # of one walk; the seconds also bound what is asked of all its files
TURN = 500  # entries of a folder that are read before the next folder's turn
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
ENVIRONMENT = ("pyvenv.cfg", "conda-meta")  # what tells an environment from a folder of the project
ALIKE = 0.6  # difflib's ratio
SAME_NAME, OTHER_CASE, OTHER_EXTENSION = 4.0, 3.0, 2.0


class Tree(NamedTuple):
    """A walk's finds, as written from the project's root."""

    files: list[str]  # whatever is not a folder, symbolic links too
    folders: list[str]
    cut: bool = False  # there is more than was looked at


def walk(root: str) -> Tree:
    """Return a tree's files and folders, what lies near its root first; hidden folders and environments left out."""
    tree = Tree([], [])
    until, left = time.monotonic() + SECONDS, ENTRIES
    waiting = deque([("", entries(root))])
    while waiting and left > 0 and time.monotonic() < until:
        prefix, rest = waiting.popleft()
        turn = list(islice(rest, min(TURN, left)))
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
                or any(os.path.lexists(os.path.join(entry.path, mark)) for mark in ENVIRONMENT)
            ):
                tree.folders.append(path)
                waiting.append((path + "/", entries(entry.path)))
        if len(turn) == TURN:  # a folder of many thousand pictures must not use up what the others need
            waiting.append((prefix, rest))
    return tree._replace(cut=bool(waiting))


def entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Give a folder's entries; none where it can't be read."""
    with suppress(OSError, ValueError), os.scandir(folder) as found:
        yield from found


def likeness(asked: str, names: Iterable[str]) -> dict[str, float]:
    """Return how alike names are, for those that are: the same, in another case, with another extension, or close."""
    wanted = _folded(asked)
    stem, found, others = _stem(wanted), dict[str, float](), []
    for name in names:
        folded = _folded(name)
        if name == asked:
            found[name] = SAME_NAME
        elif folded == wanted:
            found[name] = OTHER_CASE
        elif _stem(folded) == stem or folded.startswith(wanted + ".") or wanted.startswith(folded + "."):
            found[name] = OTHER_EXTENSION
        else:
            others.append((_stem(folded), name))  # without the extension, which alone is no likeness
    matcher, until = SequenceMatcher(b=stem, autojunk=False), time.monotonic() + SECONDS
    for other, name in others:
        matcher.set_seq1(other)
        if matcher.real_quick_ratio() >= ALIKE and matcher.quick_ratio() >= ALIKE and matcher.ratio() >= ALIKE:
            found[name] = matcher.ratio()
        if time.monotonic() > until:
            break
    return found


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


def _folded(name: str) -> str:
    """Return a name without its case, and without the two ways in which systems write an accent."""
    return name.lower() if name.isascii() else unicodedata.normalize("NFKC", name).casefold()


def distance(one: str, other: str) -> int:
    """Return how many steps lie between two folders; what both end with was only moved, and is no step."""
    a, b = list(Path(one).parts), list(Path(other).parts)
    while a and b and a[-1] == b[-1]:
        a.pop()
        b.pop()
    shared = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return len(a) + len(b) - 2 * shared
