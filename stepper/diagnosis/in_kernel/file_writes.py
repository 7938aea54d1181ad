"""The project's files that this kernel opened for writing, renamed or removed, by Python's audit events.

An audit hook cannot be removed. There is one for the kernel's life: a function of three lines with a namespace of its
own, which looks the event up in a table. A helper that is replaced empties the table, and the next one fills it again. As
each audited call (`id`, `sys._getframe` …) costs 0.1 µs more with a hook, it is added by the first cell that may write
files, by its source.

A handler notes a path and what the file was like before. It raises nothing, holds no object of the user's, and stops
noting after `MOST` paths of a cell. What the notes amount to is decided after a failure: `written_files`.
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
from typing import Any, Callable

from stepper.kernels.in_kernel.module_reload import find_project_root
from stepper.kernels.in_kernel.safe_inspect import count_failure, is_a

TABLE = "audit_handlers"  # the name under which the helper's module keeps it
MOST, FOLDERS = 300, 1000  # paths and folders that are noted for a cell
PROCESSES = 64
LARGEST, ALL = 1 << 20, 8 << 20  # bytes that are hashed of a file, for a cell
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
COARSE_CLOCK = 5  # Linux's CLOCK_REALTIME_COARSE, by which files are stamped
# `handlers` is the table. The user's builtins may be replaced, these may not.
HOOK = """
def audit(event, args):
    handler = handlers.get(event)
    if handler is not None:
        handler(args)
"""
# A cell may replace these.
lstat, getcwd, realpath = os.lstat, os.getcwd, os.path.realpath
open_file, read, close = os.open, os.read, os.close
clock_gettime_ns = time.clock_gettime_ns
thread_of, task_of, all_tasks = (
    threading.get_ident,
    asyncio.current_task,
    asyncio.all_tasks,
)


class Note:
    """A path, as it was before the first event on it."""

    def __init__(self, before: Any, digest: bytes | None, own: bool) -> None:
        self.before = before  # os.stat_result, None where there was nothing
        self.digest = digest
        self.own = own  # the event was the cell's, not that of an older thread or task
        self.renamed_to = ""


notes: dict[str, Note] = {}
# folder as it was named → its path if it is in the project, '' if it is not
folders: dict[str, str] = {}
# the files that earlier cells wrote → (time, size) when the present cell began
earlier: dict[str, tuple[int, int]] = {}
state: dict[str, Any] = {
    "left": ALL,  # bytes that may still be hashed for this cell
    "began": 0,  # the clock of files when the cell began
    # processes below the kernel when the cell first started one, None until then
    "processes": None,
    "processes_unclear": False,  # an older thread or task started some meanwhile
    "thread": 0,
    "task": 0,
    "threads": frozenset(),
    "tasks": frozenset(),
}


def begin() -> None:
    """Fill the table of the kernel's audit hook, which is made where there is none."""
    helper: Any = sys.modules["_stepper_helper"]
    table = getattr(helper, TABLE, None)
    if type(table) is not dict:
        table = {}
        names: dict[str, Any] = {"__builtins__": {}, "handlers": table}
        exec(compile(HOOK, "<stepper audit hook>", "exec"), names)  # noqa: S102
        sys.addaudithook(names["audit"])
        setattr(helper, TABLE, table)
    state["table"] = table
    table.update({event: safe(handler) for event, handler in EVENTS.items()})


def end() -> None:
    """Leave a hook that does nothing and holds nothing."""
    state.get("table", {}).clear()
    notes.clear()
    folders.clear()
    earlier.clear()


def before(raw: str) -> None:
    """Forget the notes on the last cell; remember who may write for an earlier one."""
    earlier.clear()
    for path in list(notes):
        present = status(path)
        if present is not None:
            earlier[path] = (present.st_mtime_ns, present.st_size)
    notes.clear()
    folders.clear()
    thread, task = thread_of(), running_task()
    tasks = frozenset(map(id, all_tasks())) if task is not None else frozenset()
    state.update(
        left=ALL,
        began=file_clock(),
        processes=None,
        processes_unclear=False,
        thread=thread,
        task=id(task) if task is not None else 0,
        threads=frozenset(threading._active) - {thread},  # type: ignore[attr-defined]
        tasks=tasks - {id(task)},
    )


def file_clock() -> int:
    try:
        return clock_gettime_ns(COARSE_CLOCK)
    except OSError:  # the system has no such clock
        return 0


def is_own() -> bool:
    """Whether what happens now belongs to the cell: not to a thread or a task that was there when it began."""
    thread = thread_of()
    if thread != state["thread"]:
        return thread not in state["threads"]
    task = running_task()
    return id(task) not in state["tasks"] if task is not None else not state["task"]


def running_task() -> Any:
    """The task of asyncio's that runs in this thread, None where none does."""
    try:
        return task_of()
    except RuntimeError:  # no event loop runs here
        return None


def safe(handler: Callable[..., None]) -> Callable[[Any], None]:
    """A handler that raises nothing but an interrupt, which is the running code's."""

    def handle(args: Any) -> None:
        try:
            handler(*args)
        except Exception as error:
            count_failure(error)

    return handle


# --- events
# ------------------------------------------------------------------------------------------------------------


