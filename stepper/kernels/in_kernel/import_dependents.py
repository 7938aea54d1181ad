"""Whether a module computes something from other modules while it is imported.

`from .rates import RATE` alone does not count: such a name can be bound again. `DOUBLE = RATE * 2`
does, and so do base classes, decorators and default arguments: only a reload of the module
gives them new values. It is loaded when a module has changed.
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
    """Whether a module evaluates, at its import, a name that another one gave it and that is new there."""
    tree = parse_source(path)
    if tree is None:
        return False
    imported = imported_names(tree, get_package(name, path), updated, snapshots)
    if not imported:
        return False
    loads = loads_at_import(tree.body)
    if not imported.isdisjoint(loads.used | loads.bases):
        return True
    # also through the module's own functions and classes: `TABLE = make_table()`
    definitions = {
        node.name: every_load(node)
        for node in tree.body
        if isinstance(node, DEFINITIONS)
    }
    indirect = set(imported)
    size = 0
    while len(indirect) > size:
        size = len(indirect)
        indirect.update(
            own for own, used in definitions.items() if not indirect.isdisjoint(used)
        )
    return not indirect.isdisjoint(loads.used)


def imported_names(
    tree: ast.Module, package: str, updated: set[str], snapshots: dict[str, Any]
) -> set[str]:
    """The names that imports bind to updated modules, or to what is new in one."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in updated:
                    found.add(alias.asname or alias.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            module = resolve_module_name(
                "." * node.level + (node.module or ""), package
            )
            found |= names_from(node, module, updated, snapshots)
    return found


def names_from(
    node: ast.ImportFrom, module: str, updated: set[str], snapshots: dict[str, Any]
) -> set[str]:
    found = {
        alias.asname or alias.name
        for alias in node.names
        if f"{module}.{alias.name}" in updated
    }
    then = snapshots.get(module)
    if module not in updated or then is None:
        return found
    present = own_names(sys.modules[module])
    for alias in node.names:
        names = [name for name in then if name[:1] != "_"]
        if alias.name != "*":
            names = [alias.name] if alias.name in then else []
        for name in names:
            if present.get(name) is not then[name]:
                found.add(alias.asname or name)
    return found


class Loads:
    """The names that statements load; `bases` are those that stand for the bases of classes."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.bases: set[str] = set()


def loads_at_import(statements: list[ast.stmt]) -> Loads:
    """The names that are loaded when statements are executed, without the bodies of functions."""
    loads = Loads()
    todo: list[tuple[Any, bool]] = [(node, False) for node in statements]
    while todo:
        node, is_base = todo.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            (loads.bases if is_base else loads.used).add(node.id)
        elif isinstance(node, FUNCTIONS):
            outer = [*getattr(node, "decorator_list", ()), *node.args.defaults]
            outer += [default for default in node.args.kw_defaults if default]
            todo += [(each, is_base) for each in outer]
        elif isinstance(node, ast.ClassDef):
            todo += [(each, True) for each in (*node.bases, *node.keywords)]
            todo += [(each, is_base) for each in (*node.decorator_list, *node.body)]
        elif not is_main_guard(node):
            todo += [(each, is_base) for each in ast.iter_child_nodes(node)]
    return loads


def is_main_guard(node: Any) -> bool:
    """Whether a statement is `if __name__ == …`: its body does not run at an import."""
    return isinstance(node, ast.If) and "__name__" in every_load(node.test)


def every_load(tree: ast.AST) -> set[str]:
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
