"""What a value can be asked for: its labels (keys, columns, index) and the names of its attributes; its parts."""

from __future__ import annotations

import sys
import types
from typing import Any

from stepper.diagnosis.inside.reach import columns
from stepper.kernel.inside.base import (
    class_name,
    class_names,
    classes_of,
    is_a,
    is_pandas,
    missing,
    module_of,
    name_of,
    names_in,
    of_library,
    one_of,
    own_names,
    peek,
    short,
    top_module,
)  # fmt: skip
from stepper.kernel.inside.cells import is_own

LABELS, NAMES, PARTS, ITEMS, DEPTH, WIDTH = 5000, 800, 60, 20, 3, 400


def labels_of(value: Any) -> list[Any] | None:
    """What a thing can be asked for by key, None where it is nothing of the kind."""
    labels = columns(value)
    if labels is not None or is_pandas(value, "Index") or is_pandas(value, "Series"):
        axis = labels if labels is not None else value if is_pandas(value, "Index") else value.index
        return list(axis[:LABELS].tolist())
    if is_pandas(value, "BaseGroupBy"):
        return labels_of(value.obj)
    if is_a(value, type) and type(names_in(value).get("_member_map_")) is dict:  # an Enum
        return [*names_in(value)["_member_map_"], *names_in(value).get("_value2member_map_", ())]
    if is_a(value, (dict, set)):
        return list(value if is_a(value, set) else dict.keys(value))[:LABELS]
    fitted = peek(value, "feature_names_in_") if not is_a(value, type) else None  # the columns a model was fitted with
    if fitted is not None and of_library(fitted):
        return list(fitted.tolist())
    kinds = class_names(type(value))
    if "zipfile.ZipFile" in kinds:
        return list(value.NameToInfo)[:LABELS]
    return list(value)[:LABELS] if "collections.abc.Mapping" in kinds and not is_users(type(value)) else None


def is_users(kind: Any) -> bool:
    """Whether a class is the user's own."""
    module = sys.modules.get(module_of(kind))
    path = peek(module, "__file__") if module is not None else None
    return type(path) is not str or is_own(path)


def label(value: Any) -> str:
    """A key as code writes it."""
    if one_of(type(value), (str, int, float, bool)) or value is None:
        return short(repr(value), 80)
    if type(value) is tuple:
        return "(" + ", ".join(label(part) for part in value[:6]) + ")"
    known = top_module(type(value)) in ("pandas", "numpy", "datetime")
    return short(str(value), 80) if known else class_name(type(value))


def attributes_of(value: Any) -> list[str]:
    """The names of its attributes, a module's names, a frame's columns."""
    if is_a(value, types.ModuleType):
        names = list(object.__getattribute__(value, "__dict__"))
    else:
        names = [name for kind in classes_of(value if is_a(value, type) else type(value)) for name in names_in(kind)]
        names += list(own_names(value))
        names += labels_of(value) or [] if columns(value) is not None else []
    return sorted({short(name, 80) for name in names if type(name) is str and not name.startswith("__")})[:NAMES]


def data_names(value: Any) -> list[str]:
    """Those of its public attributes that are no methods."""
    methods = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
               types.ClassMethodDescriptorType, classmethod, staticmethod)  # fmt: skip
    kinds = classes_of(type(value))

    def of_class(name: str) -> Any:
        return next((names_in(kind)[name] for kind in kinds if name in names_in(kind)), missing)

    names = [name for name in attributes_of(value) if not name.startswith("_")]
    return [name for name in names if not one_of(type(of_class(name)), methods) and not is_a(of_class(name), type)]


def has(value: Any, name: str) -> bool:
    """Whether a thing stores an attribute of that name, or its class does."""
    return name in own_names(value) or any(name in names_in(kind) for kind in classes_of(type(value)))


def holder(value: Any, name: str) -> str:
    """Which part of a thing has the attribute that it lacks itself: the way there and its class."""
    todo = [("", value, "", 0)]
    while todo:
        path, thing, beside, deep = todo.pop(0)
        if path and thing is not None and has(thing, name):
            return f"{short(path, 100)}` ({short(name_of(type(thing)), 60)}{f', {beside!r}' if beside else ''})"
        if deep < DEPTH:
            todo += [(path + step, part, text, deep + 1) for step, part, text in parts(thing)]
        del todo[WIDTH:]
    return ""


def parts(thing: Any) -> list[tuple[str, Any, str]]:
    """The parts of a thing: step, part, a text that stands beside it."""
    kind = type(thing)
    if one_of(kind, (list, tuple)):
        beside = short(thing[0], 40) if len(thing) == 2 and type(thing[0]) is str else ""
        return [(f"[{n}]", item, beside) for n, item in enumerate(thing[:ITEMS]) if not one_of(type(item), (str, int))]
    if kind is dict:
        return [(f"[{key!r}]", item, "") for key, item in list(thing.items())[:ITEMS] if type(key) is str]
    if top_module(kind) == "numpy" and name_of(kind) == "ndarray" and thing.dtype.kind == "O" and thing.size:
        return [(".flat[0]", thing.flat[0], "")]
    if is_a(thing, (types.ModuleType, type)) or of_library(thing) or top_module(kind) == "builtins":
        return []
    own = list(own_names(thing).items())[:PARTS]
    return [(f".{key}", item, "") for key, item in own if type(key) is str and not key.startswith("_")]
