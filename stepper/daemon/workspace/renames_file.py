"""The stores of renamed notebooks: `.stepper/renamed.json`.

A store is the name of a notebook's journal, kernel record and figures. That of a
notebook which was never renamed is the notebook's own name
(`notebook_paths.NotebookPaths`). A rename only replaces this file, atomically.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from stepper.common import secure_files
from stepper.common.text import NAME_CONTROLS

NAME_LIMIT = 4096  # characters
MAX_FORMER_NAMES = 200  # that lead to the present name
OUTSIDE = re.compile(r"/|\.\.(/|$)|\.$")


class StoreNames:
    """Which store belongs to which notebook, by their paths relative to the project."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._version: tuple[int, ...] | None = None  # of the file
        self._names: dict[str, str] = {}
        self._notebooks: dict[str, str] = {}
        self._renamed: dict[str, str] = {}

    def names(self) -> Mapping[str, str]:
        """Return the store of each renamed notebook."""
        self._refresh()
        return self._names

    def notebook(self, store: str) -> str | None:
        """Return the renamed notebook that has a store, or None."""
        self._refresh()
        return self._notebooks.get(store)

    def renamed_to(self, notebook: str) -> str | None:
        """Return the present name of a renamed notebook, None if it was not renamed."""
        self._refresh()
        return self._renamed.get(notebook)

    def replace(self, names: Mapping[str, str], renamed: Mapping[str, str]) -> None:
        """Replace the stores, and add renamed notebooks; raise OSError.

        `names` maps notebooks to stores, `renamed` former names to new ones.
        """
        self._refresh()
        present_names = {}
        for former_name, name in self._renamed.items():
            if former_name not in renamed:
                present_names[former_name] = renamed.get(name, name)
        present_names.update(renamed)
        newest = list(present_names.items())[-MAX_FORMER_NAMES:]
        data = {"stores": dict(names), "renamed": dict(newest)}
        text = json.dumps(data, indent=1) + "\n"
        secure_files.replace(self.path, text.encode("utf-8", "surrogateescape"))
        self._version = None

    def _refresh(self) -> None:
        version = self._get_version()
        if version == self._version:
            return
        data = self._read() if version else {}
        names = _remove_duplicates(_select_valid(data.get("stores")))
        self._version = version
        self._names = names
        self._renamed = _select_valid(data.get("renamed"))
        self._notebooks = {store: notebook for notebook, store in names.items()}

    def _get_version(self) -> tuple[int, ...]:
        try:
            status = os.lstat(self.path)
        except OSError:
            return ()
        return (status.st_ino, status.st_size, status.st_mtime_ns)

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(secure_files.read(self.path))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}


def _select_valid(names: object) -> dict[str, str]:
    """Return the valid entries: notebook → store or name.

    Another person may have written the file: no path may leave its folder.
    """
    if not isinstance(names, dict):
        return {}
    valid = {}
    for notebook, name in names.items():
        is_notebook = _is_name(notebook) and notebook.endswith(".ipynb")
        if is_notebook and _is_name(name):
            valid[notebook] = name
    return valid


def _remove_duplicates(names: Mapping[str, str]) -> dict[str, str]:
    """Return the first notebook of each store."""
    notebooks: dict[str, str] = {}
    for notebook, store in names.items():
        notebooks.setdefault(store, notebook)
    return {notebook: store for store, notebook in notebooks.items()}


def _is_name(name: object) -> bool:
    """Return whether a value is a plain relative path that does not leave its folder."""
    if not isinstance(name, str) or not 0 < len(name) < NAME_LIMIT:
        return False
    if os.path.normpath(name) != name or NAME_CONTROLS.search(name):
        return False
    return not OUTSIDE.match(name)
