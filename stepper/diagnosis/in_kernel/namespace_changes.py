"""What a cell had bound before it failed, with before and after: a retry that applies a step twice is the quiet bug of
notebooks."""

from __future__ import annotations

import ast
from typing import Any, Iterable

from stepper.diagnosis.in_kernel.expression_values import FUNCTIONS, spots
from stepper.kernels.in_kernel.cell_sources import find_cell_line, run_state
from stepper.kernels.in_kernel.namespace_summary import (
    previous_values,
    summarize_values,
)
from stepper.kernels.in_kernel.safe_inspect import call_safely, get_cell_files

TOLD = 12
MUTATORS = {
    "append",
    "extend",
    "insert",
    "pop",
    "remove",
    "update",
    "add",
    "sort",
    "reverse",
    "clear",
    "setdefault",
}


def changes(error: BaseException) -> dict[str, Any]:
    """Rebound names with before and after, new names, and what was written to in place above the failing line."""
    after = summarize_values()
    rebound = [
        [name, *shown(previous_values[name], said)]
        for name, said in after.items()
        if previous_values.get(name, said) != said
    ]
    bound = [name for name in after if name not in previous_values]
    known = {*bound, *(name for name, _, _ in rebound)}
    written = [
        [name, line]
        for name, line in call_safely(in_place, error) or ()
        if name in after and name not in known
    ]
    return {
        "rebound": rebound[:TOLD],
        "bound": bound[:TOLD],
        "in_place": written[:TOLD],
    }


def shown(old: tuple[int, str, str], new: tuple[int, str, str]) -> tuple[str, str]:
    """What a name held before and after; with its class where only that differs."""
    if old[1] == new[1] and old[2] != new[2]:
        return f"{kind(old)} {old[1]}", f"{kind(new)} {new[1]}"
    return old[1], new[1]


def kind(said: tuple[int, str, str]) -> str:
    return said[2].rsplit(".", 1)[-1]


def in_place(error: BaseException) -> list[tuple[str, int]]:
    """Names that statements above the failing one wrote into: (name, line of the cell)."""
    spot = next(
        (
            spot
            for spot in spots(error.__traceback__)[::-1]
            if spot.filename in get_cell_files()
        ),
        None,
    )
    if spot is None or get_cell_files()[spot.filename] != run_state["number"]:
        return []
    lines: dict[str, int] = {}
    for statement in spot.tree.body:
        if not isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            nodes: Iterable[Any] = ast.walk(statement)
            above = [
                node
                for node in nodes
                if getattr(node, "lineno", spot.line) < spot.line and written(node)
            ]
            lines.update(
                {
                    written(node): find_cell_line(spot.filename, node.lineno)[1]
                    for node in above
                }
            )
    return list(lines.items())


def written(node: Any) -> str:
    if isinstance(node, ast.AugAssign):
        return root(node.target)
    if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(
        node.ctx, ast.Store
    ):
        return root(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        inplace = any(
            word.arg == "inplace" and getattr(word.value, "value", None) is True
            for word in node.keywords
        )
        return root(node.func.value) if inplace or node.func.attr in MUTATORS else ""
    return ""


def root(node: Any) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
