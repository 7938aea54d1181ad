"""A summary of the user's namespace: modules, functions, classes and variables.

The summary is sent after each cell, so its time and its number of names are limited.
Between cells, only ids and texts are stored, so that the user's values can be freed.
"""

from __future__ import annotations

import sys
import types
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.cell_sources import run_state
from stepper.kernels.in_kernel.preflight_names import collect_preflight_facts
from stepper.kernels.in_kernel.safe_inspect import (
    FUNCTION_TYPES,
    SIZED_TYPES,
    call_safely,
    clock,
    format_class_name,
    get_mro,
    get_own_attributes,
    get_top_module,
    getsizeof,
    is_a,
    is_library_object,
    is_one_of,
    is_pandas,
    list_columns,
    missing,
    shell,
    shorten,
    to_plain_value,
)
from stepper.kernels.in_kernel.signatures import format_signature
from stepper.kernels.in_kernel.value_fingerprints import (
    fingerprint_value,
    update_fingerprints,
)

MAX_NAMES = 300  # that are described
MAX_NAME = 80  # characters
MAX_ITEMS = 100  # of a container, whose sizes are added
MAX_COLUMNS = 1000  # of a DataFrame, whose sizes are added
MAX_FRAMES = 100  # DataFrames whose columns are remembered
MAX_LABELS = 300  # columns of such a DataFrame
MAX_DIMENSIONS = 40  # of the shape of an array
MAX_VALUE = 40  # characters of a value
MAX_INTEGER_BITS = 100
BYTE_TYPES = (str, bytes, bytearray)
# The ids of classes whose values are small. Most items are of one of these.
SCALAR_TYPE_IDS = {*map(id, (int, float, complex, bool, type(None)))}
UNSUMMARIZED_TYPES = (types.ModuleType, type, types.FunctionType, types.MethodType)
IPYTHON_NAMES = {"In", "Out", "exit", "quit", "get_ipython", "open"}


class ValueSummary(NamedTuple):
    """A short description of a value."""

    identity: int
    text: str
    class_name: str


# name → value after the last cell
previous_values: dict[str, ValueSummary] = {}
# name → the columns of its DataFrame after the last cell
frame_labels: dict[str, frozenset[str]] = {}
# name → column → execution count of the run that removed it, 0 if unknown
removed_labels: dict[str, dict[str, int]] = {}


def summarize_namespace(deadline: float, known_mark: Any) -> dict[str, Any]:
    """Return the summary of the user's namespace, as a dict that JSON can encode.

    Variables beyond MAX_NAMES, and variables that are left at the deadline, are only
    counted. `known_mark` is the mark of the environment description that the daemon
    already has. The values' fingerprints are stored for the next summary.
    """
    modules: dict[str, str] = {}
    functions: dict[str, str] = {}
    variables: dict[str, dict[str, Any]] = {}
    classes: list[str] = []
    fingerprints: dict[str, str | None] = {}
    left_out_count = 0
    described_count = 0
    for full_name, value in list_user_variables():
        if described_count >= MAX_NAMES or clock() > deadline:
            left_out_count += 1
            continue
        described_count += 1
        name = shorten(full_name)
        kind = type(value)
        if issubclass(kind, types.ModuleType):
            modules[name] = get_module_name(value) or name
        elif issubclass(kind, type):
            classes.append(name)
        elif is_one_of(kind, FUNCTION_TYPES):
            functions[name] = call_safely(format_signature, value) or "(…)"
        else:
            fingerprint = fingerprint_value(value, deadline)
            fingerprints[name] = fingerprint
            variables[name] = describe_variable(value, fingerprint)
    rebound = update_fingerprints(list_user_variables(), fingerprints)
    return {
        "modules": modules,
        "functions": functions,
        "classes": classes,
        "variables": variables,
        "left_out": left_out_count,
        "rebound": rebound[:MAX_NAMES],
        **(call_safely(collect_preflight_facts, known_mark) or {}),
    }


