"""The user's namespace in short: modules, functions, classes, variables with type, shape, length and size."""

from __future__ import annotations

import sys
import types
from typing import Any

from stepper.kernels.in_kernel.cell_sources import run_state
from stepper.kernels.in_kernel.importable_modules import describe_loadable
from stepper.kernels.in_kernel.safe_inspect import (
    CLASSES,
    FUNCTION_TYPES,
    SIZED_TYPES,
    call_safely,
    class_name,
    classes_of,
    clock,
    getsizeof,
    is_a,
    is_library_object,
    is_one_of,
    is_pandas,
    list_columns,
    missing,
    shell,
    shorten,
    to_plain_value,
    top_module,
)
from stepper.kernels.in_kernel.signatures import format_signature
from stepper.kernels.in_kernel.value_fingerprints import (
    find_rebound_names,
    fingerprint_value,
)

# of a container that are asked for their size
ITEMS, PLAIN = 100, (str, bytes, bytearray)
# … not: most of what is held, told by its class's id
SCALARS = {*map(id, (int, float, complex, bool, type(None)))}
NAMES = 300  # how many are told with their facts
named = {"In", "Out", "exit", "quit", "get_ipython", "open"}
# name → (id, in short, class) after the last cell: no object is kept
previous_values: dict[str, tuple[int, str, str]] = {}
# how many frames' columns are remembered, of frames with how many columns
FRAMES, LABELS = 100, 300
# name → the columns of its frame after the last run
frame_labels: dict[str, frozenset[str]] = {}
# name → column → execution count of the run that removed it, 0 if unknown
removed_labels: dict[str, dict[str, int]] = {}


def summarize_namespace(deadline: float, known: Any) -> dict[str, Any]:
    modules, functions, variables = (
        dict[str, str](),
        dict[str, str](),
        dict[str, dict[str, Any]](),
    )
    classes, prints, left = list[str](), dict[str, Any](), 0
    for name, value in list_user_variables():
        if (
            len(modules) + len(functions) + len(classes) + len(variables) >= NAMES
            or clock() > deadline
        ):
            left += 1
            continue
        name, kind = shorten(name), type(value)
        # its dict, because a lazy module is loaded by any attribute
        if issubclass(kind, types.ModuleType):
            told = to_plain_value(
                object.__getattribute__(value, "__dict__").get("__name__")
            )
            modules[name] = told if type(told) is str and told else name
        elif issubclass(kind, type):
            classes.append(name)
        elif is_one_of(kind, FUNCTION_TYPES):
            functions[name] = call_safely(format_signature, value) or "(…)"
        else:
            variables[name] = {"type": class_name(kind)}
            call_safely(measure, value, kind, variables[name])
            prints[name] = fingerprint_value(value, deadline)
            variables[name].update({"print": prints[name]} if prints[name] else {})
    found = {
        "modules": modules,
        "functions": functions,
        "classes": classes,
        "variables": variables,
        "left_out": left,
    }
    found["rebound"] = find_rebound_names(list_user_variables(), prints)[:NAMES]
    return {**found, **(call_safely(describe_loadable, known) or {})}


def list_user_variables() -> list[tuple[str, Any]]:
    """What the user's cells have bound."""
    hidden = shell.user_ns_hidden
    return [
        (name, value)
        for name, value in list(shell.user_ns.items())
        if type(name) is str
        and name[:1] != "_"
        and value is not hidden.get(name, missing)
        and name not in named
    ]


def measure(value: Any, kind: Any, fact: dict[str, Any]) -> None:
    base = next(
        (base for base in classes_of(kind) if is_one_of(base, SIZED_TYPES)), None
    )
    if base is not None:
        fact["len"] = base.__len__(value)
        fact["bytes"] = base.__sizeof__(value) + held(value, kind)
    elif is_one_of(kind, (int, float, complex, bool)):
        fact["bytes"] = getsizeof(value)
    elif is_library_object(value):
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple):
            fact["shape"] = [
                n if type(n) is int else shorten(str(n)) for n in shape[:CLASSES]
            ]
        used = size(value, fact.get("shape", ()))
        if used is not None:
            fact["bytes"] = used


def held(value: Any, kind: Any) -> int:
    """The bytes of the items of a plain container: a list of arrays is as large as they are."""
    if not is_one_of(kind, (list, tuple, dict)) or len(value) > ITEMS:
        return 0
    items = dict.values(value) if kind is dict else value
    sizes = (
        getattr(one, "nbytes", 0)
        if is_library_object(one)
        else getsizeof(one)
        if is_one_of(type(one), PLAIN)
        else 0
        for one in items
        if id(type(one)) not in SCALARS
    )
    return sum(one for one in sizes if type(one) is int)


def size(value: Any, shape: Any) -> int | None:
    # without looking into objects
    if len(shape) == 2 and is_pandas(value, "DataFrame"):
        return (
            int(
                value.index.memory_usage()
                + sum(one.nbytes for one in list_columns(value))
            )
            if shape[1] <= 1000
            else None
        )
    usage = getattr(value, "memory_usage", None)
    if callable(usage):
        return int(usage(deep=False))
    found = getattr(value, "nbytes", None)
    return found if type(found) is int else getsizeof(value)


def remember_values() -> None:
    """Remember what the names hold now, for the next cell."""
    previous_values.clear()
    previous_values.update(summarize_values())
    call_safely(keep_labels)


def keep_labels() -> None:
    """Remember the columns of the frames, and of those that are gone which run removed them."""
    after = labels_by_name()
    for name in [name for name in removed_labels if name not in after]:
        del removed_labels[name]
    for name, labels in after.items():
        earlier = frame_labels.get(name, labels)
        if earlier is labels or earlier == labels:
            continue
        lost = removed_labels.setdefault(name, {})
        lost.update(dict.fromkeys(earlier - labels, run_state.get("attributed", 0)))
        for label in labels.intersection(lost):
            del lost[label]
    frame_labels.clear()
    frame_labels.update(after)


def labels_by_name() -> dict[str, frozenset[str]]:
    """The columns of the user's frames: texts in a plain Index only."""
    pandas = sys.modules.get("pandas")
    index = getattr(pandas, "Index", None)
    frames = (
        [
            (name, value)
            for name, value in list_user_variables()
            if is_pandas(value, "DataFrame")
        ]
        if index
        else []
    )
    found = dict[str, frozenset[str]]()
    for name, value in frames[:FRAMES]:
        labels = value.columns
        if type(labels) is index and len(labels) <= LABELS:
            found[shorten(name, 80)] = frozenset(
                label for label in labels.tolist() if type(label) is str
            )
    return found


def summarize_values() -> dict[str, tuple[int, str, str]]:
    other = (types.ModuleType, type, types.FunctionType, types.MethodType)
    values = [
        (name, value) for name, value in list_user_variables() if not is_a(value, other)
    ]
    return {
        shorten(name, 80): (id(value), summary(value), class_name(type(value)))
        for name, value in values[:NAMES]
    }


def summary(value: Any) -> str:
    shape = (
        getattr(value, "shape", None)
        if top_module(type(value)) in ("pandas", "numpy")
        else None
    )
    if type(shape) is tuple and shape:
        return " × ".join(str(n) for n in shape)
    if type(value) is str:
        return shorten(repr(value[:40]), 40)
    if is_one_of(type(value), (int, float, bool)) and not (
        type(value) is int and value.bit_length() > 100
    ):
        return shorten(repr(value), 40)
    if is_one_of(type(value), (list, dict, tuple, set)):
        return f"length {len(value)}"
    return class_name(type(value)).rsplit(".", 1)[-1]
