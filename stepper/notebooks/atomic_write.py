"""Two files of a folder exchanged in one go, and what was replaced taken away: the last steps of an atomic write."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import zlib
from concurrent.futures import Future
from typing import Any

from stepper.notebooks.background_io import run_later

RENAME_EXCHANGE = 2  # renameat2(2)
TEMPORARY = re.compile(r"(?:.*/)?\.[^/]*\.[0-9a-f]{8}\.tmp")
# Linux alone has it
RENAMEAT2: Any = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def make_temporary_name(name: str) -> str:
    """Return the name, one of TEMPORARY, under which a file is written before it takes its place.

    Always the same: what a daemon that was killed left behind goes with the next write.
    """
    return f".{name[:40]}.{zlib.crc32(os.fsencode(name)):08x}.tmp"


def stat_file(name: str, folder: int) -> os.stat_result:
    """Return what is known of a file, or of a link in its place; raise OSError."""
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def remove_file(name: str, folder: int) -> None:
    """Remove a file, if it is there; raise OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def remove_file_later(name: str, folder: int) -> Future[None]:
    """Remove a file soon: it may take milliseconds. Whoever makes another one of that name waits for the end of it."""
    return run_later(lambda own: remove_file(name, own), folder)


def exchange_files(one: str, other: str, folder: int) -> bool:
    """Exchange two files of a folder in one go; return False where the system can't. Raise OSError if one is gone."""
    if RENAMEAT2 is None:
        return False
    if (
        RENAMEAT2(folder, os.fsencode(one), folder, os.fsencode(other), RENAME_EXCHANGE)
        == 0
    ):
        return True
    if ctypes.get_errno() == errno.ENOENT:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), other)
    return False
