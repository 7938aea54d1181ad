"""What a module lacks and has: its names, where else in its package a name is, whether its file is newer than it.

Loaded modules are looked at; source files are read, bounded in number, size and time; nothing is imported.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
import time
from typing import Any, Iterator

from stepper.diagnosis.inside.gone import replaced
from stepper.diagnosis.inside.near import bare, closest, listed, public, quoted
from stepper.diagnosis.inside.spots import Spot
from stepper.diagnosis.inside.table import Finding, finding
from stepper.diagnosis.inside.words import shown_name
from stepper.kernel.inside.base import clock, missing, own_names, peek, short
from stepper.kernel.inside.cells import is_own
from stepper.kernel.inside.fault import message

NAMES, FILES, BYTES, SECONDS = 800, 1500, 600_000, 0.25
LEFT = {"tests", "test", "testing", "_vendor", "vendored", "externals", "conftest", "__pycache__", "benchmarks"}
DEFINED = r"^(?:async +def|def|class) +({0})\b|^({0})\s*(?::[^=\n]+)?=[^=]"
ANY = re.compile(r"^(?:async +def|def|class) +([A-Za-z]\w*)", re.M)
started = time.time()


def imported(error: BaseException, places: list[Spot]) -> Finding | None:
    """The module that lacks a name, what took its place, where else in its package it is, the closest names."""
    module, wanted = peek(error, "name") or "", peek(error, "name_from") or quoted(message(error))
    loaded = sys.modules.get(module)
    if not wanted or loaded is None:
        return None
    stale = newer(module, wanted)
    if stale:
        return finding(stale)
    beside = set(asked_of(places, module))  # what the same line imports is not what the other name means
    names = {*map(str, own_names(loaded)), *submodules_of(loaded)} - beside
    where = [f"`{wanted}` is in {dotted}" for dotted in elsewhere(module, wanted)]
    exact, alike = scan(module.split(".")[0], wanted, names | beside) if not where else ([], [])
    near = closest(wanted, public(sorted(names))[:NAMES], 5)
    said = [replaced(module, wanted), *where, *(f"`{wanted}` is defined in {dotted}" for dotted in exact)]
    said += [f"closest names in it: {', '.join(near)}"] if near else []
    if alike and not (near and bare(near[0]) == bare(wanted)):
        said.append(f"closest in its package: {', '.join(alike[:4])}")
    said = list(filter(None, said)) or [f"it has {listed(public(sorted(names)), 240)}"]
    return finding("; ".join([shown_name(module) + version(module), *said]))


def submodules(error: BaseException, places: list[Spot]) -> Finding | None:
    """Of a module that can't be found: its nearest parent that can, what that holds, where the names sought are."""
    wanted = str(peek(error, "name") or "")
    parent, _, last = wanted.rpartition(".")
    while parent and parent not in sys.modules and "." in parent:
        parent, _, last = parent.rpartition(".")
    loaded = sys.modules.get(parent)
    if not parent or loaded is None:
        return None
    path = peek(loaded, "__file__")
    if type(path) is str and peek(loaded, "__path__") is None:
        path = os.path.relpath(path) if is_own(path) else path
        return finding(f"`{parent}` is here the file {short(path, 200)}, no package")
    top, said = parent.split(".")[0], [f"there is no `{last}` in {parent}{version(parent)}"]
    for name in asked_of(places, wanted)[:3]:
        where = elsewhere(top, name) or scan(top, name, set())[0]
        said += [f"`{short(name, 80)}` is in {where[0]}"] if where else []
    names = public(sorted(set(submodules_of(loaded))))
    near = [f"{top}.{last}"] * (top != parent and last in submodules_of(sys.modules.get(top))) + closest(last, names)
    said += [f"closest: {', '.join(near)}"] if near else []
    return finding("; ".join(said if len(said) > 1 else [*said, f"it holds {listed(names)}"]))


def submodules_of(loaded: Any) -> list[str]:
    names = [name for folder in folders_of(loaded) for name in os.listdir(folder)]
    return [name.split(".")[0] for name in names if name.endswith(".py") or "." not in name]


