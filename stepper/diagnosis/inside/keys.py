"""What has no such key, and which keys it has."""

from __future__ import annotations

import ast
import difflib
import sys

from stepper.diagnosis.inside.reach import columns, first
from stepper.kernel.inside.base import (
    class_name,
    class_names,
    guarded,
    is_a,
    is_pandas,
    module_of,
    names_in,
    one_of,
    peek,
    short,
    top_module,
)
from stepper.kernel.inside.cells import is_own

KEYS, LABELS = 120, 5000
HOLDERS = (
    "self",
    "obj",
    "frame",
    "df",
    "data",
    "left",
    "right",
    "mapping",
    "cls",
)  # of library frames, what may lack a key


def keys(error, places):
    """What has no such key: the expression or the library's own word for it, its type and the keys that it has."""
    asked = error.args[0] if error.args else None
    own = first(subscripts, places, lambda node, spot, outer: keyed(node, spot, asked))
    return own or below_own(error, asked)


def subscripts(spot):
    return [node for node in spot.nodes if is_a(node, (ast.Subscript, ast.Call, ast.BinOp))]


def keyed(node, spot, asked):
    if is_a(node, ast.Subscript):
        base = node.value
    elif is_a(node, ast.BinOp):  # "%(name)s" % mapping
        base = node.right
    elif is_a(node.func, ast.Attribute):  # mapping.pop(key), "{name}".format(**mapping)
        double = [one.value for one in node.keywords if one.arg is None]
        base = double[0] if double else node.func.value
        if not double and is_a(node.func, ast.Attribute) and node.func.attr == "format_map":
            base = node.args[0]
    else:
        return None
    value = spot.value(base)
    if labels_of(value) is None or lacking_nothing(value, asked):
        return None
    return held(value, asked, short(ast.unparse(base), 80))


def below_own(error, asked):
    """The library's own frames below the user's, innermost first."""
    inner, trace = [], error.__traceback__
    while trace is not None:
        inner = [] if is_own(trace.tb_frame.f_code.co_filename) else [*inner, trace.tb_frame]
        trace = trace.tb_next
    for frame in reversed(inner):
        for name in HOLDERS:
            value = frame.f_locals.get(name)
            if value is not None and labels_of(value) is not None and not lacking_nothing(value, asked):
                return held(value, asked, "")
    return None


def lacking_nothing(value, asked):
    return one_of(type(asked), (str, int)) and asked in (labels_of(value) or ())


def labels_of(value):
    """What a thing can be asked for by key: a list, or None where it is nothing of the kind."""
    names = class_names(type(value))
    if is_pandas(value, "Index"):
        return value[:LABELS].tolist()
    if columns(value) is not None:
        return columns(value)[:LABELS].tolist()
    if is_pandas(value, "BaseGroupBy"):
        return labels_of(value.obj)
    if is_pandas(value, "Series"):
        return value.index[:LABELS].tolist()
    if is_a(value, type) and type(names_in(value).get("_member_map_")) is dict:  # an Enum
        return list(names_in(value)["_member_map_"])
    if is_a(value, (dict, set)):
        return list(value if is_a(value, set) else dict.keys(value))[:LABELS]
    if "zipfile.ZipFile" in names:
        return list(value.NameToInfo)[:LABELS]
    if "collections.abc.Mapping" in names and not is_own_class(type(value)):
        return list(value)[:LABELS]
    return None


def is_own_class(kind):
    module = sys.modules.get(module_of(kind))
    path = peek(module, "__file__") if module is not None else None
    return type(path) is not str or is_own(path)


def held(value, asked, expression):
    labels = labels_of(value)
    texts = [label(one) for one in labels]
    if len(texts) > KEYS and one_of(type(asked), (str, int)):
        alike = difflib.SequenceMatcher(b=str(asked))
        texts = sorted(texts, key=lambda text: -guarded(ratio, alike, text) or 0)[:KEYS]
    index = value if is_pandas(value, "Index") else value.index if is_pandas(value, "NDFrame") else None
    levels = [label(one) for one in index.names] if index is not None else []
    return {
        **(guarded(kind_of_keys, value, index) or {}),
        "expression": expression,
        "type": class_name(type(value)).rsplit(".", 1)[-1],
        "keys": texts[:KEYS],
        "levels": levels,
        "count": len(labels),
        "some": len(labels) >= LABELS,
    }


def kind_of_keys(value, index):
    """Of pandas' things: the dtype of the labels; of a series its name, as its index may be another frame's columns."""
    if is_pandas(value, "DataFrame") or index is None:
        return {}
    kind = class_name(type(index)).rsplit(".", 1)[-1]
    if is_pandas(value, "Series"):
        return {"index": kind, "dtype": str(index.dtype), "named": label(value.name) if value.name is not None else ""}
    return {"dtype": str(index.dtype)}


def ratio(matcher, text):
    matcher.set_seq1(text)
    return matcher.quick_ratio()


def label(value):
    if one_of(type(value), (str, int, float, bool)) or value is None:
        return short(repr(value), 80)
    if type(value) is tuple:
        return "(" + ", ".join(label(one) for one in value[:6]) + ")"
    return (
        short(str(value), 80) if top_module(type(value)) in ("pandas", "numpy", "datetime") else class_name(type(value))
    )
