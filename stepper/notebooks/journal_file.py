"""The journal as JSON lines: one event a line, fsynced. What can't be written now waits and is written first, in order.

A line is on disk whole or not at all: one that the disk took in part, or did not promise to keep, is cut off again.
A torn last line (the machine lost power) is told and left behind. An unreadable journal is moved aside, never written
over. A journal that somebody deletes is begun anew with the next line: this daemon still knows what stood in it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
from concurrent.futures import Future
from typing import Any

import orjson

from stepper.common import private_files
from stepper.notebooks.background_io import run_later
from stepper.notebooks.notebook_json import load_json_exact


class JournalFile:
    """The journal of one notebook."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._torn = False  # the file ends within a line
        self._waiting: list[bytes] = []
        # … the file's size with the lines, the lines
        self._syncing: list[tuple[Future[None], int, bytes]] = []

    @property
    def pending_count(self) -> int:
        """How many lines could not be written yet."""
        return len(self._waiting)

    def load(self) -> tuple[list[dict[str, Any]], str]:
        """Return all events, and a sentence about what could not be read ('' where all could)."""
        try:
            data = private_files.read(self.path)
        except FileNotFoundError:
            return [], ""
        except OSError as error:
            return [], self._set_aside(error)
        self._torn = bool(data) and not data.endswith(b"\n")
        events, bad = [], 0
        for line in filter(bytes.strip, data.split(b"\n")):
            try:
                event = load_json_exact(line)
            except ValueError:
                event = None
            if isinstance(event, dict):
                events.append(event)
            else:
                bad += 1
        return (
            events,
            f"{bad} unreadable line(s) of the journal {self.path} were left out"
            if bad
            else "",
        )

    def append(
        self, event: dict[str, Any], sync: bool | None = True, keep: bool = True
    ) -> None:
        """Write one event after those that wait; raise OSError where it can't be: with `keep` it waits then, too."""
        self._waiting.append(_line(event))
        try:
            self.flush(sync)
        except OSError:
            if not keep:
                self._waiting.pop()
            raise

    def flush(self, sync: bool | None = True) -> None:
        """Write the lines that wait, all or none; raise OSError."""
        if not self._waiting:
            return
        handle = private_files.open_private(
            self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT
        )
        try:
            size = os.fstat(handle).st_size
            if lost := self._lost(size):
                self._waiting.insert(0, lost)
            data = b"\n" * self._torn + b"".join(self._waiting)
            try:
                if os.write(handle, data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if sync:
                    os.fsync(handle)
                elif sync is None:
                    self._syncing.append(
                        (run_later(os.fsync, handle), size + len(data), data)
                    )
            except OSError:
                # unless it can be cut off: then the file ends as it did
                self._torn = True
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, size)
                    self._torn = data.startswith(b"\n")
                raise
        finally:
            os.close(handle)
        self._torn, self._waiting = False, []

    def _lost(self, size: int) -> bytes:
        """Return the lines that the disk took and, asked in the background, did not keep: the file ends before them."""
        ended = [each for each in self._syncing if each[0].done()]
        self._syncing = [each for each in self._syncing if each not in ended]
        return b"".join(
            data
            for done, end, data in ended
            if done.exception() is not None and size < end
        )

    def _set_aside(self, why: OSError) -> str:
        """Give an unreadable journal another name, so that it is not written over; return what to tell."""
        names = (f"{self.path}.unreadable-{number}" for number in itertools.count(1))
        aside = next(itertools.filterfalse(os.path.lexists, names))
        told = f"the journal {self.path} can't be read ({why.strerror}): what ran before is not known"
        try:
            private_files.rename(self.path, os.path.basename(aside))
        except OSError as error:
            return f"{told}; it can't be moved aside either ({error.strerror})"
        return f"{told}. It was moved to {aside}; a new one begins"


def _line(event: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(event, default=str) + b"\n"
    except TypeError:
        # lone surrogates, integers of more than 64 bits, keys that are no strings
        return json.dumps(event, default=str).encode() + b"\n"
