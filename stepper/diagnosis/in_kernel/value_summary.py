"""Short descriptions of values.

A short value is shown in full. The description of any other value contains its class,
shape, dtype and length, and notable contents: missing values, columns of text, the keys
of a dict. None of the user's code runs, so only values of known classes are shown.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import io
import math
import os
import pathlib
import re
import sys
import types
import uuid
from typing import Any

from stepper.diagnosis.in_kernel.close_matches import join_items
from stepper.kernels.in_kernel.safe_inspect import (
    SIZED_TYPES,
    call_safely,
    format_class_name,
    get_mro,
    get_qualname,
    get_top_module,
    is_a,
    is_library_object,
    is_one_of,
    is_pandas,
    list_class_names,
    peek,
    shorten,
)
from stepper.kernels.in_kernel.signatures import describe_callable

MAX_CELLS = 2_000_000  # of an array or table whose values are inspected
MAX_COLUMNS = 400
MAX_VALUE = 60  # characters of a value
MAX_LIST = 90  # characters of a list of names or values
MAX_NAME = 80  # characters of a name or label
MAX_SHORT_NAME = 40  # characters of a name or value in a list
MAX_LONG_TEXT = 120  # characters of a call, a dtype or the contents of a folder
MAX_KEYS = 20  # of a dict that are inspected
MAX_ITEMS = 1000  # of a container that are inspected
MAX_LISTED_CELLS = 8  # of an array whose values are all shown
MAX_CONTAINER = 12  # items of a container that is shown itself
MAX_LABEL_PARTS = 6  # of a label that is a tuple
MAX_DISTINCT = 4  # classes or lengths of a list's items that are shown
TEXT_MARGIN = 40  # characters that a formatted value may have beyond its limit
NUMBERS = (int, float, bool, complex)
TEXTS = (str, bytes)
SEQUENCES = (list, tuple)
CONTAINERS = (dict, list, tuple)
SCALARS = (*NUMBERS, *TEXTS)
PLAIN_LABELS = (str, int, float, bool, type(None))
PATHS = (pathlib.PosixPath, pathlib.PurePosixPath)
PLAIN_CLASSES = (
    datetime.date,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    *PATHS,
)
STREAMS = (
    io.TextIOWrapper,
    io.BufferedReader,
    io.FileIO,
    io.BufferedWriter,
)
# Classes of values with a time zone, and modules of time zones that are safe to format.
ZONED_TIMES = (datetime.datetime, datetime.time)
TIME_ZONE_MODULES = (
    "builtins",
    "datetime",
    "zoneinfo",
    "pytz",
    "dateutil",
    "backports",
)
PANDAS_TIMES = ("Timestamp", "Timedelta", "Period")
TEXT_DTYPES = ("object", "str", "string", "category")
NUMPY_FUNCTIONS = ("ufunc", "_ArrayFunctionDispatcher")
LABEL_MODULES = ("pandas", "numpy", "datetime")
CALLABLE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    staticmethod,
    classmethod,
)
# Callables that contain the function to describe in `__func__`.
WRAPPERS = (types.MethodType, staticmethod, classmethod)


def get_class_name(value: Any) -> str:
    """Return the name of a value's class, without its module, for a message."""
    if value is None:
        return "None"
    qualified_name = get_qualname(type(value))
    _, _, name = qualified_name.rpartition(".")
    return format_name(name)


def format_name(name: str) -> str:
    """Return the name of a class, function or module for a message.

    A name that is not an identifier is quoted: code can give a class any name, and the
    name must not look like a line of stepper's report.
    """
    if re.fullmatch(r"[\w.<>]+", name):
        return shorten(name, MAX_NAME)
    quoted = repr(shorten(name, MAX_VALUE))
    return quoted.replace(".", "·")  # a dot would end the sentence with the name


def is_data(value: Any) -> bool:
    """Return whether a value is not a module, function or class."""
    if is_a(value, (types.ModuleType, type, *CALLABLE)):
        return False
    kind = type(value)
    if get_qualname(kind) not in NUMPY_FUNCTIONS:
        return True
    return get_top_module(kind) != "numpy"


