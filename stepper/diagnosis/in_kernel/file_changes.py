"""Changes that a failed cell made to the project's files.

Compares the notes of `file_writes` with the files as they are now. Writes by child
processes, and by libraries that do not use Python's file functions (HDF5, Arrow), raise
no audit event. /proc shows those files if they are still open when the cell ends.
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
    list_child_processes,
    notes,
    status,
)
from stepper.kernels.in_kernel.safe_inspect import call_safely

MAX_CHANGES = 100
MAX_DESCRIPTORS = 1000
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR


def describe_files() -> dict[str, Any]:
    """Return the changed files of the project and those that are open for writing."""
    changes = []
    for path, note in list(notes.items()):
        current = status(path)
        change = classify_change(note, current, path)
        if not change:
            continue
        size = 0 if current is None else current.st_size
        entry = {
            "path": path,
            "change": change,
            "size": size,
            "own": note.own,
            "renamed_to": note.renamed_to,
        }
        changes.append(entry)
    open_files = call_safely(find_open_files) or {}
    return {
        "began": file_writes.state["began"],
        "changes": changes[:MAX_CHANGES],
        "open": list(open_files.items()),
        "earlier": [path for path in file_writes.earlier if is_unchanged(path)],
    }


def classify_change(note: Note, current: os.stat_result | None, path: str) -> str:
    """Return the kind of a file's change during the cell.

    Return an empty string if the file did not change.
    """
    before = note.before
    if current is None:
        if before is None:
            return ""
        return "renamed" if note.renamed_to else "deleted"
    if stat.S_ISDIR(current.st_mode):
        return "new folder" if before is None else ""
    if before is None:
        return "written"
    if get_version(before) == get_version(current):
        return ""
    size = before.st_size
    if note.digest is None or size != current.st_size:
        return "written"
    digest = file_hash(path, size)
    return "same" if digest == note.digest else "written"


def get_version(status: os.stat_result) -> tuple[int, int, int]:
    """Return the values that differ after a file is written or replaced."""
    return status.st_mtime_ns, status.st_size, status.st_ino


def is_unchanged(path: str) -> bool:
    """Return whether an earlier cell's file is unchanged since this cell began."""
    current = status(path)
    if current is None:
        return False
    version = (current.st_mtime_ns, current.st_size)
    return bool(file_writes.earlier[path] == version)


def find_open_files() -> dict[str, bool]:
    """Return the project's files that the kernel or its children have open for writing.

    The value is True if the process certainly belongs to the cell: it was started while
    the cell ran.
    """
    paths = dict.fromkeys(list_open_files("self"), False)
    older = file_writes.state["processes"]
    is_unclear = file_writes.state["processes_unclear"]
    for process in list_child_processes(os.getpid()):
        is_new = older is not None and process not in older
        is_own = is_new and not is_unclear
        for path in list_open_files(process):
            is_known_own = paths.get(path, False)
            paths[path] = is_known_own or is_own
    return paths


def list_open_files(process: int | str) -> Iterator[str]:
    """Yield the project's files that a process has open for writing."""
    folder = f"/proc/{process}/fd"
    try:
        numbers = os.listdir(folder)[:MAX_DESCRIPTORS]
    except OSError:
        return
    for number in numbers:
        try:
            path = os.readlink(f"{folder}/{number}")
            info_path = f"/proc/{process}/fdinfo/{number}"
            if is_inside(path) and is_writable(info_path):
                yield path
        except OSError:
            continue


def is_writable(info_path: str) -> bool:
    """Return whether a descriptor is open for writing, from its `fdinfo` file."""
    with open(info_path, "rb") as stream:
        lines = stream.read(400).split(b"\n")
    flags = 0
    for line in lines:
        if line.startswith(b"flags:"):
            _, value = line.split()
            flags = int(value, 8)
    return bool(flags & WRITE_FLAGS)
