"""What the names hold after a cell, in short: the next one's `before`."""

from __future__ import annotations

import types
from typing import Any

from stepper.kernel.inside.base import class_name, is_a, one_of, shell, short, top_module
from stepper.kernel.inside.namespace import bound_by_user

NAMES = 300
before: dict[str, tuple[int, str]] = {}  # name → (id, what it was in short): no object is kept


def keep() -> None:
    """Remember what the names hold now, for the next cell."""
    before.clear()
    before.update(summaries())


def summaries() -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    for name, value in list(shell.user_ns.items())[: NAMES * 2]:
        if len(found) < NAMES and bound_by_user(name, value) and is_value(value):
            found[short(name, 80)] = (id(value), summary(value))
    return found


def is_value(value: Any) -> bool:
    return not is_a(value, (types.ModuleType, type)) and not one_of(type(value), (types.FunctionType, types.MethodType))


def summary(value: Any) -> str:
    shape = getattr(value, "shape", None) if top_module(type(value)) in ("pandas", "numpy") else None
    if type(shape) is tuple and shape:
        return " × ".join(str(n) for n in shape)
    if type(value) is str:
        return short(repr(value[:40]), 40)
    if one_of(type(value), (int, float, bool)) and not (type(value) is int and value.bit_length() > 100):
        return short(repr(value), 40)
    if one_of(type(value), (list, dict, tuple, set)):
        return f"length {len(value)}"
    return class_name(type(value)).rsplit(".", 1)[-1]