def format_plain_value(value: Any, limit: int = 80, depth: int = 2) -> str | None:
    """Return a plain value as text, or a short container of plain values.

    The text has about `limit` characters at most. `depth` is the number of levels of
    nested containers that are formatted. Return None for other values, because their
    `__repr__` may be the user's code.
    """
    text = format_scalar(value, limit)
    if text is None and is_library_object(value):
        text = format_library_value(value)
    if text is None and depth:
        text = format_container(value, limit, depth)
    if text is None:
        return None
    return shorten(text, limit + TEXT_MARGIN)


def format_scalar(value: Any, limit: int) -> str | None:
    """Return a value of a builtin or standard class as text.

    Return None for values of other classes, for large integers, and for objects that
    contain values of unknown classes.
    """
    kind = type(value)
    if value is None:
        return "None"
    if is_one_of(kind, NUMBERS):
        is_long = kind is int and abs(value) >= 2**63
        return None if is_long else repr(value)
    if is_one_of(kind, TEXTS):
        text = repr(value[:limit])
        if len(value) > limit:
            text += "…"
        return text
    if is_one_of(kind, PLAIN_CLASSES):
        return str(value)
    if is_one_of(kind, ZONED_TIMES):
        zone_class = type(value.tzinfo)
        is_known_zone = get_top_module(zone_class) in TIME_ZONE_MODULES
        return str(value) if is_known_zone else None
    if is_one_of(kind, STREAMS):
        name = getattr(value, "name", None)  # a stream in memory has none
        if type(name) is str:
            return repr(name)
        return None
    if kind is re.Pattern:
        return repr(value.pattern)
    return None


def format_library_value(value: Any) -> str | None:
    """Return the text of a NumPy or pandas scalar, or the class and shape of an array.

    Return None for other values.
    """
    kind = type(value)
    if get_qualname(kind) in PANDAS_TIMES:
        return str(value)
    if "numpy.generic" in list_class_names(kind):
        return str(value)
    shape = get_shape(value)
    if shape is None:
        return None
    name = get_class_name(value)
    return f"{name} {shape}"


def format_container(value: Any, limit: int, depth: int) -> str | None:
    """Return a short dict, list or tuple as text, or None for other values.

    Items without a text are replaced by `…`.
    """
    kind = type(value)
    if not is_one_of(kind, CONTAINERS):
        return None
    if len(value) > MAX_CONTAINER:
        return None
    texts = []
    if kind is dict:
        for key, item in value.items():
            key_text = format_plain_value(key, limit, depth - 1) or "…"
            item_text = format_plain_value(item, limit, depth - 1) or "…"
            texts.append(f"{key_text}: {item_text}")
        content = ", ".join(texts)
        return "{" + content + "}"
    for item in value:
        text = format_plain_value(item, limit, depth - 1)
        texts.append(text or "…")
    content = ", ".join(texts)
    if kind is list:
        return f"[{content}]"
    comma = "," if len(texts) == 1 else ""
    return f"({content}{comma})"


def format_label(value: Any) -> str:
    """Return a row or column label, or a key, as text.

    A label of an unknown class is represented by the name of the class.
    """
    kind = type(value)
    if is_one_of(kind, PLAIN_LABELS):
        return shorten(repr(value), MAX_NAME)
    if kind is tuple:
        labels = [format_label(part) for part in value[:MAX_LABEL_PARTS]]
        content = ", ".join(labels)
        comma = "," if len(labels) == 1 else ""
        return f"({content}{comma})"
    if get_top_module(kind) in LABEL_MODULES:
        return shorten(str(value), MAX_NAME)
    return format_class_name(kind)


def get_length(value: Any) -> int | None:
    """Return the length of a container or array, or None if it is unknown."""
    for kind in get_mro(type(value)):
        if is_one_of(kind, SIZED_TYPES):
            length = kind.__len__(value)
            return int(length)
    if not is_library_object(value):
        return None
    shape = get_shape(value)
    if not shape:
        return None
    return int(shape[0])


def get_shape(value: Any) -> tuple[Any, ...] | None:
    """Return the shape of a library's object as a tuple, or None if it has none."""
    shape: Any = getattr(value, "shape", None)
    if type(shape) is tuple:
        return shape
    # The shape of a tensor is a `torch.Size`, a subclass of tuple.
    if is_a(shape, tuple) and is_library_object(shape):
        return tuple(shape)
    return None


