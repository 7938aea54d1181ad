"""What a cell had bound before it failed, with before and after: a retry that applies a step twice is the quiet bug of
notebooks."""

from __future__ import annotations

import ast
from typing import Any, Iterable

from stepper.diagnosis.inside.spots import FUNCTIONS, spots
from stepper.kernel.inside.base import files, guarded
from stepper.kernel.inside.cells import now, place
from stepper.kernel.inside.namespace import before, summaries

TOLD = 12
MUTATORS = {"append", "extend", "insert", "pop", "remove", "update", "add", "sort", "reverse", "clear", "setdefault"}


def changes(error: BaseException) -> dict[str, Any]:
    """Rebound names with before and after, new names, and what was written to in place above the failing line."""
    after, rebound, bound = summaries(), list[list[str]](), list[str]()
    for name, (identity, said) in after.items():
        if name not in before:
            bound.append(name)
        elif before[name] != (identity, said):
            rebound.append([name, before[name][1], said])
    known = {name for name, _, _ in rebound} | {*bound}
    written = [[name, line] for name, line in guarded(in_place, error) or () if name in after and name not in known]
    return {"rebound": rebound[:TOLD], "bound": bound[:TOLD], "in_place": written[:TOLD]}


def in_place(error: BaseException) -> list[tuple[str, int]]:
    """Names that statements above the failing one wrote into: (name, line of the cell)."""
    places = spots(error.__traceback__)[::-1]
    spot = next((cell for cell in places if cell.filename in files()), None)
    if spot is None or files()[spot.filename] != now["number"]:
        return []
    lines: dict[str, int] = {}
    body: list[Any] = spot.tree.body
    for statement in body:
        if statement.lineno >= spot.line:
            break
        nodes: Iterable[Any] = ast.walk(statement)
        for node in nodes if not isinstance(statement, (*FUNCTIONS, ast.ClassDef)) else ():
            name = written(node)
            if name and node.lineno < spot.line:
                lines[name] = place(spot.filename, node.lineno)[1]
    return list(lines.items())


def written(node: Any) -> str:
    if isinstance(node, ast.AugAssign) or (
        isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store)
    ):
        return root(node.target if isinstance(node, ast.AugAssign) else node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        inplace = any(word.arg == "inplace" and getattr(word.value, "value", None) is True for word in node.keywords)
        if inplace or node.func.attr in MUTATORS:
            return root(node.func.value)
    return ""


def root(node: Any) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
