"""Where the project's own source files define a name at their top level, and which folder of a path is missing."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence

FILES, BYTES, SECONDS, FOUND = 500, 400_000, 0.2, 3
PATH = 4096  # characters that the system takes


def defining(root: str, files: Iterable[str], names: Sequence[str]) -> list[tuple[str, int, str]]:
    """Return which of a project's Python files define one of the names: path from the root, line, name."""
    wanted = [name for name in names if name.isidentifier()]
    if not wanted:
        return []
    one = "|".join(wanted)
    line = re.compile(rf"^(?:(?:async +)?def|class) +({one})\b|^({one}) *(?::[^=\n]+)?=[^=]", re.MULTILINE)
    found: list[tuple[str, int, str]] = []
    until = time.monotonic() + SECONDS
    sources = sorted((path for path in files if path.endswith(".py")), key=lambda path: (path.count("/"), path))
    for path in sources[:FILES]:
        if time.monotonic() > until or len(found) >= FOUND:
            break
        text = _read(os.path.join(root, path))
        match = line.search(text)
        if match:
            found.append((path, text.count("\n", 0, match.start()) + 1, match[1] or match[2]))
    return found


def missing_folder(asked: str, cwd: str) -> tuple[str, str]:
    """Return the topmost folder of a path that does not exist, and the one above it that does; '' for none."""
    if not asked or len(asked) > PATH or "\0" in asked:
        return "", ""
    folder = os.path.dirname(asked.rstrip("/"))
    if not folder or os.path.isdir(os.path.join(cwd, folder)):
        return "", ""
    while not os.path.lexists(os.path.join(cwd, folder)):
        above = os.path.dirname(folder)
        if not above or above == folder:
            return folder, ""
        if os.path.isdir(os.path.join(cwd, above)):
            return folder, above
        folder = above
    return "", ""  # what stands there is no folder


def _read(path: str) -> str:
    try:
        if not os.path.isfile(path) or os.path.islink(path):
            return ""
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(BYTES)
    except OSError:
        return ""
