"""Which notebooks `notebooks:` in the configuration includes: folders and globs.

All paths are relative to the project. A folder includes everything below it, `.` the
notebooks at the top of the project. In a glob, `*` matches within a name and `**` any
folders. Globs match neither hidden folders (`.venv`, `.ipynb_checkpoints`) nor
`node_modules`.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

WILDCARD = re.compile(r"[*?\[]")
# Characters with a meaning in patterns or in permission rules of Claude Code.
SPECIAL_CHARACTERS = re.compile(r"[*?\[\]{}()!\\]")
FORBIDDEN_CHARACTERS = re.compile(r"[{}()!\\]")
TOP_LEVEL = "*.ipynb"
ALL_FOLDERS = "**"
# A suggested line names at most this many folders.
MAX_SUGGESTED_FOLDERS = 4


def is_valid(pattern: object) -> bool:
    """Return whether a pattern is within the project and includes no hidden folder.

    A pattern such as `.claude` would let the agent edit the hooks without asking.
    """
    if not isinstance(pattern, str) or not pattern or not pattern.isprintable():
        return False
    if FORBIDDEN_CHARACTERS.search(pattern):
        return False
    parts = posixpath.normpath(pattern).split("/")
    is_relative = "" not in parts
    return parts == ["."] or (is_relative and all(map(_is_visible, parts)))


def _is_visible(folder: str) -> bool:
    return not folder.startswith(".") and folder != "node_modules"


def is_folder(pattern: str) -> bool:
    """Return whether a pattern is the path of a folder."""
    return not WILDCARD.search(pattern) and not pattern.endswith(".ipynb")


@lru_cache(256)
def expand(pattern: str) -> tuple[str, ...]:
    """Return a pattern as globs that match the paths of notebooks."""
    path = posixpath.normpath(pattern)
    if path == ".":
        return (TOP_LEVEL,)
    if path.endswith(".ipynb"):
        return (path,)
    last = path.rpartition("/")[2]
    if last == ALL_FOLDERS:
        return (f"{path}/*.ipynb",)
    below = f"{path}/**/*.ipynb"
    return (below, f"{path}.ipynb") if last.endswith("*") else (below,)


def includes(patterns: Iterable[str], path: str) -> bool:
    """Return whether one of the patterns includes a notebook."""
    parts = tuple(path.split("/"))
    return any(
        _matches(tuple(glob.split("/")), parts)
        for pattern in patterns
        for glob in expand(pattern)
    )


@lru_cache(4096)
def _matches(glob: tuple[str, ...], path: tuple[str, ...]) -> bool:
    if not glob or not path:
        return glob == path
    is_file = len(path) == 1
    if glob[0] == ALL_FOLDERS:
        if _matches(glob[1:], path):
            return True
        return _is_visible(path[0]) and _matches(glob, path[1:])
    is_same = glob[0] == path[0]
    is_match = fnmatchcase(path[0], glob[0]) and (is_file or _is_visible(path[0]))
    return (is_same or is_match) and _matches(glob[1:], path[1:])


def base_folder(pattern: str) -> str:
    """Return the folder that contains all notebooks of a pattern, '' for the project."""
    folders = expand(pattern)[0].split("/")[:-1]
    base = []
    for folder in folders:
        if WILDCARD.search(folder):
            break
        base.append(folder)
    return "/".join(base)


def base_folders(patterns: Iterable[str]) -> list[str]:
    """Return the folders that contain all notebooks of the patterns.

    No folder of the list is within another one.
    """
    return _remove_nested({base_folder(pattern) for pattern in patterns})


def new_notebook_folder(patterns: Sequence[str]) -> str | None:
    """Return the folder for new notebooks, None if the patterns include none.

    Folders have precedence over globs.
    """
    folders_first = sorted(patterns, key=lambda pattern: not is_folder(pattern))
    for pattern in folders_first:
        folder = base_folder(pattern)
        if includes([pattern], posixpath.join(folder, "new.ipynb")):
            return folder
    return None


def suggest_setting(patterns: Sequence[str], paths: Iterable[str]) -> str:
    """Return a `notebooks:` line that also includes the given notebooks.

    The result is '' if no pattern may include them.
    """
    folders = {posixpath.dirname(path) for path in paths if includes(["**"], path)}
    if not folders:
        return ""
    nested = _remove_nested(folders - {""})
    if len(nested) > MAX_SUGGESTED_FOLDERS:
        nested = _remove_nested({folder.partition("/")[0] for folder in nested})
    if len(nested) > MAX_SUGGESTED_FOLDERS:
        additions = [ALL_FOLDERS]
    else:
        additions = [SPECIAL_CHARACTERS.sub("?", folder) for folder in nested]
        if "" in folders:
            additions.append(TOP_LEVEL)
    setting = [*patterns, *additions]
    return f"notebooks: {json.dumps(setting, ensure_ascii=False)}"


def _remove_nested(folders: Collection[str]) -> list[str]:
    """Return the folders that are not within another one; '' contains all others."""
    if "" in folders:
        return [""]
    prefixes = tuple(folder + "/" for folder in folders)
    return sorted(folder for folder in folders if not folder.startswith(prefixes))
