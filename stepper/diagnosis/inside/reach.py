"""What an expression holds, found without running anything of the user's.

Names, stored attributes and items of plain containers are looked up; of known libraries' objects a few properties are
asked. No call is made but of methods of `str` and `dict` themselves, and `len`.
"""

from __future__ import annotations

import ast
import operator
import types
from typing import Any, Callable, Mapping, Sequence

from stepper.kernel.inside.base import classes_of, guarded, is_a, lengths, missing, names_in, of_library, one_of, peek

PROPERTIES = {"columns", "index", "shape", "dtype", "dtypes", "T", "values", "size", "ndim", "iloc", "loc", "at", "iat"}
COPIES, MANY = {"T", "values"}, 1_000_000
OF_STR = {"split", "rsplit", "splitlines", "strip", "lstrip", "rstrip", "lower", "upper", "partition", "replace"}
OF_DICT = {"keys", "values", "items", "get"}
BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
SCALARS, NUMBERS = (int, float, str), (int, float)


class Unknown(Exception):
    """The value can't be had without running code."""


def evaluate(node: ast.AST, scope: Sequence[Mapping[str, Any]]) -> Any:
    """What a node holds in these namespaces; raise Unknown."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return looked_up(node.id, scope)
    if isinstance(node, ast.Attribute):
        return attribute(evaluate(node.value, scope), node.attr)
    if isinstance(node, ast.Subscript):
        return item(evaluate(node.value, scope), evaluate(node.slice, scope))
    if isinstance(node, (ast.List, ast.Tuple)):
        values = [evaluate(element, scope) for element in node.elts[:100]]
        return values if isinstance(node, ast.List) else tuple(values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return BINARY[ast.Sub](0, number(evaluate(node.operand, scope)))
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        left, right = number(evaluate(node.left, scope)), number(evaluate(node.right, scope))
        if right or isinstance(node.op, (ast.Add, ast.Sub)):
            return BINARY[type(node.op)](left, right)
    if isinstance(node, ast.Call) and not node.keywords:
        return call(node, scope)
    raise Unknown


def looked_up(name: str, scope: Sequence[Mapping[str, Any]]) -> Any:
    """What a name holds. A namespace of another class is not asked: its `__getitem__` may be the user's."""
    for space in scope:
        stored = dict.get(space, name, missing) if isinstance(space, dict) else framed(space, name)
        if stored is not missing:
            return stored
    raise Unknown


def framed(space: Mapping[str, Any], name: str) -> Any:
    """A local of a frame, whose namespace is no dict since Python 3.13."""
    known = type(space).__module__ == "builtins" and name in space
    return space[name] if known else missing


def number(value: Any) -> Any:
    if one_of(type(value), NUMBERS):
        return value
    raise Unknown


def attribute(value: Any, name: str) -> Any:
    """A stored attribute, a known library's property or column; a method of the user's bound, never called."""
    if is_a(value, types.ModuleType):
        stored = object.__getattribute__(value, "__dict__").get(name, missing)
    elif is_a(value, type):
        stored = next((names_in(kind)[name] for kind in classes_of(value) if name in names_in(kind)), missing)
    elif of_library(value) and name in PROPERTIES:
        stored = missing if name in COPIES and large(value) else getattr(value, name, missing)
    elif of_library(value) and is_column(value, name):
        stored = value[name]
    else:
        stored = peek(value, name, missing)
        if type(stored) is types.FunctionType:
            return types.MethodType(stored, value)
        if type(stored) is not type and any("__get__" in names_in(kind) for kind in classes_of(type(stored))):
            raise Unknown  # a property, or something like it
    if stored is missing:
        raise Unknown
    return stored


def is_column(value: Any, name: str) -> bool:
    labels = columns(value)
    return labels is not None and name in labels


def columns(value: Any) -> Any:
    """The columns of a frame, None of anything else. An Index has no truth of its own: never ask for it."""
    labels = getattr(value, "columns", None) if of_library(value) else None
    return labels if labels is not None and of_library(labels) and hasattr(labels, "tolist") else None


def large(value: Any) -> bool:
    """Whether a copy of it would take long."""
    size = getattr(value, "size", 0)
    return type(size) is not int or size > MANY


def item(value: Any, key: Any) -> Any:
    """What stands at a key or place."""
    kind = type(value)
    if is_a(value, dict) and (one_of(type(key), SCALARS) or key is None):
        stored = dict.get(value, key, missing)  # no `__missing__`: a defaultdict would grow
        if stored is not missing:
            return stored
    elif one_of(kind, (list, tuple, str)) and type(key) is int and -len(value) <= key < len(value):
        return value[key]
    elif of_library(value) and one_of(type(key), (str, int, list)) and not (type(key) is list and large(value)):
        try:
            return value[key]
        except Exception as error:
            raise Unknown from error  # the library's own word: no such label
    raise Unknown


def call(node: ast.Call, scope: Sequence[Mapping[str, Any]]) -> Any:
    """What a call of `len`, or of a harmless method of a text or dict, returns."""
    function, given = node.func, [evaluate(argument, scope) for argument in node.args]
    if isinstance(function, ast.Name) and function.id == "len" and len(given) == 1:
        base = next((kind for kind in classes_of(type(given[0])) if one_of(kind, lengths)), None)
        if base is not None:
            return base.__len__(given[0])
        if of_library(given[0]):
            return len(given[0])
    if isinstance(function, ast.Attribute) and all(one_of(type(argument), SCALARS) for argument in given):
        value, name = evaluate(function.value, scope), function.attr
        if type(value) is str and name in OF_STR:
            return tried(getattr(value, name), given)
        if type(value) is dict and name in OF_DICT:
            returned = tried(getattr(value, name), given)
            return returned if name == "get" else list(returned)
    raise Unknown


def tried(method: Callable[..., Any], given: Sequence[Any]) -> Any:
    try:
        return method(*given)
    except (TypeError, ValueError) as error:
        raise Unknown from error


def asked(make: Callable[..., Any], *given: Any) -> Any:
    """What a function returns, None where it needs a value that can't be had; other failures are counted."""

    def known() -> Any:
        try:
            return make(*given)
        except Unknown:
            return None

    return guarded(known)
