"""The files of a local kernel: record, stderr, stack samples and sockets."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepper.common import secure_files

# Exceptions that are raised if a record cannot be read or is not valid.
RECORD_ERRORS = (
    OSError,
    ValueError,
    OverflowError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
)


class KernelFiles:
    """The paths of a kernel's record and of the files next to it."""

    def __init__(self, record: str) -> None:
        self.record = Path(record)
        self.stderr = self.record.with_suffix(".stderr")
        self.stack = self.record.with_suffix(".stack")
        # Lists the processes that existed before the last cell.
        self.earlier = self.record.with_suffix(".earlier")

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Replace the record atomically."""
        content = json.dumps(record)
        secure_files.replace(str(self.record), content.encode())

    def remove(self) -> None:
        """Remove the files of a kernel that has exited, but not its stderr."""
        for path in (self.record, self.stack, self.earlier):
            secure_files.remove(str(path))


def get_socket_path(runtime: str, kernel_id: str) -> str:
    """Return the prefix of the paths of a kernel's sockets.

    The sockets have this prefix and the suffixes `-1` to `-5`.
    """
    name = f"k{kernel_id[:8]}"
    return os.path.join(runtime, name)


def remove_sockets(runtime: str, kernel_id: str) -> None:
    """Remove the sockets and the connection file of a kernel that has exited."""
    # The pattern includes temporary files that a killed daemon has left behind.
    pattern = f"*k{kernel_id[:8]}*"
    folder = Path(runtime)
    for path in folder.glob(pattern):
        path.unlink(missing_ok=True)
