"""The frames and series that a cell names: rows, labels, the columns without any value.

pandas' own classes only, by their own methods. What is kept of one is its size and texts, never the object.
"""

from __future__ import annotations

import sys

from .base import clock, guarded, one_of, shell, short, top_module

CELLS, COLUMNS, HEAD, CHUNK, LABEL = 5_000_000, 2000, 50, 200_000, 60
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
        if not own or not all(map(plain, labels)) or len({*map(text, labels)}) < len(labels):
            return
        self.labels = tuple(map(text, labels))
        if self.rows:
            filled = value.iloc[:HEAD].notna().to_numpy().any(axis=0)
            filled = filled.tolist() if self.framed else [bool(filled)]
            rest = [index for index, some in enumerate(filled) if not some]
            columns = ((index, value.iloc[:, index] if self.framed else value) for index in rest)
            self.blank = {self.labels[index] for index, column in columns if not has_value(column, self.rows, deadline)}
        else:
            self.blank = set()


def plain(label):
    kind = type(label)
    if kind is tuple:
        return all(map(plain, label))
    return one_of(kind, PLAIN) or top_module(kind) in ("numpy", "pandas")


def text(label):
    return short(str(label), LABEL)


def has_value(column, rows, deadline):
    for start in range(HEAD, rows, CHUNK):
        if clock() > deadline:
            raise TimeoutError
        if column.iloc[start : start + CHUNK].notna().any():
            return True
    return False


def look(words, deadline):
    """{name: Seen} of the user's frames and series among these words."""
    pandas = vars(sys.modules["pandas"])
    kinds = [pandas.get("DataFrame"), pandas.get("Series")]
    names = [word for word in words if not word.startswith("_") and one_of(type(shell.user_ns.get(word)), kinds)]
    return {name: Seen(shell.user_ns[name], deadline) for name in sorted(names)}
