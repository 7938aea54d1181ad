"""Where a name was bound last: this function, this cell, or the cells that ran before it."""

from __future__ import annotations

import ast
import linecache
from typing import Any, Iterable

from stepper.diagnosis.inside.spots import FUNCTIONS, Spot, parsed
from stepper.kernel.inside.base import files, shell, short
from stepper.kernel.inside.cells import place, raw_lines, sources

CELLS_BACK, LINE, BELOW = 80, 160, 1 << 30
Bound = dict[str, Any]  # cell (its execution count, 0 for none), file, line, text, argument


def bound(node: ast.AST, spot: Spot, outer: Spot | None = None) -> Bound | None:
    """Where an expression (a name, or attributes of one) was bound last; of an argument, the line of the call."""
    wanted, inner = ast.unparse(node), spot.function()
    if inner is not None:
        nearest = last(binders(inner.body if isinstance(inner.body, list) else [], wanted), spot.line)
        if nearest is not None:
            return line_of(spot.filename, nearest.lineno)
        if wanted in {argument.arg for argument in ast.walk(inner.args) if isinstance(argument, ast.arg)}:
            return {**line_of(outer.filename, outer.line), "argument": True} if outer is not None else None
    nearest = last(binders(spot.tree.body, wanted), spot.line if inner is None else BELOW)
    if nearest is not None:
        return line_of(spot.filename, nearest.lineno)
    return earlier(wanted, files().get(spot.filename) if inner is None else None)


def last(nodes: Iterable[Any], before: int) -> Any:
    """The binding nearest above the line; one on the line itself holds the old value while it fails."""
    return max((node for node in nodes if node.lineno < before), key=lambda node: node.lineno, default=None)


def earlier(wanted: str, own: Any) -> Bound | None:
    """The last binding in the cells that ran before this one; what stands below a failing line has not run."""
    for number in [number for number in list(sources)[-CELLS_BACK:] if number != own][::-1]:
        if wanted.split(".", maxsplit=1)[0] not in sources[number]:
            continue
        text = transformed(sources[number])
        nearest = last(binders(parsed(text).body, wanted), BELOW)
        if nearest is not None:
            return cell_line(number, text.split("\n")[nearest.lineno - 1].strip(), nearest.lineno)
    return None


def transformed(source: str) -> str:
    try:
        return str(shell.input_transformer_manager.transform_cell(source))
    except SyntaxError:
        return ""


def binders(body: Iterable[Any], wanted: str) -> list[Any]:
    """The nodes of these statements that bind what is wanted, not looking into functions for plain names."""
    binding, todo = list[Any](), list(body)
    while todo:
        node = todo.pop()
        if getattr(node, "name", None) == wanted and isinstance(node, (*FUNCTIONS[:2], ast.ClassDef)):
            binding.append(node)
        if isinstance(node, FUNCTIONS) and "." not in wanted:
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            named = [(alias.asname or alias.name).split(".")[0] for alias in node.names]
            binding += [node] * (wanted in named)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            binding += [node] * (ast.unparse(node) == wanted)
        todo += ast.iter_child_nodes(node)
    return binding


def source_of(node: ast.AST, spot: Spot) -> Any:
    """The expression that a name was given by the nearest assignment above, in the same function or cell."""
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    if not isinstance(node, ast.Name):
        return None
    inner = spot.function()
    body = inner.body if inner is not None and isinstance(inner.body, list) else spot.tree.body
    nearest = last(binders(body, node.id), spot.line)
    for statement in ast.walk(spot.tree):
        if isinstance(statement, ast.Assign) and any(target is nearest for target in statement.targets):
            return statement.value
    return None


def line_of(filename: str, line: int) -> Bound:
    """A line of a cell as the person wrote it, or of a file."""
    if filename in files():
        number, line = place(filename, line)
        lines = raw_lines(number)
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        return {"cell": number, "file": "", "line": line, "text": short(text, LINE)}
    text = linecache.getline(filename, line).strip()
    return {"cell": 0, "file": short(filename), "line": line, "text": short(text, LINE)}


def cell_line(number: int, text: str, line: int) -> Bound:
    fits = [index for index, raw in enumerate(raw_lines(number), 1) if raw.strip() == text]
    nearest = min(fits, key=lambda index: abs(index - line), default=line)
    return {"cell": number, "file": "", "line": nearest, "text": short(text, LINE)}
