"""The journal as JSON lines: one event a line, fsynced. A torn last line is reported and left behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import orjson


class JsonLines:
    """The journal of one notebook."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._torn = False

    def load(self) -> tuple[list[dict[str, Any]], str]:
        """Return all events, and a sentence about lines that could not be read ('' where all could)."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return [], ""
        except OSError as error:
            return (
                [],
                f"the journal {self.path} can't be read ({error.strerror}): what ran before is not known",
            )
        self._torn = bool(data) and not data.endswith(b"\n")
        events, bad = [], 0
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError:
                event = None
            if isinstance(event, dict):
                events.append(event)
            else:
                bad += 1
        return events, f"{bad} unreadable line(s) of the journal {self.path} were left out" if bad else ""

    def append(self, event: dict[str, Any], sync: bool = True) -> None:
        """Write one event; with `sync` it is on disk when this returns. Raise OSError."""
        line = orjson.dumps(event, default=str) + b"\n"
        if self._torn:
            line, self._torn = b"\n" + line, False
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.write(handle, line) < len(line):
                self._torn = True  # the disk is full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)
