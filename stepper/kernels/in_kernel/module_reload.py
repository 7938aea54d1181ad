"""The project's modules that cells imported, and whether their files have changed.

Before a cell runs, `os.stat` checks each file, and a file is hashed only if its status
differs. IPython's autoreload (`superreload`) reloads a changed module: it updates
functions and classes in place. Modules of the Python environment are not checked.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.machinery
import importlib.util
import marshal
import os
import sys
import time
import types
from importlib.machinery import PathFinder
from typing import Any

from IPython.core.error import InputRejected

from stepper.kernels.in_kernel.cell_sources import INSTALLED, sources
from stepper.kernels.in_kernel.module_sources import (
    IMPORTS,
    WORD,
    get_package,
    list_mentioned_modules,
    parse_source,
    read_source,
    resolve_module_name,
)
from stepper.kernels.in_kernel.safe_inspect import (
    call_safely,
    module_of,
    own_names,
    shell,
    shorten,
)

MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
ENVIRONMENTS = {"site-packages", "dist-packages", "node_modules", "__pypackages__"}
ENVIRONMENT_FILES = ("pyvenv.cfg", "conda-meta")
# A file so young may change again without a new time stamp.
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
records: dict[str, Any] = {}  # name → the Record of a local module
state: dict[str, Any] = {
    "seen": set(),
    "since": 0,
    "root": None,
    "network": None,
    "folders": {},
    "old_objects": {},
    "reject": None,
}


class Record:
    """A local module: its file, and the hash of the source that was loaded.

    `disk` is the hash of the file now. `tried` is the hash with which a reload failed,
    for the reasons in `failure`. `reported` is the hash reported as not loaded.
    `outdated` means that it uses a changed module at its import and could not be
    reloaded. `mentions` are the modules that its imports name, in the source with the
    hash `mentions_of`.
    """

    def __init__(
        self, path: str, spec: Any, mark: Any, list_loaded_versions: str
    ) -> None:
        self.path = path
        self.spec = spec
        self.mark = mark
        self.loaded = list_loaded_versions
        self.disk = list_loaded_versions
        self.recent = True
        self.tried = ""
        self.failure: dict[str, Any] = {}
        self.reported = ""
        self.outdated = False
        self.mentions: frozenset[str] = frozenset()
        self.mentions_of = ""


class ReloadError(Exception):
    """A reload raised a BaseException such as KeyboardInterrupt.

    `superreload` restores the old module only after an `Exception`.
    """


def find_project_root() -> str:
    """Return the project's folder.

    It is the nearest parent of the working folder with `.stepper`, else the nearest
    with another project file, else the working folder.
    """
    if state["root"] is None:
        folder = os.path.realpath(os.getcwd())
        state["root"] = search_project_root(folder)
    return str(state["root"])


def search_project_root(folder: str) -> str:
    """Return the project's folder of a working folder."""
    parents = [folder]
    parent = os.path.dirname(folder)
    while parent != parents[-1]:
        parents.append(parent)
        parent = os.path.dirname(parent)
    for parent in parents:
        if os.path.isdir(os.path.join(parent, ".stepper")):
            return parent
    for parent in parents:
        if contains_any(parent, MARKERS):
            return parent
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


