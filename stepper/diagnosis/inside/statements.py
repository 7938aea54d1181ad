"""What a cell says of its frames, read from its syntax tree: what it binds and looks at, and what that is made of.

Nothing is evaluated. Only what the cell itself runs counts, not what its functions and classes hold.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
Columns = tuple[str, ...]


class Binding(NamedTuple):
    """One assignment to a name, or to columns of the frame of that name."""

    value: ast.expr | None
    looped: bool
    order: int  # of the statement
    columns: Columns = ()


class Cell:
    """The statements of a cell, and of what its magics run."""

    def __init__(self, trees: Sequence[ast.Module]) -> None:
        self.trees, self.order = trees, 0
        self.bound: dict[str, list[Binding]] = {}
        self.columns: dict[str, list[Binding]] = {}
        self.targets: set[str] = set()  # of loops
        for tree in trees:
            self.read(tree.body, False)
        final = trees[-1].body[-1] if trees[-1].body else None
        self.last = final.value if isinstance(final, ast.Expr) else None

    def read(self, body: Sequence[ast.stmt], looped: bool) -> None:
        for node in body:
            self.order += 1
            if isinstance(node, SCOPES):
                continue
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                for target in getattr(node, "targets", None) or [getattr(node, "target", None)]:
                    self.bind(target, node.value, looped)
            elif isinstance(node, ast.AugAssign):  # x += 1 is of x
                self.bind(node.target, ast.BinOp(node.target, node.op, node.value), looped)
            elif isinstance(node, (ast.For, ast.AsyncFor)):
                self.targets |= names_of(node.target)
            for block in blocks(node):
                self.read(block, looped or isinstance(node, LOOPS))

    def bind(self, target: ast.expr, value: ast.expr | None, looped: bool) -> None:
        name, columns = columns_of(target)
        if columns:
            self.columns.setdefault(name, []).append(Binding(value, looped, self.order, columns))
        elif not isinstance(target, (ast.Attribute, ast.Subscript)):
            for name in names_of(target):
                own = value if isinstance(target, ast.Name) else None  # of a, b = …
                self.bound.setdefault(name, []).append(Binding(own, looped, self.order))

    def looked(self) -> set[str]:
        """The names whose length the cell looks at itself."""
        names = {name_of(self.last)}
        for node in (node for tree in self.trees for node in ast.walk(tree)):
            if isinstance(node, ast.Attribute) and node.attr in ("empty", "shape", "size"):
                names.add(name_of(node.value))
            elif isinstance(node, ast.Call) and name_of(node.func) in ("len", "display", "print"):
                names.update(map(name_of, node.args))
            elif isinstance(node, ast.Assert):
                names |= names_of(node)
        return names - {""}


def blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks of a compound statement."""
    branches = (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))
    return [getattr(node, part, []) for part in ("body", "orelse", "finalbody")] + [part.body for part in branches]


def inside(node: ast.AST | None) -> list[ast.AST]:
    return list(ast.walk(node)) if node is not None else []


def name_of(node: ast.AST | None) -> str:
    """The name that an expression is, or ''."""
    return node.id if isinstance(node, ast.Name) else ""


def names_of(node: ast.AST | None) -> set[str]:
    return {part.id for part in inside(node) if isinstance(part, ast.Name)}


def calls(node: ast.AST | None) -> list[tuple[str, ast.Call]]:
    """The calls in an expression, each with the last name of what is called."""
    return [
        (str(getattr(part.func, "attr", getattr(part.func, "id", ""))), part)
        for part in inside(node)
        if isinstance(part, ast.Call)
    ]


def given(call: ast.Call, *names: str) -> list[ast.expr]:
    """The arguments of a call that are given by one of these names."""
    return [part.value for part in call.keywords if part.arg in names]


def constants(node: ast.AST | None) -> Columns:
    """The texts of a constant, or of a list or tuple of constants; () where it is anything else."""
    parts = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    return tuple(str(part.value) for part in parts if isinstance(part, ast.Constant))


def columns_of(node: ast.AST) -> tuple[str, Columns]:
    """df["a"], df[["a", "b"]], df.loc[rows, "a"], df.a: ("df", the columns)."""
    if isinstance(node, ast.Attribute):
        return name_of(node.value), (node.attr,)
    if not isinstance(node, ast.Subscript):
        return "", ()
    frame, index = node.value, node.slice
    if isinstance(frame, ast.Attribute) and frame.attr in ("loc", "at"):
        return name_of(frame.value), constants(index.elts[1]) if isinstance(index, ast.Tuple) else ()
    return name_of(frame), constants(index)


def uses(node: ast.AST | None) -> set[tuple[str, str]]:
    """The columns of frames that an expression uses by name: {("df", "a")} of df["a"], df[["a"]], df.a."""
    return {(name, column) for name, columns in map(columns_of, inside(node)) for column in columns}


def joins(node: ast.AST | None) -> list[tuple[ast.Call, str]]:
    """The merges and joins in an expression, each with its `how`."""
    pairs = []
    for name, call in calls(node):
        if name in ("merge", "join"):
            words = [word for part in (*given(call, "how"), *call.args) for word in constants(part)]
            pairs.append((call, words[0] if words else {"join": "left"}.get(name, "inner")))
    return pairs
