"""What a value is, in a few words: a short value itself, else type, shape, dtype, length, what stands out in it."""

from __future__ import annotations

import datetime
import decimal
import fractions
import io
import os
import pathlib
import re
import sys
import types
import uuid
from typing import Any

from stepper.diagnosis.in_kernel.close_matches import join_items
from stepper.kernels.in_kernel.safe_inspect import (
    SIZED_TYPES,
    call_safely,
    class_name,
    class_names,
    classes_of,
    is_a,
    is_library_object,
    is_one_of,
    is_pandas,
    name_of,
    peek,
    shorten,
    top_module,
)
from stepper.kernels.in_kernel.signatures import describe_callable

CELLS, COLUMNS, VALUE, PART, ITEMS, FEW = 2_000_000, 400, 60, 90, 1000, 8
NUMBERS = (int, float, bool, complex)
PATHS = (pathlib.PosixPath, pathlib.PurePosixPath)
TOLD = (
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    *PATHS,
)
STREAMS = (io.TextIOWrapper, io.BufferedReader, io.FileIO, io.BufferedWriter)
ZONES = ("builtins", "datetime", "zoneinfo", "pytz", "dateutil", "backports")
MOMENTS = ("Timestamp", "Timedelta", "Period")
TEXTS = ("object", "str", "string", "category")
CALLABLE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    staticmethod,
    classmethod,
)


def kind_name(value: Any) -> str:
    """A class's name as it can be shown: anybody may name a class."""
    return (
        "None" if value is None else shown_name(name_of(type(value)).rsplit(".", 1)[-1])
    )


def shown_name(name: str) -> str:
    """The name of a class, function or module; in quotes where it is no name: it must not speak for stepper."""
    return (
        shorten(name, 80)
        if re.fullmatch(r"[\w.<>]+", name)
        else repr(shorten(name, 60)).replace(".", "·")
    )


def is_data(value: Any) -> bool:
    """Whether it is worth showing: no module, function or class."""
    ufunc = (
        name_of(type(value)) in ("ufunc", "_ArrayFunctionDispatcher")
        and top_module(type(value)) == "numpy"
    )
    return not is_a(value, (types.ModuleType, type, *CALLABLE)) and not ufunc


def written(value: Any, limit: int = 80, depth: int = 2) -> str | None:
    """The text of a plain value, or of a container of these; None for others, whose `__repr__` may be the user's."""
    kind, text = type(value), None
    if value is None or (
        is_one_of(kind, NUMBERS) and (kind is not int or abs(value) < 2**63)
    ):
        text = repr(value)
    elif is_one_of(kind, (str, bytes)):
        text = repr(value[:limit]) + "…" * (len(value) > limit)
    elif is_one_of(kind, TOLD) or (
        kind is datetime.datetime and top_module(type(value.tzinfo)) in ZONES
    ):
        text = str(value)
    elif is_one_of(kind, STREAMS):
        text = repr(value.name) if type(value.name) is str else None
    elif kind is re.Pattern:
        text = repr(value.pattern)
    elif is_library_object(value) and (
        name_of(kind) in MOMENTS or "numpy.generic" in class_names(kind)
    ):
        text = str(value)
    elif is_library_object(value) and type(getattr(value, "shape", None)) is tuple:
        text = f"{kind_name(value)} {value.shape}"
    elif kind is dict and depth and len(value) <= 12:
        items = [
            (written(key, limit, 0), written(item, limit, depth - 1))
            for key, item in value.items()
        ]
        text = "{" + ", ".join(f"{key}: {item or '…'}" for key, item in items) + "}"
    elif is_one_of(kind, (list, tuple)) and depth and len(value) <= 12:
        text = ", ".join(written(item, limit, depth - 1) or "…" for item in value)
        text = (
            f"[{text}]"
            if kind is list
            else f"({text},)"
            if len(value) == 1
            else f"({text})"
        )
    return shorten(text, limit + 40) if text is not None else None


def label(value: Any) -> str:
    if is_one_of(type(value), (str, int, float, bool)) or value is None:
        return shorten(repr(value), 80)
    if type(value) is tuple:
        return "(" + ", ".join(label(part) for part in value[:6]) + ")"
    known = top_module(type(value)) in ("pandas", "numpy", "datetime")
    return shorten(str(value), 80) if known else class_name(type(value))


def size(value: Any) -> int | None:
    base = next(
        (kind for kind in classes_of(type(value)) if is_one_of(kind, SIZED_TYPES)), None
    )
    if base is not None:
        return int(base.__len__(value))
    shape = getattr(value, "shape", None) if is_library_object(value) else None
    return int(shape[0]) if type(shape) is tuple and shape else None


