"""Where a source unbinds a name: `del`, the end of an `except … as`. Read from its syntax tree."""

from __future__ import annotations

import ast

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def unbound(source: str, name: str) -> tuple[int, str] | None:
    """Return the last line of a source that unbinds a name, and by what; None where it does not."""
    try:
        todo: list[ast.AST] = list(ast.parse(source).body)
    except (SyntaxError, ValueError, RecursionError):
        return None
    found: list[tuple[int, str]] = []
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Delete) and any(isinstance(one, ast.Name) and one.id == name for one in node.targets):
            found.append((node.lineno, "deleted by"))
        elif isinstance(node, ast.ExceptHandler) and node.name == name:
            found.append((node.lineno, "the error of an `except … as`, unbound at that clause's end:"))
        if not isinstance(node, SCOPES):
            todo += ast.iter_child_nodes(node)
    return max(found, default=None)
