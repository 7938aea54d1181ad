"""The reload of the project's modules whose files changed after a cell imported them.

Before a cell runs, `os.stat` checks each file, and a file is hashed only if its status
differs. A changed module is reloaded by IPython's autoreload (`superreload`), which
updates functions and classes in place. Modules of the Python environment are not
checked.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import marshal
import os
import sys
import time
import types
from importlib.machinery import PathFinder
from typing import Any, NamedTuple

from IPython.core.error import InputRejected

from stepper.kernels.in_kernel.cell_sources import INSTALLED, sources
from stepper.kernels.in_kernel.module_parsing import (
    IMPORTS,
    WORD,
    get_package,
    list_mentioned_modules,
    list_star_names,
    parse_source,
    read_source,
    resolve_module_name,
)
from stepper.kernels.in_kernel.safe_inspect import (
    call_safely,
    get_module,
    get_own_attributes,
    is_a,
    shell,
    shorten,
)

MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
ENVIRONMENTS = {"site-packages", "dist-packages", "node_modules", "__pypackages__"}
ENVIRONMENT_FILES = ("pyvenv.cfg", "conda-meta")
# A file that changed so recently may change again without a new time stamp.
RECENT_NS = 2_000_000_000
COMPILED = (".so", ".pyd")
NETWORK = ("nfs", "cifs", "smb", "afs", "lustre", "gpfs", "beegfs", "ceph", "fuse")
# References that stay valid if a cell replaces the originals.
stat = os.stat
fstat = os.fstat
open_file = os.open
close_file = os.close
now_ns = time.time_ns
OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
BYTECODE_HEADER = 16  # bytes
# The hash of a module in memory whose source is not that of its file.
UNKNOWN_HASH = "another"
records: dict[str, Any] = {}  # name → the Record of a local module
state: dict[str, Any] = {
    "seen": set(),  # names of the modules that were loaded at the last check
    "since": 0,  # time of the last check in nanoseconds
    "root": None,  # the project's folder
    "network": None,  # whether this folder is on a network file system
    "folders": {},  # folder → whether its modules are local
    "old_objects": {},  # weak references, for IPython's `superreload`
    "reject": None,  # the CellRejecter of the next cell
}


class Mark(NamedTuple):
    """The times and the size of a file, which change if the file is written."""

    modified_ns: int
    size: int
    changed_ns: int  # the time of the last change of the content or of the inode


class Record:
    """A local module, its file, and the hashes of the sources in memory and on disk.

    A reload or a new import gives the module another `spec`. `mark` is None if the file
    does not exist. If `is_recent` is true, the file is hashed again even if its mark is
    the same. `is_outdated` means that the module uses a changed module during its
    import and could not be reloaded. `mentions` are the modules that the source with
    the hash `mentions_hash` imports.
    """

    def __init__(
        self, path: str, spec: Any, mark: Mark | None, source_hash: str
    ) -> None:
        self.path = path
        self.spec = spec
        self.mark = mark
        self.loaded_hash = source_hash
        self.disk_hash = source_hash
        self.is_recent = True
        self.failed_hash = ""  # of the source whose reload failed
        self.failure: dict[str, Any] = {}  # the reason, for the report
        self.reported_hash = ""  # of the source that was reported as not loaded
        self.is_outdated = False
        self.mentions: frozenset[str] = frozenset()
        self.mentions_hash = ""


class ReloadError(Exception):
    """A reload raised a BaseException such as KeyboardInterrupt.

    `superreload` restores the old module only after an `Exception`.
    """


def find_project_root() -> str:
    """Return the folder of the project that contains the working directory.

    The folder is searched on the first call only.
    """
    if state["root"] is None:
        folder = os.path.realpath(os.getcwd())
        state["root"] = search_project_root(folder)
    return str(state["root"])


def search_project_root(folder: str) -> str:
    """Return the folder of the project that contains a folder.

    This is the nearest folder with `.stepper`, from `folder` upwards; otherwise the
    nearest folder with another project file; otherwise `folder`.
    """
    candidates = [folder]
    parent = os.path.dirname(folder)
    while parent != candidates[-1]:
        candidates.append(parent)
        parent = os.path.dirname(parent)
    for candidate in candidates:
        if os.path.isdir(os.path.join(candidate, ".stepper")):
            return candidate
    for candidate in candidates:
        if contains_any(candidate, MARKERS):
            return candidate
    return folder


def contains_any(folder: str, names: tuple[str, ...]) -> bool:
    """Return whether a folder contains a file or folder with one of these names."""
    paths = [os.path.join(folder, name) for name in names]
    return any(map(os.path.exists, paths))


def is_local(path: str) -> bool:
    """Return whether a file is in the project and not in a Python environment."""
    prefix = os.path.join(find_project_root(), "")
    if not path.startswith(prefix) or path.startswith(INSTALLED):
        return False
    folder = os.path.dirname(path)
    if folder not in state["folders"]:
        state["folders"][folder] = not is_in_environment(folder)
    return bool(state["folders"][folder])


def is_in_environment(folder: str) -> bool:
    """Return whether a folder of the project is part of a Python environment."""
    root = find_project_root()
    while len(folder) > len(root):
        if os.path.basename(folder) in ENVIRONMENTS:
            return True
        if contains_any(folder, ENVIRONMENT_FILES):
            return True
        folder = os.path.dirname(folder)
    return False


def read_mark(path: str) -> Mark | None:
    """Return the times and the size of a file, or None if they cannot be read."""
    try:
        status = read_status(path)
    except OSError:
        return None
    return Mark(status.st_mtime_ns, status.st_size, status.st_ctime_ns)


def read_status(path: str) -> os.stat_result:
    """Return the status of a file. Raise OSError if the status cannot be read.

    On a network file system, `stat` may return a status that is seconds old. Opening
    the file requests the status from the server.
    """
    if state["network"] is None:
        state["network"] = call_safely(is_on_network, find_project_root()) or False
    if not state["network"]:
        return stat(path)
    try:
        descriptor = open_file(path, OPEN_FLAGS)
    except FileNotFoundError:
        raise
    except OSError:  # the file cannot be opened
        return stat(path)
    try:
        return fstat(descriptor)
    finally:
        close_file(descriptor)


def is_on_network(folder: str, mounts: str = "/proc/self/mounts") -> bool:
    """Return whether a folder is on a network file system.

    `mounts` is the path of the table of mounted file systems.
    """
    kinds: dict[str, str] = {}
    with open(mounts, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            _, point, kind = line.split()[:3]
            kinds[point.replace("\\040", " ")] = kind
    while folder not in kinds and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return kinds.get(folder, "").startswith(NETWORK)


def hash_file(path: str, mark: Mark | None) -> str:
    """Return the hash of a source file, or a text that identifies a compiled file.

    `mark` is the result of `read_mark`. Return "deleted" or "unreadable" if the file
    cannot be read.
    """
    if mark is None:
        return "deleted"
    if path.endswith(COMPILED):
        return str((mark.modified_ns, mark.size))
    try:
        return hashlib.sha256(read_source(path)).hexdigest()
    except OSError:
        return "unreadable"


def is_changed_since(mark: Mark | None, time_ns: int) -> bool:
    """Return whether a file may have changed after a time.

    A change shortly after another one may not change the time stamp. Return False if
    `mark` is None: the file does not exist.
    """
    if mark is None:
        return False
    last_change = max(mark.modified_ns, mark.changed_ns)
    return last_change > time_ns - RECENT_NS


def record_new_modules() -> None:
    """Record the local modules that cells imported or reloaded since the last call.

    Modules that are no longer loaded are forgotten.
    """
    since = state["since"]
    state["since"] = now_ns()
    names = set(sys.modules)
    for name in names - state["seen"]:
        add_record(name, since)
    state["seen"] = names
    for name, record in list(records.items()):
        module = sys.modules.get(name)
        if module is None:
            del records[name]
        elif get_spec(module) is not record.spec:
            add_record(name, since)


def get_spec(module: Any) -> Any:
    """Return the `__spec__` of a module, or None if it has none."""
    return get_own_attributes(module).get("__spec__")


def forget_removed_modules() -> None:
    """Forget modules that are no longer loaded, so that a new import is recorded."""
    state["seen"] &= set(sys.modules)


def add_record(name: str, since: int) -> None:
    """Record a module if it is local.

    `since` is a time in nanoseconds before the import, such as the start of the cell.
    """
    module: Any = sys.modules.get(name)
    module_dict = get_own_attributes(module)
    path = module_dict.get("__file__")
    spec = get_spec(module)
    if name in ("__main__", "__mp_main__") or spec is None or type(path) is not str:
        return
    if not path.endswith((".py", *COMPILED)):
        return
    path = os.path.realpath(path)
    if not is_local(path):
        return
    mark = read_mark(path)
    record = Record(path, spec, mark, hash_file(path, mark))
    records[name] = record
    # The file may have been edited after the import.
    if is_changed_since(mark, since) and path.endswith(".py"):
        is_loaded = call_safely(matches_source, module, path)
        if not is_loaded:
            record.loaded_hash = UNKNOWN_HASH


def matches_source(module: Any, path: str) -> bool:
    """Return whether a module was loaded from the current source of its file.

    The module's functions and the bytecode file are compared with the source.
    """
    try:
        code = compile_source(path)
    except (SyntaxError, ValueError):
        return False
    codes = {code}
    pending = [code]
    while pending:
        for constant in pending.pop().co_consts:
            if isinstance(constant, types.CodeType):
                codes.add(constant)
                pending.append(constant)
    for value in list(get_own_attributes(module).values()):
        if type(value) is types.FunctionType:
            is_own = os.path.realpath(value.__code__.co_filename) == path
            if is_own and value.__code__ not in codes:
                return False
    data = read_bytecode(path)
    if data is None:
        return True
    loaded_code = marshal.loads(data[BYTECODE_HEADER:])  # noqa: S302  # as Python does
    return bool(loaded_code == code)


def read_bytecode(path: str) -> Any:
    """Return the content of a source's bytecode file, or None.

    None means that there is no such file, or that its header does not contain the
    source's time and size.
    """
    try:
        status = stat(path)
        with open(importlib.util.cache_from_source(path), "rb") as stream:
            data = stream.read()
    except (OSError, NotImplementedError):
        return None
    mtime = int(status.st_mtime) & 0xFFFFFFFF
    size = status.st_size & 0xFFFFFFFF
    mtime_bytes = mtime.to_bytes(4, "little")
    size_bytes = size.to_bytes(4, "little")
    flags = bytes(4)
    expected = flags + mtime_bytes + size_bytes
    # The header begins with the version of the format.
    if data[4:BYTECODE_HEADER] == expected:
        return data
    return None


def refresh_records() -> list[str]:
    """Update the records of all modules, and return the names of modules to reload.

    These are modules whose files differ from the loaded source, and modules that could
    not be reloaded before.
    """
    for name, record in list(records.items()):
        module = sys.modules.get(name)
        if module is None:
            del records[name]
            continue
        if get_spec(module) is not record.spec:
            add_record(name, state["since"])
            continue
        mark = read_mark(record.path)
        if mark != record.mark or record.is_recent:
            record.mark = mark
            record.is_recent = is_changed_since(mark, now_ns())
            record.disk_hash = hash_file(record.path, mark)
    return [
        name
        for name, record in records.items()
        if record.disk_hash != record.loaded_hash or record.is_outdated
    ]


def find_autoreload() -> Any:
    """Return IPython's reloader if the user enabled `%autoreload`, or None."""
    magics = shell.magics_manager.registry.get("AutoreloadMagics")
    reloader = getattr(magics, "_reloader", None)
    if getattr(reloader, "enabled", False):
        return reloader
    return None


