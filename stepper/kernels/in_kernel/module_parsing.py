"""The source files of local modules: text, syntax tree and imports.

The imports are found by a regular expression, because parsing every file would make
the first step slow.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from typing import Any

MAX_SOURCE = 5_000_000  # bytes that are read of a source file
# An import begins a line, or follows `;` as in `import a; import b` or `:` as in
# `try: import a`.
IMPORTS = re.compile(
    r"(?:^|[;:])[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+"
    r"(\([^)]*\)|[^\n;#]*)|import[ \t]+([^\n;#]*))",
    re.M,
)
WORD = re.compile(r"[^\W\d]\w*")


def read_source(path: str) -> bytes:
    """Return the content of a source file, at most `MAX_SOURCE` bytes.

    Raise OSError if the file cannot be read.
    """
    with open(path, "rb") as stream:
        return stream.read(MAX_SOURCE)


def parse_source(path: str) -> ast.Module | None:
    """Return the syntax tree of a module's file, or None if it cannot be parsed."""
    if not path.endswith(".py"):
        return None
    try:
        return ast.parse(read_source(path))
    except (OSError, SyntaxError, ValueError):
        return None


def list_mentioned_modules(name: str, path: str) -> frozenset[str]:
    """Return the modules that a module's file may import.

    For `from a import b`, both `a` and `a.b` are included, although `b` may be a value.
    They are also included for `import a.b`, because the module can then use `a`. A
    compiled module mentions no modules. Raise OSError if the file cannot be read.
    """
    if not path.endswith(".py"):
        return frozenset()
    package = get_package(name, path)
    modules: set[str] = set()
    text = read_source(path).decode("utf-8", "replace")
    for source, names, plain_imports in IMPORTS.findall(text):
        if source:
            base = resolve_module_name(source, package)
            if not base:
                continue
            modules.add(base)
            modules.update(f"{base}.{word}" for word in WORD.findall(names))
        for plain_import in plain_imports.split(","):
            words = plain_import.split()
            if words:
                modules.update(list_with_packages(words[0]))
    return frozenset(modules)


def list_with_packages(name: str) -> list[str]:
    """Return the name of a module and the names of the packages that contain it.

    The top-level package comes first.
    """
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def get_package(name: str, path: str) -> str:
    """Return the package to which the relative imports of a module refer.

    `name` and `path` are the module's name and file.
    """
    if path.endswith("__init__.py"):
        return name
    return name.rpartition(".")[0]


def resolve_module_name(source: str, package: str) -> str:
    """Return the absolute name of the module in a `from` statement.

    `source` is the name in the statement, with leading dots if it is relative. Return
    an empty string if it has more dots than `package` has levels.
    """
    try:
        return importlib.util.resolve_name(source, package)
    except ImportError:
        return ""


def list_star_names(namespace: dict[str, Any]) -> list[str]:
    """Return the names that `import *` binds, from the namespace of the module.

    These are the names in `__all__` if the module defines it, or else the public names.
    """
    exported: Any = namespace.get("__all__")
    if type(exported) in (list, tuple):
        return [name for name in exported if name in namespace]
    return [name for name in namespace if not name.startswith("_")]
