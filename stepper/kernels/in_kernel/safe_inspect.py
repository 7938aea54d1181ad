"""Looking at objects without running the user's code: no property, `__repr__` or `__getattr__` can be stopped once it
sleeps. Classes are asked by `type(x)`, never by `x.__class__`."""

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

TEXT, CLASSES, CAUSES = 200, 40, 8
clock, getsizeof = time.monotonic, sys.getsizeof  # a cell may replace them
shell: Any = get_ipython()
missing: Any = object()
# Their objects are asked by their own methods and properties: known to return soon and
# to change nothing.
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
name_of: Callable[[type], str] = type.__dict__["__qualname__"].__get__
module_of: Callable[[type], Any] = type.__dict__["__module__"].__get__
classes_of: Callable[[Any], tuple[Any, ...]] = type.__dict__["__mro__"].__get__
class_dict_of: Callable[[Any], Any] = type.__dict__["__dict__"].__get__
# how many errors `guarded` kept quiet in this run, and where the first was
suppressed_errors: dict[str, Any] = {}


def call_safely(make: Callable[..., Any], *given: Any) -> Any:
    """What a function returns, None where it fails: a look must not fail a cell. Each failure is counted and told."""
    try:
        return make(*given)
    except BaseException as error:  # SystemExit too: whatever the user's objects do
        count_failure(error)
        return None


def count_failure(error: BaseException) -> None:
    suppressed_errors["count"] = suppressed_errors.get("count", 0) + 1
    suppressed_errors.setdefault(
        "first", f"{type(error).__name__} in {find_origin(error.__traceback__)}"
    )


def find_origin(trace: types.TracebackType | None) -> str:
    """The innermost line of the helper's own on the way to an error."""
    codes = [(frame.f_code, line) for frame, line in traceback.walk_tb(trace)]
    code, line = (
        [found for found in codes if found[0].co_filename.startswith("<stepper helper")]
        or codes
    )[-1]
    return f"{code.co_filename} line {line}, {code.co_name}"


def shorten(text: str, limit: int = TEXT) -> str:
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return text.encode("utf-8", "replace").decode()


# not `in`: it would ask the metaclass
def is_one_of(kind: Any, kinds: Iterable[Any]) -> bool:
    for one in kinds:  # noqa: SIM110  # `any` takes three times as long, for each name after each cell
        if kind is one:
            return True
    return False


def is_a(value: Any, kind: Any) -> bool:
    return issubclass(type(value), kind)


def to_plain_value(value: Any) -> Any:
    if type(value) is str:
        return shorten(value)
    return (
        value
        if type(value) is bool or (type(value) is int and abs(value) < 2**63)
        else None
    )


def class_name(kind: Any) -> str:
    module = module_of(kind)
    return shorten(
        name_of(kind)
        if type(module) is not str or module == "builtins"
        else module + "." + name_of(kind)
    )


def class_names(kind: Any) -> list[str]:
    return [class_name(one) for one in classes_of(kind)]


def top_module(kind: Any) -> str:
    module = module_of(kind)
    return module.split(".")[0] if type(module) is str else ""


def is_library_object(value: Any) -> bool:
    return top_module(type(value)) in LIBRARIES


def is_pandas(value: Any, name: str) -> bool:
    """Whether it is of that class of pandas, which lies elsewhere from version to version."""
    # a class of the user's own may run code of theirs
    kinds = classes_of(type(value)) if is_library_object(value) else ()
    return any(name_of(kind) == name and top_module(kind) == "pandas" for kind in kinds)


def list_columns(frame: Any) -> list[Any]:
    """The columns of a pandas frame as arrays, of numpy's or pandas' own kinds, or as series.

    By its own manager where that can tell: a series made of each column would cost a step in which many frames are
    about as much as the rest of it.
    """
    values = getattr(getattr(frame, "_mgr", None), "iget_values", None)
    return [values(at) if values else frame.iloc[:, at] for at in range(frame.shape[1])]


def list_class_names_of_error(error: BaseException) -> list[str]:
    names = class_names(type(error))
    return (
        names
        if len(names) <= CLASSES
        else names[: CLASSES // 2] + names[-CLASSES // 2 :]
    )


def own_names(thing: Any) -> dict[str, Any]:
    """What a thing stores itself; nothing where it has no dict of its own."""
    try:
        own = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return own if type(own) is dict else {}


def peek(thing: Any, name: str, default: Any = None) -> Any:
    """An attribute as it is stored: a property or a method comes back as itself, never called."""
    own = own_names(thing)
    if name in own:
        return own[name]
    for kind in classes_of(type(thing)):
        found = class_dict_of(kind).get(name, missing)
        if is_one_of(
            type(found), (types.MemberDescriptorType, types.GetSetDescriptorType)
        ):
            try:
                return found.__get__(thing)
            except AttributeError:  # a slot that holds nothing
                return None
        if found is not missing:
            return found
    return default


def is_error(value: Any) -> bool:
    return is_a(value, BaseException)


def get_cell_files() -> dict[str, int]:
    """IPython's map of the file names of cells to execution counts."""
    return getattr(shell.compile, "_filename_map", {})
