"""Checks whether a module uses values of changed modules during its own import.

`from .rates import RATE` alone is not such a use, because the name can be bound again.
`DOUBLE = RATE * 2` is one, and so are base classes, decorators and default arguments:
only a reload gives them new values. The helper imports this file only after a module of
the project has changed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.module_parsing import (
    get_package,
    list_star_names,
    list_with_packages,
    parse_source,
    resolve_module_name,
)
from stepper.kernels.in_kernel.safe_inspect import get_own_attributes

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
MAIN_TESTS = ("__name__ == '__main__'", "'__main__' == __name__")


class Update(NamedTuple):
    """The names of updated modules, and the modules' namespaces before the update."""

    modules: set[str]
    snapshots: dict[str, Any]


def depends_at_import(
    name: str, path: str, updated: set[str], snapshots: dict[str, Any]
) -> bool:
    """Return whether the import of a module uses a value that an update changed.

    `updated` contains the names of the updated modules, `snapshots` their namespaces
    before the update.
    """
    tree = parse_source(path)
    if tree is None:
        return False
    package = get_package(name, path)
    update = Update(updated, snapshots)
    imported = list_changed_imports(tree, package, update)
    if not imported:
        return False
    loads = find_loads_at_import(tree.body)
    if not imported.isdisjoint(loads.used | loads.bases):
        return True
    # A function or class of the module may use the name: `TABLE = make_table()`.
    dependents = add_dependent_definitions(tree, imported)
    return not dependents.isdisjoint(loads.used)


def add_dependent_definitions(tree: ast.Module, names: set[str]) -> set[str]:
    """Return these names and the names of the functions and classes that use them.

    Functions and classes that use a name through another definition are included.
    """
    definitions = {}
    for node in tree.body:
        if isinstance(node, DEFINITIONS):
            definitions[node.name] = list_loaded_names(ast.walk(node))
    dependents = set(names)
    size = 0
    while len(dependents) > size:
        size = len(dependents)
        for definition, loaded_names in definitions.items():
            if not dependents.isdisjoint(loaded_names):
                dependents.add(definition)
    return dependents


def list_changed_imports(tree: ast.Module, package: str, update: Update) -> set[str]:
    """Return the names that imports bind to updated modules or to changed values."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    name = alias.asname
                    accessible = [alias.name]
                else:
                    # `import a.b` binds `a`, through which `a.b` can be used.
                    accessible = list_with_packages(alias.name)
                    name = accessible[0]
                if not update.modules.isdisjoint(accessible):
                    names.add(name)
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level
            if node.module:
                source += node.module
            module = resolve_module_name(source, package)
            names |= list_changed_names(node, module, update)
    return names


def list_changed_names(node: ast.ImportFrom, module: str, update: Update) -> set[str]:
    """Return the names in a `from` statement whose values an update changed."""
    changed = set()
    for alias in node.names:
        submodule = f"{module}.{alias.name}"
        if submodule in update.modules:
            changed.add(alias.asname or alias.name)
    snapshot = update.snapshots.get(module)
    if module not in update.modules or snapshot is None:
        return changed
    present = get_own_attributes(sys.modules[module])
    for alias in node.names:
        name = alias.name
        if name == "*":
            changed |= list_changed_star_names(present, snapshot)
        elif name in snapshot and present.get(name) is not snapshot[name]:
            changed.add(alias.asname or name)
    return changed


def list_changed_star_names(
    present: dict[str, Any], snapshot: dict[str, Any]
) -> set[str]:
    """Return the names that `import *` bound and whose current values differ.

    `present` and `snapshot` are the module's namespaces after and before the update.
    """
    changed = set()
    for name in list_star_names(snapshot):
        if present.get(name) is not snapshot[name]:
            changed.add(name)
    return changed


class Loads(NamedTuple):
    """The names that statements load.

    `bases` are the names in base classes, `used` the names in other expressions.
    """

    used: set[str]
    bases: set[str]


def find_loads_at_import(statements: list[ast.stmt]) -> Loads:
    """Return the names that an import of these statements loads.

    The bodies of functions are not included, because an import does not run them. The
    bodies of lambda functions are included, because `map` or `sorted` may call them.
    """
    nodes = list_evaluated_nodes(statements)
    bases: list[Any] = []
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            bases += node.bases
            bases += node.keywords
    base_nodes = list_evaluated_nodes(bases)
    return Loads(list_loaded_names(nodes), list_loaded_names(base_nodes))


def list_evaluated_nodes(trees: Iterable[ast.AST]) -> list[Any]:
    """Return the nodes of trees that an import evaluates, without base classes."""
    nodes = []
    pending: list[Any] = list(trees)
    while pending:
        node = pending.pop()
        nodes.append(node)
        pending += list_evaluated_children(node)
    return nodes


def list_evaluated_children(node: Any) -> list[Any]:
    """Return the children of a node that are evaluated when the node is evaluated.

    The body and the annotations of a function, and the bases of a class, are not
    included.
    """
    if isinstance(node, FUNCTIONS):
        children = list(node.decorator_list)
        arguments = node.args
        children += arguments.defaults
        children += filter(None, arguments.kw_defaults)
        return children
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.body]
    if is_main_guard(node):
        return list(node.orelse)
    return list(ast.iter_child_nodes(node))


def is_main_guard(node: Any) -> bool:
    """Return whether a statement is `if __name__ == "__main__":`.

    An import skips its body, but not its `else` branch.
    """
    if not isinstance(node, ast.If):
        return False
    condition = ast.unparse(node.test)
    return condition in MAIN_TESTS


def list_loaded_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that these nodes themselves load."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
    return names
