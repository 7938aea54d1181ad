"""Records of the project's files that the kernel writes, renames or removes.

The records are based on Python's audit events. An audit hook cannot be removed, so each
kernel gets at most one: a three-line function in a separate namespace that looks up the
event in a table. A helper that is replaced empties the table, and the new helper fills
the table again. With a hook, each audited call (`id`, `sys._getframe` …) takes 0.1 µs
longer. The hook is therefore added before the first cell whose source may write files.

An event handler records a path and the state of its file before the event. A handler
raises no errors and keeps no reference to the user's objects. At most MAX_PATHS paths
are recorded for a cell. `written_file_check` evaluates the records after a failure.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import pathlib
import stat
import sys
import threading
import time
from typing import Any, Callable, NamedTuple

from stepper.kernels.in_kernel.module_reload import find_project_root
from stepper.kernels.in_kernel.safe_inspect import count_failure, is_a

TABLE = "audit_handlers"  # the table's name in the helper's module
NO_FOLDER = -1  # in place of a `dir_fd` in audit events
MAX_PATHS = 300  # recorded for a cell
MAX_FOLDERS = 1000  # cached for a cell
MAX_PROCESSES = 64
MAX_HASHED_SIZE = 1 << 20  # bytes of a file
MAX_TOTAL_HASHED = 8 << 20  # bytes for a cell
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Linux's CLOCK_REALTIME_COARSE, which sets the times of files.
COARSE_CLOCK = 5
# `handlers` is the table. The hook uses no builtins, because a cell may replace them.
HOOK = """
def audit(event, args):
    handler = handlers.get(event)
    if handler is not None:
        handler(args)
"""
# The original functions, because a cell may replace them.
lstat = os.lstat
getcwd = os.getcwd
realpath = os.path.realpath
open_file = os.open
read = os.read
close = os.close
clock_gettime_ns = time.clock_gettime_ns
get_thread = threading.get_ident
get_task = asyncio.current_task
all_tasks = asyncio.all_tasks


class FileVersion(NamedTuple):
    """Values of a file. A write of the file changes at least one of them."""

    mtime_ns: int
    size: int


class PathRecord:
    """The state of a path before the cell's first event for this path."""

    def __init__(self, before: Any, digest: bytes | None, own: bool) -> None:
        self.before = before  # os.stat_result, or None if the path did not exist
        self.digest = digest  # of a small file, or None
        # Whether the cell caused an event, not a thread or task of an earlier cell.
        self.own = own
        self.renamed_to = ""


records: dict[str, PathRecord] = {}  # by path
# Folder as named → its path in the project, or an empty string if it is outside.
folders: dict[str, str] = {}
# Files that the previous cell wrote → their versions at the start of this cell.
earlier: dict[str, FileVersion] = {}
state: dict[str, Any] = {
    "bytes_left": MAX_TOTAL_HASHED,  # that may still be hashed for this cell
    "began": 0,  # the file system's time at the start of the cell
    # Child processes when the cell started its first one, None before.
    "processes": None,
    "processes_unclear": False,  # an older thread or task also started processes
    "thread": 0,
    "task": 0,
    "threads": frozenset(),
    "tasks": frozenset(),
}


def install() -> None:
    """Fill the table of the kernel's audit hook, and add the hook if it is missing."""
    helper: Any = sys.modules["_stepper_helper"]
    table = getattr(helper, TABLE, None)
    if type(table) is not dict:
        table = {}
        names: dict[str, Any] = {"__builtins__": {}, "handlers": table}
        exec(compile(HOOK, "<stepper audit hook>", "exec"), names)  # noqa: S102
        sys.addaudithook(names["audit"])
        setattr(helper, TABLE, table)
    state["table"] = table
    for event, handler in EVENTS.items():
        table[event] = suppress_errors(handler)


def uninstall() -> None:
    """Empty the hook's table, so that the hook does nothing, and delete all records."""
    state.get("table", {}).clear()
    records.clear()
    folders.clear()
    earlier.clear()


def start_run(raw: str) -> None:
    """Reset the records for a new cell.

    The existing threads and tasks are stored, because they belong to earlier cells, and
    so are the versions of the previous cell's files. The source of the cell, `raw`, is
    not used.
    """
    earlier.clear()
    for path in list(records):
        current = get_status(path)
        if current is not None:
            earlier[path] = get_version(current)
    records.clear()
    folders.clear()
    thread = get_thread()
    task = get_running_task()
    task_id = 0
    tasks: frozenset[int] = frozenset()
    if task is not None:
        task_id = id(task)
        tasks = frozenset(map(id, all_tasks())) - {task_id}
    state.update(
        bytes_left=MAX_TOTAL_HASHED,
        began=get_file_time(),
        processes=None,
        processes_unclear=False,
        thread=thread,
        task=task_id,
        threads=frozenset(threading._active) - {thread},  # type: ignore[attr-defined]
        tasks=tasks,
    )


