"""Changes that a failed cell made to the project's files.

The records of `file_writes` are compared with the current files. Writes by child
processes and by libraries that do not use Python's file functions (HDF5, Arrow) raise
no audit event. Their files are found in /proc if they are still open after the cell.
"""

from __future__ import annotations

import os
import stat
from typing import Any, Iterator

from stepper.diagnosis.in_kernel import file_writes
from stepper.diagnosis.in_kernel.file_writes import (
    PathRecord,
    get_status,
    get_version,
    hash_file,
    is_inside,
    list_child_processes,
    records,
)
from stepper.kernels.in_kernel.safe_inspect import call_safely

MAX_CHANGES = 100
MAX_DESCRIPTORS = 1000
MAX_INFO = 400  # bytes of a descriptor's `fdinfo` file
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR


def describe_files() -> dict[str, Any]:
    """Return facts on the project's files after a cell.

    `changes` contains the changed files. `open` contains the files that are open for
    writing. `earlier` contains the files that the previous cell wrote and this cell did
    not change. `began` is the start of the cell in nanoseconds, or 0 if unknown.
    """
    changes = []
    for path, record in list(records.items()):
        current = get_status(path)
        change = classify_change(record, current, path)
        if not change:
            continue
        size = 0 if current is None else current.st_size
        entry = {
            "path": path,
            "change": change,
            "size": size,
            "own": record.own,
            "renamed_to": record.renamed_to,
        }
        changes.append(entry)
    open_files = call_safely(find_open_files) or {}
    return {
        "began": file_writes.state["began"],
        "changes": changes[:MAX_CHANGES],
        "open": list(open_files.items()),
        "earlier": [path for path in file_writes.earlier if is_unchanged(path)],
    }


def classify_change(
    record: PathRecord, current: os.stat_result | None, path: str
) -> str:
    """Return the kind of a file's change during the cell.

    The kinds are "written", "same" (written with the same content), "new folder",
    "renamed" and "deleted". Return an empty string if the file did not change.
    """
    before = record.before
    if current is None:
        if before is None:
            return ""
        return "renamed" if record.renamed_to else "deleted"
    if stat.S_ISDIR(current.st_mode):
        return "new folder" if before is None else ""
    if before is None:
        return "written"
    is_same_file = before.st_ino == current.st_ino
    if is_same_file and get_version(before) == get_version(current):
        return ""
    size = before.st_size
    if record.digest is None or size != current.st_size:
        return "written"
    digest = hash_file(path, size)
    return "same" if digest == record.digest else "written"


def is_unchanged(path: str) -> bool:
    """Return whether a file of the previous cell did not change during this cell."""
    current = get_status(path)
    if current is None:
        return False
    return bool(file_writes.earlier[path] == get_version(current))


def find_open_files() -> dict[str, bool]:
    """Return the project's files that the kernel or its children have open for writing.

    The value of a path is True if a process that the cell started has the file open.
    """
    paths = dict.fromkeys(list_open_files("self"), False)
    older = file_writes.state["processes"]
    is_unclear = file_writes.state["processes_unclear"]
    for process in list_child_processes(os.getpid()):
        is_new = older is not None and process not in older
        is_own = is_new and not is_unclear
        for path in list_open_files(process):
            paths[path] = is_own or paths.get(path, False)
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
    """Return whether the file of a descriptor is open for writing.

    `info_path` is the descriptor's `fdinfo` file in /proc.
    """
    with open(info_path, "rb") as stream:
        lines = stream.read(MAX_INFO).split(b"\n")
    flags = 0
    for line in lines:
        if line.startswith(b"flags:"):
            _, octal_number = line.split()
            flags = int(octal_number, 8)
    return bool(flags & WRITE_FLAGS)
