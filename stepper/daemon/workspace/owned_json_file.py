"""A JSON file that only this daemon writes."""

from __future__ import annotations

import json
from typing import Any

from stepper.common import secure_files
from stepper.notebooks.notebook_json import load_json


class DaemonJsonFile:
    """A JSON object in a file, which is read only once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._data: dict[str, Any] | None = None

    def read(self) -> dict[str, Any]:
        """Return the object in the file.

        The object is empty if the file is missing, can't be read or is not valid.
        """
        if self._data is not None:
            return self._data
        try:
            data = load_json(secure_files.read(self.path))
        except (FileNotFoundError, ValueError):
            data = {}
        except OSError:
            return {}  # not cached: the next call may succeed
        self._data = data if isinstance(data, dict) else {}
        return self._data

    def write(self, data: dict[str, Any]) -> None:
        """Replace the object in the file; raise OSError if it can't be written."""
        text = json.dumps(data)
        secure_files.replace(self.path, text.encode())
        self._data = data

    def remove(self) -> None:
        """Remove the file."""
        secure_files.remove(self.path)
        self._data = {}
