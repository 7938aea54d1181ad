"""What a cell had bound before it failed, with before and after: a retry that applies a step twice is the quiet bug of
notebooks."""

from __future__ import annotations

import ast
import types

from .base import class_name, guarded, is_a, one_of, shell, short, top_module
from .cells import files, now, place
from .namespace import bound_by_user
from .reach import FUNCTIONS, spots

NAMES, TOLD = 300, 12
MUTATORS = {"append", "extend", "insert", "pop", "remove", "update", "add", "sort", "reverse", "clear", "setdefault"}
before = {}  # name → (id, what it was in short): no object is kept


def keep():
    """Remember what the names hold now, for the next cell."""
    before.clear()
    before.update(summaries())


def summaries():
    found = {}
    for name, value in list(shell.user_ns.items())[: NAMES * 2]:
        if len(found) < NAMES and bound_by_user(name, value) and is_value(value):
            found[short(name, 80)] = (id(value), summary(value))
    return found


def is_value(value):
    return not is_a(value, (types.ModuleType, type)) and not one_of(type(value), (types.FunctionType, types.MethodType))


def summary(value):
    shape = getattr(value, "shape", None) if top_module(type(value)) in ("pandas", "numpy") else None
    if type(shape) is tuple and shape:
        return " × ".join(str(n) for n in shape)
    if one_of(type(value), (int, float, bool, str)):
        return short(repr(value), 40)
    if one_of(type(value), (list, dict, tuple, set)):
        return f"length {len(value)}"
    return class_name(type(value)).rsplit(".", 1)[-1]


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
