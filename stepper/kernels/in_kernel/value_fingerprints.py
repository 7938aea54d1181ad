"""Fingerprints of small values, and the search for names that a cell rebound.

Equal values have equal fingerprints in every kernel. Fingerprints are computed after
each cell, so large values have none.
"""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Callable
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import (
    call_safely,
    clock,
    get_top_module,
    getsizeof,
    is_one_of,
    list_columns,
)

MAX_NAME = 100  # characters of a name that is reported
MAX_ITEMS = 200  # of a container, or rows of a DataFrame
MAX_COLUMNS = 50
MAX_CELLS = 1000  # of a DataFrame
MAX_ARRAY = 4096  # bytes
MAX_LENGTH = 2000  # of a string, or bits of an integer
SAFE_SIZE = 250  # bytes: a smaller item is certainly below MAX_LENGTH
CONTAINERS = (list, tuple, set, frozenset, dict)
PLAIN_DTYPES = "biufcmMSU"
# The last format of marshal that depends only on values, not on object identities.
MARSHAL_FORMAT = 2


def get_zero_length(value: Any) -> int:
    """Return 0 as the length of a value whose text is always short."""
    return 0


# The id of a class whose values are rendered by `repr` → a function for their length.
# The key is the id, because a lookup by class would call the metaclass.
PLAIN_TYPES: dict[int, Callable[[Any], int]] = {
    **{id(kind): len for kind in (str, bytes)},
    **{id(kind): get_zero_length for kind in (float, complex, bool, type(None))},
    id(int): int.bit_length,
}
# The id and the fingerprint of a value: no object is kept alive.
Binding = tuple[int, Any]
# Name → its binding after the last cell.
last_fingerprints: dict[str, Binding] = {}


def update_fingerprints(
    values: list[tuple[str, Any]], fingerprints: dict[str, str | None]
) -> list[str]:
    """Store the ids and fingerprints of values, and return the changed names.

    A name has changed if it refers to another object than at the last call, or if its
    object has another fingerprint. A change of an object without a fingerprint is not
    noticed.
    """
    current: dict[str, Binding] = {}
    for name, value in values:
        if len(name) <= MAX_NAME:
            fingerprint = fingerprints.get(name)
            current[name] = (id(value), fingerprint)
    changed = []
    for name, binding in current.items():
        if has_changed(binding, last_fingerprints.get(name)):
            changed.append(name)
    last_fingerprints.clear()
    last_fingerprints.update(current)
    return changed


def has_changed(binding: Binding, former: Binding | None) -> bool:
    """Return whether a name has another object or another fingerprint than before."""
    if former is None:
        return True
    identity, fingerprint = binding
    former_identity, former_fingerprint = former
    if identity != former_identity:
        return True
    if fingerprint is None or former_fingerprint is None:
        return False
    return bool(fingerprint != former_fingerprint)


def fingerprint_value(value: Any, deadline: float) -> str | None:
    """Return the fingerprint of a value, or None if the deadline has passed.

    Return an empty string for a large value, and for a value whose comparison could run
    user code.
    """
    if clock() > deadline:
        return None
    text = call_safely(render_value, value, ItemBudget(MAX_ITEMS))
    if not text:
        return ""
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class ItemBudget:
    """The number of items that may still be rendered."""

    def __init__(self, remaining: int) -> None:
        self.remaining = remaining

    def take(self, count: int) -> bool:
        """Subtract items, and return whether there were enough."""
        self.remaining -= count
        return self.remaining >= 0


def render_value(value: Any, budget: ItemBudget) -> str:
    """Return a text that only equal values have.

    Return an empty string for a value that is too large or of an unknown class. The
    value and the items in it are subtracted from `budget`.
    """
    kind = type(value)
    if not budget.take(1):
        return ""
    get_length = PLAIN_TYPES.get(id(kind))
    if get_length is not None:
        if get_length(value) < MAX_LENGTH:
            return repr(value)
        return ""
    if is_one_of(kind, CONTAINERS):
        if len(value) > budget.remaining:
            return ""
        return render_container(value, kind, budget)
    package = get_top_module(kind)
    if package == "numpy" and kind.__name__ == "ndarray":
        return render_array(value)
    if package == "pandas" and kind.__name__ in ("DataFrame", "Series"):
        return render_frame(value, kind.__name__)
    return ""


