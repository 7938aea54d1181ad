"""The file of renamed notebooks: `.stepper/renamed.json`.

The file maps each renamed notebook to its store, and former names to current names. A
store is the name of a notebook's journal, kernel record and figures: see
`notebook_paths`. When a notebook is renamed, these files keep their names. Only
`renamed.json` is replaced, in one atomic operation.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from stepper.common import secure_files
from stepper.common.text import NAME_CONTROLS
from stepper.notebooks.file_state import FileState, get_file_state
from stepper.notebooks.notebook_json import load_json

MAX_NAME_CHARACTERS = 4096
MAX_FORMER_NAMES = 200
# An absolute path, a path that starts with `..`, or the path `.`.
OUTSIDE = re.compile(r"/|\.\.(/|$)|\.$")


class RenamesFile:
    """The renamed notebooks of a project, with names relative to the project.

    The file is read again after each change, because other processes may write it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        # Whether the file has been read, and its state before it was read last (None if
        # it did not exist).
        self._is_read = False
        self._file_state: FileState | None = None
        self._stores: dict[str, str] = {}  # by notebook
        self._notebooks: dict[str, str] = {}  # by store
        self._new_names: dict[str, str] = {}  # by former name

    def get_stores(self) -> Mapping[str, str]:
        """Return the store of each renamed notebook."""
        self._refresh()
        return self._stores

    def get_notebook(self, store: str) -> str | None:
        """Return the renamed notebook with the given store, or None."""
        self._refresh()
        return self._notebooks.get(store)

    def get_new_name(self, notebook: str) -> str | None:
        """Return the current name of a notebook, or None if it was not renamed."""
        self._refresh()
        return self._new_names.get(notebook)

    def replace(self, stores: Mapping[str, str], renamed: Mapping[str, str]) -> None:
        """Write the file with these stores, and with additional renamed notebooks.

        `stores` maps notebooks to stores, and `renamed` maps former names to new names.
        Raise OSError if the file can't be written.
        """
        self._refresh()
        new_names = self._merge_new_names(renamed)
        newest = list(new_names.items())[-MAX_FORMER_NAMES:]
        data = {"stores": dict(stores), "renamed": dict(newest)}
        text = json.dumps(data, indent=1) + "\n"
        secure_files.replace(self.path, text.encode())
        self._is_read = False

    def _merge_new_names(self, renamed: Mapping[str, str]) -> dict[str, str]:
        """Return the new names of all renamed notebooks, by former name.

        The notebooks in `renamed` come last. If one of them was renamed before, all its
        former names get the newest name.
        """
        new_names = {}
        for former_name, name in self._new_names.items():
            if former_name not in renamed:
                new_names[former_name] = renamed.get(name, name)
        new_names.update(renamed)
        return new_names

    def _refresh(self) -> None:
        """Read the file if it has changed."""
        # Determined before the file is read, so the next call notices a later change.
        file_state = self._get_file_state()
        if self._is_read and file_state == self._file_state:
            return
        data = self._read() if file_state is not None else {}
        valid_stores = _select_valid(data.get("stores"))
        notebooks = _map_stores_to_notebooks(valid_stores)
        stores = {notebook: store for store, notebook in notebooks.items()}
        self._stores = stores
        self._notebooks = notebooks
        self._new_names = _select_valid(data.get("renamed"))
        # Last, because another thread may call this method at the same time.
        self._file_state = file_state
        self._is_read = True

    def _get_file_state(self) -> FileState | None:
        """Return the state of the file, or None if it does not exist."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return None
        return get_file_state(status)

    def _read(self) -> dict[str, Any]:
        """Return the object in the file, or an empty object if it is not valid."""
        try:
            data = load_json(secure_files.read(self.path))
        except (OSError, ValueError):
            return {}
        if not isinstance(data, dict):
            return {}
        return data


def _select_valid(names: object) -> dict[str, str]:
    """Return the valid entries of a mapping from notebooks to names or stores.

    Another person may have written the file, so absolute paths and paths that start
    with `..` are invalid.
    """
    if not isinstance(names, dict):
        return {}
    valid = {}
    for notebook, name in names.items():
        is_notebook = _is_name(notebook) and notebook.endswith(".ipynb")
        if is_notebook and _is_name(name):
            valid[notebook] = name
    return valid


def _map_stores_to_notebooks(stores: Mapping[str, str]) -> dict[str, str]:
    """Return a mapping from each store to its first notebook."""
    notebooks: dict[str, str] = {}
    for notebook, store in stores.items():
        notebooks.setdefault(store, notebook)
    return notebooks


def _is_name(name: object) -> bool:
    """Return whether a value is a normalized relative path without a leading `..`.

    Names that are too long or contain control characters are rejected.
    """
    if not isinstance(name, str):
        return False
    if not 0 < len(name) < MAX_NAME_CHARACTERS:
        return False
    if os.path.normpath(name) != name:
        return False
    if NAME_CONTROLS.search(name):
        return False
    return not OUTSIDE.match(name)
