"""Fingerprints of small values, and which names a cell bound or changed.

Equal values have equal fingerprints in every kernel. They are calculated after each
cell, so large values have none.
"""

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

MAX_NAME = 100  # characters of a name that is reported
MAX_ITEMS = 200  # of a container, or rows of a DataFrame
MAX_COLUMNS = 50
MAX_CELLS = 1000  # of a DataFrame
MAX_ARRAY = 4096  # bytes
MAX_LENGTH = 2000  # of a string, or bits of an integer
SAFE_SIZE = 250  # bytes of an item that is certainly below MAX_LENGTH
CONTAINERS = (list, tuple, set, frozenset, dict)
PLAIN_DTYPES = "biufcmMSU"
# The last format of marshal that depends only on values, not on object identities.
MARSHAL_FORMAT = 2


def _measure_nothing(value: Any) -> int:
    return 0


# The id of a class whose values are described by `repr` → a function for their length.
# By id, because a lookup by class would call its metaclass.
PLAIN_TYPES: dict[int, Callable[[Any], int]] = {
    **{id(kind): len for kind in (str, bytes)},
    **{id(kind): _measure_nothing for kind in (float, complex, bool, type(None))},
    id(int): int.bit_length,
}
# name → (id, fingerprint) after the last cell. No object is kept alive.
last_fingerprints: dict[str, tuple[int, Any]] = {}


def find_rebound_names(
    values: list[tuple[str, Any]], fingerprints: dict[str, str]
) -> list[str]:
    """Return the names whose values changed since the last call, and remember all.

    A name without a fingerprint counts only if it refers to another object.
    """
    current = {}
    for name, value in values:
        if len(name) <= MAX_NAME:
            current[name] = (id(value), fingerprints.get(name))
    rebound = []
    for name, (identity, fingerprint) in current.items():
        old_identity, old_fingerprint = last_fingerprints.get(name, (0, None))
        is_changed = fingerprint != old_fingerprint
        if fingerprint is None or old_fingerprint is None:
            is_changed = False
        if identity != old_identity or is_changed:
            rebound.append(name)
    last_fingerprints.clear()
    last_fingerprints.update(current)
    return rebound


def fingerprint_value(value: Any, deadline: float) -> str | None:
    """Return the fingerprint of a value, None after the deadline.

    The result is '' for a large value, or if comparing it could run user code.
    """
    if clock() > deadline:
        return None
    text = call_safely(render_value, value, [MAX_ITEMS])
    if not text:
        return ""
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def render_value(value: Any, remaining: list[int]) -> str:
    """Return a text that only equal values have, '' if there is none.

    `remaining[0]` is the number of items that may still be rendered.
    """
    kind = type(value)
    remaining[0] -= 1
    if remaining[0] < 0:
        return ""
    get_length = PLAIN_TYPES.get(id(kind))
    if get_length is not None:
        return repr(value) if get_length(value) < MAX_LENGTH else ""
    if is_one_of(kind, CONTAINERS):
        if len(value) > remaining[0]:
            return ""
        return render_container(value, kind, remaining)
    if top_module(kind) == "numpy" and kind.__name__ == "ndarray":
        return render_array(value)
    if top_module(kind) == "pandas" and kind.__name__ in ("DataFrame", "Series"):
        return render_frame(value, kind.__name__)
    return ""


def render_container(value: Any, kind: Any, remaining: list[int]) -> str:
    """Return the text of `render_value` for a plain container."""
    if kind is dict:
        items = [part for pair in dict.items(value) for part in pair]
    else:
        items = list(value)
    is_ordered = not is_one_of(kind, (set, frozenset))
    # All at once: a call for each item would make each step slower.
    if is_ordered and PLAIN_TYPES.keys() >= {*map(id, map(type, items))}:
        remaining[0] -= len(items)
        if remaining[0] < 0 or not are_short(items):
            return ""
        return f"{kind.__name__} {marshal.dumps(items, MARSHAL_FORMAT).hex()}"
    texts = list[str]()
    for item in items:
        text = render_value(item, remaining)
        if not text:
            return ""
        texts.append(text)
    if not is_ordered:
        texts.sort()
    return f"{kind.__name__}({','.join(texts)})"


def are_short(items: list[Any]) -> bool:
    """Return whether all items, of plain types, are below MAX_LENGTH."""
    if max(map(getsizeof, items), default=0) < SAFE_SIZE:
        return True
    return all(PLAIN_TYPES[id(type(item))](item) < MAX_LENGTH for item in items)


def render_array(value: Any) -> str:
    """Return the text of `render_value` for a NumPy array."""
    if value.dtype.kind in PLAIN_DTYPES:
        if value.nbytes > MAX_ARRAY:
            return ""
        return f"array{value.dtype.str}{value.shape}{value.tobytes().hex()}"
    if value.dtype.kind != "O" or value.size > MAX_ITEMS:
        return ""
    items = render_value(value.ravel().tolist(), [MAX_ITEMS + 1])
    return f"array{value.shape}{items}" if items else ""


def render_frame(value: Any, kind: str) -> str:
    """Return the text of `render_value` for a DataFrame or Series.

    Its index and columns are rendered as arrays. There is no text if one of them has
    another dtype, such as categories or dates with time zones.
    """
    shape = value.shape
    if shape[0] > MAX_ITEMS:
        return ""
    if len(shape) > 1 and (shape[1] > MAX_COLUMNS or shape[0] * shape[1] > MAX_CELLS):
        return ""
    if kind == "DataFrame":
        columns = list_columns(value)
        names = render_value(value.columns.tolist(), [MAX_ITEMS])
    else:
        columns = [value]
        names = render_value(value.name, [MAX_ITEMS])
    texts = []
    for column in (value.index, *columns):
        array = column.to_numpy() if hasattr(column, "to_numpy") else column
        texts.append(render_array(array))
    if not names or not all(texts):
        return ""
    dtypes = [str(column.dtype) for column in columns]
    return f"{kind}{names}{dtypes}{''.join(texts)}"
