"""Where a package's source files define a name that is not where it was sought, and whether a loaded module is older
than its file. Files are read, bounded in number, size and time; nothing is imported."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import sys
import time

from stepper.kernel.inside.base import clock, guarded, is_a, missing, peek, plain, short

FILES, BYTES, SECONDS, FOUND = 1500, 600_000, 0.25, 40
LEFT = {"tests", "test", "testing", "_vendor", "vendored", "externals", "conftest", "__pycache__", "benchmarks"}
DEFINED = r"^(?:async +def|def|class) +({0})\b|^({0})\s*(?::[^=\n]+)?=[^=]"
ANY = re.compile(r"^(?:async +def|def|class) +([A-Za-z]\w*)", re.M)
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
started = time.time()


def folders_of(package):
    """The folders of a package, of a loaded one or of one that could be loaded."""
    found = sys.modules.get(package)
    if found is None and package.isidentifier():
        spec = importlib.util.find_spec(package)
        return list(spec.submodule_search_locations or [])[:3] if spec is not None else []
    return [one for one in list(peek(found, "__path__") or [])[:3] if type(one) is str]


def walked(package):
    """A package's source files, those near its top first: (dotted module, path)."""
    todo, count = [(package, folder) for folder in folders_of(package)], 0
    while todo and count < FILES:
        dotted, folder = todo.pop(0)
        for entry in sorted(guarded(os.scandir, folder) or (), key=lambda one: one.name):
            own, ending = os.path.splitext(entry.name)
            if own in LEFT or own.startswith(("test_", ".")):
                continue
            if ending == ".py":
                count += 1
                yield dotted if own == "__init__" else f"{dotted}.{own}", entry.path
            elif not ending and entry.is_dir(follow_symlinks=False) and own.isidentifier():
                todo.append((f"{dotted}.{own}", entry.path))


def read(path):
    with open(path, "rb") as stream:
        return stream.read(BYTES).decode("utf-8", "replace")


def public(dotted):
    """The part of a dotted name above its first private part."""
    parts = dotted.split(".")
    return ".".join(parts[: next((n for n, part in enumerate(parts) if part.startswith("_")), len(parts))])


def scan(package, name, known=()):
    """Where the package's files define the name; those of its other names that are alike, with their modules."""
    until, exact, alike = clock() + SECONDS, {}, {}
    wanted = re.compile(DEFINED.format(re.escape(name)), re.M)
    for dotted, path in walked(package):
        if clock() > until:
            break
        text = guarded(read, path) or ""
        if name in text and wanted.search(text):
            exact[dotted] = path
        for one in ANY.findall(text):
            if one not in known and one not in alike and likeness(name, one):
                alike[one] = dotted
    where = sorted({public(dotted) for dotted in exact}, key=depth)
    near = sorted(alike, key=lambda one: -likeness(name, one))
    return {
        "defined": [short(one, 120) for one in where[:3]],
        "alike": [[one, short(public(alike[one]), 120)] for one in near[:FOUND]],
    }


def depth(dotted):
    return dotted.count("."), len(dotted)


def words(name):
    return {one.lower() for one in WORDS.findall(name)}


def likeness(name, other):
    """How alike two names are: the words they share, else their letters; 0 where they are not."""
    mine, others = words(name), words(other)
    shared = mine & others
    long = sum(map(len, shared)) * 2 / max(1, sum(map(len, mine)) + sum(map(len, others)))
    if long >= 0.6 and len(max(shared, key=len)) >= 4:
        return long
    if abs(len(name) - len(other)) * 5 > len(name):
        return 0
    matcher = difflib.SequenceMatcher(None, name.lower(), other.lower())
    ratio = matcher.ratio() if matcher.quick_ratio() >= 0.85 else 0
    return ratio if ratio >= 0.85 else 0


def newer(module, name):
    """Where the file of a loaded module defines a name that the module lacks: it was changed after the import."""
    found = sys.modules.get(module)
    path = peek(found, "__file__") if found is not None else None
    if type(path) is not str or not path.endswith(".py") or peek(peek(found, "__spec__"), "_initializing") is True:
        return None
    if peek(found, name, missing) is not missing or os.stat(path).st_mtime <= started:
        return None
    text = read(path)
    line = re.search(DEFINED.format(re.escape(name)), text, re.M)
    return {"path": short(os.path.relpath(path), 200), "line": text[: line.start()].count("\n") + 1} if line else None


def documented(value, name):
    """A function of the class's own library whose documentation begins a line with that word and names the class."""
    kind = value if is_a(value, type) else type(value)
    top = sys.modules.get((plain(type.__dict__["__module__"].__get__(kind)) or "").split(".")[0])
    own = type.__dict__["__name__"].__get__(kind)
    line = re.compile(rf"^\s*({re.escape(name)}\b.*\b{re.escape(own)}\b.*)$", re.M | re.I)
    for key, thing in list(object.__getattribute__(top, "__dict__").items()):
        doc = peek(thing, "__doc__") if not key.startswith("_") else None
        said = line.search(doc) if type(doc) is str else None
        if said:
            return [short(f"{top.__name__}.{key}", 80), short(said[1].replace("`", "").strip(), 120)]
    return None
