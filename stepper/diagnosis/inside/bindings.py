"""What the statements of a cell bind and look at, read from its syntax tree: nothing is evaluated.

Only what the cell itself runs counts, not what its functions and classes hold.
"""

from __future__ import annotations

import ast
import functools

from stepper.diagnosis.inside.expressions import called, columns_of, names_of

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
SHOWN = ("display", "print")


class Binding:
    """One assignment to a name, or to columns of the frame of that name."""

    def __init__(self, name, value, looped, order, columns=None):
        self.name, self.value, self.looped, self.order, self.columns = name, value, looped, order, columns

    def mentions(self, name):
        return name in names_of(self.value)


class Cell:
    def __init__(self, trees):
        self.trees, self.order, self.last = trees, 0, None
        self.bound, self.columns, self.targets = {}, {}, set()  # by name; those of loops
        for tree in trees:
            self.statements(tree.body, False)
        body = trees[-1].body
        if body and isinstance(body[-1], ast.Expr):
            self.last = body[-1].value

    def statements(self, body, looped):
        for node in body:
            self.order += 1
            if isinstance(node, SCOPES):
                continue
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self.bind(target, node.value, looped)
            elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and node.value is not None:
                grown = isinstance(node, ast.AugAssign)  # x += 1 is of x
                self.bind(node.target, ast.BinOp(node.target, node.op, node.value) if grown else node.value, looped)
            elif isinstance(node, (ast.For, ast.AsyncFor)):
                self.targets |= names_of(node.target)
            elif isinstance(node, (ast.With, ast.AsyncWith)):
                for item in node.items:
                    self.bind(item.optional_vars, None, looped)
            inner = looped or isinstance(node, LOOPS)
            for part in ("body", "orelse", "finalbody"):
                self.statements(getattr(node, part, ()), inner)
            for one in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                self.statements(one.body, inner)

    def bind(self, target, value, looped):
        if isinstance(target, ast.Name):
            self.bound.setdefault(target.id, []).append(Binding(target.id, value, looped, self.order))
        elif isinstance(target, (ast.Tuple, ast.List)):
            values = getattr(value, "elts", ())
            values = values if len(values) == len(target.elts) else [None] * len(target.elts)
            for one, part in zip(target.elts, values):
                self.bind(one, part, looped)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, None, looped)
        else:
            name, columns = columns_of(target)
            if name:
                self.columns.setdefault(name, []).append(Binding(name, value, looped, self.order, columns))

    @functools.cached_property
    def looked(self):
        """The names whose length the cell looks at itself."""
        found = {called(self.last)}
        for node in (node for tree in self.trees for node in ast.walk(tree)):
            if isinstance(node, ast.Attribute) and node.attr in ("empty", "shape", "size"):
                found.add(called(node.value))
            elif isinstance(node, ast.Call) and called(node.func) in ("len", *SHOWN):
                found.update(map(called, node.args))
            elif isinstance(node, ast.Assert):
                found |= names_of(node)
        return found - {""}
