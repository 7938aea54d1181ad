"""Signatures as text, without calling a `__repr__` of the user's: not inspect's, which shows defaults by it."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import (
    LIBRARIES,
    call_safely,
    class_dict_of,
    classes_of,
    is_a,
    is_library_object,
    name_of,
    peek,
    shorten,
)

KNOWN = LIBRARIES | {
    "sklearn",
    "matplotlib",
    "seaborn",
    "requests",
    *getattr(sys, "stdlib_module_names", ()),
}


def format_signature(function: Any) -> str:
    function = unwrap(function)
    if type(function) is not types.FunctionType:  # `[].append`, `len`: made of C
        return ""
    note = format_annotation(get_annotations(function).get("return", ()))
    return shorten(
        "("
        + ", ".join(format_parameters(function))
        + ")"
        + (" -> " + note if note else "")
    )


def get_annotations(function: Any) -> dict[str, Any]:
    return call_safely(getattr, function, "__annotations__") or {}


def format_parameters(function: Any) -> list[str]:
    code = function.__code__
    count, only = code.co_argcount, code.co_kwonlyargcount
    names, notes = list(code.co_varnames), get_annotations(function)
    defaults = dict(
        zip(names[:count][::-1], (function.__defaults__ or ())[::-1]),
        **(function.__kwdefaults__ or {}),
    )
    told = [format_argument(name, notes, defaults) for name in names[:count]]
    if code.co_posonlyargcount:
        told.insert(code.co_posonlyargcount, "/")
    rest = names[count + only :]
    if code.co_flags & 4:
        told.append("*" + format_argument(rest.pop(0), notes, {}))
    elif only:
        told.append("*")
    told += [
        format_argument(name, notes, defaults) for name in names[count : count + only]
    ]
    if code.co_flags & 8:
        told.append("**" + format_argument(rest.pop(0), notes, {}))
    return told


def format_argument(name: str, notes: dict[str, Any], defaults: dict[str, Any]) -> str:
    note = format_annotation(notes.get(name, ()))
    text = name + ": " + note if note else name
    if name not in defaults:
        return text
    value = defaults[name]
    kind = type(value)
    known = (
        value is None
        or kind is bool
        or kind is float
        or (kind is int and abs(value) < 2**63)
        or kind is str
    )
    shown = (
        (repr(value) if kind is not str else repr(shorten(value, 40))) if known else "…"
    )
    return text + (" = " if note else "=") + shown


def format_annotation(note: Any) -> str:
    if note is None or type(note) is str:
        return shorten(str(note), 80)
    return name_of(note) if is_a(note, type) else ""


def describe_callable(thing: Any) -> tuple[str, list[str]] | None:
    """How a callable is called: (text, names of its parameters), or None where that is not known."""
    function, skip = thing, 0
    if is_a(thing, type):
        made = next(
            (
                class_dict_of(kind)["__init__"]
                for kind in classes_of(thing)
                if "__init__" in class_dict_of(kind)
            ),
            None,
        )
        if type(made) is types.FunctionType:
            function, skip = made, 1
        elif not has_standard_defaults(thing):
            return None
    elif type(thing) is types.MethodType:
        function, skip = thing.__func__, 1
    if type(function) in (staticmethod, classmethod):
        function, skip = function.__func__, int(type(function) is classmethod)
    # matplotlib sets it: the one that people read
    shown = getattr(function, "__dict__", {}).get("__signature__")
    if type(function) is types.FunctionType and shown is None:
        told = format_parameters(unwrap(function))[skip:]
        names = [one.lstrip("*").split(":")[0].split("=")[0].strip() for one in told]
        return "(" + ", ".join(told) + ")", [
            name for name in names if name and name != "/"
        ]
    if not has_standard_defaults(function) and not is_library_object(function):
        return None
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):  # one made of C that has none
        return None
    names = list(found.parameters)[1 if skip and shown is not None else 0 :]
    return str(found.replace(return_annotation=found.empty)), names


def unwrap(function: Any) -> Any:
    for _ in range(8):
        inner = getattr(function, "__dict__", {}).get("__wrapped__")
        if type(inner) is not types.FunctionType:
            return function
        function = inner
    return function


def has_standard_defaults(thing: Any) -> bool:
    """Whether it is the interpreter's or a known library's own: its defaults may be shown."""
    module = peek(thing, "__module__")
    kind = type(thing)
    if kind in (
        types.BuiltinFunctionType,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
    ):
        return True
    return type(module) is str and (
        module == "builtins" or module.split(".")[0] in KNOWN
    )
