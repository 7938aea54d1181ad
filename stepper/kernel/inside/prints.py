"""What a small value holds, as a short print: equal ones have the same one, in every kernel. And what a cell bound."""

from __future__ import annotations

import hashlib
from typing import Any

from stepper.kernel.inside.base import clock, guarded, one_of, top_module

PLAIN = (int, float, complex, bool, str, bytes, type(None))
LONGEST = 100  # characters of a name that is told
ITEMS, BYTES, LONG, CELLS = 200, 4096, 2000, 1000
held: dict[str, tuple[int, Any]] = {}  # name → (id, print) after the last cell: no object is kept


def rebound(values: list[tuple[str, Any]], prints: dict[str, str]) -> list[str]:
    """The names that hold something else than after the last cell; not those for whose print there was no time."""
    now = {name: (id(value), prints.get(name)) for name, value in values if len(name) <= LONGEST}
    found = []
    for name, (place, text) in now.items():
        before, was = held.get(name, (0, None))
        if before != place or (text != was and None not in (text, was)):
            found.append(name)
    held.clear()
    held.update(now)
    return found


def print_of(value: Any, deadline: float) -> str | None:
    """'' for what is large, or whose looks might run the user's code; None where there is no time."""
    if clock() > deadline:
        return None
    text = guarded(told, value, [ITEMS])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest() if text else ""


def told(value: Any, left: list[int]) -> str:
    """A text that only equal values have; '' for none. `left`: how many items may still be looked at."""
    kind = type(value)
    left[0] -= 1
    if left[0] < 0:
        return ""
    if one_of(kind, PLAIN):
        if kind is int:
            return f"int{value}" if value.bit_length() < LONG else ""
        return kind.__name__ + repr(value) if not one_of(kind, (str, bytes)) or len(value) < LONG else ""
    if one_of(kind, (list, tuple, set, frozenset, dict)):
        if len(value) > left[0]:
            return ""
        items = [part for pair in dict.items(value) for part in pair] if kind is dict else list(value)
        parts = [told(part, left) for part in items]
        if not all(parts):
            return ""
        return f"{kind.__name__}({','.join(sorted(parts) if one_of(kind, (set, frozenset)) else parts)})"
    if top_module(kind) == "numpy" and kind.__name__ == "ndarray":
        return array(value)
    if top_module(kind) == "pandas" and kind.__name__ in ("DataFrame", "Series"):
        return frame(value, kind.__name__)
    return ""


def array(value: Any) -> str:
    if value.dtype.kind in "biufcmMSU":
        return f"array{value.dtype.str}{value.shape}{value.tobytes().hex()}" if value.nbytes <= BYTES else ""
    if value.dtype.kind != "O" or value.size > ITEMS:
        return ""
    text = told(value.ravel().tolist(), [ITEMS + 1])
    return f"array{value.shape}{text}" if text else ""


def frame(value: Any, kind: str) -> str:
    """Its columns and its index, each as an array; those of other kinds (categories, dates with zones) tell nothing."""
    if value.size > CELLS or len(value) > ITEMS or (value.ndim > 1 and value.shape[1] > 50):
        return ""
    columns = [value.iloc[:, at] for at in range(value.shape[1])] if kind == "DataFrame" else [value]
    names = told(value.columns.tolist() if kind == "DataFrame" else value.name, [ITEMS])
    parts = [part.to_numpy() for part in (value.index, *columns)]
    texts = [array(part) for part in parts]
    kinds = [str(part.dtype) for part in columns]
    return f"{kind}{names}{kinds}{''.join(texts)}" if names and all(texts) else ""
