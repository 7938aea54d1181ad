"""The project's modules that cells imported, and whether their files have changed since.

Before a cell runs, `os.stat` checks each file, and a file is hashed only if that differs. IPython's
autoreload (`superreload`) reloads a changed module: it updates functions and classes in place.
Modules of the Python environment are not checked.
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
RECENT_NS = 2_000_000_000  # a file so young may change again without another time stamp
COMPILED = (".so", ".pyd")
NETWORK = ("nfs", "cifs", "smb", "afs", "lustre", "gpfs", "beegfs", "ceph", "fuse")
# a cell may replace them
stat, fstat, open_file, close_file = os.stat, os.fstat, os.open, os.close
now_ns = time.time_ns
OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
records: dict[str, Any] = {}  # name → what is known of a local module
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
    """A local module as it was imported: the file, and the hash of the source that was loaded."""

    def __init__(
        self, path: str, spec: Any, mark: Any, list_loaded_versions: str
    ) -> None:
        self.path = path
        self.spec = spec
        self.mark = mark
        self.loaded = list_loaded_versions
        self.disk = list_loaded_versions
        self.recent = True
        self.tried = ""  # the hash with which a reload failed
        self.failure: dict[str, Any] = {}
        self.told = ""  # the hash of which it was told that it is not loaded
        # it uses a changed module at its import, and could not be reloaded
        self.outdated = False
        # the modules that its imports name, and the hash of the source with them
        self.mentions: frozenset[str] = frozenset()
        self.mentions_of = ""


class ReloadError(Exception):
    """A module ended with what is no `Exception`: `superreload` restores the old one only for those."""


def find_project_root() -> str:
    """The project's folder: the nearest above the kernel's with `.stepper`, else with another mark of a project."""
    if state["root"] is None:
        here = os.path.realpath(os.getcwd())
        above = [here]
        while os.path.dirname(above[-1]) != above[-1]:
            above.append(os.path.dirname(above[-1]))
        found = [
            folder
            for folder in above
            if os.path.isdir(os.path.join(folder, ".stepper"))
        ]
        found += [
            folder
            for folder in above
            if any(os.path.exists(os.path.join(folder, one)) for one in MARKERS)
        ]
        state["root"] = (found or [here])[0]
    return str(state["root"])


def is_local(path: str) -> bool:
    """Whether a file is in the project and in no environment."""
    if not path.startswith(os.path.join(find_project_root(), "")) or path.startswith(
        INSTALLED
    ):
        return False
    folder = os.path.dirname(path)
    if folder not in state["folders"]:
        state["folders"][folder] = not in_environment(folder)
    return bool(state["folders"][folder])


def in_environment(folder: str) -> bool:
    while len(folder) > len(find_project_root()):
        named = os.path.basename(folder)
        marked = any(
            os.path.exists(os.path.join(folder, one))
            for one in ("pyvenv.cfg", "conda-meta")
        )
        if named in ENVIRONMENTS or marked:
            return True
        folder = os.path.dirname(folder)
    return False


def mark_of(path: str) -> Any:
    try:
        about = attributes(path)
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ctime_ns


def attributes(path: str) -> os.stat_result:
    """What the file system says of a file.

    On a network file system, `stat` may answer from a cache that is seconds old. Opening a file
    asks the server.
    """
    if state["network"] is None:
        state["network"] = call_safely(is_on_network, find_project_root()) or False
    if not state["network"]:
        return stat(path)
    try:
        number = open_file(path, OPEN_FLAGS)
    except FileNotFoundError:
        raise
    except OSError:  # it can't be read
        return stat(path)
    try:
        return fstat(number)
    finally:
        close_file(number)


def is_on_network(folder: str, mounts: str = "/proc/self/mounts") -> bool:
    """Whether a folder lies on a network file system."""
    kinds: dict[str, str] = {}
    with open(mounts, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            _, point, kind = line.split()[:3]
            kinds[point.replace("\\040", " ")] = kind
    while folder not in kinds and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return kinds.get(folder, "").startswith(NETWORK)


def hash_of(path: str, mark: Any) -> str:
    if mark is None:
        return "deleted"
    if path.endswith(COMPILED):
        return str(mark[:2])
    try:
        return hashlib.sha256(read_source(path)).hexdigest()
    except OSError:
        return "unreadable"


def is_recent(mark: Any) -> bool:
    return mark is not None and max(mark[0], mark[2]) > now_ns() - RECENT_NS


def register() -> None:
    """Record the local modules that were imported, or reloaded by a cell, since the last time."""
    since = state["since"]
    state["since"] = now_ns()
    names = set(sys.modules)
    for name in names - state["seen"]:
        take_in(name, since)
    state["seen"] = names
    for name, record in list(records.items()):
        module = sys.modules.get(name)
        if module is None:
            del records[name]
        elif own_names(module).get("__spec__") is not record.spec:
            take_in(name, since)


def take_in(name: str, since: int) -> None:
    module: Any = sys.modules.get(name)
    own = own_names(module)
    path, spec = own.get("__file__"), own.get("__spec__")
    if name in ("__main__", "__mp_main__") or spec is None or type(path) is not str:
        return
    if not path.endswith((".py", *COMPILED)):
        return
    path = os.path.realpath(path)
    if not is_local(path):
        return
    mark = mark_of(path)
    list_loaded_versions = hash_of(path, mark)
    edited = mark is not None and max(mark[0], mark[2]) > since - RECENT_NS
    if edited and path.endswith(".py") and not call_safely(holds, module, path):
        list_loaded_versions = "another"  # it was edited between its import and now
    record = Record(path, spec, mark, list_loaded_versions)
    record.disk = hash_of(path, mark)
    records[name] = record


def holds(module: Any, path: str) -> bool:
    """Whether a module was made of the source that its file holds now: by its functions, and by the bytecode file."""
    text = read_source(path)
    try:
        code = compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    known, todo = {code}, [code]
    while todo:
        inner = [one for one in todo.pop().co_consts if isinstance(one, types.CodeType)]
        known.update(inner)
        todo += inner
    for value in list(own_names(module).values()):
        own = (
            getattr(value, "__code__", None)
            if type(value) is types.FunctionType
            else None
        )
        if (
            own is not None
            and os.path.realpath(own.co_filename) == path
            and own not in known
        ):
            return False
    data = bytecode(path)
    return data is None or marshal.loads(data[16:]) == code  # noqa: S302  # Python itself loads it


def bytecode(path: str) -> Any:
    """The content of the bytecode file that Python takes for this source's, None where there is none."""
    try:
        about = stat(path)
        with open(importlib.util.cache_from_source(path), "rb") as stream:
            data = stream.read()
    except (OSError, NotImplementedError):
        return None
    expected = (int(about.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little") + (
        about.st_size & 0xFFFFFFFF
    ).to_bytes(4, "little")
    return data if data[4:16] == bytes(4) + expected else None


def changed() -> list[str]:
    """The names of the modules whose file holds another source than was loaded."""
    for name, record in list(records.items()):
        module = sys.modules.get(name)
        if module is None:
            del records[name]
            continue
        if own_names(module).get("__spec__") is not record.spec:
            take_in(name, state["since"])
            continue
        mark = mark_of(record.path)
        if mark != record.mark or record.recent:
            record.mark = mark
            record.recent = is_recent(mark)
            record.disk = hash_of(record.path, mark)
    return [
        name
        for name, record in records.items()
        if record.disk != record.loaded or record.outdated
    ]


def own_reloader() -> Any:
    """IPython's reloader where the user has switched it on: `%autoreload`."""
    magics = shell.magics_manager.registry.get("AutoreloadMagics")
    reloader = getattr(magics, "_reloader", None)
    return reloader if getattr(reloader, "enabled", False) else None


def drop_bytecode(path: str, code: Any) -> None:
    """Remove a bytecode file of the source before: Python knows one by whole seconds and the size of the source."""
    data = bytecode(path)
    if data is not None and call_safely(marshal.loads, data[16:]) != code:
        call_safely(os.unlink, importlib.util.cache_from_source(path))


def compiled(path: str) -> Any:
    return compile(read_source(path), path, "exec", dont_inherit=True)


def before(raw: str, mode: str) -> Any:
    """Reload what has changed, or tell that it was not: `reload` or `warn`. None where nothing has changed."""
    names = changed()
    if not names:
        return None
    told: dict[str, Any] = {
        "reloaded": [],
        "dependents": [],
        "old": [],
        "lost": [],
        "classes": False,
    }
    interrupted = False
    reloader = own_reloader()
    if reloader is not None:
        for name in [name for name in names if is_users(reloader, name)]:
            record = records[name]
            code = call_safely(compiled, record.path)
            if code is not None:
                drop_bytecode(record.path, code)
            record.loaded = record.disk
            names.remove(name)
    if mode == "reload" and reloader is None:
        try:
            reload_all(names, told)
        except KeyboardInterrupt:
            interrupted = True
            reject()
    old = [
        name
        for name, record in records.items()
        if record.outdated or (name in names and record.disk != record.loaded)
    ]
    words = set(WORD.findall(raw)) if old else set()
    for name in old:
        record = records[name]
        if record.told != record.disk or any(
            uses(user, words) for user in affected_by(name)
        ):
            record.told = record.disk
            why = {"why": "autoreload" if reloader is not None else "warn"}
            if record.disk == "deleted":
                why = {"why": "deleted"}
            elif record.tried == record.disk:
                why = record.failure
            elif interrupted:
                why = {"why": "interrupted"}
            told["old"].append(
                {
                    "name": shorten(name),
                    "file": shorten(os.path.relpath(record.path, find_project_root())),
                    **why,
                }
            )
    lists = ("reloaded", "dependents", "old", "lost")
    return told if any(told[name] for name in lists) else None


def is_users(reloader: Any, name: str) -> bool:
    """Whether the user's own autoreload reloads a module."""
    every = getattr(reloader, "check_all", False) and name not in getattr(
        reloader, "skip_modules", ()
    )
    return every or name in getattr(reloader, "modules", ())


def own_module(holder: Any) -> Any:
    """The name of the module in which a function or a class was defined."""
    if type(holder) is types.FunctionType:
        return holder.__module__
    return module_of(holder)


def uses(name: str, words: set[str]) -> bool:
    """Whether a cell mentions a module, or a name of the notebook's that comes from it."""
    if name.rpartition(".")[2] in words:
        return True
    for word in words & set(shell.user_ns):
        value = shell.user_ns[word]
        if isinstance(value, types.ModuleType):
            of = own_names(value).get("__name__")
            if type(of) is str and (of == name or name.startswith(of + ".")):
                return True
            continue
        holder = value if isinstance(value, (type, types.FunctionType)) else type(value)
        if own_module(holder) == name:
            return True
    return False


def reload_all(names: list[str], told: dict[str, Any]) -> None:
    """Reload changed modules and bind anew what was imported from them, in the order of the imports.

    A module that computes something from them when it is imported is reloaded as well: as in a
    fresh kernel, its values are then made of the new source.
    """
    from stepper.kernels.in_kernel.import_dependents import depends_at_import

    snapshots = {name: dict(own_names(sys.modules[name])) for name in records}
    updated: set[str] = set()  # modules of which something is new
    try:
        for name in in_order(list(records)):
            record = records[name]
            is_dependent = bool(imported(name) & updated) and call_safely(
                depends_at_import, name, record.path, updated, snapshots
            )
            is_untried = name in names and record.tried != record.disk
            is_reloaded = (is_untried or is_dependent) and reload_record(name, told)
            if is_reloaded or call_safely(bind_module, name, snapshots):
                updated.add(name)
    finally:
        if updated:
            for name in list(records):  # of modules that import each other
                call_safely(bind_module, name, snapshots)
            for raw in list(sources.values()):
                if "import" in raw:
                    call_safely(bind_in_notebook, raw, snapshots, told["lost"])


def reload_record(name: str, told: dict[str, Any]) -> bool:
    """Reload a module and note how that went; whether it was reloaded."""
    record = records[name]
    is_changed = record.disk != record.loaded
    record.failure = reload_one(name, record, told)
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
    told["reloaded" if is_changed else "dependents"].append(shorten(name))
    return True


def reload_one(name: str, record: Any, told: dict[str, Any]) -> dict[str, Any]:
    """Reload a module; return why it could not be, as it is told: nothing where it was."""
    if record.disk == "deleted" and (path := call_safely(other_path, name)):
        record.path = path
        record.mark = mark_of(path)
        record.disk = hash_of(path, record.mark)
    if record.disk == "deleted":
        return {"why": "deleted"}
    if record.path.endswith(COMPILED):
        return {"why": "compiled"}
    try:
        code = compiled(record.path)
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
    classes = [
        one
        for one in list(own_names(module).values())
        if isinstance(one, type) and one.__module__ == name
    ]
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
                "line": line_in(cause, record.path),
            }
    told["classes"] = told["classes"] or bool(classes)
    return {}


