"""Every expression of the failing lines that can be looked up, with its value; plain values as text."""

from __future__ import annotations

import ast
import datetime
import decimal
import fractions
import io
import pathlib
import uuid

from stepper.diagnosis.inside.reach import DATA
from stepper.kernel.inside.base import (
    class_names,
    guarded,
    is_a,
    lengths,
    name_of,
    of_library,
    one_of,
    short,
    top_module,
)

ZONES = ("datetime", "zoneinfo", "pytz", "dateutil", "backports")
MOMENTS = ("Timestamp", "Timedelta", "Period")
NUMBERS = (int, float, bool, complex)
TOLD = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, fractions.Fraction, uuid.UUID,
        pathlib.PosixPath, pathlib.PurePosixPath)  # fmt: skip
STREAMS = (io.TextIOWrapper, io.BufferedReader, io.FileIO, io.BufferedWriter)


def held(places):
    """(text, value, node, spot) of each name, attribute and item on the failing lines, innermost line first."""
    seen = set()
    for spot in places:
        for node in spot.nodes:
            text = guarded(ast.unparse, node) if is_a(node, DATA) else None
            if not text or text in seen:
                continue
            found = guarded(lambda: (spot.value(node),))  # noqa: B023  # called at once
            if found is not None:
                seen.add(text)
                yield short(text, 60), found[0], node, spot


def written(value, limit=80, depth=2):
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
    elif of_library(value) and (name_of(kind) in MOMENTS or "numpy.generic" in class_names(kind)):
        text = str(value)
    elif kind is dict and depth and len(value) <= 12:
        items = [(written(key, limit, 0), written(one, limit, depth - 1)) for key, one in value.items()]
        text = "{" + ", ".join(f"{key}: {one or '…'}" for key, one in items) + "}"
    elif one_of(kind, (list, tuple)) and depth and len(value) <= 12:
        text = ", ".join(written(one, limit, depth - 1) or "…" for one in value)
        text = f"[{text}]" if kind is list else f"({text},)" if len(value) == 1 else f"({text})"
    return short(text, limit + 40) if text is not None else None


def zone(value):
    """'naive', or 'aware' with its zone; None where the zone is a class of the user's own."""
    if value.tzinfo is None:
        return "naive"
    return f"aware, {value.tzinfo}" if top_module(type(value.tzinfo)) in ZONES else None


def size(value):
    """The number of its items, None where that is not known without asking the user's code."""
    if one_of(type(value), lengths):
        return len(value)
    shape = getattr(value, "shape", None) if of_library(value) else None
    return int(shape[0]) if type(shape) is tuple and shape else None