def describe_value(value: Any) -> str:
    """Return a short description of a value."""
    kind = type(value)
    name = get_class_name(value)
    text = format_plain_value(value, MAX_VALUE)
    is_scalar = value is None or is_one_of(kind, SCALARS)
    if is_scalar:
        short_text = text or name
        if len(short_text) <= MAX_VALUE:
            return short_text
    if is_a(value, CALLABLE):
        return describe_function(value)
    parts = [name]
    if is_library_object(value):
        call_safely(add_array_parts, value, parts)
    elif get_length(value) is not None:
        call_safely(add_container_parts, value, parts, text)
    elif text is not None:
        parts = [f"{text} ({name})"]
        if is_one_of(kind, PATHS):
            folder = describe_folder(str(value))
            parts.append(folder)
    elif is_a(value, (types.ModuleType, type)):
        noun = "class" if is_a(value, type) else "module"
        own_name = format_name(get_name(value))
        parts = [f"the {noun} {own_name}"]
    return ", ".join(filter(None, parts))


def describe_function(value: Any) -> str:
    """Return a phrase with the name and signature of a callable, if they are known."""
    function = value
    if is_one_of(type(value), WRAPPERS):
        function = value.__func__  # a method object has no name in its `__dict__`
    name = str(peek(function, "__name__", ""))
    signature = describe_callable(value)
    noun = "method" if is_method(value) else "function"
    if not signature or not name:
        return f"a {noun}"
    call = format_name(name) + signature.text
    short_call = shorten(call, MAX_LONG_TEXT)
    return f"the {noun} {short_call}"


def is_method(value: Any) -> bool:
    """Return whether a callable is a method of an object or a class."""
    if is_a(value, types.FunctionType):
        return False
    if not is_a(value, types.BuiltinFunctionType):
        return True
    bound_object = peek(value, "__self__")
    if bound_object is None:
        return False
    return not is_a(bound_object, types.ModuleType)


def get_name(value: Any) -> str:
    """Return the name of a class or module."""
    if is_a(value, type):
        return str(get_qualname(value))
    name = peek(value, "__name__")
    return str(name)


def describe_folder(path: str) -> str:
    """Return a phrase with the names in a folder.

    Return an empty string if the path is not a folder.
    """
    if not os.path.isdir(path):
        return ""
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return "a folder that cannot be read"
    if not names:
        return "an empty folder"
    contents = join_items(names, MAX_LONG_TEXT)
    return f"a folder that contains {contents}"


def add_container_parts(value: Any, parts: list[str], text: str | None) -> None:
    """Add the length, items and keys of a container to the parts of a description.

    The first part is the name of the class. `text` is the container as text, or None.
    A short text is inserted before the class.
    """
    length = get_length(value)
    parts.append(f"length {length}")
    max_length = 2 * MAX_VALUE
    if is_one_of(type(value), SEQUENCES) and value:
        add_item_parts(value[:MAX_ITEMS], parts)
    elif is_a(value, dict):
        max_length = MAX_VALUE
        add_key_part(value, parts)
    if text is not None and len(text) <= max_length:
        parts[0] = f"{text} ({parts[0]})"


def add_key_part(value: Any, parts: list[str]) -> None:
    """Add the strings and integers among the first MAX_KEYS keys of a dict to `parts`.

    Nothing is added if there are none.
    """
    keys = list(dict.keys(value))
    texts = []
    for key in keys[:MAX_KEYS]:
        if is_one_of(type(key), (str, int)):
            text = shorten(repr(key), MAX_SHORT_NAME)
            texts.append(text)
    if texts:
        joined = join_items(texts, MAX_LIST)
        parts.append(f"keys {joined}")


def add_item_parts(items: Any, parts: list[str]) -> None:
    """Add the classes of a list's items to the last part, and their lengths to `parts`.

    The lengths are left out if there are more than MAX_DISTINCT.
    """
    names = set()
    lengths: set[Any] = set()
    for item in items:
        kind = type(item)
        name = shorten(get_qualname(kind), MAX_SHORT_NAME)
        names.add(name)
        if is_one_of(kind, CONTAINERS) or is_library_object(item):
            length = get_length(item)
            lengths.add(length)
    shown_names = sorted(names)[:MAX_DISTINCT]
    alternatives = "/".join(shown_names)
    parts[-1] += f" of {alternatives}"
    lengths.discard(None)
    if 0 < len(lengths) <= MAX_DISTINCT:
        numbers = ", ".join(map(str, sorted(lengths)))
        parts.append(f"lengths of the items: {numbers}")


