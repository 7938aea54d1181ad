"""Why a name is not to be seen where it was used."""

from __future__ import annotations

import ast
from typing import Any

from stepper.diagnosis.inside.lacks import Finding, finding
from stepper.diagnosis.inside.near import quoted
from stepper.diagnosis.inside.spots import FUNCTIONS, Spot
from stepper.kernel.inside.base import class_names, peek, shell, short
from stepper.kernel.inside.fault import message

NAMES = 400
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def wanted(error: BaseException) -> str:
    return str(peek(error, "name") or quoted(message(error)))


def local_names(places: list[Spot]) -> list[str]:
    """The names of the function that failed."""
    scope = places[0].frame.f_locals if places else {}
    return [short(name, 80) for name in list(scope)[:NAMES]] if scope is not shell.user_ns else []


def hidden(error: BaseException, places: list[Spot]) -> Finding | None:
    """A name that its function makes local, or that a class body keeps from what is inside it."""
    name, spot = wanted(error), places[0]
    function = spot.function()
    lines = [node.lineno for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name
             and isinstance(node.ctx, ast.Store)] if function is not None else []  # fmt: skip
    if "UnboundLocalError" in class_names(type(error)) and lines:
        outside = " (a global of that name exists)" if name in spot.frame.f_globals else ""
        return finding(f"line {min(lines)} of the function assigns `{name}` and so makes it local{outside}")
    for body in sorted(spot.around(ast.ClassDef), key=lambda node: -node.lineno):
        bound = [statement for statement in body.body if binds(statement, name)]
        inner = [node for node in spot.around((*FUNCTIONS, *COMPREHENSIONS)) if node.lineno >= body.lineno]
        if bound and inner:
            method = isinstance(inner[0], FUNCTIONS[:2])
            reach = f"; there it is `{body.name}.{name}`" if method else ""
            what = "methods" if method else "comprehensions and functions"
            return finding(f"line {bound[0].lineno} binds `{name}` in the class body of {body.name}, which {what}"
                           f" inside it can't see{reach}")  # fmt: skip
    return None


def binds(statement: Any, name: str) -> bool:
    if isinstance(statement, FUNCTIONS[:2]):
        return bool(statement.name == name)
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)