def folders_of(loaded: Any) -> list[str]:
    paths = list(peek(loaded, "__path__") or [])[:3]
    return [path for path in paths if type(path) is str and os.path.isdir(path)]


def asked_of(places: list[Spot], module: str) -> list[str]:
    node = places[0].statement if places else None
    fits = isinstance(node, ast.ImportFrom) and (node.module == module or not module)
    return [alias.name for alias in node.names] if fits and isinstance(node, ast.ImportFrom) else []


def elsewhere(module: str, name: str) -> list[str]:
    """The loaded modules of the same package that do define the name, shortest first."""
    top = module.split(".", maxsplit=1)[0]
    known = [dotted for dotted in list(sys.modules) if type(dotted) is str and (dotted + ".").startswith(top + ".")]
    has = [dotted for dotted in known if "._" not in dotted and name in own_names(sys.modules.get(dotted))]
    nearest = sorted(has, key=lambda dotted: (dotted.count("."), len(dotted)))
    return [dotted for dotted in nearest if not any(dotted.startswith(up + ".") for up in nearest)][:2]


def version(dotted: Any) -> str:
    """` VERSION` of the package of a module, where it tells."""
    package = str(dotted).split(".")[0]
    own = peek(sys.modules.get(package), "__version__")
    known = type(own) is str and re.fullmatch(r"[\w.+-]{1,40}", own)
    return f" {own}" if known and package not in ("builtins", "__main__") else ""


def newer(module: str, name: str) -> str:
    """Where the file of a loaded module defines a name that the module lacks: it was changed after the import."""
    loaded = sys.modules.get(module)
    path = peek(loaded, "__file__") if loaded is not None else None
    if type(path) is not str or not path.endswith(".py") or peek(peek(loaded, "__spec__"), "_initializing") is True:
        return ""
    if peek(loaded, name, missing) is not missing or not os.path.isfile(path) or os.stat(path).st_mtime <= started:
        return ""
    text = read(path)
    line = re.search(DEFINED.format(re.escape(name)), text, re.M)
    if line is None:
        return ""
    number, path = text[: line.start()].count("\n") + 1, short(os.path.relpath(path), 200)
    return (f"line {number} of {path} defines `{name}`: the file changed after the kernel imported it, and the kernel"
            " holds the older module (importlib.reload or a restart loads it anew)")  # fmt: skip


# --- source files --------------------------------------------------------------------------------------------------


def scan(package: str, name: str, known: set[str]) -> tuple[list[str], list[str]]:
    """The modules whose files define the name; the package's other names that are alike, with their modules."""
    until, exact, others = clock() + SECONDS, list[str](), dict[str, str]()
    wanted = re.compile(DEFINED.format(re.escape(name)), re.M)
    for dotted, path in sources(package):
        if clock() > until:
            break
        text = read(path)
        exact += [dotted] if name in text and wanted.search(text) else []
        others.update({other: dotted for other in ANY.findall(text) if other not in known and other not in others})
    alike = closest(name, others, 4) if not exact else []
    return list(dict.fromkeys(exact))[:3], [f"{others[other]}.{other}" for other in alike]


def sources(package: str) -> Iterator[tuple[str, str]]:
    """A package's source files, those near its top first: (dotted module as far as it is public, path)."""
    loaded = sys.modules.get(package)
    spec = importlib.util.find_spec(package) if loaded is None and package.isidentifier() else None
    found = folders_of(loaded) if loaded is not None else getattr(spec, "submodule_search_locations", None) or ()
    todo, count = [(package, folder) for folder in list(found)[:3]], 0
    while todo and count < FILES:
        dotted, folder = todo.pop(0)
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name) if os.path.isdir(folder) else ():
            own, ending = os.path.splitext(entry.name)
            inner = dotted if own.startswith("_") else f"{dotted}.{own}"
            if ending == ".py" and own not in LEFT:
                count += 1
                yield inner, entry.path
            elif own.isidentifier() and own not in LEFT and entry.is_dir(follow_symlinks=False):
                todo.append((inner, entry.path))


def read(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return stream.read(BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
