"""The last steps of an atomic write: exchange two files, and remove the old one.

An exchange is a single system call, so a change that another program made between the
check and the write is found in the old file and can be restored.
"""

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

RENAME_EXCHANGE = 2  # a flag of renameat2(2)
TEMPORARY = re.compile(r"(?:.*/)?\.[^/]*\.[0-9a-f]{8}\.tmp")
# The system call exists on Linux only.
LIBC = ctypes.CDLL(None, use_errno=True)
RENAMEAT2: Any = getattr(LIBC, "renameat2", None)


def make_temporary_name(name: str) -> str:
    """Return the name under which a file is written before it replaces the old one.

    The name matches `TEMPORARY` and never varies, so that the next write removes the
    temporary file of a daemon that was killed.
    """
    checksum = zlib.crc32(os.fsencode(name))
    return f".{name[:40]}.{checksum:08x}.tmp"


def stat_file(name: str, folder: int) -> os.stat_result:
    """Return the status of a file, or of a link, in an open folder; raise OSError."""
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def remove_file(name: str, folder: int) -> None:
    """Remove a file in an open folder if it exists; raise OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def remove_file_later(name: str, folder: int) -> Future[None]:
    """Remove a file in the background, because removing may take milliseconds.

    Wait for the future before creating a file of the same name.
    """
    return run_later(lambda handle: remove_file(name, handle), folder)


def exchange_files(
    first: str,
    second: str,
    folder: int,
) -> bool:
    """Exchange two files of an open folder atomically.

    Returns False if the system or the file system does not support it. Raises
    FileNotFoundError if one of the files does not exist.
    """
    if RENAMEAT2 is None:
        return False
    old_name = os.fsencode(first)
    new_name = os.fsencode(second)
    result = RENAMEAT2(folder, old_name, folder, new_name, RENAME_EXCHANGE)
    if result == 0:
        return True
    if ctypes.get_errno() == errno.ENOENT:
        reason = os.strerror(errno.ENOENT)
        raise FileNotFoundError(errno.ENOENT, reason, second)
    return False
