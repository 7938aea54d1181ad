"""The state of a file on disk, which shows whether another program has changed it."""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple


class FileState(NamedTuple):
    """The inode number, size and modification time of a file.

    A rename does not change them.
    """

    inode: int
    size: int
    mtime_ns: int


class FileSignature(NamedTuple):
    """The state of a file and its change time.

    Different states of a file have different signatures, even if a program restored the
    modification time. A rename changes only the change time.
    """

    state: FileState
    ctime_ns: int


def get_file_state(status: os.stat_result) -> FileState:
    """Return the state of a file with this status."""
    return FileState(status.st_ino, status.st_size, status.st_mtime_ns)


def get_file_signature(status: os.stat_result) -> FileSignature:
    """Return the signature of a file with this status."""
    return FileSignature(get_file_state(status), status.st_ctime_ns)


def read_file_state(path: str) -> FileState | None:
    """Return the state of a file, or None if the file can't be accessed."""
    with contextlib.suppress(OSError):
        return get_file_state(os.stat(path))
    return None


def read_file_signature(path: str) -> FileSignature | None:
    """Return the signature of a file, or None if the file can't be accessed."""
    with contextlib.suppress(OSError):
        return get_file_signature(os.stat(path))
    return None
