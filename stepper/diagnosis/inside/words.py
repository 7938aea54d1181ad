"""What a value is, in a few words: a short value itself, else type, shape, dtype, length, what stands out in it."""

from __future__ import annotations

import datetime
import decimal
import fractions
import io
import pathlib
import re
import types
import uuid
from typing import Any

from stepper.diagnosis.inside.near import listed
from stepper.kernel.inside.base import (
    class_names,
    classes_of,
    guarded,
    is_a,
    is_error,
    is_pandas,
    lengths,
    name_of,
    of_library,
    one_of,
    own_names,
    peek,
    short,
    top_module,
)
from stepper.kernel.inside.signatures import of_callable

CELLS, COLUMNS, VALUE, PART, ITEMS = 2_000_000, 400, 60, 90, 1000
NUMBERS = (int, float, bool, complex)
TOLD = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, fractions.Fraction, uuid.UUID,
        pathlib.PosixPath, pathlib.PurePosixPath)  # fmt: skip
STREAMS = (io.TextIOWrapper, io.BufferedReader, io.FileIO, io.BufferedWriter)
ZONES = ("datetime", "zoneinfo", "pytz", "dateutil", "backports")
MOMENTS = ("Timestamp", "Timedelta", "Period")
TEXTS = ("object", "str", "string", "category")
CALLABLE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType,
            types.ClassMethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
            staticmethod, classmethod)  # fmt: skip


def kind_name(value: Any) -> str:
    """A class's name as it can be shown: anybody may name a class."""
    return "None" if value is None else shown_name(name_of(type(value)).rsplit(".", 1)[-1])


def shown_name(name: str) -> str:
    """The name of a class, function or module; in quotes where it is no name: it must not speak for stepper."""
    return short(name, 80) if re.fullmatch(r"[\w.<>]+", name) else repr(short(name, 60)).replace(".", "·")


def is_data(value: Any) -> bool:
    """Whether it is worth showing: no module, function or class."""
    ufunc = name_of(type(value)) in ("ufunc", "_ArrayFunctionDispatcher") and top_module(type(value)) == "numpy"
    return not is_a(value, (types.ModuleType, type)) and not one_of(type(value), CALLABLE) and not ufunc


def written(value: Any, limit: int = 80, depth: int = 2) -> str | None:
    """The text of a plain value, or of a container of these; None for others, whose `__repr__` may be the user's."""
    kind, text = type(value), None
    if value is None or (one_of(kind, NUMBERS) and (kind is not int or abs(value) < 2**63)):
        text = repr(value)
    elif one_of(kind, (str, bytes)):
        text = repr(value[:limit]) + "…" * (len(value) > limit)
    elif one_of(kind, TOLD) or (kind is datetime.datetime and zone(value) is not None):
        text = str(value)
    elif one_of(kind, STREAMS):
        text = repr(value.name) if type(value.name) is str else None
    elif kind is re.Pattern:
        text = repr(value.pattern)
    elif of_library(value) and (name_of(kind) in MOMENTS or "numpy.generic" in class_names(kind)):
        text = str(value)
    elif kind is dict and depth and len(value) <= 12:
        items = [(written(key, limit, 0), written(item, limit, depth - 1)) for key, item in value.items()]
        text = "{" + ", ".join(f"{key}: {item or '…'}" for key, item in items) + "}"
    elif one_of(kind, (list, tuple)) and depth and len(value) <= 12:
        text = ", ".join(written(item, limit, depth - 1) or "…" for item in value)
        text = f"[{text}]" if kind is list else f"({text},)" if len(value) == 1 else f"({text})"
    return short(text, limit + 40) if text is not None else None


def zone(value: datetime.datetime) -> str | None:
    """'naive', or 'aware' with its zone; None where the zone is a class of the user's own."""
    if value.tzinfo is None:
        return "naive"
    return f"aware, {value.tzinfo}" if top_module(type(value.tzinfo)) in ZONES else None


def size(value: Any) -> int | None:
    """The number of its items, None where that is not known without asking the user's code."""
    base = next((kind for kind in classes_of(type(value)) if one_of(kind, lengths)), None)
    if base is not None:
        return int(base.__len__(value))
    shape = getattr(value, "shape", None) if of_library(value) else None
    return int(shape[0]) if type(shape) is tuple and shape else None


