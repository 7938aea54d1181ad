"""The journal of a notebook: a file with one JSON event per line, synced to disk.

If a write fails, the file is truncated to its previous size. Lines that could not be
written are kept in memory and written before the next line. An unreadable journal is
renamed, never overwritten. If the file is deleted, the next write creates a new one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from concurrent.futures import Future
from enum import Enum
from typing import Any, NamedTuple

import orjson

from stepper.common import secure_files
from stepper.common.text import format_count
from stepper.notebooks.background_io import run_later
from stepper.notebooks.notebook_json import load_json_exact

Event = dict[str, Any]
APPEND_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class BackgroundSync(NamedTuple):
    """A background fsync of written lines. It may fail, so the lines are kept."""

    future: Future[None]
    end: int  # the size of the file after the lines were written
    data: bytes  # the lines


class SyncMode(Enum):
    """When the journal syncs an event to disk."""

    WAIT = "wait"  # before the write returns
    BACKGROUND = "background"  # shortly after the write returns
    NONE = "none"  # the operating system decides


class JournalFile:
    """The journal file of one notebook."""

    def __init__(self, path: str) -> None:
        self.path = path
        # Whether the file ends in the middle of a line.
        self._is_torn = False
        self._pending_lines: list[bytes] = []
        self._background_syncs: list[BackgroundSync] = []

    @property
    def pending_count(self) -> int:
        """The number of lines that are not written yet."""
        return len(self._pending_lines)

    def load(self) -> tuple[list[Event], str]:
        """Return all events, and a message about lines that could not be read.

        The message is empty if all lines could be read. A file that cannot be read is
        renamed.
        """
        try:
            data = secure_files.read(self.path)
        except FileNotFoundError:
            return [], ""
        except OSError as error:
            return [], self._set_aside(error)
        self._is_torn = bool(data) and not data.endswith(b"\n")
        events = []
        unreadable_count = 0
        for line in filter(bytes.strip, data.split(b"\n")):
            event = _parse_event(line)
            if event is None:
                unreadable_count += 1
            else:
                events.append(event)
        message = ""
        if unreadable_count:
            lines = format_count(unreadable_count, "unreadable line")
            message = f"ignored {lines} of the journal {self.path}"
        return events, message

    def append(
        self,
        event: Event,
        sync: SyncMode = SyncMode.WAIT,
        keep: bool = True,
    ) -> None:
        """Write all pending events, followed by this event.

        Raise OSError if the event cannot be written. In this case, the event stays
        pending if `keep` is true; otherwise it is discarded.
        """
        self._pending_lines.append(_serialize_event(event))
        try:
            self.flush(sync)
        except OSError:
            if not keep:
                self._pending_lines.pop()
            raise

    def flush(self, sync: SyncMode = SyncMode.WAIT) -> None:
        """Write all pending lines.

        Raise OSError if this fails. In this case, all lines stay pending.
        """
        if not self._pending_lines:
            return
        handle = secure_files.open_private(self.path, APPEND_FLAGS)
        try:
            size = os.fstat(handle).st_size
            lost_lines = self._take_lost_lines(size)
            if lost_lines:
                self._pending_lines.insert(0, lost_lines)
            data = b"".join(self._pending_lines)
            was_torn = self._is_torn
            if was_torn:
                data = b"\n" + data
            try:
                self._write(handle, data, size + len(data), sync)
            except OSError:
                # Unless the file can be truncated, it ends in the middle of a line.
                self._is_torn = True
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, size)
                    self._is_torn = was_torn
                raise
        finally:
            os.close(handle)
        self._is_torn = False
        self._pending_lines = []

    def _write(
        self,
        handle: int,
        data: bytes,
        end: int,
        sync: SyncMode,
    ) -> None:
        """Write data and sync the file; `end` is the size of the file afterwards."""
        if os.write(handle, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if sync is SyncMode.WAIT:
            os.fsync(handle)
        elif sync is SyncMode.BACKGROUND:
            future = run_later(os.fsync, handle)
            self._background_syncs.append(BackgroundSync(future, end, data))

    def _take_lost_lines(self, size: int) -> bytes:
        """Return the written lines that were lost because a background fsync failed.

        `size` is the current size of the file in bytes. Lines beyond the end of the
        file are lost. Finished syncs are removed from the list of syncs.
        """
        lost_lines = []
        unfinished_syncs = []
        for sync in self._background_syncs:
            if not sync.future.done():
                unfinished_syncs.append(sync)
            elif sync.future.exception() is not None and size < sync.end:
                lost_lines.append(sync.data)
        self._background_syncs = unfinished_syncs
        return b"".join(lost_lines)

    def _set_aside(self, reason: OSError) -> str:
        """Rename an unreadable journal; return a message for the user."""
        number = 1
        while os.path.lexists(f"{self.path}.unreadable-{number}"):
            number += 1
        new_path = f"{self.path}.unreadable-{number}"
        problem = (
            f"the journal {self.path} cannot be read ({reason.strerror}), so earlier"
            " runs are unknown"
        )
        try:
            secure_files.rename(self.path, os.path.basename(new_path))
        except OSError as error:
            return f"{problem}. The file cannot be renamed either ({error.strerror})"
        return f"{problem}. The file was renamed to {new_path}"


def _parse_event(line: bytes) -> Event | None:
    """Return the event of a line, or None if the line is not a JSON object."""
    try:
        event = load_json_exact(line)
    except ValueError:
        return None
    if isinstance(event, dict):
        return event
    return None


def _serialize_event(event: Event) -> bytes:
    """Return the line for an event."""
    try:
        return orjson.dumps(event, default=str) + b"\n"
    except TypeError:
        # orjson rejects lone surrogates, integers of more than 64 bits, and keys that
        # are not strings.
        return json.dumps(event, default=str).encode() + b"\n"
