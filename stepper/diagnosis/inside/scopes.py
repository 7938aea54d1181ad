"""Why a name is not to be seen where it was used, and which live things could be meant."""

from __future__ import annotations

import ast

from stepper.diagnosis.inside.describe import is_data
from stepper.diagnosis.inside.fault import message
from stepper.diagnosis.inside.parts import has
from stepper.diagnosis.inside.reach import FUNCTIONS, quoted
from stepper.kernel.inside.base import class_name, class_names, is_a, peek, shell, short
from stepper.kernel.inside.namespace import bound_by_user

NAMES, FIT = 400, 4
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def local_names(error, places):
    scope = places[0].frame.f_locals if places else {}
    return [short(name, 80) for name in list(scope)[:NAMES]] if scope is not shell.user_ns else []


def made_local(error, places):
    """For UnboundLocalError: the line that makes the name local to its function."""
    name, function = wanted(error), places[0].function()
    lines = [
        node.lineno
        for node in ast.walk(function)
        if is_a(node, ast.Name) and node.id == name and is_a(node.ctx, ast.Store)
    ]
    if "UnboundLocalError" in class_names(type(error)) and lines:
        return {"line": min(lines), "global": name in places[0].frame.f_globals}
    return None


def wanted(error):
    return peek(error, "name") or quoted(message(error))


def class_body(error, places):
    """The class whose body binds the name, where a function or comprehension in that body sought it."""
    name, spot = wanted(error), places[0]
    around = [n for n in ast.walk(spot.tree) if is_a(n, ast.ClassDef) and n.lineno <= spot.line <= n.end_lineno]
    for node in sorted(around, key=lambda one: one.lineno, reverse=True):
        bound = [one for one in node.body if binds(one, name)]
        inside = [one for one in ast.walk(node) if is_a(one, (*FUNCTIONS, *COMPREHENSIONS))
                  and one.lineno <= spot.line <= one.end_lineno]  # fmt: skip
        if bound and inside:
            return {"class": short(node.name, 80), "line": bound[0].lineno, "function": is_a(inside[0], FUNCTIONS[:2])}
    return None


def binds(statement, name):
    if is_a(statement, FUNCTIONS[:2]):
        return statement.name == name
    targets = statement.targets if is_a(statement, ast.Assign) else [getattr(statement, "target", None)]
    return any(is_a(one, ast.Name) and one.id == name for one in targets)


def fits(error, places):
    """The live things that have every attribute which the code takes of the missing name: [name, class]."""
    name, spot = wanted(error), places[0]
    taken = {one.attr for one in ast.walk(spot.tree) if is_a(one, ast.Attribute) and is_a(one.value, ast.Name)
             and one.value.id == name}  # fmt: skip
    if not taken:
        return None
    return [
        [short(own, 60), class_name(type(value)).rsplit(".", 1)[-1]]
        for own, value in list(shell.user_ns.items())
        if bound_by_user(own, value) and is_data(value) and all(has(value, one) for one in taken)
    ][:FIT]