def render_container(value: Any, kind: Any, budget: ItemBudget) -> str:
    """Return the text of `render_value` for a plain container."""
    if kind is dict:
        items = [part for pair in dict.items(value) for part in pair]
    else:
        items = list(value)
    is_ordered = not is_one_of(kind, (set, frozenset))
    # The items are rendered together: a call for each item would make each step slower.
    if is_ordered and are_plain(items):
        if not budget.take(len(items)) or not are_short(items):
            return ""
        data = marshal.dumps(items, MARSHAL_FORMAT)
        return f"{kind.__name__} {data.hex()}"
    texts: list[str] = []
    for item in items:
        text = render_value(item, budget)
        if not text:
            return ""
        texts.append(text)
    if not is_ordered:
        texts.sort()
    return f"{kind.__name__}({','.join(texts)})"


def are_plain(items: list[Any]) -> bool:
    """Return whether the classes of all items are in PLAIN_TYPES."""
    type_ids = set(map(id, map(type, items)))
    return PLAIN_TYPES.keys() >= type_ids


def are_short(items: list[Any]) -> bool:
    """Return whether all items, whose types are plain, are shorter than MAX_LENGTH."""
    if max(map(getsizeof, items), default=0) < SAFE_SIZE:
        return True
    for item in items:
        get_length = PLAIN_TYPES[id(type(item))]
        if get_length(item) >= MAX_LENGTH:
            return False
    return True


def render_array(value: Any) -> str:
    """Return the text of `render_value` for a NumPy array."""
    dtype = value.dtype
    if dtype.kind in PLAIN_DTYPES:
        if value.nbytes > MAX_ARRAY:
            return ""
        data = value.tobytes()
        return f"array{dtype.str}{value.shape}{data.hex()}"
    if dtype.kind != "O" or value.size > MAX_ITEMS:
        return ""
    items = render_value(value.ravel().tolist(), ItemBudget(MAX_ITEMS + 1))
    if items:
        return f"array{value.shape}{items}"
    return ""


def render_dtype(dtype: Any) -> str:
    """Return a text for a dtype, or an empty string if it is unsupported.

    The text of pandas' categorical dtype does not contain its categories.
    """
    text = str(dtype)
    if text != "category":
        return text
    categories = [dtype.categories.tolist(), bool(dtype.ordered)]
    items = render_value(categories, ItemBudget(MAX_ITEMS))
    if not items:
        return ""
    return f"{text}{items}"


def is_large_frame(value: Any) -> bool:
    """Return whether a DataFrame or Series is too large for a fingerprint."""
    row_count = value.shape[0]
    column_count = 1
    if len(value.shape) > 1:
        column_count = value.shape[1]
    if row_count > MAX_ITEMS or column_count > MAX_COLUMNS:
        return True
    return bool(row_count * column_count > MAX_CELLS)


def render_frame(value: Any, kind: str) -> str:
    """Return the text of `render_value` for a DataFrame or Series.

    The index and the columns are rendered as arrays. Return an empty string if the
    value is too large, or if the index, a column or the column labels have an
    unsupported dtype. Dates with time zones are unsupported, because `render_value`
    does not render the items.
    """
    if is_large_frame(value):
        return ""
    if kind == "DataFrame":
        columns = list_columns(value)
        labels = [value.columns.tolist(), list(value.columns.names)]
        axes = [value.index, value.columns]
    else:
        columns = [value]
        labels = [value.name]
        axes = [value.index]
    labels.append(list(value.index.names))
    names = render_value(labels, ItemBudget(MAX_ITEMS))
    texts = []
    for column in (value.index, *columns):
        array = column.to_numpy() if hasattr(column, "to_numpy") else column
        texts.append(render_array(array))
    if not names or not all(texts):
        return ""
    dtypes = [render_dtype(column.dtype) for column in columns]
    for axis in axes:
        # A MultiIndex has a dtype for each level.
        levels = getattr(axis, "levels", (axis,))
        dtypes += [render_dtype(level.dtype) for level in levels]
    if not all(dtypes):
        return ""
    return f"{kind}{names}{dtypes}{''.join(texts)}"
