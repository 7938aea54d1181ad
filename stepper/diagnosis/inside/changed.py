"""What a cell had bound before it failed, with before and after: a retry that applies a step twice is the quiet bug of
notebooks."""

from __future__ import annotations

import ast

from stepper.diagnosis.inside.reach import FUNCTIONS, spots
from stepper.kernel.inside.base import files, guarded, is_a
from stepper.kernel.inside.cells import now, place
from stepper.kernel.inside.kept import before, summaries

TOLD = 12
MUTATORS = {"append", "extend", "insert", "pop", "remove", "update", "add", "sort", "reverse", "clear", "setdefault"}


def changes(error):
    """Rebound names with before and after, new names, and what was written to in place above the failing line."""
    after, rebound, bound = summaries(), [], []
    for name, (identity, said) in after.items():
        if name not in before:
            bound.append(name)
        elif before[name] != (identity, said):
            rebound.append([name, before[name][1], said])
    known = {name for name, _, _ in rebound} | {*bound}
    written = [[name, line] for name, line in guarded(in_place, error) or () if name in after and name not in known]
    return {"rebound": rebound[:TOLD], "bound": bound[:TOLD], "in_place": written[:TOLD]}


def in_place(error):
    """Names that statements above the failing one wrote into: (name, line of the cell)."""
    spot = next((one for one in spots(error.__traceback__)[::-1] if one.filename in files()), None)
    if spot is None or files()[spot.filename] != now["number"]:
        return []
    found = {}
    for statement in spot.tree.body:
        if statement.lineno >= spot.line:
            break
        for node in ast.walk(statement) if not is_a(statement, (*FUNCTIONS, ast.ClassDef)) else ():
            name = written(node)
            if name and node.lineno < spot.line:
                found[name] = place(spot.filename, node.lineno)[1]
    return list(found.items())


def written(node):
    if is_a(node, ast.AugAssign) or (is_a(node, (ast.Subscript, ast.Attribute)) and is_a(node.ctx, ast.Store)):
        return root(node.target if is_a(node, ast.AugAssign) else node.value)
    if is_a(node, ast.Call) and is_a(node.func, ast.Attribute):
        inplace = any(one.arg == "inplace" and getattr(one.value, "value", None) is True for one in node.keywords)
        if inplace or node.func.attr in MUTATORS:
            return root(node.func.value)
    return ""


def root(node):
    while is_a(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if is_a(node, ast.Name) else ""
