"""How a function that was called wrongly is called; what an expression that is not what it was thought to be holds."""

from __future__ import annotations

import ast
import builtins
import re
import sys
import types

from .base import (
    class_name,
    classes_of,
    guarded,
    is_a,
    lengths,
    missing,
    names_in,
    of_library,
    one_of,
    peek,
    short,
    top_module,
)
from .cells import is_own
from .describe import describe
from .fault import message
from .reach import DATA, attribute, bound, first, quoted
from .signatures import of_callable, standard


def index(error, places):
    return first(lambda spot: [n for n in spot.nodes if is_a(n, (ast.Subscript, ast.Call))], places, indexed)


def indexed(node, spot, outer):
    fact = {}
    if is_a(node, ast.Call):  # list.pop(3), match.group(2)
        if not is_a(node.func, ast.Attribute) or node.func.attr not in ("pop", "group", "start", "end", "span"):
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
    fact["bound"] = guarded(bound, base, spot, outer) if is_a(base, ast.Name) else None
    return {
        **fact,
        "expression": short(ast.unparse(base), 80),
        "type": value_name(value),
        "value": describe(value).get("value"),
    }


def value_name(value):
    return class_name(type(value)).rsplit(".", 1)[-1]


def called(error, places):
    """The function that was called wrongly and how it is called."""
    said = message(error)
    named = re.match(r"([\w.<>]+)\(\)", said)
    name = named[1].replace("<locals>.", "") if named else ""
    if not name and "signature" not in said and "argument" not in said:
        return None
    return first(lambda spot: calls(spot, name), places, signed) or by_name(name)


def calls(spot, name):
    last = name.rsplit(".", 1)[-1]
    of_class = name.rsplit(".", 2)[-2] if last == "__init__" else last
    every = [node for node in spot.nodes if is_a(node, ast.Call)]
    fits = [node for node in every if last_part(node.func) in (last, of_class)]
    return fits or ([] if name else every[:1])


def last_part(node):
    return node.attr if is_a(node, ast.Attribute) else node.id if is_a(node, ast.Name) else ""


def signed(node, spot, outer):
    function = node.func
    thing = method(function, spot) if is_a(function, ast.Attribute) else spot.value(function)
    return told(ast.unparse(function), thing)


def method(node, spot):
    value = spot.value(node.value)
    if is_a(value, (types.ModuleType, type)):
        return attribute(value, node.attr)
    found = next(
        (names_in(kind)[node.attr] for kind in classes_of(type(value)) if node.attr in names_in(kind)), missing
    )
    return types.MethodType(found, value) if type(found) is types.FunctionType else found


def told(name, thing):
    found = of_callable(thing)
    return (
        {"function": short(name, 80), "signature": short(found[0], 300), "parameters": found[1][:60]} if found else None
    )


def by_name(name):
    """A function or a class's method of a known library by its qualified name, as error messages give it."""
    first_name, _, rest = name.partition(".")
    for module, found in list(sys.modules.items()):
        if type(module) is not str or not isinstance(found, types.ModuleType):
            continue
        thing = (guarded(vars, found) or {}).get(first_name)
        if thing is None or not standard(thing):
            continue
        for part in rest.split(".") if rest else ():
            kinds = classes_of(thing) if is_a(thing, type) else ()
            thing = next((names_in(kind)[part] for kind in kinds if part in names_in(kind)), None)
        if type(thing) is types.FunctionType and rest and is_own_module(module) is False:
            thing = types.MethodType(thing, 0)
        fact = guarded(told, name, thing) if thing is not None else None
        if fact:
            return fact
    return None


def is_own_module(name):
    path = peek(sys.modules.get(name), "__file__")
    return type(path) is str and is_own(path)


def not_what_it_was(error, places):
    """For 'not callable', 'not subscriptable', None in the place of a value: where the expression was bound last."""
    said = message(error)
    if not re.search(
        r"not callable|not subscriptable|not iterable|NoneType|item assignment|unhashable|has no len", said
    ):
        return None
    wanted = quoted(said)

    def held_by(node, spot, outer):
        value = spot.value(node)
        if value_name(value) != wanted and not (value is None and "NoneType" in said):
            return None
        hides = is_a(node, ast.Name) and hasattr(builtins, node.id)
        return {"expression": short(ast.unparse(node), 80), "type": describe(value)["type"], "hides": hides,
                "bound": guarded(bound, node, spot, outer)}  # fmt: skip

    return first(lambda spot: [node for node in spot.nodes if is_a(node, DATA)], places, held_by)
