"""What a module lacks and has: its names, where else in its package a name is, whether its file is newer than it.

Loaded modules are looked at; source files are read, bounded in number, size and time; nothing is imported.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import os
import re
import sys
import time
from typing import Any, Iterator

from stepper.diagnosis.inside.near import bare, closest, listed, public, quoted
from stepper.diagnosis.inside.spots import Spot
from stepper.diagnosis.inside.words import shown_name
from stepper.kernel.inside.base import clock, missing, own_names, peek, short
from stepper.kernel.inside.cells import is_own
from stepper.kernel.inside.fault import message

NAMES, FILES, BYTES, SECONDS = 800, 1500, 600_000, 0.25
LEFT = {"tests", "test", "testing", "_vendor", "vendored", "externals", "conftest", "__pycache__", "benchmarks"}
DEFINED = r"^(?:async +def|def|class) +({0})\b|^({0})\s*(?::[^=\n]+)?=[^=]"
ANY = re.compile(r"^(?:async +def|def|class) +([A-Za-z]\w*)", re.M)
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
started = time.time()


def imported(error: BaseException, places: list[Spot]) -> dict[str, Any] | None:
    """The module that lacks a name, where else in its package it is, the closest names."""
    module, wanted = peek(error, "name") or "", peek(error, "name_from") or quoted(message(error))
    loaded = sys.modules.get(module)
    if not wanted or loaded is None:
        return None
    file = newer(module, wanted)
    if file:
        return {"text": stale(file, wanted), "bound": None}
    said, names = [shown_name(module) + version(module)], [*map(str, own_names(loaded)), *submodules_of(loaded)]
    beside = set(asked_of(places, module))  # what the same line imports is not what the other name means
    names = sorted({name for name in public(names) if name not in beside})[:NAMES]
    defined, alike = list[str](), list[tuple[str, str]]()
    where = elsewhere(module, wanted)
    if not where:
        defined, alike = scan(module.split(".")[0], wanted, {*names, *beside})
    said += [f"`{wanted}` is in {' and '.join(where)}"] if where else []
    said += [f"`{wanted}` is defined in {' and '.join(defined)}"] if defined else []
    near = closest(wanted, names, 5)
    said += [f"closest names in it: {', '.join(near)}"] if near else []
    if alike and not where and not defined and not (near and bare(near[0]) == bare(wanted)):
        said.append(f"closest in its package: {', '.join(f'{place}.{name}' for name, place in alike[:4])}")
    return {"text": "; ".join(said if len(said) > 1 else [*said, f"it has {listed(names, 240)}"]), "bound": None}


def submodules(error: BaseException, places: list[Spot]) -> dict[str, Any] | None:
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
        return {"text": f"`{parent}` is here the file {short(path, 200)}, no package", "bound": None}
    said = [f"there is no `{last}` in {parent}{version(parent)}"]
    top = parent.split(".")[0]
    for name in asked_of(places, wanted)[:3]:
        where = elsewhere(top, name) or scan(top, name, set())[0][:1]
        said += [f"`{short(name, 80)}` is in {where[0]}"] if where else []
    names = sorted({*submodules_of(loaded)})
    top_level = [name for name in submodules_of(sys.modules.get(top)) if name == last and top != parent]
    said += [f"there is {top}.{last}"] if top_level else []
    near = closest(last, names)
    said += [f"closest in it: {', '.join(near)}"] if near else []
    if len(said) == 1 and public(names):
        said.append(f"it holds {listed(public(names))}")
    return {"text": "; ".join(said), "bound": None}


def submodules_of(loaded: Any) -> list[str]:
    """The names of a package's files and folders."""
    names = [name for folder in folders_of(loaded) for name in os.listdir(folder)]
    return [name.split(".")[0] for name in names if name.endswith(".py") or "." not in name]


def folders_of(loaded: Any) -> list[str]:
    """The folders of a loaded package."""
    paths = list(peek(loaded, "__path__") or [])[:3]
    return [path for path in paths if type(path) is str and os.path.isdir(path)]


def asked_of(places: list[Spot], module: str) -> list[str]:
    """The names that the failing statement imports from a module."""
    node = places[0].statement if places else None
    fits = isinstance(node, ast.ImportFrom) and (node.module == module or not module)
    return [alias.name for alias in node.names] if fits and isinstance(node, ast.ImportFrom) else []