def drop_bytecode(path: str, code: Any) -> None:
    """Remove the bytecode file of a source if it does not contain `code`.

    Python could use the bytecode of an earlier source, because it identifies a source
    by its size and its time in whole seconds.
    """
    data = read_bytecode(path)
    if data is None:
        return
    if call_safely(marshal.loads, data[BYTECODE_HEADER:]) != code:
        bytecode_path = importlib.util.cache_from_source(path)
        call_safely(os.unlink, bytecode_path)


def compile_source(path: str) -> Any:
    """Return the code object of a source file.

    Raise OSError, SyntaxError or ValueError if the file cannot be read or compiled.
    """
    return compile(read_source(path), path, "exec", dont_inherit=True)


def update_modules(raw: str, mode: str) -> Any:
    """Reload changed modules in `reload` mode, or only report them in `warn` mode.

    `raw` is the source of the next cell, which is rejected if the user interrupts the
    reload. If the user enabled `%autoreload`, IPython reloads the modules instead.
    Return the reloaded and the outdated modules, as a dict that JSON can encode, or
    None if there are none.
    """
    names = refresh_records()
    if not names:
        return None
    changes: dict[str, Any] = {
        "reloaded": [],
        "dependents": [],
        "old": [],
        "lost": [],
        "classes": False,
    }
    reason = "warn"
    reloader = find_autoreload()
    if reloader is not None:
        reason = "autoreload"
        exclude_autoreloaded(names, reloader)
    elif mode == "reload":
        try:
            reload_all(names, changes)
        except KeyboardInterrupt:
            reason = "interrupted"
            reject_cell()
    report_outdated(raw, names, reason, changes["old"])
    lists = ("reloaded", "dependents", "old", "lost")
    if any(changes[key] for key in lists):
        return changes
    return None


