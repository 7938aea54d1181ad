"""The daemon's log, each of its files the user's alone."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from typing import Any

from stepper.common import private_files


class PrivateLog(RotatingFileHandler):
    """The daemon's log, each of its files the user's alone."""

    def _open(self) -> Any:
        return open(
            self.baseFilename,
            "a",
            encoding="utf-8",
            errors="backslashreplace",
            opener=private_files.open_private,
        )


def begin(path: str) -> None:
    """Write what is logged from now on there."""
    handler = PrivateLog(path, maxBytes=1 << 20, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
