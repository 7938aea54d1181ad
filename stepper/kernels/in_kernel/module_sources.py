"""The source files of local modules: their text, their syntax tree, and what they import."""

from __future__ import annotations

import ast
import re

LARGEST = 5_000_000  # bytes of a source that are read
IMPORTS = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]*))",
    re.M,
)
WORD = re.compile(r"[^\W\d]\w*")


def read_source(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(LARGEST)


def parse_source(path: str) -> ast.Module | None:
    """The syntax tree of a module's file, or None if there is none."""
    if not path.endswith(".py"):
        return None
    try:
        return ast.parse(read_source(path))
    except (OSError, SyntaxError, ValueError):
        return None


def list_mentioned_modules(name: str, path: str) -> frozenset[str]:
    """The modules that the imports of a file name; also names that are no modules."""
    if not path.endswith(".py"):
        return frozenset()
    package = get_package(name, path)
    found: set[str] = set()
    text = read_source(path).decode("utf-8", "replace")
    for source, names, plain in IMPORTS.findall(text):
        if source:
            base = resolve_module_name(source, package)
            found.update({base, *(f"{base}.{one}" for one in WORD.findall(names))})
        found.update(part.split()[0] for part in plain.split(",") if part.split())
    return frozenset(found)


def get_package(name: str, path: str) -> str:
    """The package to which the relative imports of a module refer."""
    return name if path.endswith("__init__.py") else name.rpartition(".")[0]


def resolve_module_name(source: str, package: str) -> str:
    """The full name of a module in a `from` statement, which may begin with dots."""
    level = len(source) - len(source.lstrip("."))
    if not level:
        return source
    parts = package.split(".")[: len(package.split(".")) - level + 1]
    return ".".join([*parts, *filter(None, [source[level:]])])