def read_mark(path: str) -> Any:
    """Return the times and the size of a file, or None if it does not exist."""
    try:
        status = read_status(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ctime_ns


def read_status(path: str) -> os.stat_result:
    """Return the status of a file.

    On a network file system, `stat` may use a cache that is seconds old. Opening the
    file asks the server.
    """
    if state["network"] is None:
        state["network"] = call_safely(is_on_network, find_project_root()) or False
    if not state["network"]:
        return stat(path)
    try:
        number = open_file(path, OPEN_FLAGS)
    except FileNotFoundError:
        raise
    except OSError:  # the file cannot be opened
        return stat(path)
    try:
        return fstat(number)
    finally:
        close_file(number)


def is_on_network(folder: str, mounts: str = "/proc/self/mounts") -> bool:
    """Return whether a folder is on a network file system."""
    kinds: dict[str, str] = {}
    with open(mounts, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            _, point, kind = line.split()[:3]
            kinds[point.replace("\\040", " ")] = kind
    while folder not in kinds and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return kinds.get(folder, "").startswith(NETWORK)


def hash_file(path: str, mark: Any) -> str:
    """Return the hash of a source file, or of the mark of a compiled module."""
    if mark is None:
        return "deleted"
    if path.endswith(COMPILED):
        return str(mark[:2])
    try:
        return hashlib.sha256(read_source(path)).hexdigest()
    except OSError:
        return "unreadable"


def is_recent(mark: Any) -> bool:
    """Return whether a file may have changed again without a new time stamp."""
    if mark is None:
        return False
    changed_at = max(mark[0], mark[2])
    return bool(changed_at > now_ns() - RECENT_NS)


def register() -> None:
    """Record the local modules that cells imported or reloaded since the last call."""
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
        elif own_names(module).get("__spec__") is not record.spec:
            add_record(name, since)


def add_record(name: str, since: int) -> None:
    """Record a module if it is local.

    `since` is when the cell that imported it began.
    """
    module: Any = sys.modules.get(name)
    module_dict = own_names(module)
    path = module_dict.get("__file__")
    spec = module_dict.get("__spec__")
    if name in ("__main__", "__mp_main__") or spec is None or type(path) is not str:
        return
    if not path.endswith((".py", *COMPILED)):
        return
    path = os.path.realpath(path)
    if not is_local(path):
        return
    mark = read_mark(path)
    loaded = hash_file(path, mark)
    is_edited = mark is not None and max(mark[0], mark[2]) > since - RECENT_NS
    is_suspect = is_edited and path.endswith(".py")
    if is_suspect and not call_safely(matches_source, module, path):
        loaded = "another"  # the file was edited after the import
    record = Record(path, spec, mark, loaded)
    record.disk = hash_file(path, mark)
    records[name] = record


def matches_source(module: Any, path: str) -> bool:
    """Return whether a module was loaded from the present source of its file.

    Its functions and the bytecode file are compared.
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
    for value in list(own_names(module).values()):
        if type(value) is types.FunctionType:
            is_own = os.path.realpath(value.__code__.co_filename) == path
            if is_own and value.__code__ not in codes:
                return False
    data = read_bytecode(path)
    if data is None:
        return True
    return bool(marshal.loads(data[16:]) == code)  # noqa: S302  # as Python does


def read_bytecode(path: str) -> Any:
    """Return the bytecode file that Python would use for a source, or None."""
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
    expected = bytes(4) + mtime_bytes + size_bytes
    return data if data[4:16] == expected else None


def list_changed_modules() -> list[str]:
    """Return the modules whose files differ from the source that was loaded."""
    for name, record in list(records.items()):
        module = sys.modules.get(name)
        if module is None:
            del records[name]
            continue
        if own_names(module).get("__spec__") is not record.spec:
            add_record(name, state["since"])
            continue
        mark = read_mark(record.path)
        if mark != record.mark or record.recent:
            record.mark = mark
            record.recent = is_recent(mark)
            record.disk = hash_file(record.path, mark)
    return [
        name
        for name, record in records.items()
        if record.disk != record.loaded or record.outdated
    ]


def find_autoreload() -> Any:
    """Return IPython's reloader if the user enabled `%autoreload`, or None."""
    magics = shell.magics_manager.registry.get("AutoreloadMagics")
    reloader = getattr(magics, "_reloader", None)
    return reloader if getattr(reloader, "enabled", False) else None


def drop_bytecode(path: str, code: Any) -> None:
    """Remove a bytecode file of an earlier source.

    Python identifies the source by its size and its time in whole seconds.
    """
    data = read_bytecode(path)
    if data is not None and call_safely(marshal.loads, data[16:]) != code:
        bytecode_path = importlib.util.cache_from_source(path)
        call_safely(os.unlink, bytecode_path)


def compile_source(path: str) -> Any:
    """Return the code object of a source file."""
    return compile(read_source(path), path, "exec", dont_inherit=True)


def update_modules(raw: str, mode: str) -> Any:
    """Reload changed modules in `reload` mode, or only report them in `warn` mode.

    Returns what was reloaded and what is not up to date as JSON, or None if nothing is.
    """
    names = list_changed_modules()
    if not names:
        return None
    changes: dict[str, Any] = {
        "reloaded": [],
        "dependents": [],
        "old": [],
        "lost": [],
        "classes": False,
    }
    is_interrupted = False
    reloader = find_autoreload()
    if reloader is not None:
        leave_to_autoreload(names, reloader)
    elif mode == "reload":
        try:
            reload_all(names, changes)
        except KeyboardInterrupt:
            is_interrupted = True
            reject_cell()
    reason = "autoreload" if reloader is not None else "warn"
    if is_interrupted:
        reason = "interrupted"
    report_outdated(raw, names, reason, changes["old"])
    lists = ("reloaded", "dependents", "old", "lost")
    return changes if any(changes[key] for key in lists) else None


def leave_to_autoreload(names: list[str], reloader: Any) -> None:
    """Remove the modules that the user's `%autoreload` will reload from `names`."""
    for name in list(names):
        if is_autoreloaded(reloader, name):
            record = records[name]
            code = call_safely(compile_source, record.path)
            if code is not None:
                drop_bytecode(record.path, code)
            record.loaded = record.disk
            names.remove(name)


def report_outdated(
    raw: str, names: list[str], reason: str, reports: list[dict[str, Any]]
) -> None:
    """Add a report on each module that is not up to date.

    A module is reported once for each version of its file, and again for a cell that
    uses the module. `reason` applies to modules without a reason of their own.
    """
    outdated = [
        name
        for name, record in records.items()
        if record.outdated or (name in names and record.disk != record.loaded)
    ]
    words = set(WORD.findall(raw)) if outdated else set()
    for name in outdated:
        record = records[name]
        is_reported = record.reported == record.disk
        if is_reported and not any(
            is_used(module, words) for module in list_affected(name)
        ):
            continue
        record.reported = record.disk
        root = find_project_root()
        path = os.path.relpath(record.path, root)
        report = {"name": shorten(name), "file": shorten(path)}
        if record.disk == "deleted":
            report["why"] = "deleted"
        elif record.tried == record.disk:
            report.update(record.failure)
        else:
            report["why"] = reason
        reports.append(report)


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
    return module_of(definition)


def is_used(name: str, words: set[str]) -> bool:
    """Return whether a cell with these words uses a module, or a value from it."""
    if name.rpartition(".")[2] in words:
        return True
    for word in words & set(shell.user_ns):
        value = shell.user_ns[word]
        if isinstance(value, types.ModuleType):
            package = own_names(value).get("__name__")
            if type(package) is str and f"{name}.".startswith(f"{package}."):
                return True
            continue
        is_definition = isinstance(value, (type, types.FunctionType))
        definition = value if is_definition else type(value)
        if get_defining_module(definition) == name:
            return True
    return False


def reload_all(names: list[str], changes: dict[str, Any]) -> None:
    """Reload changed modules in the order of their imports, and rebind imported names.

    A module that computes something from them at its import is reloaded as well: its
    values are then those of the new source, as in a new kernel.
    """
    from stepper.kernels.in_kernel.import_time_dependencies import depends_at_import

    snapshots = {}
    for name in records:
        module = sys.modules[name]
        snapshots[name] = dict(own_names(module))
    updated: set[str] = set()  # modules in which something changed
    try:
        for name in sort_by_imports(list(records)):
            record = records[name]
            is_dependent = bool(list_imported(name) & updated) and call_safely(
                depends_at_import, name, record.path, updated, snapshots
            )
            is_untried = name in names and record.tried != record.disk
            is_reloaded = False
            if is_untried or is_dependent:
                is_reloaded = reload_record(name, changes)
            if is_reloaded or call_safely(rebind_in_module, name, snapshots):
                updated.add(name)
    finally:
        if updated:
            for name in list(records):  # again, for modules that import each other
                call_safely(rebind_in_module, name, snapshots)
            for raw in list(sources.values()):
                if "import" in raw:
                    call_safely(rebind_in_notebook, raw, snapshots, changes["lost"])


def reload_record(name: str, changes: dict[str, Any]) -> bool:
    """Reload a module, update its record and return whether that succeeded."""
    record = records[name]
    is_changed = record.disk != record.loaded
    record.failure = reload_one(name, record, changes)
    if record.failure:
        record.tried = record.disk
        record.outdated = not is_changed
        if record.outdated:
            record.failure["why"] = "dependent"
        return False
    record.tried = ""
    record.outdated = False
    record.loaded = record.disk
    record.spec = own_names(sys.modules[name]).get("__spec__")
    reloaded = changes["reloaded"] if is_changed else changes["dependents"]
    reloaded.append(shorten(name))
    return True


def reload_one(name: str, record: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """Reload a module; return the reason for a failure as JSON, or {}."""
    if record.disk == "deleted":
        path = call_safely(find_moved_source, name)
        if path:
            record.path = path
            record.mark = read_mark(path)
            record.disk = hash_file(path, record.mark)
    if record.disk == "deleted":
        return {"why": "deleted"}
    if record.path.endswith(COMPILED):
        return {"why": "compiled"}
    try:
        code = compile_source(record.path)
    except (OSError, SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        message = error.msg if isinstance(error, SyntaxError) else error
        return {
            "why": "syntax",
            "error": shorten(f"{type(error).__name__}: {message}"),
            "line": line or 0,
        }
    drop_bytecode(record.path, code)
    module: Any = sys.modules[name]
    has_classes = any(
        isinstance(value, type) and value.__module__ == name
        for value in list(own_names(module).values())
    )
    autoreload: Any = importlib.import_module("IPython.extensions.autoreload")

    importlib.invalidate_caches()
    spec = own_names(module).get("__spec__")
    try:
        autoreload.superreload(module, reload_module, state["old_objects"])
    except Exception as error:
        cause = error.__cause__ if isinstance(error, ReloadError) else error
        if isinstance(cause, KeyboardInterrupt):
            raise cause from None
        if own_names(module).get("__spec__") is spec:
            return {
                "why": "raised",
                "error": shorten(f"{type(cause).__name__}: {cause}"),
                "line": find_error_line(cause, record.path),
            }
    changes["classes"] = changes["classes"] or has_classes
    return {}


def find_moved_source(name: str) -> Any:
    """Return the file that a deleted module would be imported from, or None.

    For example, `a.py` may have become `a/__init__.py`.
    """
    importlib.invalidate_caches()
    package = name.rpartition(".")[0]
    folders = None
    if package:
        package_names = own_names(sys.modules[package])
        folders = list(package_names["__path__"])
    spec = importlib.machinery.PathFinder.find_spec(name, folders)
    if spec is None or not spec.origin:
        return None
    path = os.path.realpath(spec.origin)
    return path if path.endswith(".py") and is_local(path) else None


def reload_module(module: Any) -> Any:
    """Reload a module and restore its namespace if that fails."""
    spec = own_names(module).get("__spec__")
    before = own_names(module).copy()
    try:
        return importlib.reload(module)
    except Exception:
        raise
    except BaseException as error:
        raise ReloadError from error
    finally:
        if sys.exc_info()[0] is not None:
            module.__dict__.update(before, __spec__=spec)


def find_error_line(error: Any, path: str) -> int:
    """Return the line of a file in which an error was raised, or 0 if in none."""
    line = 0
    trace = getattr(error, "__traceback__", None)
    while trace is not None:
        if os.path.realpath(trace.tb_frame.f_code.co_filename) == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def sort_by_imports(names: list[str]) -> list[str]:
    """Return modules sorted so that each comes after those that it imports."""
    ordered: list[str] = []

    def visit(name: str, importers: tuple[str, ...]) -> None:
        if name in ordered or name in importers:
            return
        for imported_name in sorted(list_imported(name)):
            visit(imported_name, (*importers, name))
        ordered.append(name)

    for name in sorted(names):
        visit(name, ())
    return [name for name in ordered if name in names]


def may_import_local(raw: str) -> bool:
    """Return whether a local module is loaded or a cell imports one."""
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
    """Return the local modules that a module's source imports."""
    record = records[name]
    if record.mentions_of != record.disk:
        record.mentions_of = record.disk
        record.mentions = (
            call_safely(list_mentioned_modules, name, record.path) or frozenset()
        )
    return set(record.mentions & records.keys()) - {name}


def list_affected(name: str) -> list[str]:
    """Return a module and those that import it, directly or through others."""
    affected = [name]
    for module in affected:
        for other in records:
            if other not in affected and module in list_imported(other):
                affected.append(other)
    return affected


def rebind_in_module(name: str, snapshots: dict[str, Any]) -> bool:
    """Update the imported names of a module; return whether one changed."""
    path = records[name].path
    tree = parse_source(path)
    if tree is None:
        return False
    namespace = own_names(sys.modules[name])
    return rebind_names(namespace, tree, get_package(name, path), snapshots, None)


def rebind_in_notebook(raw: str, snapshots: dict[str, Any], lost: Any) -> None:
    """Update the names that a cell imported; add removed ones to `lost`."""
    tree = ast.parse(shell.transform_cell(raw))
    rebind_names(shell.user_ns, tree, "", snapshots, lost)


def rebind_names(
    namespace: dict[str, Any],
    tree: ast.Module,
    package: str,
    snapshots: dict[str, Any],
    lost: Any,
) -> bool:
    """Update the names that `from … import` bound; return whether one changed.

    A name is left alone if it was bound to another value since. `snapshots` are the
    namespaces of the modules before the reload.
    """
    has_changed = False
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        source = "." * node.level + (node.module or "")
        module = resolve_module_name(source, package)
        snapshot = snapshots.get(module)
        if snapshot is None:
            continue
        present = own_names(sys.modules[module])
        pairs = [(alias.name, alias.asname or alias.name) for alias in node.names]
        if pairs[:1] == [("*", "*")]:
            pairs = [(name, name) for name in snapshot if name[:1] != "_"]
        for name, bound_name in pairs:
            if name not in snapshot or bound_name not in namespace:
                continue
            if namespace[bound_name] is not snapshot[name]:
                continue
            if name in present:
                has_changed = has_changed or present[name] is not snapshot[name]
                namespace[bound_name] = present[name]
            elif lost is not None and [bound_name, module] not in lost:
                lost.append([bound_name, module])
    return has_changed


def list_loaded_versions() -> dict[str, str]:
    """Return the local modules with the hash of the loaded source as the version."""
    versions = {}
    for name, record in records.items():
        versions[shorten(name)] = f"source {record.loaded[:10]}"
    return versions


def list_local_imports() -> dict[str, list[str]]:
    """Return the local modules that import other local modules, with those."""
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
            "interrupted while changed modules were reloaded: the cell did not run"
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
