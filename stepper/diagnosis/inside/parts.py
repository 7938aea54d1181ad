"""What of a thing has the attribute that the thing itself lacks: its items, its parts, the parts of those."""

from __future__ import annotations

import types

from stepper.kernel.inside.base import (
    classes_of,
    guarded,
    is_a,
    lengths,
    missing,
    name_of,
    names_in,
    of_library,
    one_of,
    short,
    top_module,
)

PARTS, ITEMS, DEPTH = 60, 20, 3
CALLABLE = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
            types.ClassMethodDescriptorType, classmethod, staticmethod)  # fmt: skip


def has(value, name):
    """Whether a thing stores an attribute of that name, or its class does; nothing of it is called."""
    own = guarded(object.__getattribute__, value, "__dict__")
    return (type(own) is dict and name in own) or any(name in names_in(kind) for kind in classes_of(type(value)))


def holder(value, name):
    """The way from a thing to the first of its parts that has the attribute: [path, class, its own name]."""
    todo = [("", value, "", 0)]
    while todo:
        path, thing, label, deep = todo.pop(0)
        if path and has(thing, name):
            return [short(path, 100), short(name_of(type(thing)), 60), short(label, 40)]
        if deep < DEPTH:
            todo += [(path + step, one, own, deep + 1) for step, one, own in parts(thing)]
        del todo[400:]
    return None


def parts(thing):
    """The parts of a thing: [step, part, a text that stands beside it]."""
    kind = type(thing)
    if one_of(kind, (list, tuple)):
        label = thing[0] if len(thing) == 2 and type(thing[0]) is str else ""
        return [(f"[{n}]", one, label) for n, one in enumerate(thing[:ITEMS]) if not one_of(type(one), (str, int))]
    if kind is dict:
        named = [(key, one) for key, one in list(thing.items())[:ITEMS] if type(key) is str]
        return [(f"[{key!r}]", one, key) for key, one in named]
    if is_a(thing, (types.ModuleType, type)) or of_library(thing) or top_module(kind) == "builtins":
        return []
    own = guarded(object.__getattribute__, thing, "__dict__")
    stored = list(own.items())[:PARTS] if type(own) is dict else []
    return [(f".{key}", one, "") for key, one in stored if type(key) is str and not key.startswith("_")]


def item(value):
    """The first item of a plain container or of an array of objects."""
    if one_of(type(value), (list, tuple)) and value:
        return value[0]
    if top_module(type(value)) == "numpy" and name_of(type(value)) == "ndarray" and value.dtype.kind == "O":
        return value.flat[0] if value.size else missing
    return missing


def item_kind(value, name):
    """The class of its items where they, and not it, have the attribute."""
    one = item(value)
    if one is missing or one is None or not has(one, name):
        return ""
    return short(name_of(type(one)), 60)


def data_names(value, names):
    """Those of its public attributes that are no methods."""
    kinds = classes_of(type(value))
    found = []
    for name in names:
        stored = next((names_in(kind)[name] for kind in kinds if name in names_in(kind)), missing)
        if not one_of(type(stored), CALLABLE) and not is_a(stored, type) and not name.startswith("_"):
            found.append(name)
    return found


def is_plain(value):
    """Whether what it holds says more than its methods do."""
    return any(one_of(kind, lengths) for kind in classes_of(type(value))) or of_library(value)
