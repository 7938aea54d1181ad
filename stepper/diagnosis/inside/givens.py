"""What an expression was made of: the values of its names, its receiver and its filters, each in a few words."""

from __future__ import annotations

import ast
import re

from stepper.diagnosis.inside.describe import describe, is_data
from stepper.diagnosis.inside.reach import binders, last
from stepper.kernel.inside.base import class_names, guarded, is_a, is_pandas, lengths, one_of, short

COUNT, TEXT, ITEM, ITEMS = 3, 100, 28, 8
ROWS, SAMPLE = 200_000, 5000
SCALARS = (str, int, float, bool, bytes)


def givens(node, spot):
    """The values of the names that an expression is made of: [{text, type, value…}]."""
    found = {}
    for one in ast.walk(node):
        if is_a(one, ast.Name) and one.id not in found and len(found) < COUNT:
            value = guarded(lambda: (spot.value(one),))  # noqa: B023  # called at once
            if value is not None and value[0] is not None and is_data(value[0]):
                found[one.id] = {"text": short(one.id, 60), **(guarded(given, value[0]) or {})}
    return list(found.values())


def given(value):
    """A value as it is told beside others: short texts, a dict's own scalars, an XML element's tags."""
    fact, kind = describe(value), type(value)
    if one_of(kind, SCALARS):
        fact["value"] = short(repr(value[:TEXT] if one_of(kind, (str, bytes)) else value), TEXT)
    elif kind is dict:
        told = [f"{key!r}: {short(repr(one), 40)}" for key, one in list(value.items())[:20]
                if type(key) is str and (one_of(type(one), SCALARS) or one is None)]  # fmt: skip
        if told:
            fact["value"] = "{" + ", ".join(told[:4]) + (", …}" if len(value) > len(told[:4]) else "}")
            fact.pop("keys", None)
    elif kind is re.Pattern and type(value.pattern) is str:
        fact["value"] = short(repr(value.pattern), TEXT)
    elif class_names(kind)[0] == "xml.etree.ElementTree.Element":
        tags = list(dict.fromkeys(one.tag for one in value[:50] if type(one.tag) is str))
        fact["value"] = short(f"tag {value.tag!r}" + (f", in it {', '.join(map(repr, tags[:3]))}" if tags else ""), 160)
    return fact


def texts(value):
    """The texts in a short list, each by its end: of a path, the file."""
    if one_of(type(value), (list, tuple)) and 0 < len(value) <= ITEMS and all(type(one) is str for one in value):
        return short(repr([one if len(one) <= ITEM else "…" + one[-ITEM:] for one in value]), 200)
    return None


def source_of(node, spot):
    """The expression that a name was given by the nearest assignment above, in the same function or cell."""
    if not is_a(node, ast.Name):
        return None
    inner = spot.function()
    body = inner.body if inner is not None and type(inner.body) is list else spot.tree.body
    found = last(binders(body, node.id), spot.line)
    for statement in ast.walk(spot.tree):
        if is_a(statement, ast.Assign) and any(target is found for target in statement.targets):
            return statement.value
    return None


def root(node):
    while is_a(node, (ast.Subscript, ast.Attribute, ast.Call)):
        node = node.func if is_a(node, ast.Call) else node.value
    return node


def filtered(node, spot):
    """Of a frame without rows: the comparison that no row met, and what the column holds instead."""
    for made in (node, guarded(source_of, root(node), spot)):
        for one in ast.walk(made) if made is not None else ():
            if is_a(one, ast.Compare) and len(one.ops) == 1 and is_a(one.ops[0], ast.Eq):
                fact = guarded(unmet, one, spot)
                if fact:
                    return fact
    return None


def unmet(node, spot):
    column, wanted = spot.value(node.left), spot.value(node.comparators[0])
    if not is_pandas(column, "Series") or len(column) > ROWS or not one_of(type(wanted), SCALARS):
        return None
    fact = {"column": short(ast.unparse(node.left), 80), "wanted": short(repr(wanted), 60), "dtype": str(column.dtype)}
    head = column.iloc[:SAMPLE].tolist()
    if not all(one_of(type(one), SCALARS) or one is None for one in head) or wanted in head:
        return None
    return {**fact, "values": list(dict.fromkeys(short(repr(one), 60) for one in head))[:200]}


def empty(value):
    """Whether a thing of a known kind has no items."""
    shape = getattr(value, "shape", None) if is_pandas(value, "NDFrame") else None
    if type(shape) is tuple:
        return shape[0] == 0
    return one_of(type(value), lengths) and len(value) == 0