def exclude_autoreloaded(names: list[str], reloader: Any) -> None:
    """Remove from `names` the modules that the user's `%autoreload` will reload.

    The current sources of these modules are recorded as loaded.
    """
    for name in list(names):
        if is_autoreloaded(reloader, name):
            record = records[name]
            code = call_safely(compile_source, record.path)
            if code is not None:
                drop_bytecode(record.path, code)
            record.loaded_hash = record.disk_hash
            names.remove(name)


def report_outdated(
    raw: str, names: list[str], reason: str, reports: list[dict[str, Any]]
) -> None:
    """Add a report on each outdated module to `reports`.

    `raw` is the source of the next cell, and `names` are the modules to reload. A
    module is reported once for each version of its file, and again if the cell uses the
    module or a module that imports it. `reason` is reported for a module unless its
    file was deleted or the reload of its current file failed.
    """
    outdated = [
        name
        for name, record in records.items()
        if record.is_outdated
        or (name in names and record.disk_hash != record.loaded_hash)
    ]
    if not outdated:
        return
    words = set(WORD.findall(raw))
    for name in outdated:
        record = records[name]
        is_reported = record.reported_hash == record.disk_hash
        affected = list_affected(name)
        if is_reported and not any(is_used(module, words) for module in affected):
            continue
        record.reported_hash = record.disk_hash
        reports.append(describe_outdated(name, record, reason))


