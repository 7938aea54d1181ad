"""Notebooks that stepper has not put back in their places.

While Claude Code reads a large notebook, a copy without outputs takes its place
(notebooks/slim_copies), and the notebook is in `.stepper/reads`. It stays there if
stepper is killed, until the next daemon starts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stepper.common import secure_files
from stepper.common.paths import Paths


def list_notebooks(paths: Paths, min_age: float = 0) -> list[str]:
    """Return the notebooks in `.stepper/reads`, relative to the project.

    A notebook is left out if a copy took its place less than `min_age` seconds ago. For
    a notebook without a valid record, the path of the file in `.stepper/reads` is
    returned.
    """
    names = []
    max_ctime = time.time() - min_age
    files: Sequence[secure_files.NamedStatus] = ()
    with suppress(OSError):
        files = secure_files.list_files(paths.reads)
    for file_name, status in files:
        file = Path(paths.reads, file_name)
        if file.suffix == ".ipynb" and status.st_ctime <= max_ctime:
            name = _read_name(file.with_suffix(".json"))
            names.append(name or os.path.relpath(file, paths.project))
    return sorted(names)


def _read_name(record: Path) -> str:
    """Return the notebook that a record names, or an empty string."""
    with suppress(OSError, ValueError):
        data = json.loads(secure_files.read(str(record)))
        if isinstance(data, dict) and isinstance(data.get("notebook"), str):
            return str(data["notebook"])
    return ""
