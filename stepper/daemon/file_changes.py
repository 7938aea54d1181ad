"""Which files below a folder were written since, and whether their bytes are others. Within bounds: for a thread."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass

from stepper.common.project_files import walk
from stepper.messages import verify_report as words
from stepper.notebooks.atomic_write import TEMPORARY
from stepper.policy.comparison.verify_results import FileChange

# bytes that are hashed: at once, of a file, of all files before
AT_ONCE, LARGEST, ALL = 1 << 20, 1 << 28, 1 << 29

Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Seen:
    """A file: what a write changes of it, how large it is, its hash where that was taken."""

    stamp: Stamp
    size: int
    digest: bytes | None


class Written:
    """The files below a folder, seen now; `besides` is none of them."""

    def __init__(self, folder: str, besides: str) -> None:
        self.folder, self.besides, self.left = folder, os.path.realpath(besides), ALL
        self.cut = False  # there is more than was looked at
        stamps = self._stamps()
        smallest = sorted(stamps, key=lambda name: stamps[name][1])
        self.before = {
            name: Seen(stamps[name], stamps[name][1], self._digest(name, stamps[name]))
            for name in smallest
        }

    def changes(self) -> list[FileChange]:
        """Return what was written since."""
        cut, found = self.cut, list[FileChange]()
        now = self._stamps()
        for name in sorted({*self.before, *now}):
            before, stamp = self.before.get(name), now.get(name)
            if before is None:
                # it may have been there
                found += [] if cut else [words.describe_file(name, "new")]
            elif stamp is None:
                gone = not os.path.lexists(os.path.join(self.folder, name))
                found += [words.describe_file(name, "deleted")] if gone else []
            elif stamp != before.stamp:
                self.left = ALL
                digest = self._digest(name, stamp) if before.digest else None
                known = stamp[1] != before.size or digest is not None
                change = (
                    "same"
                    if digest and digest == before.digest
                    else "changed"
                    if known
                    else "written"
                )
                found.append(words.describe_file(name, change, before.size, stamp[1]))
        return found

    def _stamps(self) -> dict[str, Stamp]:
        found, tree = dict[str, Stamp](), walk(self.folder)
        self.cut = tree.truncated
        for name in tree.files:
            if TEMPORARY.fullmatch(name):  # a notebook that stepper is writing
                continue
            path = os.path.join(self.folder, name)
            with suppress(OSError):
                about = os.stat(path)
                if os.path.realpath(path) != self.besides:
                    found[name] = (about.st_mtime_ns, about.st_size, about.st_ino)
        return found

    def _digest(self, name: str, stamp: Stamp) -> bytes | None:
        """Return a file's hash, None where there is no room for it or it is no file like others."""
        path = os.path.join(self.folder, name)
        if stamp[1] > min(LARGEST, self.left) or not os.path.isfile(path):
            return None
        self.left -= stamp[1]
        made = hashlib.blake2b(digest_size=16)
        try:
            with open(path, "rb") as stream:
                while piece := stream.read(AT_ONCE):
                    made.update(piece)
        except OSError:
            return None
        return made.digest()
