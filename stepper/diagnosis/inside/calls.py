"""How a function that was called wrongly is called; what an expression that is not what it was thought to be holds."""

from __future__ import annotations

import ast
import builtins
import re
import sys
import types

from stepper.diagnosis.inside.describe import describe
from stepper.diagnosis.inside.fault import message
from stepper.diagnosis.inside.reach import DATA, attribute, bound, first, quoted
from stepper.diagnosis.inside.sequences import value_name
from stepper.kernel.inside.base import (
    classes_of,
    guarded,
    is_a,
    missing,
    names_in,
    peek,
    short,
)
from stepper.kernel.inside.cells import is_own
from stepper.kernel.inside.signatures import of_callable, standard

# What is said of arguments that the function has not, or has too few of; not of what kind they are.
COUNTED = r"signature|argument(?! \d)(?!.*not support)|positional|keyword"


def called(error, places):
    """The function that was called wrongly and how it is called."""
    said = message(error)
    named = re.match(r"([\w.<>]+)\(\)", said)
    name = named[1].replace("<locals>.", "") if named else ""
    if not name and not re.search(COUNTED, said):
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
    fact = told(ast.unparse(function), thing)
    if fact:
        fact["kin"] = guarded(kin, thing)
    return fact


def kin(function):
    """The functions beside a function whose names hold its own: what took over a part of it may be called so."""
    if type(function) is not types.FunctionType or not standard(function):
        return None
    name, module = function.__name__, function.__module__
    names = [one for one, value in vars(sys.modules[module]).items()
             if name in one and one != name and type(value) is types.FunctionType and value.__module__ == module
             and not one.startswith("_")]  # fmt: skip
    package = ".".join(part for part in module.split(".") if not part.startswith("_"))
    return {"module": short(package, 60), "names": [short(one, 60) for one in names[:4]]} if names else None


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
