"""Detection of files that change during a replay.

The contents of files are hashed, up to the limits below. The functions block, so call
them in a thread.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from stepper.common.project_walk import walk
from stepper.messages.verification import verify_report
from stepper.notebooks.file_exchange import TEMPORARY
from stepper.policy.comparison.verify_results import FileChange

CHUNK_BYTES = 1 << 20  # the number of bytes to read at a time
MAX_FILE_BYTES = 1 << 28  # larger files are not hashed
MAX_TOTAL_BYTES = 1 << 29  # the number of bytes that are hashed in a snapshot


class Stamp(NamedTuple):
    """The modification time, size and inode number of a file."""

    mtime_ns: int
    size: int
    inode: int


@dataclass(frozen=True)
class FileState:
    """A file in a snapshot. `digest` is None if its contents were not hashed."""

    stamp: Stamp
    digest: bytes | None


class FolderSnapshot:
    """The files in a folder and its subfolders at a point in time.

    The file `excluded` is left out.
    """

    def __init__(self, folder: str, excluded: str) -> None:
        self.folder = folder
        self.excluded = os.path.realpath(excluded)
        self.bytes_left = MAX_TOTAL_BYTES
        # Whether the folder has more files than were listed.
        self.is_truncated = False
        stamps = self._scan_stamps()
        self.before: dict[str, FileState] = {}
        # Small files come first, to hash as many files as possible within the limit.
        for name in sorted(stamps, key=lambda name: stamps[name].size):
            stamp = stamps[name]
            digest = self._hash_file(name, stamp)
            self.before[name] = FileState(stamp, digest)

    def list_changes(self) -> list[FileChange]:
        """Return the files that were created, written or deleted after the snapshot."""
        was_truncated = self.is_truncated
        stamps = self._scan_stamps()
        changes: list[FileChange] = []
        for name in sorted({*self.before, *stamps}):
            before = self.before.get(name)
            stamp = stamps.get(name)
            if before is None:
                # If the snapshot is truncated, the file may have existed before.
                if not was_truncated:
                    changes.append(verify_report.create_file_change(name, "new"))
            elif stamp is None:
                if not os.path.lexists(os.path.join(self.folder, name)):
                    changes.append(verify_report.create_file_change(name, "deleted"))
            elif stamp != before.stamp:
                changes.append(self._compare(name, before, stamp))
        return changes

    def _compare(self, name: str, before: FileState, stamp: Stamp) -> FileChange:
        """Return the change of a file that was written after the snapshot.

        The kind of change is `same` or `changed`, depending on the contents. It is
        `written` if only the sizes can be compared, and they are equal.
        """
        # Each changed file may be hashed, unless the file itself is too large.
        self.bytes_left = MAX_TOTAL_BYTES
        digest = None
        if before.digest:
            digest = self._hash_file(name, stamp)
        if digest and digest == before.digest:
            change = "same"
        elif stamp.size != before.stamp.size or digest is not None:
            change = "changed"
        else:
            change = "written"
        return verify_report.create_file_change(
            name, change, before.stamp.size, stamp.size
        )

    def _scan_stamps(self) -> dict[str, Stamp]:
        """Return the stamps of the files by relative path."""
        tree = walk(self.folder)
        self.is_truncated = tree.truncated
        stamps: dict[str, Stamp] = {}
        for name in tree.files:
            if TEMPORARY.fullmatch(name):  # a notebook that stepper is writing
                continue
            path = os.path.join(self.folder, name)
            with suppress(OSError):
                status = os.stat(path)
                if os.path.realpath(path) != self.excluded:
                    stamps[name] = Stamp(
                        status.st_mtime_ns, status.st_size, status.st_ino
                    )
        return stamps

    def _hash_file(self, name: str, stamp: Stamp) -> bytes | None:
        """Return the hash of a file's contents.

        Return None if the file is too large, is not a regular file or can't be read.
        """
        path = os.path.join(self.folder, name)
        limit = min(MAX_FILE_BYTES, self.bytes_left)
        if stamp.size > limit or not os.path.isfile(path):
            return None
        self.bytes_left -= stamp.size
        digest = hashlib.blake2b(digest_size=16)
        try:
            with open(path, "rb") as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    digest.update(chunk)
        except OSError:
            return None
        return digest.digest()
