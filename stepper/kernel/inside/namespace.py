"""The user's namespace in short: modules, functions, classes, variables with type, shape, length and size."""

from __future__ import annotations

import dis
import os
import types
from typing import Any

from stepper.kernel.inside.base import (
    CLASSES,
    callables,
    class_name,
    classes_of,
    clock,
    getsizeof,
    guarded,
    lengths,
    missing,
    of_library,
    one_of,
    plain,
    shell,
    short,
)
from stepper.kernel.inside.cells import made_global, now
from stepper.kernel.inside.lasting import lasting
from stepper.kernel.inside.signatures import signature

ITEMS, PLAIN = 100, (str, bytes, bytearray)  # of a container that are asked for their size
NAMES, ALL = 300, 60_000  # how many are told with their facts; characters of all their names
STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
named = {"In", "Out", "exit", "quit", "get_ipython", "open"}


def namespace(deadline: float, known: Any) -> dict[str, Any]:
    modules: dict[str, str] = {}
    functions: dict[str, str] = {}
    classes: list[str] = []
    variables: dict[str, dict[str, Any]] = {}
    left = 0
    for name, value in list(shell.user_ns.items()):
        if not bound_by_user(name, value):
            continue
        if len(modules) + len(functions) + len(classes) + len(variables) >= NAMES or clock() > deadline:
            left += 1
            continue
        name, kind = short(name), type(value)
        if issubclass(kind, types.ModuleType):  # its dict, because a lazy module is loaded by any attribute
            modules[name] = plain(object.__getattribute__(value, "__dict__").get("__name__")) or name
        elif issubclass(kind, type):
            classes.append(name)
        elif one_of(kind, callables):
            functions[name] = guarded(signature, value) or "(…)"
        else:
            variables[name] = {"type": class_name(kind)}
            guarded(measure, value, kind, variables[name])
    found = {"modules": modules, "functions": functions, "classes": classes, "variables": variables, "left_out": left}
    return {**found, **(guarded(loadable, known) or {})}


def bound_by_user(name: Any, value: Any) -> bool:
    initial = shell.user_ns_hidden.get(name, missing)
    return type(name) is str and not name.startswith("_") and value is not initial and name not in named


def loadable(known: Any) -> dict[str, Any]:
    """What a cell can load and import: for the look at the next one before it runs."""
    return {
        "names": [] if altered() else every_name(),
        "own_input": shell.user_ns.get("input", missing) is not missing,
        "cwd": short(os.getcwd(), 4096),
        "lasting": lasting(known),
    }


def every_name() -> list[str]:
    """All names that a cell can load, builtins aside, or none: half of them would raise false alarms."""
    functions = [value for value in list(shell.user_ns.values()) if type(value) is types.FunctionType]
    names = [*shell.user_ns, *made_global, *(name for one in functions for name in makes(one))]
    names = [name for name in names if type(name) is str]
    if sum(map(len, names)) > ALL or now.get("at_will"):
        return []
    return [short(name) for name in names]


def altered() -> bool:
    """Whether something else than IPython's own goes over a cell before it is run."""
    others = [one for one in shell.ast_transformers if not type(one).__module__.startswith("_stepper_helper")]
    return bool(others) or bool(shell.input_transformers_post) or steps(shell.input_transformer_manager) != USUAL


def steps(transformers: Any) -> int:
    return len(transformers.cleanup_transforms) + len(transformers.line_transforms)


def makes(function: Any) -> tuple[str, ...]:
    """The names that a function may bind in the namespace when it is called (`global x`)."""
    code = function.__code__
    return () if STORE_GLOBAL not in code.co_code[::2] else code.co_names


def measure(value: Any, kind: Any, fact: dict[str, Any]) -> None:
    base = next((base for base in classes_of(kind) if one_of(base, lengths)), None)
    if base is not None:
        fact["len"] = base.__len__(value)
        fact["bytes"] = base.__sizeof__(value) + held(value, kind)
    elif one_of(kind, (int, float, complex, bool)):
        fact["bytes"] = getsizeof(value)
    elif of_library(value):
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple):
            fact["shape"] = [n if type(n) is int else short(str(n)) for n in shape[:CLASSES]]
        used = size(value, fact.get("shape", ()))
        if used is not None:
            fact["bytes"] = used


def held(value: Any, kind: Any) -> int:
    """The bytes of the items of a plain container: a list of arrays is as large as they are."""
    if not one_of(kind, (list, tuple, dict)) or len(value) > ITEMS:
        return 0
    items = dict.values(value) if kind is dict else value
    sizes = (
        getattr(one, "nbytes", 0) if of_library(one) else getsizeof(one) if one_of(type(one), PLAIN) else 0
        for one in items
    )
    return sum(one for one in sizes if type(one) is int)


def size(value: Any, shape: Any) -> int | None:
    usage = getattr(value, "memory_usage", None)
    if callable(usage):  # pandas: it goes over the columns, without looking into objects
        used = usage(deep=False) if len(shape) < 2 or shape[1] <= 1000 else None
        return None if used is None else int(getattr(used, "sum", lambda: used)())
    found = getattr(value, "nbytes", None)
    return found if type(found) is int else getsizeof(value)


USUAL = guarded(lambda: steps(type(shell.input_transformer_manager)()))