def describe_variable(value: Any, fingerprint: str | None) -> dict[str, Any]:
    """Return the class, the size and the fingerprint of a variable's value."""
    kind = type(value)
    facts: dict[str, Any] = {"type": format_class_name(kind)}
    call_safely(add_size, value, kind, facts)
    if fingerprint:
        facts["print"] = fingerprint
    return facts


def get_module_name(module: Any) -> str:
    """Return the name of a module, or an empty string if it has none.

    The name is read from `__dict__`: an attribute access would load a lazy module.
    """
    module_dict = object.__getattribute__(module, "__dict__")
    name = to_plain_value(module_dict.get("__name__"))
    return name if type(name) is str else ""


def list_user_variables() -> list[tuple[str, Any]]:
    """Return the names and values that the user's cells have bound.

    Names that begin with an underscore are left out.
    """
    hidden = shell.user_ns_hidden
    return [
        (name, value)
        for name, value in list(shell.user_ns.items())
        if type(name) is str
        and name[:1] != "_"
        and value is not hidden.get(name, missing)
        and name not in IPYTHON_NAMES
    ]


def add_size(value: Any, kind: Any, facts: dict[str, Any]) -> None:
    """Add the length or shape, and the size in bytes, to the facts about a value.

    Only values of builtin classes and library objects have these facts.
    """
    for base in get_mro(kind):
        if is_one_of(base, SIZED_TYPES):
            facts["len"] = base.__len__(value)
            facts["bytes"] = base.__sizeof__(value) + sum_item_sizes(value, kind)
            return
    if is_one_of(kind, (int, float, complex, bool)):
        facts["bytes"] = getsizeof(value)
    elif is_library_object(value):
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple):
            facts["shape"] = [
                length if type(length) is int else shorten(str(length))
                for length in shape[:MAX_DIMENSIONS]
            ]
        size = measure_library_object(value, facts.get("shape", ()))
        if size is not None:
            facts["bytes"] = size


def sum_item_sizes(value: Any, kind: Any) -> int:
    """Return the size of the items of a plain container, in bytes.

    Only arrays, frames and strings are counted, because other items are small. Return 0
    for a container with more than MAX_ITEMS items.
    """
    if not is_one_of(kind, (list, tuple, dict)) or len(value) > MAX_ITEMS:
        return 0
    items = dict.values(value) if kind is dict else value
    total = 0
    for item in items:
        item_type = type(item)
        if id(item_type) in SCALAR_TYPE_IDS:
            continue
        if is_library_object(item):
            total += measure_item(item)
        elif is_one_of(item_type, BYTE_TYPES):
            total += getsizeof(item)
    return total


def measure_item(item: Any) -> int:
    """Return the size of a library's object in a container, in bytes, or 0 if unknown.

    This is faster than `measure_library_object`: the index of a frame is not counted.
    """
    size = getattr(item, "nbytes", None)
    if type(size) is int:
        return size
    blocks = getattr(getattr(item, "_mgr", None), "blocks", None)
    if type(blocks) is tuple:  # of a DataFrame
        block_sizes = [block.values.nbytes for block in blocks]
        return int(sum(block_sizes))
    if callable(getattr(item, "estimated_size", None)):  # of polars
        return measure_polars_object(item) or 0
    return 0


def measure_polars_object(value: Any) -> int | None:
    """Return the size of a DataFrame or Series of polars in bytes, or None if unknown.

    The size is unknown if a column is nested, because polars would read all items of
    the column, or if there are more than MAX_COLUMNS columns.
    """
    if getattr(value, "width", 1) > MAX_COLUMNS:
        return None
    dtypes = getattr(value, "dtypes", None)
    if dtypes is None:  # a Series
        dtypes = [value.dtype]
    if any(dtype.is_nested() for dtype in dtypes):
        return None
    return int(value.estimated_size())