def opened(path: Any, mode: Any, flags: Any) -> None:
    if type(flags) is not int or not flags & WRITING:
        return
    note(path, new=bool(flags & os.O_EXCL))


def renamed(source: Any, target: Any, source_dir: Any, target_dir: Any) -> None:
    if source_dir != -1 or target_dir != -1:
        return
    moved = note(source)
    note(target)
    if moved is not None:
        moved.renamed_to = located(target) or realpath(target)


def linked(source: Any, target: Any, source_dir: Any, target_dir: Any) -> None:
    if target_dir == -1:
        note(target, new=True)


def removed(path: Any, folder: Any) -> None:
    if folder == -1:
        note(path)


def tree_removed(path: Any, folder: Any = None) -> None:
    if folder is None:
        note(path)


def folder_made(path: Any, mode: Any, folder: Any) -> None:
    if folder == -1:
        note(path, new=True)


def stamped(path: Any, times: Any, ns: Any, folder: Any) -> None:
    if folder == -1:
        note(path)


def truncated(path: Any, length: Any) -> None:
    note(path)


def connected(database: Any, *_: Any) -> None:
    """SQLite: a database that is there may only be read, so that only a new one is this kernel's for certain."""
    note(database, new=True)


def process_started(*_: Any) -> None:
    """Remember which processes there are already: those that come now are the cell's."""
    if not is_own():
        state["processes_unclear"] = True
    elif state["processes"] is None:
        state["processes"] = frozenset(processes_below(os.getpid()))


EVENTS: dict[str, Callable[..., None]] = {
    "open": opened,
    "os.rename": renamed,
    "os.link": linked,
    "os.remove": removed,
    "os.rmdir": removed,
    "shutil.rmtree": tree_removed,
    "os.mkdir": folder_made,
    "os.utime": stamped,
    "os.truncate": truncated,
    "os.chdir": lambda path: folders.clear(),
    "sqlite3.connect": connected,
    "subprocess.Popen": process_started,
    "os.posix_spawn": process_started,
    "os.fork": process_started,
    "os.forkpty": process_started,
}


# --- notes
# -------------------------------------------------------------------------------------------------------------


def note(given: Any, new: bool = False) -> Note | None:
    """Note a path before something is done to it; `new`: only where nothing is there yet."""
    path = located(given)
    if not path:
        return None
    known = notes.get(path)
    if known is not None:
        known.own = known.own or is_own()
        return known
    if len(notes) >= MOST:
        return None
    before = status(path)
    if before is not None and stat.S_ISLNK(before.st_mode):
        path = realpath(path)
        if not is_inside(path) or path in notes:
            return notes.get(path)
        before = status(path)
    if before is not None and (new or not regular_or_folder(before)):
        return None
    notes[path] = Note(before, digest(path, before), is_own())
    return notes[path]


def located(given: Any) -> str:
    """A path of the project, '' for one that lies elsewhere, in a hidden folder, or is no path."""
    kind = type(given)
    if kind is not str:
        if kind is bytes:
            given = os.fsdecode(given)
        elif kind is pathlib.PosixPath:
            given = str(given)
        elif is_a(given, str):
            given = str.__str__(given)
        else:
            return ""
    folder, slash, name = given.rstrip("/").rpartition("/")
    if not name or name in (".", ".."):
        return ""
    place = folders.get(folder + slash)
    if place is None:
        if len(folders) >= FOLDERS:
            return ""
        place = realpath(folder + slash or getcwd())
        place = place if is_inside(place + "/") else ""
        folders[folder + slash] = place
    return place and f"{place}/{name}"


def is_inside(path: str) -> bool:
    """Whether a path without links lies in the project and in no hidden folder."""
    base = find_project_root()
    if not path.startswith(base + "/"):
        return False
    return "/." not in os.path.dirname(path)[len(base) :]


def regular_or_folder(about: os.stat_result) -> bool:
    return stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)


def status(path: str) -> os.stat_result | None:
    try:
        return lstat(path)
    except (OSError, ValueError):
        return None


def digest(path: str, about: os.stat_result | None) -> bytes | None:
    """The hash of a small file as it is now, None where none is taken."""
    if about is None or not stat.S_ISREG(about.st_mode):
        return None
    if about.st_size > min(LARGEST, state["left"]):
        return None
    state["left"] -= about.st_size
    return file_hash(path, about.st_size)


def file_hash(path: str, size: int) -> bytes | None:
    """The hash of a file of that size, without Python's file objects: they take three times as long."""
    try:
        descriptor = open_file(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return hashlib.blake2b(read(descriptor, size + 1), digest_size=16).digest()
    except OSError:
        return None
    finally:
        close(descriptor)


def processes_below(process: int) -> list[int]:
    processes = list[int]()
    todo = [process]
    while todo and len(processes) < PROCESSES:
        parent = todo.pop()
        folder = f"/proc/{parent}/task"
        try:
            for thread in os.listdir(folder):
                with open(f"{folder}/{thread}/children", "rb") as stream:
                    children = [*map(int, stream.read().split())]
                processes += children
                todo += children
        except OSError:  # it has ended, or the system does not tell
            continue
    return processes[:PROCESSES]