def get_version(status: os.stat_result) -> FileVersion:
    """Return the version of a file with this status."""
    return FileVersion(status.st_mtime_ns, status.st_size)


def get_file_time() -> int:
    """Return the file system's time in nanoseconds, or 0 if it is unknown."""
    try:
        return clock_gettime_ns(COARSE_CLOCK)
    except OSError:
        return 0


def is_own() -> bool:
    """Return whether the current cell caused the current event.

    Events in threads and tasks that existed before the cell belong to earlier cells.
    """
    thread = get_thread()
    if thread != state["thread"]:
        return thread not in state["threads"]
    task = get_running_task()
    if task is None:  # for example a callback of the event loop
        return not state["task"]
    return id(task) not in state["tasks"]


def get_running_task() -> Any:
    """Return the asyncio task that runs in this thread, or None."""
    try:
        return get_task()
    except RuntimeError:  # this thread has no event loop
        return None


def suppress_errors(handler: Callable[..., None]) -> Callable[[Any], None]:
    """Return a handler that counts and suppresses errors, but not an interrupt."""

    def handle(args: Any) -> None:
        try:
            handler(*args)
        except Exception as error:
            count_failure(error)

    return handle


# --- events


def handle_open(path: Any, mode: Any, flags: Any) -> None:
    """Record a file that is opened for writing."""
    if type(flags) is not int or not flags & WRITING:
        return
    record_path(path, new=bool(flags & os.O_EXCL))


def handle_rename(source: Any, target: Any, source_fd: Any, target_fd: Any) -> None:
    """Record both paths of a rename, unless they are relative to an open folder."""
    if source_fd != NO_FOLDER or target_fd != NO_FOLDER:
        return
    source_record = record_path(source)
    record_path(target)
    if source_record is not None:
        source_record.renamed_to = resolve_path(target) or realpath(target)


def handle_link(source: Any, target: Any, source_fd: Any, target_fd: Any) -> None:
    """Record a new link, unless its path is relative to an open folder."""
    if target_fd == NO_FOLDER:
        record_path(target, new=True)


def handle_remove(path: Any, folder: Any) -> None:
    """Record a removed file or folder, unless its path is relative to an open folder.

    `folder` is the descriptor of the open folder or NO_FOLDER.
    """
    if folder == NO_FOLDER:
        record_path(path)


def handle_rmtree(path: Any, folder: Any = None) -> None:
    """Record a folder that is removed with its contents.

    A path that is relative to an open folder, `folder`, is not recorded.
    """
    if folder is None:
        record_path(path)


def handle_mkdir(path: Any, mode: Any, folder: Any) -> None:
    """Record a new folder, unless its path is relative to an open folder."""
    if folder == NO_FOLDER:
        record_path(path, new=True)


def handle_utime(path: Any, times: Any, ns: Any, folder: Any) -> None:
    """Record a file whose times are set.

    A path that is relative to an open folder, `folder`, is not recorded.
    """
    if folder == NO_FOLDER:
        record_path(path)


def handle_truncate(path: Any, length: Any) -> None:
    """Record a file that is truncated without being opened by Python's `open`."""
    record_path(path)


def handle_sqlite(database: Any, *_: Any) -> None:
    """Record only a new database, because an existing database may only be read."""
    record_path(database, new=True)


def handle_process(*_: Any) -> None:
    """Store the child processes that exist before the cell starts its first one.

    Later processes belong to the cell, unless an older thread or task starts some, too.
    """
    if not is_own():
        state["processes_unclear"] = True
    elif state["processes"] is None:
        state["processes"] = frozenset(list_child_processes(os.getpid()))


EVENTS: dict[str, Callable[..., None]] = {
    "open": handle_open,
    "os.rename": handle_rename,
    "os.link": handle_link,
    "os.remove": handle_remove,
    "os.rmdir": handle_remove,
    "shutil.rmtree": handle_rmtree,
    "os.mkdir": handle_mkdir,
    "os.utime": handle_utime,
    "os.truncate": handle_truncate,
    "os.chdir": lambda path: folders.clear(),  # relative folders have new paths
    "sqlite3.connect": handle_sqlite,
    "subprocess.Popen": handle_process,
    "os.posix_spawn": handle_process,
    "os.fork": handle_process,
    "os.forkpty": handle_process,
}


