"""What a small value holds, as a short print: equal ones have the same one, in every kernel. And what a cell bound."""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Callable
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import (
    call_safely,
    clock,
    getsizeof,
    is_one_of,
    list_columns,
    top_module,
)

LONGEST = 100  # characters of a name that is told
ITEMS, BYTES, LONG, CELLS = 200, 4096, 2000, 1000
CONTAINERS = (list, tuple, set, frozenset, dict)
# of marshal: the last that tells nothing but values, not which of them are the same
# object
FORMAT = 2
SMALL = 250  # bytes of an item that is surely not LONG
# How long a value is whose `repr` is all that it holds: by the id of its class, because
# a look asks no metaclass.
PLAIN: dict[int, Callable[[Any], int]] = {
    **{id(kind): len for kind in (str, bytes)},
    **{id(kind): lambda value: 0 for kind in (float, complex, bool, type(None))},
    id(int): int.bit_length,
}
# name → (id, print) after the last cell: no object is kept
last_fingerprints: dict[str, tuple[int, Any]] = {}


def find_rebound_names(
    values: list[tuple[str, Any]], prints: dict[str, str]
) -> list[str]:
    """The names that hold something else than after the last cell; not those for whose print there was no time."""
    now = {
        name: (id(value), prints.get(name))
        for name, value in values
        if len(name) <= LONGEST
    }
    found = []
    for name, (place, text) in now.items():
        before, was = last_fingerprints.get(name, (0, None))
        if before != place or (text != was and None not in (text, was)):
            found.append(name)
    last_fingerprints.clear()
    last_fingerprints.update(now)
    return found


def fingerprint_value(value: Any, deadline: float) -> str | None:
    """'' for what is large, or whose looks might run the user's code; None where there is no time."""
    if clock() > deadline:
        return None
    text = call_safely(render_value, value, [ITEMS])
    return (
        hashlib.blake2b(
            text.encode("utf-8", "surrogatepass"), digest_size=8
        ).hexdigest()
        if text
        else ""
    )


def render_value(value: Any, left: list[int]) -> str:
    """A text that only equal values have; '' for none. `left`: how many items may still be looked at."""
    kind = type(value)
    left[0] -= 1
    if left[0] < 0:
        return ""
    length = PLAIN.get(id(kind))
    if length is not None:
        return repr(value) if length(value) < LONG else ""
    if is_one_of(kind, CONTAINERS):
        return render_container(value, kind, left) if len(value) <= left[0] else ""
    if top_module(kind) == "numpy" and kind.__name__ == "ndarray":
        return render_array(value)
    if top_module(kind) == "pandas" and kind.__name__ in ("DataFrame", "Series"):
        return render_frame(value, kind.__name__)
    return ""


def render_container(value: Any, kind: Any, left: list[int]) -> str:
    items = (
        [part for pair in dict.items(value) for part in pair]
        if kind is dict
        else list(value)
    )
    ordered = not is_one_of(kind, (set, frozenset))
    # all at once: a call for each would cost each step
    if ordered and PLAIN.keys() >= {*map(id, map(type, items))}:
        left[0] -= len(items)
        small = max(map(getsizeof, items), default=0) < SMALL or all(
            PLAIN[id(type(one))](one) < LONG for one in items
        )
        return (
            f"{kind.__name__} {marshal.dumps(items, FORMAT).hex()}"
            if small and left[0] >= 0
            else ""
        )
    parts = list[str]()
    for one in items:
        parts.append(render_value(one, left))
        if not parts[-1]:
            return ""
    return f"{kind.__name__}({','.join(parts if ordered else sorted(parts))})"


def render_array(value: Any) -> str:
    if value.dtype.kind in "biufcmMSU":
        return (
            f"array{value.dtype.str}{value.shape}{value.tobytes().hex()}"
            if value.nbytes <= BYTES
            else ""
        )
    if value.dtype.kind != "O" or value.size > ITEMS:
        return ""
    items = render_value(value.ravel().tolist(), [ITEMS + 1])
    return f"array{value.shape}{items}" if items else ""


def render_frame(value: Any, kind: str) -> str:
    """Its columns and its index, each as an array; those of other kinds (categories, dates with zones) tell nothing."""
    shape = value.shape
    if shape[0] > ITEMS or (
        len(shape) > 1 and (shape[1] > 50 or shape[0] * shape[1] > CELLS)
    ):
        return ""
    parts = list_columns(value) if kind == "DataFrame" else [value]
    names = render_value(
        value.columns.tolist() if kind == "DataFrame" else value.name, [ITEMS]
    )
    texts = [
        render_array(part.to_numpy() if hasattr(part, "to_numpy") else part)
        for part in (value.index, *parts)
    ]
    kinds = [str(part.dtype) for part in parts]
    return f"{kind}{names}{kinds}{''.join(texts)}" if names and all(texts) else ""
