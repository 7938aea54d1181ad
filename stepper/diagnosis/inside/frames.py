"""The frames and series that a cell names: rows, labels, the columns without any value.

pandas' own classes only, by their own methods. What is kept of one is its size and texts, never the object.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from stepper.kernel.inside.base import clock, guarded, one_of, shell, short, top_module

CELLS, COLUMNS, ROWS, HEAD, LABEL = 5_000_000, 2000, 500_000, 50, 60
PLAIN = (str, int, float, bool, type(None))
COMPARABLE = ("string", "integer", "boolean", "date", "empty")  # as pandas infers what a column of objects holds


class Seen:
    """A frame or series as it was at one time."""

    def __init__(self, value: Any, deadline: float) -> None:
        self.id, self.rows, self.framed = id(value), len(value), value.ndim == 2
        self.labels: tuple[str, ...] = ()
        self.blank: set[str] | None = None  # the labels without any value; None where that is not known
        width = value.shape[1] if self.framed else 1
        if width <= COLUMNS and width * self.rows <= CELLS and clock() < deadline:
            guarded(self.read, value, deadline)

    def read(self, value: Any, deadline: float) -> None:
        labels = value.columns.tolist() if self.framed else [value.name]
        kinds = value.dtypes.tolist() if self.framed else [value.dtype]
        known = all(top_module(type(kind)) in ("numpy", "pandas") for kind in kinds)  # else its `isna` may be anybody's
        if not known or not all(map(plain, labels)) or len({*map(written, labels)}) < len(labels):
            return
        self.labels = tuple(map(written, labels))
        head = value.iloc[:HEAD].notna().to_numpy().any(axis=0)  # the first rows tell of nearly all columns
        blank = set()
        for index, some in enumerate(head.tolist() if self.framed else [head]):
            if clock() > deadline:
                return
            if not some and not (value.iloc[:, index] if self.framed else value).notna().any():
                blank.add(self.labels[index])
        self.blank = blank if self.rows else set()


def plain(label: Any) -> bool:
    kind = type(label)
    if kind is tuple:
        return all(map(plain, label))
    return one_of(kind, PLAIN) or top_module(kind) in ("numpy", "pandas")


def written(label: Any) -> str:
    return short(str(label), LABEL)


def look(text: str, deadline: float) -> dict[str, Seen]:
    """The user's frames and series that a text names."""
    pandas = vars(sys.modules["pandas"])
    kinds = pandas.get("DataFrame"), pandas.get("Series")
    bound = [(name, value) for name, value in list(shell.user_ns.items()) if one_of(type(value), kinds)]
    bound = [(name, value) for name, value in bound if type(name) is str and name in text and name[:1] != "_"]
    return {name: Seen(value, deadline) for name, value in bound if re.search(rf"\b{re.escape(name)}\b", text)}


def many_to_many(other: Any, result: Any, keys: list[str]) -> bool:
    """Whether the result of a merge has keys more often than `other`, in which they already are not unique."""
    frame = sys.modules["pandas"].DataFrame
    for side in (other, result):
        if (
            type(side) is not frame
            or len(side) > ROWS
            or not all(comparable(column) for _, column in side[keys].items())
        ):
            return False
    here, there = other[keys].value_counts(), result[keys].value_counts()
    here = here[here > 1]
    return bool((there.reindex(here.index) > here).any())


def comparable(column: Any) -> bool:
    """Whether a column holds values whose comparison is not the user's code."""
    if column.dtype.kind == "O":
        return sys.modules["pandas"].api.types.infer_dtype(column, skipna=True) in COMPARABLE
    return top_module(type(column.dtype)) in ("numpy", "pandas")
