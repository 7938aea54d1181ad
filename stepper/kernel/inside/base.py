"""Looking at objects without running the user's code: no property, `__repr__` or `__getattr__` can be stopped once it
sleeps. Classes are asked by `type(x)`, never by `x.__class__`."""

from __future__ import annotations

import collections
import functools
import sys
import time
import types

from IPython import get_ipython

TEXT, CLASSES, CAUSES = 200, 40, 8
clock, getsizeof = time.monotonic, sys.getsizeof  # a cell may replace them
shell = get_ipython()
missing = object()
# Their objects are asked by their own methods and properties: known to return soon and to change nothing.
LIBRARIES = {"numpy", "pandas", "polars", "pyarrow", "scipy", "torch", "xarray", "geopandas"}
callables = (types.FunctionType, types.BuiltinFunctionType, functools._lru_cache_wrapper)
lengths = (str, bytes, bytearray, list, tuple, dict, set, frozenset, range, collections.deque)
name_of, module_of, classes_of, names_in = (
    type.__dict__[name].__get__ for name in ("__qualname__", "__module__", "__mro__", "__dict__")
)


def guarded(make, *given):
    try:
        return make(*given)
    except BaseException:  # SystemExit too: whatever the user's objects do
        return None


def short(text, limit=TEXT):
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return text.encode("utf-8", "replace").decode()


def one_of(kind, kinds):  # not `in`: it would ask the metaclass
    return any(kind is one for one in kinds)


def is_a(value, kind):
    return issubclass(type(value), kind)


def plain(value):
    if type(value) is str:
        return short(value)
    return value if type(value) is bool or (type(value) is int and abs(value) < 2**63) else None


def class_name(kind):
    module = module_of(kind)
    return short(name_of(kind) if type(module) is not str or module == "builtins" else module + "." + name_of(kind))


def class_names(kind):
    return [class_name(one) for one in classes_of(kind)]


def top_module(kind):
    module = module_of(kind)
    return module.split(".")[0] if type(module) is str else ""


def of_library(value):
    return top_module(type(value)) in LIBRARIES


def is_pandas(value, name):
    """Whether it is of that class of pandas, which lies elsewhere from version to version."""
    return any(name_of(kind) == name and top_module(kind) == "pandas" for kind in classes_of(type(value)))


def mro(error):
    names = class_names(type(error))
    return names if len(names) <= CLASSES else names[: CLASSES // 2] + names[-CLASSES // 2 :]


def peek(thing, name, default=None):
    """An attribute as it is stored: a property or a method comes back as itself, never called."""
    own = guarded(object.__getattribute__, thing, "__dict__")
    if type(own) is dict and name in own:
        return own[name]
    for kind in classes_of(type(thing)):
        found = names_in(kind).get(name, missing)
        if one_of(type(found), (types.MemberDescriptorType, types.GetSetDescriptorType)):
            return guarded(found.__get__, thing)
        if found is not missing:
            return found
    return default


def is_error(value):
    return is_a(value, BaseException)


def files():
    """IPython's map of the file names of cells to execution counts."""
    return getattr(shell.compile, "_filename_map", {})