def other_path(name: str) -> Any:
    """The file from which a module would be imported now: `a.py` may have become `a/__init__.py`."""
    importlib.invalidate_caches()
    package = name.rpartition(".")[0]
    folders = list(own_names(sys.modules[package])["__path__"]) if package else None
    spec = importlib.machinery.PathFinder.find_spec(name, folders)
    path = os.path.realpath(spec.origin) if spec and spec.origin else ""
    return path if path.endswith(".py") and is_local(path) else None


def reload_module(module: Any) -> Any:
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


def line_in(error: Any, path: str) -> int:
    """The line of a file in which an error was raised."""
    line, trace = 0, getattr(error, "__traceback__", None)
    while trace is not None:
        if os.path.realpath(trace.tb_frame.f_code.co_filename) == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def in_order(names: list[str]) -> list[str]:
    """Modules, each after those that it imports."""
    found: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in found or name in above:
            return
        for other in sorted(imported(name)):
            visit(other, (*above, name))
        found.append(name)

    for name in sorted(names):
        visit(name, ())
    return [name for name in found if name in names]


def may_import_local(raw: str) -> bool:
    """Whether a local module is loaded, or a cell imports one."""
    if records:
        return True
    for source, _, plain in IMPORTS.findall(raw) if "import" in raw else ():
        for name in [source, *plain.split(",")]:
            top = name.strip().split(" ")[0].partition(".")[0]
            if top and top not in sys.modules and found_in_project(top):
                return True
    return False


