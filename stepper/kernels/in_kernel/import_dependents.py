"""Whether a module computes something from other modules while it is imported.

`from .rates import RATE` alone does not count, because such a name can be bound again.
`DOUBLE = RATE * 2` counts, and so do base classes, decorators and default arguments:
only a reload gives them new values. This module is loaded once a module has changed.
"""

from __future__ import annotations

import ast
import sys
from typing import Any

from stepper.kernels.in_kernel.module_sources import (
    get_package,
    parse_source,
    resolve_module_name,
)
from stepper.kernels.in_kernel.safe_inspect import own_names

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def depends_at_import(
    name: str, path: str, updated: set[str], snapshots: dict[str, Any]
) -> bool:
    """Return whether importing a module evaluates a name that an update changed.

    `updated` are the updated modules, `snapshots` their namespaces before the update.
    """
    tree = parse_source(path)
    if tree is None:
        return False
    package = get_package(name, path)
    imported = list_changed_imports(tree, package, updated, snapshots)
    if not imported:
        return False
    loads = find_loads_at_import(tree.body)
    if not imported.isdisjoint(loads.used | loads.bases):
        return True
    # A function or class of the module may use the name: `TABLE = make_table()`.
    definitions = {}
    for node in tree.body:
        if isinstance(node, DEFINITIONS):
            definitions[node.name] = list_loaded_names(node)
    indirect = set(imported)
    size = 0
    while len(indirect) > size:
        size = len(indirect)
        for own_name, loaded_names in definitions.items():
            if not indirect.isdisjoint(loaded_names):
                indirect.add(own_name)
    return not indirect.isdisjoint(loads.used)


def list_changed_imports(
    tree: ast.Module, package: str, updated: set[str], snapshots: dict[str, Any]
) -> set[str]:
    """Return the names that imports bind to updated modules or to changed values."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in updated:
                    names.add(alias.asname or alias.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            module = resolve_module_name(source, package)
            names |= list_changed_names(node, module, updated, snapshots)
    return names


def list_changed_names(
    node: ast.ImportFrom, module: str, updated: set[str], snapshots: dict[str, Any]
) -> set[str]:
    """Return the names of one `from` statement whose values an update changed."""
    changed = set()
    for alias in node.names:
        if f"{module}.{alias.name}" in updated:
            changed.add(alias.asname or alias.name)
    snapshot = snapshots.get(module)
    if module not in updated or snapshot is None:
        return changed
    present = own_names(sys.modules[module])
    for alias in node.names:
        if alias.name == "*":
            names = [name for name in snapshot if name[:1] != "_"]
        else:
            names = [alias.name] if alias.name in snapshot else []
        for name in names:
            if present.get(name) is not snapshot[name]:
                changed.add(alias.asname or name)
    return changed


class Loads:
    """The names that statements load: `bases` in base classes, `used` elsewhere."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.bases: set[str] = set()


def find_loads_at_import(statements: list[ast.stmt]) -> Loads:
    """Return the names that statements load, without the bodies of functions."""
    loads = Loads()
    pending: list[tuple[Any, bool]] = [(node, False) for node in statements]
    while pending:
        node, is_base = pending.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names = loads.bases if is_base else loads.used
            names.add(node.id)
        elif isinstance(node, FUNCTIONS):
            decorators = getattr(node, "decorator_list", ())
            keyword_defaults = filter(None, node.args.kw_defaults)
            evaluated = [*decorators, *node.args.defaults, *keyword_defaults]
            pending += [(child, is_base) for child in evaluated]
        elif isinstance(node, ast.ClassDef):
            pending += [(base, True) for base in (*node.bases, *node.keywords)]
            evaluated = [*node.decorator_list, *node.body]
            pending += [(child, is_base) for child in evaluated]
        elif not is_main_guard(node):
            pending += [(child, is_base) for child in ast.iter_child_nodes(node)]
    return loads


def is_main_guard(node: Any) -> bool:
    """Return whether a statement is `if __name__ == …`, which an import skips."""
    return isinstance(node, ast.If) and "__name__" in list_loaded_names(node.test)


def list_loaded_names(tree: ast.AST) -> set[str]:
    """Return all names that a syntax tree loads."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
    return names
