"""What has no such place: its length or shape, what was asked for, what it was made of."""

from __future__ import annotations

import ast
import re

from stepper.diagnosis.inside.describe import describe
from stepper.diagnosis.inside.givens import empty, filtered, givens, texts
from stepper.diagnosis.inside.reach import bound, first
from stepper.kernel.inside.base import (
    class_name,
    classes_of,
    guarded,
    is_a,
    lengths,
    of_library,
    one_of,
    short,
    top_module,
)

CALLS = ("pop", "group", "start", "end", "span")


def index(error, places):
    """Of what, its size, the place asked for."""
    return first(lambda spot: [n for n in spot.nodes if is_a(n, (ast.Subscript, ast.Call))], places, indexed)


def indexed(node, spot, outer):
    fact = {}
    if is_a(node, ast.Call):  # list.pop(3), match.group(2)
        if not is_a(node.func, ast.Attribute) or node.func.attr not in CALLS:
            return None
        base, asked = node.func.value, node.args[0] if node.args else None
    else:
        base, asked = node.value, node.slice
    value = spot.value(base)
    if top_module(type(value)) == "pandas" and value_name(value) in ("_iLocIndexer", "_iAtIndexer"):
        value, base = value.obj, base.value
    if type(value) is re.Match:
        fact["groups"] = value.re.groups
    kind = next((one for one in classes_of(type(value)) if one_of(one, lengths)), None)
    if kind is not None:
        fact["len"] = kind.__len__(value)
    elif of_library(value):
        fact["shape"] = [int(n) for n in getattr(value, "shape", ())]
    if not fact:
        return None
    number = guarded(spot.value, asked) if asked is not None else None
    if one_of(type(number), (int, tuple)):
        fact["asked"] = short(str(number), 60)
    if is_a(base, ast.Name):
        fact["bound"] = guarded(bound, base, spot, outer)
    else:
        fact["givens"] = guarded(givens, base, spot)
    if guarded(empty, value):
        fact["unmet"] = guarded(filtered, base, spot)
    return {
        **fact,
        "expression": short(ast.unparse(base), 80),
        "type": value_name(value),
        "value": guarded(texts, value) or describe(value).get("value"),
    }


def value_name(value):
    return class_name(type(value)).rsplit(".", 1)[-1]