def found_in_project(top: str) -> bool:
    """Whether a module of that name would come from the project."""
    spec = PathFinder.find_spec(top)
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else ()
    return any(
        is_local(os.path.realpath(place)) for place in places if type(place) is str
    )


def imported(name: str) -> set[str]:
    """The local modules that a module's source imports."""
    record = records[name]
    if record.mentions_of != record.disk:
        record.mentions_of = record.disk
        record.mentions = (
            call_safely(list_mentioned_modules, name, record.path) or frozenset()
        )
    return set(record.mentions & records.keys()) - {name}


def affected_by(name: str) -> list[str]:
    """A module, and those that import it, directly or through others."""
    found = [name]
    for each in found:
        found += [
            other for other in records if other not in found and each in imported(other)
        ]
    return found


def bind_module(name: str, snapshots: dict[str, Any]) -> bool:
    """Have a module's imported names hold what the modules hold now; whether one did not."""
    path = records[name].path
    tree = parse_source(path)
    if tree is None:
        return False
    package = get_package(name, path)
    return bind_anew(own_names(sys.modules[name]), tree, package, snapshots, None)


def bind_in_notebook(raw: str, snapshots: dict[str, Any], lost: Any) -> None:
    """Have the names that a cell imported hold what the modules hold now."""
    tree = ast.parse(shell.transform_cell(raw))
    bind_anew(shell.user_ns, tree, "", snapshots, lost)


