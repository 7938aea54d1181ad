"""The one reader of what the kernel tells: JSON in, frozen dataclasses out, and a refusal of what is not so."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterable
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")
hints = functools.cache(get_type_hints)


def read(kind: type[Kind], value: Any) -> Kind:
    """Return a JSON value as a dataclass, with what it does not know left out; raise TypeError where it is not so."""
    made: Kind = _read(kind, value)
    return made


def read_all(kind: type[Kind], values: Iterable[Any]) -> list[Kind]:
    """Return those of some values that are of a kind."""
    made = []
    for value in values if isinstance(values, list) else ():
        try:
            made.append(read(kind, value))
        except TypeError:
            continue
    return made


def _read(kind: Any, value: Any) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and type(value) is dict:
        return kind(**{name: _read(part, value[name]) for name, part in hints(kind).items() if name in value})
    if origin is tuple and type(value) is list:
        parts = parts[:1] * len(value) if parts[-1] is ... else parts
        if len(parts) == len(value):
            return tuple(map(_read, parts, value))
    if origin in (Union, types.UnionType):
        fits = [part for part in parts if type(value) is part or (part is float and type(value) is int)]
        return _read(fits[0] if fits else type(None), value)
    if type(value) is kind or (kind is float and type(value) is int):
        return value
    raise TypeError(f"{value!r:.80} is not of the type {kind}")
