"""The table of values on the failing lines, and the rule that reads it: the words of the message × their members.

A row is a name, an attribute or an item that the failing line holds, with its value: those of the failing expression
first, at last the variables of loops and the arguments. What a row has that the message speaks of comes before what
it is.
"""

from __future__ import annotations

import ast
import re
import types
from dataclasses import dataclass
from typing import Any, Iterator

from stack_data.core import Source

from stepper.diagnosis.inside.bound import Bound, binding, used
from stepper.diagnosis.inside.items import searches
from stepper.diagnosis.inside.spots import Spot
from stepper.diagnosis.inside.words import CALLABLE, described, folder, is_data, kind_name, size, written
from stepper.kernel.inside.base import class_names, guarded, is_a, of_library, one_of, own_names, short
from stepper.kernel.inside.cells import is_own
from stepper.kernel.inside.fault import message

ROWS, TOLD, MADE_OF = 24, 8, 3
STORED = ("stderr", "output", "stdout", "body", "response", "reason")
FUNCTIONS = r"\b(function|method|module)\b|function_or_method|not callable|not subscriptable"
Finding = dict[str, Any]  # text, and where what it speaks of was bound last


@dataclass(frozen=True, eq=False)
class Row:
    text: str
    value: Any
    node: Any
    spot: Spot
    outer: Spot | None


def finding(text: str, where: Bound | None = None) -> Finding:
    return {"text": text, "bound": where}


def rows(places: list[Spot], said: str) -> list[Row]:
    """The values on the failing lines, innermost line first; functions and modules where the message speaks of them."""
    functions = (*CALLABLE, types.ModuleType, type) if re.search(FUNCTIONS, said) else ()
    table: dict[str, Row] = {}
    for spot, outer in zip(places, [*places[1:], None]):
        for text, value, node in [*spot.known(), *spot.known(at_hand(spot))]:
            if (is_data(value) or one_of(type(value), functions)) and len(table) < ROWS:
                table.setdefault(text, Row(short(text, 60), value, node, spot, outer))
    return list(table.values())


def at_hand(spot: Spot) -> list[ast.Name]:
    """The variables of the loops around a line, what they go over, and the function's arguments."""
    loops, inner = spot.around(ast.For, ast.AsyncFor), spot.function()
    sides = [side for loop in loops for side in (loop.target, loop.iter)]
    names = [node.id for side in sides for node in ast.walk(side) if isinstance(node, ast.Name)]
    given = ast.walk(inner.args) if inner is not None else ()
    return [ast.Name(name, ast.Load()) for name in [*names, *(one.arg for one in given if isinstance(one, ast.arg))]]


def telling(error: BaseException, table: list[Row], places: list[Spot]) -> Iterator[Finding]:
    """What the error stores beside its message, and what the values have that the message speaks of."""
    said, kinds = message(error), {name.rsplit(".", 1)[-1] for name in class_names(type(error))}
    for name, value in own_names(error).items():
        body = own_names(value).get("_content", value) if name == "response" else value
        text = body[-4000:].decode("utf-8", "replace") if type(body) is bytes else body
        lines = [line.strip() for line in text.splitlines() if line.strip()] if type(text) is str else []
        if lines and lines[-1] not in said and name in STORED:
            yield finding(f"its {name} ends with: {short(lines[-1], 250)}")
    for search in searches(said, kinds, [text for spot in places for text in spot.texts()]):
        found = ((row, guarded(search, row.value)) for row in table)
        yield from [finding(f"`{row.text}{text}") for row, text in found if text][:1]


def held(error: BaseException, table: list[Row], places: list[Spot]) -> Iterator[Finding]:
    """What the values are, first those of which the message speaks: with what they were made of and where."""
    said, names = message(error), " ".join(row.text for row in table)
    whole = {row.text for row in table if row.text + "." in names}  # what is told of `a.b` tells of `a`
    spoken = [row for row in table if spoken_of(row.value, said)]
    others = [row for row in table if row not in spoken]
    others.sort(key=lambda row: row.text in whole)
    for number, row in enumerate([*spoken, *others][:TOLD]):
        value, text = row.value, f"`{row.text}`: {described(row.value)}"
        if number == 0 and own_names(value) and not of_library(value) and size(value) is None:  # a thing with a state
            last = used(row.text, row.spot)
            text += f"; used last in `{short(last, 120)}`" if last else ""
        if number < len(spoken) or size(value) == 0 or (number == 0 and is_a(error, (IndexError, StopIteration))):
            where, made = binding(row.node, row.spot, row.outer)
            parts = made_of(made or row.node, row.spot, row.text)
            yield finding(text + (f"; with {parts}" if parts else ""), where)
        else:
            yield finding(text)
    parts = made_of(places[0].statement, places[0]) if "unpack" in said and places else ""
    if parts:
        yield finding(f"what is unpacked is made of {parts}")


def spoken_of(value: Any, said: str) -> bool:
    """Whether a message speaks of a value's class as the wrong one."""
    name = "NoneType" if value is None else kind_name(value)
    return bool(re.search(rf"(?:'|\b(?:a|an|of|[Tt]his) ){re.escape(name)}\b", said))


def made_of(made: ast.AST, spot: Spot, but: str = "") -> str:
    """What an expression was made of: values, what functions of the user's return, the folder of a pattern."""
    nodes, values = list(ast.walk(made)), dict[str, str]()
    for text, value, _ in spot.known(nodes):
        if value is not None and is_data(value) and text != but and len(values) < MADE_OF:
            values[text] = f"`{short(text, 60)}`: {(type(value) is str and written(value, 100)) or described(value)}"
        elif type(value) is types.FunctionType and is_own(value.__code__.co_filename):
            values[text] = returned(value)
    for pattern in (node.value for node in nodes if isinstance(node, ast.Constant)):
        head = pattern.split("*")[0].rpartition("/")[0] or "." if type(pattern) is str and "*" in pattern else ""
        if folder(head):
            values[head] = f"{short(head, 80)} is {folder(head)}"
    return ", ".join(values.values())


def returned(function: types.FunctionType) -> str:
    """What a function of the user's ends with."""
    tree, name = Source.for_filename(function.__code__.co_filename).tree, function.__name__
    own = [node for node in ast.walk(tree) if getattr(node, "name", None) == name] if tree is not None else []
    last = [ast.unparse(node) for node in ast.walk(own[-1]) if isinstance(node, ast.Return)][-1:] if own else []
    return f"`{short(name, 60)}` " + (f"ends with `{short(last[0], 100)}`" if last else "has no `return`")