def describe_outdated(name: str, record: Any, reason: str) -> dict[str, Any]:
    """Return the report on an outdated module, as a dict that JSON can encode.

    See `report_outdated` for `reason`.
    """
    path = os.path.relpath(record.path, find_project_root())
    report = {"name": shorten(name), "file": shorten(path)}
    if record.disk_hash == "deleted":
        report["why"] = "deleted"
    elif record.failed_hash == record.disk_hash:
        report.update(record.failure)
    else:
        report["why"] = reason
    return report


def is_autoreloaded(reloader: Any, name: str) -> bool:
    """Return whether the user's `%autoreload` reloads a module."""
    if name in getattr(reloader, "modules", ()):
        return True
    if name in getattr(reloader, "skip_modules", ()):
        return False
    return bool(getattr(reloader, "check_all", False))


def get_defining_module(definition: Any) -> Any:
    """Return the name of the module that defines a function or a class."""
    if type(definition) is types.FunctionType:
        return definition.__module__
    return get_module(definition)


def is_used(name: str, words: set[str]) -> bool:
    """Return whether a cell with these words uses a module or a definition from it."""
    if name.rpartition(".")[2] in words:
        return True
    for word in words & set(shell.user_ns):
        value = shell.user_ns[word]
        if is_a(value, types.ModuleType):
            package = get_own_attributes(value).get("__name__")
            if type(package) is str and f"{name}.".startswith(f"{package}."):
                return True
            continue
        is_definition = is_a(value, (type, types.FunctionType))
        definition = value if is_definition else type(value)
        if get_defining_module(definition) == name:
            return True
    return False


