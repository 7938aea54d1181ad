"""The names under which journal, kernel record and figures of renamed notebooks lie: `.stepper/renamed.json`.

A notebook that was never renamed is not in the file: its store has the notebook's own name
(`notebook_paths.NotebookPaths`). The file is replaced atomically. That is the whole of a rename.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from stepper.common import private_files
from stepper.common.text import NAME_CONTROLS

LONGEST = 4096  # characters of a name
FORMER_MOST = 200  # former names of which it is known what became of the notebook


class StoreNames:
    """Which store belongs to which notebook, by their paths relative to the project."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._about: tuple[int, ...] | None = None
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
        """Return what the notebook that had a name before is called now, or None."""
        self._refresh()
        return self._renamed.get(notebook)

    def replace(self, names: Mapping[str, str], renamed: Mapping[str, str]) -> None:
        """Replace the stores' names, and add former names with the new ones; raise OSError."""
        self._refresh()
        former = {
            old: renamed.get(new, new)
            for old, new in self._renamed.items()
            if old not in renamed
        }
        former.update(renamed)
        kept = {old: former[old] for old in [*former][-FORMER_MOST:]}
        text = json.dumps({"stores": dict(names), "renamed": kept}, indent=1)
        private_files.replace(self.path, f"{text}\n".encode("utf-8", "surrogateescape"))
        self._about = None

    def _refresh(self) -> None:
        about = self._stat()
        if about == self._about:
            return
        data = self._read() if about else {}
        names = _one_to_one(_valid(data.get("stores")))
        self._about = about
        self._names = names
        self._renamed = _valid(data.get("renamed"))
        self._notebooks = {store: notebook for notebook, store in names.items()}

    def _stat(self) -> tuple[int, ...]:
        try:
            about = os.lstat(self.path)
        except OSError:
            return ()
        return (about.st_ino, about.st_size, about.st_mtime_ns)

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(private_files.read(self.path))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}


def _valid(names: object) -> dict[str, str]:
    """Return the valid names of notebooks with what they name. It may be a stranger's: no path leaves its folder."""
    if not isinstance(names, dict):
        return {}
    return {
        notebook: name
        for notebook, name in names.items()
        if _is_name(notebook) and _is_name(name) and notebook.endswith(".ipynb")
    }


def _one_to_one(names: Mapping[str, str]) -> dict[str, str]:
    """Return the names without further ones for the same store."""
    notebooks = dict[str, str]()
    for notebook, store in names.items():
        notebooks.setdefault(store, notebook)
    return {notebook: store for store, notebook in notebooks.items()}


def _is_name(name: object) -> bool:
    """Return whether a value is a plain relative path that does not leave its folder."""
    if not isinstance(name, str) or not 0 < len(name) < LONGEST:
        return False
    is_plain = os.path.normpath(name) == name and not NAME_CONTROLS.search(name)
    return is_plain and not re.match(r"/|\.\.(/|$)|\.$", name)
