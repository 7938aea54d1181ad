"""Saves values of the live kernel, and loads them in the kernel of a replay.

The source of this module runs in both kernels, so it imports only the standard library
and runs on Python 3.9.
"""

import contextlib
import os
import pickle
from typing import Any, Dict, List  # noqa: UP035  # Python 3.9


class TooLargeError(Exception):
    """The values exceed the maximum size."""


class LimitedFile:
    """A new file for at most `max_bytes`; more bytes raise TooLargeError."""

    def __init__(self, path: str, max_bytes: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self.stream = os.fdopen(os.open(path, flags, 0o600), "wb")
        self.bytes_left = max_bytes

    def write(self, data: Any) -> int:
        """Write bytes; raise TooLargeError if there are too many."""
        size = memoryview(data).nbytes
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise TooLargeError("the values are too large for a checkpoint")
        self.stream.write(data)
        return size

    def close(self) -> None:
        """Close the file; raise OSError if buffered bytes cannot be written."""
        self.stream.close()


def save(
    namespace: Dict[str, Any],  # noqa: UP006
    names: List[str],  # noqa: UP006
    path: str,
    max_bytes: int,
) -> str:
    """Save the values of names to a new file.

    Return an error message if this fails, or else an empty string. If values cannot be
    saved, remove the file; a file that existed before is kept.
    """
    try:
        values = {name: namespace[name] for name in names}
        file = LimitedFile(path, max_bytes)
    except (KeyError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    try:
        try:
            pickle.Pickler(file, protocol=5).dump(values)
        finally:
            file.close()
    except Exception as error:  # noqa: BLE001  # raised by any object
        with contextlib.suppress(OSError):
            os.unlink(path)
        return f"{type(error).__name__}: {error}"
    return ""


def load(namespace: Dict[str, Any], path: str) -> None:  # noqa: UP006
    """Assign the values in a file to their names."""
    with open(path, "rb") as stream:
        # A kernel of this user wrote the file.
        values = pickle.load(stream)  # noqa: S301
    namespace.update(values)
