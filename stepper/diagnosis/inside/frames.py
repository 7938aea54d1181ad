"""The frames and series that a cell names: rows, labels, the columns without any value.

pandas' own classes only, by their own methods. What is kept of one is its size and texts, never the object.
"""

from __future__ import annotations

import re
import sys

from stepper.kernel.inside.base import clock, guarded, one_of, shell, short, top_module

CELLS, COLUMNS, ROWS, HEAD, CHUNK, LABEL = 5_000_000, 2000, 500_000, 50, 200_000, 60
PLAIN = (str, int, float, bool, type(None))


class Seen:
    def __init__(self, value, deadline):
        self.id, self.rows, self.framed = id(value), len(value), value.ndim == 2
        self.labels, self.blank = (), None  # blank: the labels without any value; None where that is not known
        width = value.shape[1] if self.framed else 1
        if width <= COLUMNS and width * self.rows <= CELLS and clock() < deadline:
            guarded(self.columns, value, deadline)

    def columns(self, value, deadline):
        labels = value.columns.tolist() if self.framed else [value.name]
        kinds = value.dtypes.tolist() if self.framed else [value.dtype]
        own = all(top_module(type(kind)) in ("numpy", "pandas") for kind in kinds)  # else its `isna` may be anybody's
        if not own or not all(map(plain, labels)) or len({*map(written, labels)}) < len(labels):
            return
        self.labels = tuple(map(written, labels))
        rest, start, count = list(range(len(labels))), 0, HEAD
        while rest and start < self.rows:  # the first rows tell of nearly all columns
            if clock() > deadline:
                return
            part = value.iloc[start : start + count]
            part = part if len(rest) == len(labels) else part.iloc[:, rest]
            filled = part.notna().to_numpy().any(axis=0)
            rest = [index for index, some in zip(rest, filled.tolist() if self.framed else [filled]) if not some]
            start, count = start + count, max(1000, CHUNK // (len(rest) or 1))
        self.blank = {self.labels[index] for index in rest} if self.rows else set()


def plain(label):
    kind = type(label)
    if kind is tuple:
        return all(map(plain, label))
    return one_of(kind, PLAIN) or top_module(kind) in ("numpy", "pandas")


def written(label):
    return short(str(label), LABEL)


def look(text, deadline):
    """{name: Seen} of the user's frames and series that a text names."""
    pandas = vars(sys.modules["pandas"])
    frame, series = pandas.get("DataFrame"), pandas.get("Series")
    space = list(shell.user_ns.items())
    bound = [(name, value) for name, value in space if type(value) is frame or type(value) is series]
    bound = [(name, value) for name, value in bound if type(name) is str and name in text and name[:1] != "_"]
    return {name: Seen(value, deadline) for name, value in bound if re.search(rf"\b{re.escape(name)}\b", text)}


def many_to_many(other, result, keys):
    """Whether the result of a merge has keys more often than `other`, in which they already are not unique."""
    pandas = sys.modules["pandas"]
    for frame in (other, result):
        if type(frame) is not pandas.DataFrame or len(frame) > ROWS or not all(map(comparable, frame[keys].items())):
            return False
    here, there = other[keys].value_counts(), result[keys].value_counts()
    here = here[here > 1]
    return bool((there.reindex(here.index) > here).any())


def comparable(item):
    """Whether a column holds values whose comparison is not the user's code."""
    kind = item[1].dtype
    known = ("string", "integer", "boolean", "date", "empty")
    if kind.kind == "O":
        return sys.modules["pandas"].api.types.infer_dtype(item[1], skipna=True) in known
    return top_module(type(kind)) in ("numpy", "pandas")
