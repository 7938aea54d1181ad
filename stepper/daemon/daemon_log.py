"""Logging of the daemon to a rotating file that only the user can read.

The log may contain code and error messages, so each log file is created with private
permissions.
"""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from typing import Any

from stepper.common import secure_files

MAX_BYTES = 1 << 20  # the maximum size of a log file, before it is rotated


class PrivateLogHandler(RotatingFileHandler):
    """A rotating log handler that creates files which only the user can read."""

    def _open(self) -> Any:
        """Open the log file; called by the base class."""
        return open(
            self.baseFilename,
            "a",
            encoding="utf-8",
            errors="backslashreplace",
            opener=secure_files.open_private,
        )


def configure_logging(path: str) -> None:
    """Send all log records of this process to the file `path`."""
    handler = PrivateLogHandler(path, maxBytes=MAX_BYTES, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