def described(value: Any) -> str:
    """What a value is, in a few words."""
    text, kind, name = written(value, VALUE), type(value), kind_name(value)
    if value is None or (
        is_one_of(kind, (*NUMBERS, str, bytes)) and len(text or "") <= VALUE
    ):
        return text or name
    parts = [name]
    if is_a(value, CALLABLE):
        signature = describe_callable(value)
        bound = is_one_of(kind, (types.MethodType, staticmethod, classmethod))
        # a method has none of its own
        called = str(peek(value.__func__ if bound else value, "__name__", ""))
        noun = "method" if is_method(value) else "function"
        if not signature or not called:
            return f"a {noun}"
        return f"the {noun} {shorten(shown_name(called) + signature[0], 120)}"
    if is_library_object(value):
        call_safely(of_data, value, parts)
    elif size(value) is not None:
        call_safely(of_container, value, parts, text)
    elif text is not None:
        parts = [
            f"{text} ({name})",
            folder(str(value)) if is_one_of(kind, PATHS) else "",
        ]
    elif is_a(value, (types.ModuleType, type)):
        parts = [
            f"the {'class' if is_a(value, type) else 'module'} {shown_name(named(value))}"
        ]
    return ", ".join(filter(None, parts))


def is_method(value: Any) -> bool:
    """Whether a callable belongs to an object or a class. A builtin function belongs to its module."""
    if is_a(value, types.FunctionType):
        return False
    if is_a(value, types.BuiltinFunctionType):
        owner = peek(value, "__self__")
        return owner is not None and not is_a(owner, types.ModuleType)
    return True


def named(value: Any) -> str:
    return str(name_of(value) if is_a(value, type) else peek(value, "__name__"))


def folder(path: str) -> str:
    held = sorted(os.listdir(path)) if os.path.isdir(path) else None
    return (
        ""
        if held is None
        else "a folder with " + (join_items(held, 120) or "nothing in it")
    )


def of_container(value: Any, parts: list[str], text: str | None) -> None:
    """Length, the kinds and lengths of the items, keys; a short one as it is written."""
    parts.append(f"length {size(value)}")
    if is_one_of(type(value), (list, tuple)) and value:
        kinds = sorted({shorten(name_of(type(item)), 40) for item in value[:ITEMS]})
        sizes = {
            size(item)
            for item in value[:ITEMS]
            if is_one_of(type(item), (list, tuple, dict)) or is_library_object(item)
        }
        parts[-1] += f" of {'/'.join(kinds[:4])}"
        known = sorted(each for each in sizes if each is not None)
        if known and len(sizes) <= 4:
            parts.append(f"its items' lengths: {', '.join(map(str, known))}")
    elif is_a(value, dict):
        keys = [
            shorten(repr(key), 40)
            for key in list(dict.keys(value))[:20]
            if is_one_of(type(key), (str, int))
        ]
        parts.append("keys " + join_items(keys, PART) if keys else "")
    if text is not None and len(text) <= (VALUE if is_a(value, dict) else 2 * VALUE):
        parts[0] = f"{text} ({parts[0]})"


def of_data(value: Any, parts: list[str]) -> None:
    """Shape, dtype, missing values, columns of text, labels: what stands out in an array or a table."""
    shape, dtype, cells = (
        getattr(value, "shape", None),
        getattr(value, "dtype", None),
        1,
    )
    if type(shape) is not tuple or not shape:  # a number of numpy's, a scalar array
        parts[0] = (
            f"{shorten(str(value), VALUE)} ({parts[0]})"
            if top_module(type(value)) == "numpy"
            else parts[0]
        )
        return
    for count in shape:
        cells *= int(count)
    parts[0] += " " + (
        " × ".join(map(str, shape)) if is_pandas(value, "DataFrame") else str(shape)
    )
    parts.append(shorten(str(dtype), 120) if dtype is not None else "")
    if cells > CELLS:
        return
    if is_pandas(value, "DataFrame"):
        parts.append(
            "columns " + join_items(of_columns(value), 2 * PART)
            if shape[1] <= COLUMNS
            else ""
        )
        return
    if is_pandas(value, "Index") or str(dtype) in TEXTS or cells <= FEW:
        head = (value.iloc if is_pandas(value, "Series") else value)[:ITEMS].tolist()
        parts.append(
            join_items(
                list(
                    dict.fromkeys(filter(None, (written(item, 40, 1) for item in head)))
                ),
                PART,
            )
        )
    if getattr(dtype, "kind", "") == "f" and not is_pandas(value, "Index"):
        count = int((~sys.modules["numpy"].isfinite(value)).sum())
        parts.append(f"{count:,} NaN or infinite" if count else "")


def of_columns(frame: Any) -> list[str]:
    notes: dict[int, str] = {
        number: str(kind)
        for number, kind in enumerate(frame.dtypes.tolist())
        if str(kind) in TEXTS
    }
    notes.update(
        {
            number: f"{count:,} NaN"
            for number, count in enumerate(frame.isna().sum().tolist())
            if count
        }
    )
    names = [shorten(str(name), 40) for name in frame.columns]
    plain = [name for number, name in enumerate(names) if number not in notes]
    return [
        f"{names[number]} ({noted})" for number, noted in sorted(notes.items())
    ] + plain