def bind_anew(
    holder: dict[str, Any],
    tree: ast.Module,
    package: str,
    snapshots: dict[str, Any],
    lost: Any,
) -> bool:
    """Have names that `from … import` bound in a namespace hold what the modules hold now; whether one did not."""
    bound_anew = False
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = resolve_module_name("." * node.level + (node.module or ""), package)
        then = snapshots.get(module)
        if then is None:
            continue
        present = own_names(sys.modules[module])
        pairs = [(alias.name, alias.asname or alias.name) for alias in node.names]
        if pairs[:1] == [("*", "*")]:
            pairs = [(name, name) for name in then if name[:1] != "_"]
        for name, bound in pairs:
            if (
                name not in then
                or bound not in holder
                or holder[bound] is not then[name]
            ):
                continue
            if name in present:
                bound_anew = bound_anew or present[name] is not then[name]
                holder[bound] = present[name]
            elif lost is not None and [bound, module] not in lost:
                lost.append([bound, module])
    return bound_anew


def list_loaded_versions() -> dict[str, str]:
    """The local modules, each with the hash of the source that was loaded as its version."""
    return {
        shorten(name): f"source {record.loaded[:10]}"
        for name, record in records.items()
    }


def list_local_imports() -> dict[str, list[str]]:
    """The local modules that import others of them, each with those."""
    found = {
        shorten(name): sorted(map(shorten, imported(name))) for name in list(records)
    }
    return {name: others for name, others in found.items() if others}


class Rejecting:
    """Rejects the cell for which modules were reloaded when the user interrupted that."""

    def visit(self, node: Any) -> Any:
        forget()
        raise InputRejected(
            "interrupted while changed modules were reloaded: the cell did not run"
        )


def reject() -> None:
    state["reject"] = Rejecting()
    shell.ast_transformers.append(state["reject"])


def forget() -> None:
    if state["reject"] in shell.ast_transformers:
        shell.ast_transformers.remove(state["reject"])
    state["reject"] = None
