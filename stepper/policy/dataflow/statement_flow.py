"""Find the names of a cell that depend on changed values, statement by statement.

If a cell reads a changed name, not all names that it binds get other values. Therefore,
the top-level statements of such a cell are analyzed one by one.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from stepper.policy.dataflow.binding_table import ResolvedUsage
from stepper.policy.dataflow.name_analysis import analyze_tree
from stepper.policy.dataflow.name_effects import (
    BIND,
    CAUGHT,
    GLOBAL,
    IMPORT,
    NameUsage,
    parse_source,
)

# Returns the names that a usage reads, changes and binds, also in functions of other
# cells.
ResolveUsage = Callable[[NameUsage], ResolvedUsage]


# Statements that bind their names whenever they run.
BINDING_STATEMENTS = (
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
)
# Functions that may bind names which the analysis cannot list.
DYNAMIC_FUNCTIONS = frozenset(("exec", "globals", "locals", "vars"))


class Statement(NamedTuple):
    """A top-level statement of a cell.

    `text` is the text of `_format_node`, for comparing statements. `certain_binds` are
    names that the statement binds each time it runs. `required_names` are names
    that must be bound before the cell runs, because no earlier statement mentions them.
    """

    text: str
    usage: NameUsage
    certain_binds: frozenset[str]
    required_names: frozenset[str]


def list_statements(usage: NameUsage) -> list[Statement]:
    """Return the top-level statements of the source of a usage.

    The statements are analyzed at the first call. The list is empty if the source
    cannot be parsed.
    """
    if usage.statements is None:
        usage.statements = _analyze_statements(usage)
    return usage.statements


def _analyze_statements(usage: NameUsage) -> list[Statement]:
    """Parse the source of a usage, and analyze each top-level statement."""
    source_tree = parse_source(usage.source, usage.transform)
    if source_tree is None:
        return []
    nodes = source_tree.tree.body
    statements = []
    mentioned = set[str]()
    binds_any = False
    for node in nodes:
        module = ast.Module([node], [])
        is_last = node is nodes[-1]
        statement_usage = analyze_tree(
            module, usage.source, usage.transform, has_last=is_last
        )
        certain_binds = _list_certain_binds(node, statement_usage)
        required_names = frozenset[str]()
        if not binds_any:
            required_names = _list_required_names(node, statement_usage) - mentioned
        mentioned |= statement_usage.reads | statement_usage.binds.keys()
        mentioned.update(
            mention.name
            for mention in statement_usage.mentions
            if mention.kind == GLOBAL
        )
        binds_any |= statement_usage.star
        binds_any |= not DYNAMIC_FUNCTIONS.isdisjoint(statement_usage.reads)
        statement_usage.mentions.clear()
        text = _format_node(node, source_tree.text)
        statement = Statement(text, statement_usage, certain_binds, required_names)
        statements.append(statement)
    return statements


def _format_node(node: ast.stmt, source: str) -> str:
    """Return a text that is the same for statements that differ only in formatting.

    If the statement is nested too deeply, return its part of `source`.
    """
    try:
        return ast.dump(node)
    except RecursionError:
        return ast.get_source_segment(source, node) or ""


def _list_certain_binds(node: ast.stmt, usage: NameUsage) -> frozenset[str]:
    """Return names that a statement binds each time it runs.

    The result may be incomplete: names in compound statements are left out.
    """
    if not isinstance(node, BINDING_STATEMENTS):
        return frozenset()
    names = set(usage.binds)
    for child in ast.walk(node):
        # An example is `y = flag and (x := 1)`.
        if isinstance(child, ast.NamedExpr):
            names.discard(child.target.id)
    return frozenset(names)


def _list_required_names(node: ast.stmt, usage: NameUsage) -> frozenset[str]:
    """Return names that must be bound before a statement runs.

    The result may be incomplete: a name is left out if a binding in the statement may
    come before the read, or if the read depends on a condition that may be a check of
    whether the name is bound.
    """
    names = set[str]()
    is_simple = isinstance(node, (*BINDING_STATEMENTS, ast.Expr))
    if is_simple and not _has_condition(node):
        names = usage.reads - usage.binds.keys() - usage.deletes
    rebind_counts = _count_rebinds(node)
    bind_counts = Counter(
        mention.name
        for mention in usage.mentions
        if mention.kind in (BIND, CAUGHT, GLOBAL)
    )
    for name, count in rebind_counts.items():
        if name in usage.reads and count == bind_counts[name]:
            names.add(name)
    return frozenset(names)


def _count_rebinds(node: ast.stmt) -> Counter[str]:
    """Count the bindings of each name to a value that is computed from its old value.

    Examples are `x += 1` and `x = x + 1`.
    """
    counts = Counter[str]()
    for child in ast.walk(node):
        if isinstance(child, ast.AugAssign):
            counts.update(_list_names(child.target, ast.Store))
        elif isinstance(child, ast.Assign) and not _has_condition(child.value):
            read_names = set(_list_names(child.value, ast.Load))
            for target in child.targets:
                names = _list_names(target, ast.Store)
                counts.update(name for name in names if name in read_names)
    return counts


def _list_names(node: ast.AST, context: type[ast.expr_context]) -> list[str]:
    """Return the names in a node that are read (ast.Load) or bound (ast.Store)."""
    return [
        child.id
        for child in ast.walk(node)
        if isinstance(child, ast.Name) and isinstance(child.ctx, context)
    ]


def _has_condition(node: ast.AST) -> bool:
    """Return whether a part of an expression may not be evaluated."""
    return any(isinstance(child, (ast.IfExp, ast.BoolOp)) for child in ast.walk(node))


def find_required_names(usage: NameUsage) -> set[str]:
    """Return names that must be bound before a cell runs, even if the cell binds them.

    The result may be incomplete.
    """
    required_names = set[str]()
    for statement in list_statements(usage):
        required_names |= statement.required_names
    return required_names & usage.reads


def find_certain_rebinds(usage: NameUsage) -> set[str]:
    """Return names that a cell binds without using their old values, if it succeeds.

    The result may be incomplete.
    """
    names = set[str]()
    for statement in list_statements(usage):
        names |= statement.certain_binds
    return names - usage.reads - usage.changes


def list_texts(usage: NameUsage) -> set[str]:
    """Return the texts of the statements of a source."""
    return {statement.text for statement in list_statements(usage)}


def find_affected_names(
    usage: NameUsage,
    resolve: ResolveUsage,
    changed_names: Iterable[str],
    unchanged_texts: Collection[str] | None = None,
) -> set[str]:
    """Return the names that may have other values after a cell runs again.

    `changed_names` are names that the cell reads and that have other values now. If
    `unchanged_texts` is given, statements with other texts are new.
    """
    affected = {*changed_names}
    statement_changes = set[str]()
    has_affected_change = False
    for statement in list_statements(usage):
        resolved = resolve(statement.usage)
        statement_changes |= resolved.changes
        is_new = unchanged_texts is not None and statement.text not in unchanged_texts
        reads = resolved.reads | resolved.outside_reads
        if is_new or not affected.isdisjoint(reads):
            affected |= resolved.changes | resolved.outside_writes
            affected |= _list_bound_values(resolved, is_new=is_new)
            has_affected_change |= bool(resolved.changes)
        else:
            affected -= statement.certain_binds - resolved.changes
    if has_affected_change:
        # These are other names of the changed objects.
        affected |= usage.changes - statement_changes
    return affected


def _list_bound_values(resolved: ResolvedUsage, *, is_new: bool) -> set[str]:
    """Return the names that an affected statement binds to other values.

    An import binds the same module as before, unless the statement is new.
    """
    names = set()
    for name, kind in resolved.binds.items():
        if is_new or kind != IMPORT:
            names.add(name)
    return names
