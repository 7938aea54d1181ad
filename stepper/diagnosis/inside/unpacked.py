"""What was to be unpacked: how many values there are, and which; the arguments and loop variables of the moment."""

from __future__ import annotations

import ast
import linecache
import re
import types

from stepper.diagnosis.inside.fault import message
from stepper.diagnosis.inside.onspot import size, written
from stepper.diagnosis.inside.reach import FUNCTIONS, line_of
from stepper.kernel.inside.base import guarded, is_a, missing, one_of, short

SHOWN = 4


def unpacked(error, places):
    """The value that has more or fewer items than there are names for it."""
    count = re.search(r"expected (?:at least )?(\d+)", message(error))
    for spot in places if count else ():
        for node, loop in sources_of(spot):
            found = guarded(parts, node, loop, spot, int(count[1]))
            if found:
                return {"expression": short(ast.unparse(node), 60), **found}
    return None


def sources_of(spot):
    """The expressions of the statement whose values are taken apart: (node, whether item by item)."""
    whole = spot.statement
    if is_a(whole, ast.Assign) and is_a(whole.targets[0], (ast.Tuple, ast.List)):
        yield whole.value, False
    if is_a(whole, (ast.For, ast.AsyncFor)) and is_a(whole.target, (ast.Tuple, ast.List)):
        yield whole.iter, True
    for node in ast.walk(whole) if whole is not None else ():
        if is_a(node, ast.comprehension) and is_a(node.target, (ast.Tuple, ast.List)):
            yield node.iter, True


def parts(node, loop, spot, count):
    value = guarded(lambda: (spot.value(node),))
    if value is not None and not loop:
        return {"len": size(value[0]), "value": written(value[0])} if size(value[0]) is not None else None
    if value is not None and type(value[0]) is dict:
        return {"dict": True, "first": written(next(iter(value[0]), None), 40)}
    if value is not None and one_of(type(value[0]), (list, tuple)):
        for number, one in enumerate(value[0][:20_000]):
            if size(one) not in (None, count):
                return {"index": number, "len": size(one), "value": written(one)}
    if value is None and is_a(node, ast.Call) and not loop:
        return returned(spot.value(node.func), count)
    return None


def returned(function, count):
    """The line on which a function of the user's gives back that many values."""
    function = function.__func__ if type(function) is types.MethodType else function
    if type(function) is not types.FunctionType:
        return None
    filename, line = function.__code__.co_filename, function.__code__.co_firstlineno
    tree = ast.parse("".join(linecache.getlines(filename)))
    start = next(one for one in ast.walk(tree) if is_a(one, FUNCTIONS[:2])
                 and line in (one.lineno, *[deco.lineno for deco in one.decorator_list]))  # fmt: skip
    given = [one for one in ast.walk(start) if is_a(one, ast.Return) and is_a(one.value, (ast.Tuple, ast.List))]
    wrong = [one for one in given if len(one.value.elts) != count]
    return {"len": len(wrong[0].value.elts), "bound": line_of(filename, wrong[0].lineno)} if wrong else None


def at_hand(error, places):
    """The arguments and the loops' variables at the failing line, as far as they are plain and short."""
    for spot in places[:2]:
        scope, names = spot.frame.f_locals, []
        inner = spot.function()
        for node in ast.walk(spot.tree):
            if is_a(node, (ast.For, ast.AsyncFor)) and node.lineno <= spot.line <= node.end_lineno:
                names += [one.id for one in ast.walk(node.target) if is_a(one, ast.Name)]
        if inner is not None:
            names += [one.arg for one in ast.walk(inner.args) if is_a(one, ast.arg)]
        told = []
        for name in dict.fromkeys(names):
            value = scope.get(name, missing)
            text = guarded(written, value, 60) if value is not missing else None
            if text is not None:
                told.append([name, text])
        if told:
            return {"function": inner.name if is_a(inner, FUNCTIONS[:2]) else "", "names": told[:SHOWN]}
    return None