# --- records


def record_path(value: Any, new: bool = False) -> PathRecord | None:
    """Record the state of a path before it changes, and return the record.

    For a link, the target of the link is recorded in its place. If `new` is true, only
    a path that does not exist yet is recorded. Return None if the path is not recorded.
    """
    path = resolve_path(value)
    # A file that is written again and again costs no further system call.
    if path and path not in records:
        path = follow_link(path)
    if not path:
        return None
    existing_record = records.get(path)
    if existing_record is not None:
        existing_record.own = existing_record.own or is_own()
        return existing_record
    if len(records) >= MAX_PATHS:
        return None
    before = get_status(path)
    if before is not None and (new or not is_file_or_folder(before)):
        return None
    digest = hash_small_file(path, before)
    new_record = PathRecord(before, digest, is_own())
    records[path] = new_record
    return new_record


def follow_link(path: str) -> str:
    """Return the path of a link's target, or `path` if the path is not a link.

    Return an empty string if the target is outside the project or in a hidden folder.
    """
    status = get_status(path)
    if status is None or not stat.S_ISLNK(status.st_mode):
        return path
    target = realpath(path)
    if is_inside(target):
        return target
    return ""


def resolve_path(value: Any) -> str:
    """Return the absolute path of a project file.

    Return an empty string for a path outside the project or in a hidden folder, for a
    value that is not a path, and if the cell uses too many folders.
    """
    kind = type(value)
    if kind is not str:
        if kind is bytes:
            value = os.fsdecode(value)
        elif kind is pathlib.PosixPath:
            value = str(value)
        elif is_a(value, str):
            value = str.__str__(value)
        else:
            return ""
    folder, slash, name = value.rstrip("/").rpartition("/")
    if not name or name in (".", ".."):
        return ""
    named_folder = folder + slash
    real_folder = folders.get(named_folder)
    if real_folder is None:
        if len(folders) >= MAX_FOLDERS:
            return ""
        real_folder = realpath(named_folder or getcwd())
        if not is_inside(real_folder + "/"):
            real_folder = ""
        folders[named_folder] = real_folder
    if not real_folder:
        return ""
    return f"{real_folder}/{name}"


def is_inside(path: str) -> bool:
    """Return whether a resolved path is in the project and in no hidden folder."""
    base = find_project_root()
    if not path.startswith(base + "/"):
        return False
    folder = os.path.dirname(path)
    relative = folder[len(base) :]
    return "/." not in relative


def is_file_or_folder(status: os.stat_result) -> bool:
    """Return whether a status is the status of a regular file or a folder."""
    return stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)


def get_status(path: str) -> os.stat_result | None:
    """Return the status of a path, or None if the path is missing or inaccessible."""
    try:
        return lstat(path)
    except (OSError, ValueError):
        return None


def hash_small_file(path: str, status: os.stat_result | None) -> bytes | None:
    """Return the hash of a small file, and subtract its size from the cell's limit.

    Return None for any other path, if the limit is reached, or if the file is
    unreadable.
    """
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    if status.st_size > min(MAX_HASHED_SIZE, state["bytes_left"]):
        return None
    state["bytes_left"] -= status.st_size
    return hash_file(path, status.st_size)


def hash_file(path: str, size: int) -> bytes | None:
    """Return the hash of a file's first `size` + 1 bytes, or None if it is unreadable.

    The file is read with `os.read`, because Python's file objects would take three
    times as long.
    """
    try:
        descriptor = open_file(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        # One more byte: the hash also differs if the file is growing.
        content = read(descriptor, size + 1)
        return hashlib.blake2b(content, digest_size=16).digest()
    except OSError:
        return None
    finally:
        close(descriptor)


def list_child_processes(process: int) -> list[int]:
    """Return the ids of a process's child processes and of their descendants.

    At most MAX_PROCESSES are returned. The list is empty if the system has no /proc.
    """
    processes: list[int] = []
    pending = [process]
    while pending and len(processes) < MAX_PROCESSES:
        parent = pending.pop()
        folder = f"/proc/{parent}/task"
        try:
            threads = os.listdir(folder)
        except OSError:  # the process has exited, or the system has no such folder
            continue
        for thread in threads:
            try:
                with open(f"{folder}/{thread}/children", "rb") as stream:
                    content = stream.read()
            except OSError:  # the thread has exited, or the system has no such file
                continue
            children = list(map(int, content.split()))
            processes += children
            pending += children
    return processes[:MAX_PROCESSES]