def described(value: Any) -> str:
    """What a value is, in a few words."""
    text = written(value, VALUE)
    if value is None or (one_of(type(value), (*NUMBERS, str, bytes)) and len(text or "") <= VALUE):
        return text or kind_name(value)
    parts = [kind_name(value)]
    if one_of(type(value), CALLABLE):
        signature = signature_of(value)
        return f"a {parts[0]}, {signature}; it is not called here" if signature else f"a {parts[0]}"
    if of_library(value):
        guarded(of_data, value, parts)
    elif size(value) is not None:
        guarded(of_container, value, parts, text)
    elif is_a(value, re.Match):
        parts += [f"{value.re.groups} groups", f"pattern {value.re.pattern!r}"]
    elif text is not None:
        parts[0] = f"{text} ({parts[0]})"
        parts += [zone(value) or ""] if type(value) is datetime.datetime else []
    elif top_module(type(value)) != "builtins":
        parts += of_object(value)
    return ", ".join(filter(None, parts))


def signature_of(function: Any) -> str:
    """How a function is called, '' where that is not known."""
    signature = of_callable(function)
    return short(shown_name(str(peek(function, "__name__", ""))) + signature[0], 120) if signature else ""


def of_object(value: Any) -> list[str]:
    """The plain things that an object stores."""
    own = [(name, written(item, 120, 1)) for name, item in list(own_names(value).items())[:40] if not is_error(item)]
    fields = [f"{name} {text}" for name, text in own if type(name) is str and text is not None and text != "None"]
    fields += [f"tag {value.tag!r}"] if class_names(type(value))[0] == "xml.etree.ElementTree.Element" else []
    return [listed(fields, 150)] if fields else []


def of_container(value: Any, parts: list[str], text: str | None) -> None:
    """Length, the kinds and lengths of the items, keys; a short one as it is written."""
    parts.append(f"length {size(value)}")
    if one_of(type(value), (list, tuple)) and value:
        kinds = sorted({short(name_of(type(item)), 40) for item in value[:ITEMS]})
        sizes = {size(item) for item in value[:ITEMS] if one_of(type(item), (list, tuple, dict)) or of_library(item)}
        parts[-1] += f" of {'/'.join(kinds[:4])}"
        if sizes and len(sizes) <= 4:
            parts.append(f"its items' lengths: {', '.join(map(str, sorted(filter(None, sizes))))}")
        ends = [item if len(item) <= 28 else "…" + item[-28:] for item in value[:8] if type(item) is str]
        text = repr(ends) if kinds == ["str"] and len(ends) == len(value) else text
    elif is_a(value, dict):
        keys = [short(repr(key), 40) for key in list(dict.keys(value))[:20] if one_of(type(key), (str, int))]
        parts.append("keys " + listed(keys, PART) if keys else "")
    if text is not None and len(text) <= 2 * VALUE and not (is_a(value, dict) and len(text) > VALUE):
        parts[0] = f"{text} ({parts[0]})"


def of_data(value: Any, parts: list[str]) -> None:
    """Shape, dtype, missing values, columns of text, labels: what stands out in an array or a table."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    cells = 1
    for count in shape if type(shape) is tuple else ():
        cells *= int(count)
    if type(shape) is tuple and shape:
        frame = is_pandas(value, "DataFrame")
        sized = " × ".join(map(str, shape)) if frame else str(shape) if len(shape) > 1 else f"({shape[0]},)"
        parts[0] += " " + sized
    elif shape == () and top_module(type(value)) == "numpy":
        parts[0] = f"{short(str(value), VALUE)} ({parts[0]})"
    parts.append(short(str(dtype), 40) if dtype is not None and type(value).__name__ != str(dtype) else "")
    fields = getattr(dtype, "names", None)
    parts.append("fields " + listed(fields, PART) if type(fields) is tuple else "")
    if cells > CELLS:
        return
    if is_pandas(value, "DataFrame") and value.shape[1] <= COLUMNS:
        parts += of_frame(value)
    elif is_pandas(value, "Index") and len(value) <= 40:
        parts.append("labels " + listed([short(repr(label), 40) for label in value.tolist()], 120))
    elif is_pandas(value, "Series"):
        first = value.iloc[0] if len(value) else None
        parts.append(f"first {written(first, 40, 1)}" if first is not None and str(dtype) in TEXTS else "")
        missing = int(value.isna().sum())
        parts.append(f"{missing:,} NaN" if missing else "")
    elif getattr(dtype, "kind", "") == "f" and cells:
        import numpy

        bad = ~numpy.isfinite(value)
        parts.append(f"{int(bad.sum()):,} NaN or infinite" if bad.any() else "")


def of_frame(value: Any) -> list[str]:
    """The columns with missing values and those of text, else all columns."""
    missing = [f"{name} ({int(count):,})" for name, count in value.isna().sum().items() if count]
    texts = [f"{short(str(name), 40)} ({dtype})" for name, dtype in value.dtypes.items() if str(dtype) in TEXTS]
    parts = [
        "NaN in " + listed(missing, PART) if missing else "",
        "not numbers: " + listed(texts, PART) if texts else "",
    ]
    return parts if any(parts) else ["columns " + listed([short(str(name), 40) for name in value.columns], PART)]
