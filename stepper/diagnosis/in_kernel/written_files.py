"""What a failed cell did to the project's files: the notes of `file_writes`, compared with the files as they are now.

Files that libraries write without Python's knowledge (HDF5, Arrow) or that child processes write raise no audit event.
Those that are still open when the cell ends are found in /proc.
"""

from __future__ import annotations

import os
import stat
from typing import Any, Iterator

from stepper.diagnosis.in_kernel import file_writes
from stepper.diagnosis.in_kernel.file_writes import (
    Note,
    file_hash,
    is_inside,
    notes,
    processes_below,
    status,
)
from stepper.kernels.in_kernel.safe_inspect import call_safely

TOLD, DESCRIPTORS = 100, 1000
ACCESS = os.O_WRONLY | os.O_RDWR


def file_facts() -> dict[str, Any]:
    """What was done to which of the project's files, and which of them are open for writing."""
    changes = []
    for path, note in list(notes.items()):
        present = status(path)
        change = change_of(note, present, path)
        if change:
            changes.append(
                {
                    "path": path,
                    "change": change,
                    "size": present.st_size if present is not None else 0,
                    "own": note.own,
                    "renamed_to": note.renamed_to,
                }
            )
    return {
        "began": file_writes.state["began"],
        "changes": changes[:TOLD],
        "open": list((call_safely(held_open) or {}).items()),
        "earlier": [path for path in file_writes.earlier if unchanged(path)],
    }


def change_of(note: Note, present: os.stat_result | None, path: str) -> str:
    """How a file differs from what it was; '' where nothing happened to it."""
    before = note.before
    if present is None:
        if before is None:
            return ""
        return "renamed" if note.renamed_to else "deleted"
    if stat.S_ISDIR(present.st_mode):
        return "new folder" if before is None else ""
    if before is None:
        return "written"
    if stamp(before) == stamp(present):
        return ""
    size = before.st_size
    if note.digest is None or size != present.st_size:
        return "written"
    return "same" if file_hash(path, size) == note.digest else "written"


def stamp(about: os.stat_result) -> tuple[int, int, int]:
    return about.st_mtime_ns, about.st_size, about.st_ino


def unchanged(path: str) -> bool:
    """Whether a file that an earlier cell wrote is as it was when this cell began."""
    present = status(path)
    return present is not None and file_writes.earlier[path] == (
        present.st_mtime_ns,
        present.st_size,
    )


def held_open() -> dict[str, bool]:
    """The project's files that this kernel, or a process below it, has open for writing.

    With whether that is the cell's for certain: the process was started while the cell ran.
    """
    paths = dict.fromkeys(open_files("self"), False)
    older = file_writes.state["processes"]
    unclear = file_writes.state["processes_unclear"]
    for process in processes_below(os.getpid()):
        own = older is not None and process not in older and not unclear
        for path in open_files(process):
            paths[path] = paths.get(path, False) or own
    return paths


def open_files(process: int | str) -> Iterator[str]:
    folder = f"/proc/{process}/fd"
    try:
        numbers = os.listdir(folder)[:DESCRIPTORS]
    except OSError:
        return
    for number in numbers:
        try:
            path = os.readlink(f"{folder}/{number}")
            if is_inside(path) and writes(f"/proc/{process}/fdinfo/{number}"):
                yield path
        except OSError:
            continue


def writes(info: str) -> bool:
    with open(info, "rb") as stream:
        lines = stream.read(400).split(b"\n")
    flags = next(line.split()[1] for line in lines if line.startswith(b"flags:"))
    return bool(int(flags, 8) & ACCESS)