def add_array_parts(value: Any, parts: list[str]) -> None:
    """Add the shape, dtype or columns, and contents of an array or table to `parts`.

    The first of the `parts` is the name of the class. The shape is appended to this
    part. The value of a NumPy scalar is inserted before the name.
    """
    shape = get_shape(value)
    if not shape:  # a scalar, or an object that is no array
        scalar_dtype = getattr(value, "dtype", None)
        # The text of an object in an array could run the user's code.
        has_object = getattr(scalar_dtype, "hasobject", False)
        if get_top_module(type(value)) == "numpy" and not has_object:
            text = shorten(str(value), MAX_VALUE)
            parts[0] = f"{text} ({parts[0]})"
        return
    if is_pandas(value, "DataFrame"):
        # `dtype` of a DataFrame would be a column with this name.
        add_frame_parts(value, parts)
        return
    parts[0] += f" {shape}"
    dtype = getattr(value, "dtype", None)
    dtype_text = ""
    if dtype is not None:
        if not is_library_object(dtype):
            return  # the text of the dtype could run the user's code
        dtype_text = str(dtype)
        short_dtype = shorten(dtype_text, MAX_LONG_TEXT)
        parts.append(short_dtype)
    if get_top_module(type(value)) == "torch":
        return  # reading the items of a tensor may wait for a GPU
    cell_count = math.prod(map(int, shape))
    if cell_count > MAX_CELLS:
        return
    is_index = is_pandas(value, "Index")
    is_text = dtype_text in TEXT_DTYPES
    if is_index or is_text or cell_count <= MAX_LISTED_CELLS:
        values = format_first_values(value)
        parts.append(values)
    dtype_kind = getattr(dtype, "kind", "")
    if dtype_kind == "f" and not is_index:
        missing_count = format_missing_count(value)
        parts.append(missing_count)


def add_frame_parts(frame: Any, parts: list[str]) -> None:
    """Add the shape and columns of a DataFrame to its description.

    The columns of a large DataFrame are left out.
    """
    row_count, column_count = frame.shape
    parts[0] += f" {row_count} × {column_count}"
    cell_count = row_count * column_count
    if cell_count <= MAX_CELLS and column_count <= MAX_COLUMNS:
        columns = join_items(describe_columns(frame), 2 * MAX_LIST)
        parts.append(f"columns {columns}")


def format_missing_count(values: Any) -> str:
    """Return a phrase with the number of values that are NaN or infinite.

    Return an empty string if all values are finite.
    """
    numpy = sys.modules["numpy"]
    if is_pandas(values, "Series"):
        # `isfinite` ignores the missing values of pandas' own number types.
        values = values.to_numpy(dtype=float, na_value=numpy.nan)
    is_missing = ~numpy.isfinite(values)
    count = int(is_missing.sum())
    if count == 0:
        return ""
    return f"{count:,} NaN or infinite"


def format_first_values(values: Any) -> str:
    """Return the first distinct values of an array, Series or Index as text."""
    if is_pandas(values, "Series"):
        values = values.iloc
    head = values[:MAX_ITEMS]
    texts: dict[str, None] = {}
    for item in head.tolist():
        text = format_plain_value(item, MAX_SHORT_NAME, 1)
        if text:
            texts[text] = None
    return join_items(list(texts), MAX_LIST)


def describe_columns(frame: Any) -> list[str]:
    """Return the names of a DataFrame's columns, with notes on some of them.

    Columns with missing values or text come first and have a note.
    """
    dtypes = frame.dtypes.tolist()
    if not all(map(is_library_object, dtypes)):
        # The `isna` of another dtype could be the user's code.
        return list(map(format_column_name, frame.columns))
    is_missing = frame.isna()
    missing_counts = is_missing.sum().tolist()
    noted = []
    plain = []
    for column, dtype, count in zip(frame.columns, dtypes, missing_counts):
        name = format_column_name(column)
        if count:
            noted.append(f"{name} ({count:,} NaN)")
        elif str(dtype) in TEXT_DTYPES:
            noted.append(f"{name} ({dtype})")
        else:
            plain.append(name)
    return noted + plain


def format_column_name(label: Any) -> str:
    """Return the label of a column, without quotes if the label is a string."""
    text = label if type(label) is str else format_label(label)
    return shorten(text, MAX_SHORT_NAME)
