"""Inspection of objects without running the user's code.

Properties, `__repr__` and `__getattr__` of the user's classes are not called, because
code that sleeps could not be stopped. The class of an object is read by `type(x)`,
never by `x.__class__`.
"""

from __future__ import annotations

import collections
import functools
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterable
from typing import Any

from IPython import get_ipython

MAX_TEXT = 200  # characters
MAX_CLASSES = 40
MAX_CAUSES = 8
# References that stay valid if a cell replaces the originals.
clock = time.monotonic
getsizeof = sys.getsizeof
shell: Any = get_ipython()
missing: Any = object()
# Methods and properties of these libraries' objects may be called, because they return
# quickly and change nothing.
LIBRARIES = {
    "numpy",
    "pandas",
    "polars",
    "pyarrow",
    "scipy",
    "torch",
    "xarray",
    "geopandas",
}
FUNCTION_TYPES = (
    types.FunctionType,
    types.BuiltinFunctionType,
    functools._lru_cache_wrapper,
)
SIZED_TYPES = (
    str,
    bytes,
    bytearray,
    list,
    tuple,
    dict,
    set,
    frozenset,
    range,
    collections.deque,
)
SLOT_TYPES = (types.MemberDescriptorType, types.GetSetDescriptorType)
get_qualname: Callable[[type], str] = type.__dict__["__qualname__"].__get__
get_module: Callable[[type], Any] = type.__dict__["__module__"].__get__
get_mro: Callable[[Any], tuple[Any, ...]] = type.__dict__["__mro__"].__get__
get_class_dict: Callable[[Any], Any] = type.__dict__["__dict__"].__get__
# The errors that `call_safely` has suppressed since the last report: their "count", and
# the class and line of the "first" error.
suppressed_errors: dict[str, Any] = {}


def call_safely(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, or None if the function raises an exception.

    An inspection must not make a cell fail. Each failure is counted and reported.
    """
    try:
        return function(*arguments)
    except BaseException as error:  # user objects may even raise SystemExit
        count_failure(error)
        return None


def count_failure(error: BaseException) -> None:
    """Count a suppressed error for the report on this run."""
    suppressed_errors["count"] = suppressed_errors.get("count", 0) + 1
    if "first" not in suppressed_errors:
        origin = find_origin(error.__traceback__)
        suppressed_errors["first"] = f"{type(error).__name__} in {origin}"


def find_origin(trace: types.TracebackType | None) -> str:
    """Return the innermost line of the helper's code in a traceback, as text."""
    entries = [(frame.f_code, line) for frame, line in traceback.walk_tb(trace)]
    helper_entries = [
        entry for entry in entries if entry[0].co_filename.startswith("<stepper helper")
    ]
    code, line = (helper_entries or entries)[-1]
    return f"{code.co_filename} line {line}, {code.co_name}"


def shorten(text: str, limit: int = MAX_TEXT) -> str:
    """Return at most `limit` characters of a text, as valid Unicode."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text.encode("utf-8", "replace").decode()


def is_one_of(kind: Any, kinds: Iterable[Any]) -> bool:
    """Return whether a class is one of these classes.

    Classes are compared by identity, because `in` would call a metaclass's `__eq__`.
    """
    # The function runs for each name after each cell. `any` takes three times as long.
    for candidate in kinds:  # noqa: SIM110
        if kind is candidate:
            return True
    return False


def is_a(value: Any, kind: Any) -> bool:
    """Return whether a value is an instance of a class, or of one of several classes.

    `isinstance` would use `__class__`. For example, `isinstance(list[int], type)` is
    true before Python 3.11.
    """
    return issubclass(type(value), kind)


def to_plain_value(value: Any) -> Any:
    """Return a string, a bool or an integer of up to 64 bits, or None for other values.

    A long string is shortened.
    """
    if type(value) is str:
        return shorten(value)
    if type(value) is bool:
        return value
    if type(value) is int and abs(value) < 2**63:
        return value
    return None


def format_class_name(kind: Any) -> str:
    """Return the name of a class with its module. Builtins have no module."""
    module = get_module(kind)
    if type(module) is not str or module == "builtins":
        return shorten(get_qualname(kind))
    return shorten(module + "." + get_qualname(kind))


def list_class_names(kind: Any) -> list[str]:
    """Return the names of a class and its base classes, in method resolution order."""
    return [format_class_name(base) for base in get_mro(kind)]


def get_top_module(kind: Any) -> str:
    """Return the top-level package of a class, or an empty string if it is unknown."""
    module = get_module(kind)
    if type(module) is str:
        return module.split(".")[0]
    return ""


def is_library_object(value: Any) -> bool:
    """Return whether a value's class is defined in one of LIBRARIES."""
    return get_top_module(type(value)) in LIBRARIES


def is_pandas(value: Any, name: str) -> bool:
    """Return whether a value is an instance of the pandas class with this name."""
    # The class of a user's object may have a metaclass that runs code.
    if not is_library_object(value):
        return False
    for kind in get_mro(type(value)):
        if get_qualname(kind) == name and get_top_module(kind) == "pandas":
            return True
    return False


def list_columns(frame: Any) -> list[Any]:
    """Return the columns of a pandas DataFrame as arrays or Series.

    The frame's block manager is used if possible: creating a Series for each column
    would double the time of a step in a notebook with many frames.
    """
    get_values = getattr(getattr(frame, "_mgr", None), "iget_values", None)
    positions = range(frame.shape[1])
    if get_values:
        return [get_values(position) for position in positions]
    return [frame.iloc[:, position] for position in positions]


def list_error_class_names(error: BaseException) -> list[str]:
    """Return the names of an exception's class and base classes.

    The names in the middle of a long MRO are left out.
    """
    names = list_class_names(type(error))
    if len(names) > MAX_CLASSES:
        names = names[: MAX_CLASSES // 2] + names[-MAX_CLASSES // 2 :]
    return names


def get_own_attributes(thing: Any) -> dict[str, Any]:
    """Return the `__dict__` of an object, or an empty dict if it has none.

    The result is also empty for a class, whose `__dict__` is not a dict.
    """
    try:
        own = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return own if type(own) is dict else {}


def peek(thing: Any, name: str, default: Any = None) -> Any:
    """Return a stored attribute of an object, or `default` if there is none.

    An attribute of the class, such as a property or method, is returned without a call.
    """
    own = get_own_attributes(thing)
    if name in own:
        return own[name]
    for kind in get_mro(type(thing)):
        attribute = get_class_dict(kind).get(name, missing)
        if is_one_of(type(attribute), SLOT_TYPES):
            try:
                return attribute.__get__(thing)
            except AttributeError:  # an empty slot
                return default
        if attribute is not missing:
            return attribute
    return default


def is_error(value: Any) -> bool:
    """Return whether a value is an exception."""
    return is_a(value, BaseException)


def get_cell_files() -> dict[str, int]:
    """Return IPython's map from the file names of cells to execution counts."""
    return getattr(shell.compile, "_filename_map", {})
