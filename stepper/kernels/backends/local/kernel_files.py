"""The files of a kernel on this machine: record, stderr, stack samples and sockets."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepper.common import secure_files


class KernelFiles:
    """The files next to a kernel's record."""

    def __init__(self, record: str) -> None:
        self.record = Path(record)
        self.stderr = self.record.with_suffix(".stderr")
        self.stack = self.record.with_suffix(".stack")
        # The processes before its last cell, if there are any.
        self.earlier = self.record.with_suffix(".earlier")

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Replace the record atomically."""
        content = json.dumps(record)
        secure_files.replace(str(self.record), content.encode())

    def forget(self) -> None:
        """Remove the files of a kernel that has exited, except its stderr."""
        for path in (self.record, self.stack, self.earlier):
            secure_files.remove(str(path))


def get_socket_path(runtime: str, kernel_id: str) -> str:
    """Return the beginning of the paths of a kernel's sockets; `-1` to `-5` follow."""
    name = f"k{kernel_id[:8]}"
    return os.path.join(runtime, name)


def remove_sockets(runtime: str, kernel_id: str) -> None:
    """Remove the sockets and the connection file of a kernel that has exited."""
    # Also the unfinished files of a daemon that was killed.
    pattern = f"*k{kernel_id[:8]}*"
    folder = Path(runtime)
    for path in folder.glob(pattern):
        path.unlink(missing_ok=True)