def reload_all(names: list[str], changes: dict[str, Any]) -> None:
    """Reload changed modules in the order of their imports, and rebind imported names.

    A module that uses values of a changed module during its import is reloaded, too, so
    that its values are the same as in a new kernel. The results are added to `changes`.
    """
    snapshots = {}
    for name in records:
        module = sys.modules[name]
        snapshots[name] = dict(get_own_attributes(module))
    updated: set[str] = set()  # modules in which something changed
    try:
        for name in sort_by_imports(list(records)):
            record = records[name]
            is_untried = name in names and record.failed_hash != record.disk_hash
            is_reloaded = False
            if is_untried or uses_at_import(name, updated, snapshots):
                is_reloaded = reload_record(name, changes)
            if is_reloaded or call_safely(rebind_in_module, name, snapshots):
                updated.add(name)
    finally:
        # An interrupt must not leave names bound to values of the old modules.
        if updated:
            rebind_everywhere(snapshots, changes["lost"])


def rebind_everywhere(snapshots: dict[str, Any], lost: Any) -> None:
    """Update the names that modules and cells imported, after all reloads.

    The arguments are those of `rebind_names`.
    """
    # The names in modules that import each other must be updated a second time.
    for name in list(records):
        call_safely(rebind_in_module, name, snapshots)
    for raw in list(sources.values()):
        if "import" in raw:
            call_safely(rebind_in_notebook, raw, snapshots, lost)


def uses_at_import(name: str, updated: set[str], snapshots: dict[str, Any]) -> bool:
    """Return whether a module uses the updated modules during its own import.

    `snapshots` are the namespaces of the modules before the reload.
    """
    if updated.isdisjoint(list_imported(name)):
        return False
    from stepper.kernels.in_kernel.import_time_dependencies import depends_at_import

    path = records[name].path
    return bool(call_safely(depends_at_import, name, path, updated, snapshots))


def reload_record(name: str, changes: dict[str, Any]) -> bool:
    """Reload a module and update its record. Return whether the reload succeeded.

    If so, the module's name is added to `changes`.
    """
    record = records[name]
    is_changed = record.disk_hash != record.loaded_hash
    record.failure = reload_one(name, record, changes)
    if record.failure:
        record.failed_hash = record.disk_hash
        record.is_outdated = not is_changed
        if record.is_outdated:
            record.failure["why"] = "dependent"
        return False
    record.failed_hash = ""
    record.is_outdated = False
    record.loaded_hash = record.disk_hash
    record.spec = get_spec(sys.modules[name])
    key = "reloaded" if is_changed else "dependents"
    changes[key].append(shorten(name))
    return True


