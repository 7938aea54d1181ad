"""How a function that was called wrongly is called, and which of its parameters is meant."""

from __future__ import annotations

import ast
import re
import sys
import types
from typing import Any

from stepper.diagnosis.inside.lacks import Finding, finding, first
from stepper.diagnosis.inside.near import closest
from stepper.diagnosis.inside.reach import attribute
from stepper.diagnosis.inside.spots import Spot
from stepper.kernel.inside.base import classes_of, is_a, missing, names_in, own_names, short
from stepper.kernel.inside.fault import message
from stepper.kernel.inside.signatures import of_callable, standard

# What is said of arguments that the function has not, or has too few of; not of what kind they are.
COUNTED = r"signature|argument(?! \d)(?!.*not support)|positional|keyword"
UNEXPECTED = r"unexpected keyword argument '([^']+)'"


def called(error: BaseException, places: list[Spot]) -> Finding | None:
    """The signature of the function; the parameter that is nearest to the one given."""
    said = message(error)
    named = re.match(r"([\w.<>]+)\(\)", said)
    name = named[1].replace("<locals>.", "") if named else ""
    if not name and not re.search(COUNTED, said):
        return None

    def signed(node: Any, spot: Spot, outer: Spot | None) -> Finding | None:
        function = node.func
        thing = method(function, spot) if isinstance(function, ast.Attribute) else spot.value(function)
        return signed_as(ast.unparse(function), thing, said)

    return first(lambda spot: calls(spot, name), places, signed) or by_name(name, said)


def calls(spot: Spot, name: str) -> list[Any]:
    """The calls on the line that may be of a function of this name, or of the class whose `__init__` it is."""
    last = name.rsplit(".", 1)[-1]
    of_class = name.rsplit(".", 2)[-2] if last == "__init__" and "." in name else last
    every = [node for node in spot.nodes if isinstance(node, ast.Call)]
    fits = [node for node in every if getattr(node.func, "attr", getattr(node.func, "id", "")) in (last, of_class)]
    return fits or ([] if name else every[:1])


def method(node: ast.Attribute, spot: Spot) -> Any:
    """A method as its class stores it."""
    value = spot.value(node.value)
    if is_a(value, (types.ModuleType, type)):
        return attribute(value, node.attr)
    kinds = classes_of(type(value))
    stored = next((names_in(kind)[node.attr] for kind in kinds if node.attr in names_in(kind)), missing)
    return types.MethodType(stored, value) if type(stored) is types.FunctionType else stored


def signed_as(name: str, thing: Any, said: str) -> Finding | None:
    signature = of_callable(thing)
    if signature is None:
        return None
    wrong = re.search(UNEXPECTED, said)
    close = ""
    if wrong:
        near = closest(wrong[1], signature[1])
        close = f"; closest to `{short(wrong[1], 80)}`: {', '.join(near)}" if near else ""
    return finding(f"{short(name, 80)}{short(signature[0], 300)}{close}")


def by_name(name: str, said: str) -> Finding | None:
    """A function or a class's method of a known library by its qualified name, as error messages give it."""
    head, *rest = name.split(".")
    for module in list(sys.modules.values()):
        thing = own_names(module).get(head) if name and is_a(module, types.ModuleType) else None
        if thing is None or not standard(thing):
            continue
        for part in rest:
            kinds = classes_of(thing) if is_a(thing, type) else ()
            thing = next((names_in(kind)[part] for kind in kinds if part in names_in(kind)), None)
        thing = types.MethodType(thing, 0) if rest and type(thing) is types.FunctionType else thing
        finding = signed_as(name, thing, said) if thing is not None else None
        if finding:
            return finding
    return None
