"""Signatures of callables as text.

`inspect.signature` formats default values with their `__repr__`, which may be the
user's code. This module shows only default values of well-known types.
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.safe_inspect import (
    LIBRARIES,
    call_safely,
    get_class_dict,
    get_mro,
    get_qualname,
    is_a,
    is_library_object,
    peek,
    shorten,
)

MAX_DEFAULT = 40  # characters of a string
MAX_ANNOTATION = 80
MAX_WRAPPERS = 8
POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
VARARGS = inspect.CO_VARARGS
VARKEYWORDS = inspect.CO_VARKEYWORDS
# Packages whose default values may be formatted by their `__repr__`.
TRUSTED_PACKAGES = LIBRARIES | {
    "sklearn",
    "matplotlib",
    "seaborn",
    "requests",
    *getattr(sys, "stdlib_module_names", ()),
}
C_FUNCTION_TYPES = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


class Signature(NamedTuple):
    """A signature as text, such as `(a, b=1)`, and the names of its parameters."""

    text: str
    parameter_names: list[str]


def format_signature(function: Any) -> str:
    """Return the signature of a Python function as text, such as `(a, b=1) -> int`.

    Return an empty string for a function in C.
    """
    function = unwrap(function)
    if type(function) is not types.FunctionType:
        return ""
    text = "(" + ", ".join(format_parameters(function)) + ")"
    annotations = get_annotations(function)
    annotation = format_annotation(annotations, "return")
    if annotation:
        text += " -> " + annotation
    return shorten(text)


def get_annotations(function: Any) -> dict[str, Any]:
    """Return the annotations of a function, or {} if evaluating them fails."""
    return call_safely(getattr, function, "__annotations__") or {}


def format_parameters(function: Any) -> list[str]:
    """Return the parameters of a Python function as texts, including `/` and `*`."""
    code = function.__code__
    count = code.co_argcount
    keyword_end = count + code.co_kwonlyargcount
    names = list(code.co_varnames)
    annotations = get_annotations(function)
    last_names = names[:count][::-1]
    last_defaults = (function.__defaults__ or ())[::-1]
    defaults = dict(zip(last_names, last_defaults))
    defaults.update(function.__kwdefaults__ or {})

    def format_all(selected: list[str]) -> list[str]:
        """Return these parameters as texts."""
        return [format_argument(name, annotations, defaults) for name in selected]

    parameters = format_all(names[:count])
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    remaining = names[keyword_end:]
    if code.co_flags & VARARGS:
        parameters.append("*" + format_argument(remaining.pop(0), annotations, {}))
    elif code.co_kwonlyargcount:
        parameters.append("*")
    parameters += format_all(names[count:keyword_end])
    if code.co_flags & VARKEYWORDS:
        parameters.append("**" + format_argument(remaining.pop(0), annotations, {}))
    return parameters


def format_argument(
    name: str, annotations: dict[str, Any], defaults: dict[str, Any]
) -> str:
    """Return a parameter as text, with its annotation and default value."""
    annotation = format_annotation(annotations, name)
    text = f"{name}: {annotation}" if annotation else name
    if name not in defaults:
        return text
    separator = " = " if annotation else "="
    return text + separator + format_default(defaults[name])


def format_default(value: Any) -> str:
    """Return a default value as text. A long string is shortened.

    Return `…` for a large integer and for a value that is not a scalar.
    """
    kind = type(value)
    if kind is str:
        return repr(shorten(value, MAX_DEFAULT))
    if kind is int and abs(value) >= 2**63:
        return "…"
    if value is None or kind in (bool, float, int):
        return repr(value)
    return "…"


def format_annotation(annotations: dict[str, Any], name: str) -> str:
    """Return the annotation of a parameter, or of the result (`return`), as text.

    Return an empty string if there is no annotation, or if the annotation is not a
    string, a class or None.
    """
    if name not in annotations:
        return ""
    annotation = annotations[name]
    if annotation is None or type(annotation) is str:
        return shorten(str(annotation), MAX_ANNOTATION)
    if is_a(annotation, type):
        return get_qualname(annotation)
    return ""


def describe_callable(thing: Any) -> Signature | None:
    """Return the signature of a function, method or class.

    Return None if the signature is unknown, or if its default values may run the user's
    code. `self` and `cls` are left out if the caller does not pass them.
    """
    function, is_first_bound = find_function(thing)
    if is_a(function, type) and not has_standard_defaults(function):
        return None
    # matplotlib sets `__signature__`, which is easier to read than the real one.
    documented = getattr(function, "__dict__", {}).get("__signature__")
    if type(function) is types.FunctionType and documented is None:
        texts = format_parameters(unwrap(function))
        if is_first_bound:
            texts = remove_first_parameter(texts)
        return Signature("(" + ", ".join(texts) + ")", list_parameter_names(texts))
    if not has_standard_defaults(function) and not is_library_object(function):
        return None
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a C function without a signature
        return None
    parameters = list(signature.parameters.values())
    if is_first_bound and parameters and parameters[0].kind in POSITIONAL:
        parameters = parameters[1:]
    passed = signature.replace(parameters=parameters, return_annotation=signature.empty)
    return Signature(str(passed), list(passed.parameters))


def remove_first_parameter(parameters: list[str]) -> list[str]:
    """Return formatted parameters without the first one, such as `self`.

    `*args` stays, because it also receives the arguments of the caller. A `/` after the
    first parameter is removed, too.
    """
    if not parameters or parameters[0].startswith("*"):
        return parameters
    remaining = parameters[1:]
    if remaining and remaining[0] == "/":
        return remaining[1:]
    return remaining


def find_function(thing: Any) -> tuple[Any, bool]:
    """Return the function that a call of a callable executes.

    The second item is true if the caller does not pass the first argument, such as
    `self`. A class without a Python `__init__` is returned unchanged.
    """
    function = thing
    is_first_bound = False
    if is_a(thing, type):
        initializer = find_initializer(thing)
        if type(initializer) is types.FunctionType:
            function = initializer
            is_first_bound = True
    elif type(thing) is types.MethodType:
        function = thing.__func__
        is_first_bound = True
    if type(function) is classmethod:
        return function.__func__, True
    if type(function) is staticmethod:
        return function.__func__, False
    return function, is_first_bound


def list_parameter_names(parameters: list[str]) -> list[str]:
    """Return the names of parameters that `format_parameters` has formatted."""
    names = []
    for parameter in parameters:
        name = parameter.lstrip("*").split(":")[0].split("=")[0].strip()
        if name and name != "/":
            names.append(name)
    return names


def find_initializer(kind: Any) -> Any:
    """Return the `__init__` that a class defines or inherits, or None."""
    for base in get_mro(kind):
        if "__init__" in get_class_dict(base):
            return get_class_dict(base)["__init__"]
    return None


def unwrap(function: Any) -> Any:
    """Return the innermost function in a decorated function, or the function itself."""
    for _ in range(MAX_WRAPPERS):
        inner = getattr(function, "__dict__", {}).get("__wrapped__")
        if type(inner) is not types.FunctionType:
            return function
        function = inner
    return function


def has_standard_defaults(thing: Any) -> bool:
    """Return whether the default values of a callable may be formatted by `__repr__`.

    This is true for callables in C and those of TRUSTED_PACKAGES.
    """
    if type(thing) in C_FUNCTION_TYPES:
        return True
    module = peek(thing, "__module__")
    if type(module) is not str:
        return False
    return module == "builtins" or module.split(".")[0] in TRUSTED_PACKAGES
