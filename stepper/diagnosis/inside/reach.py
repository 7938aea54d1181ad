"""The expression that failed, and what its parts hold, found without running anything of the user's.

Names, stored attributes and items of plain containers are looked up; of known libraries' objects a few properties are
asked. No call is made but of methods of `str` and `dict` themselves.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import operator
import re
import types

from stepper.kernel.inside.base import (
    classes_of,
    guarded,
    is_a,
    lengths,
    missing,
    names_in,
    of_library,
    one_of,
    peek,
    shell,
    short,
)
from stepper.kernel.inside.cells import files, own_frames, place, raw_lines, sources

CELLS_BACK, LINE = 80, 160
PROPERTIES = {"columns", "index", "shape", "dtype", "dtypes", "T", "values", "size", "ndim", "iloc", "loc", "at", "iat"}
COPIES = {"T", "values"}
OF_STR = {"split", "rsplit", "splitlines", "strip", "lstrip", "rstrip", "lower", "upper", "partition", "replace"}
OF_DICT = {"keys", "values", "items", "get"}
BINARY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
SCALARS = (int, float, str)
DATA = (ast.Name, ast.Attribute, ast.Subscript)


class Unknown(Exception):
    """The value can't be had without running code."""


class Spot:
    """Where it failed in the user's own code: the frame, the line, the statement and, where known, the very node."""

    def __init__(self, frame, line, last):
        self.frame, self.line = frame, line
        self.filename = frame.f_code.co_filename
        self.scope = (frame.f_locals, frame.f_globals, vars(builtins))
        self.tree = guarded(ast.parse, "".join(linecache.getlines(self.filename))) or ast.Module([], [])
        self.statement = self._statement()
        self.exact = guarded(self._exact, last)
        self.nodes = list(ast.walk(self.exact)) if self.exact is not None else self._on_line()

    def _statement(self):
        covering = [n for n in ast.walk(self.tree) if is_a(n, ast.stmt) and n.lineno <= self.line <= n.end_lineno]
        return min(covering, key=lambda node: node.end_lineno - node.lineno, default=None)

    def _exact(self, last):
        line, end, column, stop = list(self.frame.f_code.co_positions())[last // 2]  # Python 3.11
        where = (line, end, column, stop)
        found = [node for node in ast.walk(self.tree) if is_a(node, ast.expr) and span(node) == where]
        return found[0] if found else None

    def _on_line(self):
        if self.statement is None:
            return []
        body = {id(inner) for name in ("body", "orelse", "handlers", "finalbody")
                for child in (getattr(self.statement, name, None) or []) if is_a(child, ast.AST)
                for inner in ast.walk(child)}  # fmt: skip
        return [n for n in ast.walk(self.statement) if is_a(n, ast.expr) and id(n) not in body]

    def find(self, kind, fits=lambda node: True):
        """The first node of a kind; the exact one before those below it."""
        return next((node for node in self.nodes if is_a(node, kind) and fits(node)), None)

    def value(self, node):
        return evaluate(node, self.scope)

    def function(self):
        """The innermost function around the line, None at a cell's top level."""
        around = [n for n in ast.walk(self.tree) if is_a(n, FUNCTIONS) and n.lineno <= self.line <= n.end_lineno]
        return min(around, key=lambda node: node.end_lineno - node.lineno, default=None)


def span(node):
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def spots(trace):
    """The places in the user's own code, innermost first, three at most."""
    return [Spot(*entry) for entry in reversed(own_frames(trace)[-3:])]


def first(nodes, places, value_of):
    """The first value that can be had of the nodes, place by place, innermost first."""
    for spot, outer in zip(places, [*places[1:], None]):
        for node in nodes(spot):
            value = guarded(value_of, node, spot, outer)
            if value is not None:
                return value
    return None


def quoted(text):
    found = re.search(r"['\"](.+?)['\"]", text)
    return found[1] if found else ""


def evaluate(node, scope):
    kind = type(node)
    if kind is ast.Constant:
        return node.value
    if kind is ast.Name:
        for space in scope:
            found = space.get(node.id, missing) if type(space) is dict else guarded(space.__getitem__, node.id)
            if found is not missing and (found is not None or node.id in space):
                return found
        raise Unknown
    if kind is ast.Attribute:
        return attribute(evaluate(node.value, scope), node.attr)
    if kind is ast.Subscript:
        return item(evaluate(node.value, scope), evaluate(node.slice, scope))
    if kind is ast.UnaryOp and type(node.op) is ast.USub:
        value = evaluate(node.operand, scope)
        if one_of(type(value), (int, float)):
            return -value
    if kind is ast.BinOp and type(node.op) in BINARY:
        left, right = evaluate(node.left, scope), evaluate(node.right, scope)
        if one_of(type(left), (int, float)) and one_of(type(right), (int, float)) and (right or is_a(node.op, ast.Add)):
            return BINARY[type(node.op)](left, right)
    if kind is ast.List or kind is ast.Tuple:
        values = [evaluate(one, scope) for one in node.elts[:100]]
        return values if kind is ast.List else tuple(values)
    if kind is ast.Call and not node.keywords:
        return call(node, scope)
    raise Unknown


def attribute(value, name):
    if is_a(value, types.ModuleType):
        found = object.__getattribute__(value, "__dict__").get(name, missing)
    elif is_a(value, type):
        found = next((names_in(kind)[name] for kind in classes_of(value) if name in names_in(kind)), missing)
    elif of_library(value) and name in COPIES and large(value):
        raise Unknown
    elif of_library(value) and name in PROPERTIES:
        found = getattr(value, name, missing)
    elif of_library(value) and name in (columns(value) or ()):
        found = value[name]
    else:
        found = peek(value, name, missing)
        if type(found) is types.FunctionType:
            return types.MethodType(found, value)
        if (
            found is not missing
            and type(found) is not type
            and any("__get__" in names_in(k) for k in classes_of(type(found)))
        ):
            raise Unknown  # a property, or something like it
    if found is missing:
        raise Unknown
    return found


def large(value):
    """Whether a copy of it would take long."""
    size = getattr(value, "size", 0)
    return type(size) is not int or size > 1_000_000


def columns(value):
    found = getattr(value, "columns", None) if of_library(value) else None
    return found if found is not None and of_library(found) and hasattr(found, "tolist") else None


def item(value, key):
    kind = type(value)
    if is_a(value, dict) and (one_of(type(key), SCALARS) or key is None):
        found = dict.get(value, key, missing)  # no `__missing__`: a defaultdict would grow
        if found is not missing:
            return found
    elif one_of(kind, (list, tuple, str)) and type(key) is int and -len(value) <= key < len(value):
        return value[key]
    elif of_library(value) and one_of(type(key), (str, int, list)) and not (type(key) is list and large(value)):
        found = guarded(lambda: value[key])
        if found is not None:
            return found
    raise Unknown


def call(node, scope):
    function, given = node.func, [evaluate(one, scope) for one in node.args]
    if is_a(function, ast.Name) and function.id == "len" and len(given) == 1:
        base = next((base for base in classes_of(type(given[0])) if one_of(base, lengths)), None)
        if base is not None:
            return base.__len__(given[0])
        if of_library(given[0]):
            return len(given[0])
    if is_a(function, ast.Attribute) and all(one_of(type(one), SCALARS) for one in given):
        value, name = evaluate(function.value, scope), function.attr
        if type(value) is str and name in OF_STR:
            return getattr(value, name)(*given)
        if type(value) is dict and name in OF_DICT:
            found = getattr(value, name)(*given)
            return found if name == "get" else list(found)
    raise Unknown


# --- where a name was bound last -----------------------------------------------------------------------------------


def bound(node, spot, outer):
    """Where an expression (a name, or attributes of one) was bound last: cell or file, line, text; None if unknown."""
    wanted = ast.unparse(node)
    inner = spot.function()
    if inner is not None:
        found = last(binders(inner.body if type(inner.body) is list else [], wanted), spot.line)
        if found is not None:
            return line_of(spot.filename, found.lineno)
        if wanted in {one.arg for one in ast.walk(inner.args) if is_a(one, ast.arg)}:
            return {**line_of(outer.filename, outer.line), "argument": True} if outer is not None else None
    found = last(binders(spot.tree.body, wanted), spot.line if inner is None else 1 << 30)
    if found is not None:
        return line_of(spot.filename, found.lineno)
    return earlier(wanted, spot if inner is None else None)


def last(nodes, before):
    """The binding nearest above the line; one on the line itself holds the old value while it fails."""
    return max((one for one in nodes if one.lineno < before), key=lambda one: one.lineno, default=None)


def earlier(wanted, spot=None):
    """The last binding in the cells that ran before this one; what stands below a failing line has not run."""
    own = files().get(spot.filename) if spot is not None else None
    numbers = [number for number in list(sources)[-CELLS_BACK:] if number != own]
    for number in reversed(numbers):
        text = guarded(shell.input_transformer_manager.transform_cell, sources[number])
        tree = guarded(ast.parse, text or "")
        found = last(binders(tree.body if tree else [], wanted), 1 << 30)
        if found is not None:
            return cell_line(number, text.split("\n")[found.lineno - 1].strip(), found.lineno)
    return None


def binders(body, wanted):
    """The nodes of these statements that bind what is wanted, not looking into functions for plain names."""
    found, todo = [], list(body)
    while todo:
        node = todo.pop()
        if getattr(node, "name", None) == wanted and is_a(node, (*FUNCTIONS[:2], ast.ClassDef)):
            found.append(node)
        if is_a(node, FUNCTIONS) and "." not in wanted:
            continue
        if is_a(node, (ast.Import, ast.ImportFrom)):
            named = [(alias.asname or alias.name).split(".")[0] for alias in node.names]
            found += [node] * (wanted in named)
        elif is_a(node, (ast.Name, ast.Attribute)) and is_a(node.ctx, ast.Store) and ast.unparse(node) == wanted:
            found.append(node)
        todo += ast.iter_child_nodes(node)
    return found


def line_of(filename, line):
    if filename in files():
        number, line = place(filename, line)
        lines = raw_lines(number)
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        return {"cell": number, "file": "", "line": line, "text": short(text, LINE)}
    return {
        "cell": 0,
        "file": short(filename),
        "line": line,
        "text": short(linecache.getline(filename, line).strip(), LINE),
    }


def cell_line(number, text, line):
    lines = raw_lines(number)
    fits = [index for index, one in enumerate(lines, 1) if one.strip() == text]
    return {
        "cell": number,
        "file": "",
        "line": min(fits, key=lambda n: abs(n - line), default=line),
        "text": short(text, LINE),
    }
