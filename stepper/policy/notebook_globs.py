"""Which notebooks are stepper's: the folders and globs of `notebooks:`, against names as written from the project.

A folder covers all below it, `.` the notebooks at the top; in a glob `*` stays within a name and `**` goes through
folders. No glob goes into a hidden folder (`.venv`, `.ipynb_checkpoints`) or `node_modules`.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

GLOB = re.compile(r"[*?\[]")
MOST_NAMED = 4  # folders in a line that is proposed


def fits(pattern: object) -> bool:
    """Whether it speaks of a part of the project that may hold notebooks: `.claude` would allow edits of the hooks."""
    if (
        not isinstance(pattern, str)
        or not pattern.isprintable()
        or re.search(r"[{}()!\\]", pattern)
    ):
        return False
    parts = posixpath.normpath(pattern).split("/")
    return bool(pattern) and (
        parts == ["."] or ("" not in parts and all(map(_open, parts)))
    )


def _open(folder: str) -> bool:
    return not folder.startswith(".") and folder != "node_modules"


def is_folder(pattern: str) -> bool:
    """Whether a pattern names one folder."""
    return not GLOB.search(pattern) and not pattern.endswith(".ipynb")


@lru_cache(256)
def globs(pattern: str) -> tuple[str, ...]:
    """Return a pattern as globs of notebooks."""
    told = posixpath.normpath(pattern)
    if told == "." or told.endswith(".ipynb"):
        return (told if told != "." else "*.ipynb",)
    last = told.rpartition("/")[2]
    if last == "**":
        return (f"{told}/*.ipynb",)
    return (f"{told}/**/*.ipynb", *([f"{told}.ipynb"] if last.endswith("*") else []))


def covers(patterns: Iterable[str], name: str) -> bool:
    """Whether a pattern covers the notebook of that name."""
    parts = tuple(name.split("/"))
    return any(
        _matches(tuple(glob.split("/")), parts)
        for pattern in patterns
        for glob in globs(pattern)
    )


@lru_cache(4096)
def _matches(glob: tuple[str, ...], name: tuple[str, ...]) -> bool:
    if not glob or not name:
        return glob == name
    if glob[0] == "**":
        return _matches(glob[1:], name) or (_open(name[0]) and _matches(glob, name[1:]))
    same = glob[0] == name[0] or (
        fnmatchcase(name[0], glob[0]) and (len(name) == 1 or _open(name[0]))
    )
    return same and _matches(glob[1:], name[1:])


def head(pattern: str) -> str:
    """Return the folder below which all lies that a pattern covers, '' for the project's own."""
    parts = globs(pattern)[0].split("/")[:-1]
    return "/".join(
        parts[
            : next((n for n, part in enumerate(parts) if GLOB.search(part)), len(parts))
        ]
    )


def heads(patterns: Iterable[str]) -> list[str]:
    """Return the folders to be walked for all that the patterns cover, none of them within another."""
    return _outermost({head(pattern) for pattern in patterns})


def home(patterns: Sequence[str]) -> str | None:
    """Return the folder in which a new notebook is covered: the first that is named, else that of the first glob."""
    for pattern in sorted(patterns, key=lambda told: not is_folder(told)):
        if covers([pattern], posixpath.join(head(pattern), "new.ipynb")):
            return head(pattern)
    return None


def line(patterns: Sequence[str], names: Iterable[str]) -> str:
    """Return the line of the configuration that covers these notebooks too; '' where none can."""
    folders = {posixpath.dirname(name) for name in names if covers(["**"], name)}
    below = _outermost(folders - {""})
    if len(below) > MOST_NAMED:
        below = _outermost({folder.partition("/")[0] for folder in below})
    more = (
        [re.sub(r"[*?\[\]{}()!\\]", "?", folder) for folder in below]
        if len(below) <= MOST_NAMED
        else ["**"]
    )
    told = [
        *patterns,
        *more,
        *(["*.ipynb"] if "" in folders and more != ["**"] else []),
    ]
    return f"notebooks: {json.dumps(told, ensure_ascii=False)}" if folders else ""


def _outermost(folders: Collection[str]) -> list[str]:
    """Return the folders that lie in no other of them; '' holds all."""
    above = tuple(folder + "/" for folder in folders if folder)
    return (
        [""]
        if "" in folders
        else sorted(folder for folder in folders if not folder.startswith(above))
    )
