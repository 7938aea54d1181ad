"""The last steps of an atomic write: exchange two files, and remove the old file.

An exchange is a single system call. If another program changed the file just before the
exchange, the old file contains the change and can be restored.
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
NAME_CHARACTERS = 40  # of the file's name in the name of its temporary file
TEMPORARY = re.compile(r"(?:.*/)?\.[^/]*\.[0-9a-f]{8}\.tmp")
# The system call exists on Linux only.
LIBC = ctypes.CDLL(None, use_errno=True)
RENAMEAT2: Any = getattr(LIBC, "renameat2", None)


def make_temporary_name(name: str) -> str:
    """Return the name of the temporary file for writing a file.

    The name matches `TEMPORARY`. The same file always gets the same name, so that the
    next write removes the temporary file of a daemon that was killed.
    """
    checksum = zlib.crc32(os.fsencode(name))
    return f".{name[:NAME_CHARACTERS]}.{checksum:08x}.tmp"


def stat_file(name: str, folder: int) -> os.stat_result:
    """Return the status of a file in an open folder, without following links.

    Raise OSError if the file does not exist.
    """
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def remove_file(name: str, folder: int) -> None:
    """Remove a file in an open folder if the file exists.

    Raise OSError if it cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def remove_file_later(name: str, folder: int) -> Future[None]:
    """Remove a file in the background, because this may take milliseconds.

    Wait for the returned future before you create a file with the same name.
    """
    return run_later(lambda handle: remove_file(name, handle), folder)


def exchange_files(
    first: str,
    second: str,
    folder: int,
) -> bool:
    """Exchange two files in an open folder atomically.

    Return whether the files were exchanged. The operating system or the file system may
    not support exchanges. Raise FileNotFoundError if one of the files does not exist.
    """
    return exchange_between(folder, first, folder, second)


def exchange_between(
    first_folder: int,
    first: str,
    second_folder: int,
    second: str,
) -> bool:
    """Exchange two files in open folders atomically, like `exchange_files`.

    Return False also if the folders are on different file systems.
    """
    if RENAMEAT2 is None:
        return False
    first_name = os.fsencode(first)
    second_name = os.fsencode(second)
    result = RENAMEAT2(
        first_folder, first_name, second_folder, second_name, RENAME_EXCHANGE
    )
    if result == 0:
        return True
    if ctypes.get_errno() == errno.ENOENT:
        reason = os.strerror(errno.ENOENT)
        raise FileNotFoundError(errno.ENOENT, reason, second)
    return False
