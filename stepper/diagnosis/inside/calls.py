"""How a function that was called wrongly is called, and which of its parameters is meant."""

from __future__ import annotations

import ast
import re
import sys
import types
from typing import Any

from stepper.diagnosis.inside.gone import replaced
from stepper.diagnosis.inside.lacks import first, stored
from stepper.diagnosis.inside.near import closest
from stepper.diagnosis.inside.spots import Spot
from stepper.diagnosis.inside.table import Finding, finding
from stepper.kernel.inside.base import is_a, own_names, peek, short
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
    if not re.search(COUNTED, said):
        return None

    def signed(node: Any, spot: Spot, outer: Spot | None) -> Finding | None:
        method_ = isinstance(node.func, ast.Attribute)
        return told(ast.unparse(node.func), method(node.func, spot) if method_ else spot.values[node.func])

    def told(shown: str, thing: Any) -> Finding | None:
        signature, wrong = of_callable(thing), re.search(UNEXPECTED, said)
        if signature is None:
            return None
        near = closest(wrong[1], signature[1]) if wrong else []
        close = f"; closest to `{short(wrong[1], 80)}`: {', '.join(near)}" if wrong and near else ""
        instead = replaced(str(peek(thing, "__module__")), wrong[1]) if wrong else ""
        shown = f"{short(shown, 80)}{short(signature[0], 300)}{close}"
        return finding(f"{instead}; {shown}" if instead else shown)

    return first(lambda spot: calls(spot, name), places, signed) or told(name, by_name(name))


def calls(spot: Spot, name: str) -> list[Any]:
    """The calls on the line that may be of a function of this name, or of the class whose `__init__` it is."""
    wanted = name.split(".")[-2:]
    every = [node for node in spot.nodes if isinstance(node, ast.Call)]
    fits = [node for node in every if getattr(node.func, "attr", getattr(node.func, "id", "")) in wanted]
    return fits or ([] if name else every[:1])


def method(node: ast.Attribute, spot: Spot) -> Any:
    value = spot.values[node.value]
    if is_a(value, types.ModuleType):
        return spot.values[node]
    found = stored(value if is_a(value, type) else type(value), node.attr)
    return types.MethodType(found, value) if type(found) is types.FunctionType and not is_a(value, type) else found


def by_name(name: str) -> Any:
    """A method of a known library's class that the message names: what the call on the line hands its arguments to."""
    head, _, last = name.partition(".")
    kinds = [
        own_names(module).get(head) for module in [*sys.modules.values()] if last and is_a(module, types.ModuleType)
    ]
    found = next((stored(kind, last) for kind in kinds if is_a(kind, type) and standard(kind)), None)
    return types.MethodType(found, 0) if type(found) is types.FunctionType else found
