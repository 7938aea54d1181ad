"""Folders and globs of the setting `notebooks:`, which selects notebooks.

All paths are relative to the project. A folder includes all notebooks below it, but `.`
includes only the notebooks at the top of the project. In a glob, `*` matches within a
name, and `**` matches any number of folders. Globs match neither hidden folders
(`.venv`, `.ipynb_checkpoints`) nor `node_modules`.
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
NOTEBOOK_SUFFIX = ".ipynb"
# The parts of a path or glob.
Parts = tuple[str, ...]
# A suggested line names at most this many folders.
MAX_SUGGESTED_FOLDERS = 4


def is_valid(pattern: object) -> bool:
    """Return whether a value is a valid pattern.

    The pattern must be within the project and contain no hidden folder: `.claude` would
    let the agent edit the hooks without asking.
    """
    if not isinstance(pattern, str):
        return False
    if not pattern or not pattern.isprintable():
        return False
    if FORBIDDEN_CHARACTERS.search(pattern):
        return False
    path = posixpath.normpath(pattern)
    if path == ".":
        return True
    folders = path.split("/")
    is_absolute = "" in folders
    return not is_absolute and all(map(_is_visible, folders))


def _is_visible(folder: str) -> bool:
    """Return whether wildcards match a folder.

    They match all folders except hidden folders and `node_modules`.
    """
    is_hidden = folder.startswith(".")
    return not is_hidden and folder != "node_modules"


def is_folder(pattern: str) -> bool:
    """Return whether a pattern is the path of a folder."""
    if WILDCARD.search(pattern):
        return False
    return not pattern.endswith(NOTEBOOK_SUFFIX)


@lru_cache(256)
def expand(pattern: str) -> tuple[str, ...]:
    """Return globs that match the paths of the notebooks that a pattern includes.

    The first glob also determines the base folder of the pattern.
    """
    path = posixpath.normpath(pattern)
    if path == ".":
        return (TOP_LEVEL,)
    if path.endswith(NOTEBOOK_SUFFIX):
        return (path,)
    name = posixpath.basename(path)
    if name == ALL_FOLDERS:
        return (f"{path}/*.ipynb",)
    below = f"{path}/**/*.ipynb"
    if not name.endswith("*"):
        return (below,)
    matching_file = f"{path}.ipynb"
    return below, matching_file


def includes(patterns: Iterable[str], path: str) -> bool:
    """Return whether one of the patterns includes a notebook."""
    parts = tuple(path.split("/"))
    return any(
        _matches(tuple(glob.split("/")), parts)
        for pattern in patterns
        for glob in expand(pattern)
    )


@lru_cache(4096)
def _matches(glob: Parts, path: Parts) -> bool:
    """Return whether a glob matches a whole path."""
    if not glob or not path:
        return glob == path
    pattern = glob[0]
    name = path[0]
    rest = path[1:]
    if pattern == ALL_FOLDERS:
        if _matches(glob[1:], path):
            return True
        return _is_visible(name) and _matches(glob, rest)
    if not _matches_name(pattern, name, is_file=not rest):
        return False
    return _matches(glob[1:], rest)


def _matches_name(pattern: str, name: str, *, is_file: bool) -> bool:
    """Return whether a part of a glob matches the name of a file or folder.

    A hidden folder must have exactly the name in the glob.
    """
    if pattern == name:
        return True
    if not is_file and not _is_visible(name):
        return False
    return fnmatchcase(name, pattern)


def get_base_folder(pattern: str) -> str:
    """Return the innermost folder that contains all notebooks of a pattern.

    An empty string means the project's folder.
    """
    glob = expand(pattern)[0]
    folders = glob.rpartition("/")[0]
    base = []
    for folder in folders.split("/"):
        if WILDCARD.search(folder):
            break
        base.append(folder)
    return "/".join(base)


def list_base_folders(patterns: Iterable[str]) -> list[str]:
    """Return the folders that contain all notebooks of the patterns.

    Folders within another folder of the list are omitted.
    """
    folders = {get_base_folder(pattern) for pattern in patterns}
    return _remove_nested(folders)


def choose_new_notebook_folder(patterns: Sequence[str]) -> str | None:
    """Return the folder for new notebooks.

    This is the base folder of the first pattern that would include a new notebook
    there. Folders are tried before globs. Return None if there is no such pattern.
    """
    folders = [pattern for pattern in patterns if is_folder(pattern)]
    globs = [pattern for pattern in patterns if not is_folder(pattern)]
    for pattern in (*folders, *globs):
        folder = get_base_folder(pattern)
        path = posixpath.join(folder, "new.ipynb")
        if includes([pattern], path):
            return folder
    return None


def suggest_setting(patterns: Sequence[str], paths: Iterable[str]) -> str:
    """Return a `notebooks:` line that also includes the notebooks at `paths`.

    Notebooks in folders that no pattern can include are ignored. Return an empty string
    if no other notebook remains.
    """
    all_patterns = suggest_patterns(patterns, paths)
    if not all_patterns:
        return ""
    value = json.dumps(all_patterns, ensure_ascii=False)
    return f"notebooks: {value}"


def suggest_patterns(patterns: Sequence[str], paths: Iterable[str]) -> list[str]:
    """Return `patterns`, and further patterns that include the notebooks at `paths`.

    Notebooks in folders that no pattern can include are ignored. Return an empty list
    if no other notebook remains.
    """
    folders = set[str]()
    for path in paths:
        if includes([ALL_FOLDERS], path):
            folders.add(posixpath.dirname(path))
    if not folders:
        return []
    return [*patterns, *_suggest_folder_patterns(folders)]


def _suggest_folder_patterns(folders: set[str]) -> list[str]:
    """Return patterns that include the notebooks in these folders.

    More than MAX_SUGGESTED_FOLDERS folders are combined: into the folders at the top of
    the project, or else into one pattern for all folders. An empty string means the
    project's folder.
    """
    outermost_folders = _remove_nested(folders - {""})
    if len(outermost_folders) > MAX_SUGGESTED_FOLDERS:
        top_folders = {folder.partition("/")[0] for folder in outermost_folders}
        outermost_folders = sorted(top_folders)
    if len(outermost_folders) > MAX_SUGGESTED_FOLDERS:
        return [ALL_FOLDERS]
    patterns = []
    for folder in outermost_folders:
        patterns.append(SPECIAL_CHARACTERS.sub("?", folder))
    if "" in folders:
        patterns.append(TOP_LEVEL)
    return patterns


def _remove_nested(folders: Collection[str]) -> list[str]:
    """Return the folders that are not within another of them.

    An empty string means the project's folder, which contains all others.
    """
    if "" in folders:
        return [""]
    prefixes = tuple(folder + "/" for folder in folders)
    outermost_folders = []
    for folder in folders:
        if not folder.startswith(prefixes):
            outermost_folders.append(folder)
    return sorted(outermost_folders)