def measure_library_object(value: Any, shape: Any) -> int | None:
    """Return the size of a library's object in bytes, or None if it is unknown.

    The size does not include Python objects in an array. It is unknown for a DataFrame
    with more than MAX_COLUMNS columns. `shape` is the object's shape, or empty.
    """
    if len(shape) == 2 and is_pandas(value, "DataFrame"):
        if shape[1] > MAX_COLUMNS:
            return None
        columns = list_columns(value)
        column_sizes = [column.nbytes for column in columns]
        index_size = value.index.memory_usage()
        return int(index_size + sum(column_sizes))
    memory_usage = getattr(value, "memory_usage", None)
    if callable(memory_usage):
        return int(memory_usage(deep=False))
    if callable(getattr(value, "estimated_size", None)):  # of polars
        return measure_polars_object(value)
    size = getattr(value, "nbytes", None)
    if type(size) is int:
        return size
    return getsizeof(value) + sum_attribute_sizes(value)


def sum_attribute_sizes(value: Any) -> int:
    """Return the size of the arrays in the attributes of an object, in bytes.

    For example, a sparse matrix of SciPy consists of three arrays.
    """
    items = filter(is_library_object, list(get_own_attributes(value).values()))
    return sum(map(measure_item, items))


def remember_values() -> None:
    """Store a summary of the user's variables, for comparison after the next cell."""
    previous_values.clear()
    previous_values.update(summarize_values())
    call_safely(remember_labels)


def remember_labels() -> None:
    """Store the columns of the user's DataFrames, and the runs that removed columns."""
    current = list_labels()
    for name in list(removed_labels):
        if name not in current:
            del removed_labels[name]
    for name, labels in current.items():
        previous_labels = frame_labels.get(name, labels)
        if previous_labels == labels:
            continue
        removed = removed_labels.setdefault(name, {})
        run = run_state.get("attributed", 0)
        removed_now = previous_labels - labels
        removed.update(dict.fromkeys(removed_now, run))
        for label in labels.intersection(removed):
            del removed[label]
    frame_labels.clear()
    frame_labels.update(current)


def list_labels() -> dict[str, frozenset[str]]:
    """Return the column labels of the user's DataFrames, by variable name.

    Only labels that are strings in a plain Index are included. At most MAX_FRAMES
    frames with at most MAX_LABELS columns are included.
    """
    pandas = sys.modules.get("pandas")
    index_type = getattr(pandas, "Index", None)
    labels_by_name: dict[str, frozenset[str]] = {}
    if not index_type:
        return labels_by_name
    frames = []
    for name, value in list_user_variables():
        if is_pandas(value, "DataFrame"):
            frames.append((name, value))
    for name, frame in frames[:MAX_FRAMES]:
        columns = frame.columns
        if type(columns) is index_type and len(columns) <= MAX_LABELS:
            labels = {label for label in columns.tolist() if type(label) is str}
            short_name = shorten(name, MAX_NAME)
            labels_by_name[short_name] = frozenset(labels)
    return labels_by_name


def summarize_values() -> dict[str, ValueSummary]:
    """Return summaries of up to MAX_NAMES of the user's variables, by name.

    Modules, classes, and functions and methods in Python are not included.
    """
    summaries: dict[str, ValueSummary] = {}
    for name, value in list_user_variables():
        if len(summaries) >= MAX_NAMES:
            break
        if not is_a(value, UNSUMMARIZED_TYPES):
            class_name = format_class_name(type(value))
            summary = ValueSummary(id(value), summarize_value(value), class_name)
            summaries[shorten(name, MAX_NAME)] = summary
    return summaries


def summarize_value(value: Any) -> str:
    """Return a short text for a value: its shape, value, length or class name."""
    kind = type(value)
    if get_top_module(kind) in ("pandas", "numpy"):
        shape = getattr(value, "shape", None)
        if type(shape) is tuple and shape:
            return " × ".join(str(length) for length in shape)
    if kind is str:
        return shorten(repr(value[:MAX_VALUE]), MAX_VALUE)
    is_long = kind is int and value.bit_length() > MAX_INTEGER_BITS
    if is_one_of(kind, (int, float, bool)) and not is_long:
        return shorten(repr(value), MAX_VALUE)
    if is_one_of(kind, (list, dict, tuple, set)):
        return f"length {len(value)}"
    qualified_name = format_class_name(kind)
    return qualified_name.rsplit(".", 1)[-1]