def elsewhere(module: str, name: str) -> list[str]:
    """The loaded modules of the same package that do define the name, shortest first."""
    top = module.split(".", maxsplit=1)[0] + "."
    known = [dotted for dotted in list(sys.modules) if type(dotted) is str and dotted.startswith(top)]
    has = [dotted for dotted in known if "._" not in dotted and name in own_names(sys.modules.get(dotted))]
    nearest = sorted(has, key=lambda dotted: (dotted.count("."), len(dotted)))
    return [dotted for dotted in nearest if not any(dotted.startswith(up + ".") for up in nearest)][:2]


def version(dotted: Any) -> str:
    """` VERSION` of the package of a module, where it tells."""
    package = str(dotted).split(".")[0]
    own = peek(sys.modules.get(package), "__version__")
    known = type(own) is str and re.fullmatch(r"[\w.+-]{1,40}", own)
    return f" {own}" if known and package not in ("builtins", "__main__") else ""


def newer(module: str, name: str) -> tuple[str, int] | None:
    """Where the file of a loaded module defines a name that the module lacks: it was changed after the import."""
    loaded = sys.modules.get(module)
    path = peek(loaded, "__file__") if loaded is not None else None
    if type(path) is not str or not path.endswith(".py") or peek(peek(loaded, "__spec__"), "_initializing") is True:
        return None
    if peek(loaded, name, missing) is not missing or not os.path.isfile(path) or os.stat(path).st_mtime <= started:
        return None
    text = read(path)
    line = re.search(DEFINED.format(re.escape(name)), text, re.M)
    return (short(os.path.relpath(path), 200), text[: line.start()].count("\n") + 1) if line else None


def stale(file: tuple[str, int], wanted: str) -> str:
    return (
        f"line {file[1]} of {file[0]} defines `{wanted}`: the file changed after the kernel imported it,"
        " and the kernel holds the older module (importlib.reload or a restart loads it anew)"
    )


# --- source files --------------------------------------------------------------------------------------------------


def scan(package: str, name: str, known: set[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The modules whose files define the name; the package's other names that are alike, with their modules."""
    until, exact, alike = clock() + SECONDS, set(), dict[str, str]()
    wanted = re.compile(DEFINED.format(re.escape(name)), re.M)
    for dotted, path in sources(package):
        if clock() > until:
            break
        text = read(path)
        if name in text and wanted.search(text):
            exact.add(public_part(dotted))
        for other in ANY.findall(text):
            if other not in known and other not in alike and likeness(name, other):
                alike[other] = public_part(dotted)
    near = sorted(alike.items(), key=lambda pair: -likeness(name, pair[0]))
    return sorted(exact, key=lambda dotted: (dotted.count("."), len(dotted)))[:3], near


def sources(package: str) -> Iterator[tuple[str, str]]:
    """A package's source files, those near its top first: (dotted module, path)."""
    loaded = sys.modules.get(package)
    spec = importlib.util.find_spec(package) if loaded is None and package.isidentifier() else None
    folders = (
        folders_of(loaded) if loaded is not None else list(getattr(spec, "submodule_search_locations", None) or ())
    )
    todo, count = [(package, folder) for folder in folders[:3]], 0
    while todo and count < FILES:
        dotted, folder = todo.pop(0)
        for entry in sorted(os.scandir(folder) if os.path.isdir(folder) else (), key=lambda entry: entry.name):
            own, ending = os.path.splitext(entry.name)
            if own in LEFT or own.startswith(("test_", ".")):
                continue
            if ending == ".py":
                count += 1
                yield dotted if own == "__init__" else f"{dotted}.{own}", entry.path
            elif not ending and entry.is_dir(follow_symlinks=False) and own.isidentifier():
                todo.append((f"{dotted}.{own}", entry.path))


def read(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return stream.read(BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def public_part(dotted: str) -> str:
    """The part of a dotted name above its first private part."""
    return dotted.split("._", maxsplit=1)[0]


def likeness(name: str, other: str) -> float:
    """How alike two names are: the words they share, else their letters; 0 where they are not."""
    mine, others = ({word.lower() for word in WORDS.findall(text)} for text in (name, other))
    shared = mine & others
    long = sum(map(len, shared)) * 2 / max(1, sum(map(len, mine)) + sum(map(len, others)))
    if long >= 0.6 and len(max(shared, key=len)) >= 4:
        return long
    if abs(len(name) - len(other)) * 5 > len(name):
        return 0
    matcher = difflib.SequenceMatcher(None, name.lower(), other.lower())
    return matcher.ratio() if matcher.quick_ratio() >= 0.85 and matcher.ratio() >= 0.85 else 0