def reload_one(name: str, record: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """Reload a module. Return {} on success, or the reason of a failure.

    The reason is a dict that JSON can encode. If the module defined classes before the
    reload, this is stored in `changes`. Raise KeyboardInterrupt if the user interrupts
    the reload.
    """
    if record.disk_hash == "deleted":
        call_safely(update_path, name, record)
    if record.disk_hash == "deleted":  # there is no new file
        return {"why": "deleted"}
    if record.path.endswith(COMPILED):
        return {"why": "compiled"}
    try:
        code = compile_source(record.path)
    except (OSError, SyntaxError, ValueError) as error:
        return describe_compile_error(error)
    drop_bytecode(record.path, code)
    module: Any = sys.modules[name]
    has_classes = defines_class(module, name)
    autoreload: Any = importlib.import_module("IPython.extensions.autoreload")
    importlib.invalidate_caches()
    spec = get_spec(module)
    try:
        autoreload.superreload(module, reload_module, state["old_objects"])
    except Exception as error:
        cause = error.__cause__ if isinstance(error, ReloadError) else error
        if isinstance(cause, KeyboardInterrupt):
            raise cause from None
        # A new spec means that only the update of existing objects failed.
        if get_spec(module) is spec:
            return describe_reload_error(cause, record.path)
    changes["classes"] = changes["classes"] or has_classes
    return {}


def describe_compile_error(error: Exception) -> dict[str, Any]:
    """Return the reason of a failed reload, for a source that cannot be compiled.

    `error` is an OSError, a SyntaxError or a ValueError.
    """
    message = error.msg if isinstance(error, SyntaxError) else error
    line = getattr(error, "lineno", None)
    return {
        "why": "syntax",
        "error": shorten(f"{type(error).__name__}: {message}"),
        "line": line or 0,
    }


def describe_reload_error(error: Any, path: str) -> dict[str, Any]:
    """Return the reason for a failed reload, from an exception that the module raised.

    `path` is the module's file.
    """
    return {
        "why": "raised",
        "error": shorten(f"{type(error).__name__}: {error}"),
        "line": find_error_line(error, path),
    }


def defines_class(module: Any, name: str) -> bool:
    """Return whether a module defines a class. `name` is the module's name."""
    for value in list(get_own_attributes(module).values()):
        if is_a(value, type) and get_module(value) == name:
            return True
    return False


def update_path(name: str, record: Any) -> None:
    """Update the record of a module whose file was deleted, if it has a new file."""
    path = find_moved_source(name)
    if path:
        record.path = path
        record.mark = read_mark(path)
        record.disk_hash = hash_file(path, record.mark)


def find_moved_source(name: str) -> str | None:
    """Return the new file of a module whose file was deleted, or None.

    For example, `a.py` may have been replaced by `a/__init__.py`.
    """
    importlib.invalidate_caches()
    package = name.rpartition(".")[0]
    folders = None
    if package:
        package_names = get_own_attributes(sys.modules[package])
        folders = list(package_names["__path__"])
    spec = PathFinder.find_spec(name, folders)
    if spec is None or not spec.origin:
        return None
    path = os.path.realpath(spec.origin)
    if path.endswith(".py") and is_local(path):
        return path
    return None


def reload_module(module: Any) -> Any:
    """Reload a module, and restore its former names if the reload fails.

    Raise ReloadError if the module raises a BaseException that is not an Exception.
    """
    spec = get_spec(module)
    old_namespace = get_own_attributes(module).copy()
    try:
        return importlib.reload(module)
    except BaseException as error:
        module.__dict__.update(old_namespace, __spec__=spec)
        if isinstance(error, Exception):
            raise
        raise ReloadError from error


def find_error_line(error: Any, path: str) -> int:
    """Return the innermost line of a file in the traceback of an error, or 0."""
    line = 0
    trace = getattr(error, "__traceback__", None)
    while trace is not None:
        if os.path.realpath(trace.tb_frame.f_code.co_filename) == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def sort_by_imports(names: list[str]) -> list[str]:
    """Return the names of modules in an order in which imports precede importers."""
    ordered: list[str] = []

    def visit(name: str, importers: tuple[str, ...]) -> None:
        """Append a module to `ordered`, after the modules that it imports.

        `importers` are the modules that led to this one, because modules may import
        each other.
        """
        if name in ordered or name in importers:
            return
        for imported_name in sorted(list_imported(name)):
            visit(imported_name, (*importers, name))
        ordered.append(name)

    for name in sorted(names):
        visit(name, ())
    return [name for name in ordered if name in names]


def may_import_local(raw: str) -> bool:
    """Return whether a local module is loaded, or a cell may import one."""
    if records:
        return True
    if "import" not in raw:
        return False
    for source, _, plain_imports in IMPORTS.findall(raw):
        for name in [source, *plain_imports.split(",")]:
            first_word = name.strip().split(" ")[0]
            top = first_word.partition(".")[0]
            if top and top not in sys.modules and is_in_project(top):
                return True
    return False


def is_in_project(top: str) -> bool:
    """Return whether a top-level module would be imported from the project."""
    spec = PathFinder.find_spec(top)
    if spec is None:
        return False
    for path in (spec.origin, *(spec.submodule_search_locations or ())):
        if type(path) is str and is_local(os.path.realpath(path)):
            return True
    return False


def list_imported(name: str) -> set[str]:
    """Return the recorded modules that a module's source imports."""
    record = records[name]
    if record.mentions_hash != record.disk_hash:
        record.mentions_hash = record.disk_hash
        record.mentions = (
            call_safely(list_mentioned_modules, name, record.path) or frozenset()
        )
    return set(record.mentions & records.keys()) - {name}


def list_affected(name: str) -> list[str]:
    """Return a module and the modules that import it, directly or indirectly."""
    affected = [name]
    for module in affected:  # the loop also reaches the modules that it adds
        for other in records:
            if other not in affected and module in list_imported(other):
                affected.append(other)
    return affected


def rebind_in_module(name: str, snapshots: dict[str, Any]) -> bool:
    """Update the names that a module imported. Return whether a name changed.

    `snapshots` are the namespaces of the modules before the reload.
    """
    path = records[name].path
    tree = parse_source(path)
    if tree is None:
        return False
    namespace = get_own_attributes(sys.modules[name])
    return rebind_names(namespace, tree, get_package(name, path), snapshots, None)


def rebind_in_notebook(raw: str, snapshots: dict[str, Any], lost: Any) -> None:
    """Update the names that a cell imported. `raw` is the source of the cell.

    A name that its module no longer defines is added to `lost`, with the module.
    """
    try:
        tree = ast.parse(shell.transform_cell(raw))
    except SyntaxError:  # the cell did not run
        return
    rebind_names(shell.user_ns, tree, "", snapshots, lost)


def rebind_names(
    namespace: dict[str, Any],
    tree: ast.Module,
    package: str,
    snapshots: dict[str, Any],
    lost: Any,
) -> bool:
    """Update the names that `from … import` bound. Return whether a name changed.

    A name that is now bound to another value is not updated. `snapshots` are the
    namespaces of the modules before the reload. Names that their modules no longer
    define are added to `lost`, unless `lost` is None.
    """
    has_changed = False
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        source = "." * node.level + (node.module or "")
        module = resolve_module_name(source, package)
        if module not in snapshots:
            continue
        names = list_imported_names(node, snapshots[module])
        if rebind_module_names(namespace, module, names, snapshots[module], lost):
            has_changed = True
    return has_changed


def rebind_module_names(
    namespace: dict[str, Any],
    module: str,
    names: list[tuple[str, str]],
    snapshot: dict[str, Any],
    lost: Any,
) -> bool:
    """Update names that a `from` statement imported from a module.

    `names` are the names in the module, each with the name in `namespace`. The other
    arguments and the result are those of `rebind_names`.
    """
    has_changed = False
    present = get_own_attributes(sys.modules[module])
    for name, bound_name in names:
        if name not in snapshot or bound_name not in namespace:
            continue
        if namespace[bound_name] is not snapshot[name]:
            continue  # the name was bound to another value
        if name in present:
            has_changed = has_changed or present[name] is not snapshot[name]
            namespace[bound_name] = present[name]
        elif lost is not None and [bound_name, module] not in lost:
            lost.append([bound_name, module])
    return has_changed


def list_imported_names(
    node: ast.ImportFrom, snapshot: dict[str, Any]
) -> list[tuple[str, str]]:
    """Return the names that a `from` statement imports, each with the name it binds.

    `snapshot` is the module's namespace, which contains the names for `import *`.
    """
    if node.names[0].name == "*":
        return [(name, name) for name in list_star_names(snapshot)]
    return [(alias.name, alias.asname or alias.name) for alias in node.names]


def list_loaded_versions() -> dict[str, str]:
    """Return a version for each local module: a part of its loaded source's hash."""
    versions = {}
    for name, record in records.items():
        versions[shorten(name)] = f"source {record.loaded_hash[:10]}"
    return versions


def list_local_imports() -> dict[str, list[str]]:
    """Return the local modules that each local module imports, by module name."""
    imports = {}
    for name in list(records):
        imported_names = list_imported(name)
        if imported_names:
            imports[shorten(name)] = sorted(map(shorten, imported_names))
    return imports


class CellRejecter:
    """An AST transformer that rejects a cell, because its reload was interrupted."""

    def visit(self, node: Any) -> Any:
        """Raise InputRejected, which IPython reports without running the cell."""
        remove_rejection()
        raise InputRejected(
            "The cell did not run: the reload of changed modules was interrupted."
        )


def reject_cell() -> None:
    """Make IPython reject the cell that is about to run."""
    state["reject"] = CellRejecter()
    shell.ast_transformers.append(state["reject"])


def remove_rejection() -> None:
    """Remove the transformer of `reject_cell`, if there is one."""
    if state["reject"] in shell.ast_transformers:
        shell.ast_transformers.remove(state["reject"])
    state["reject"] = None
