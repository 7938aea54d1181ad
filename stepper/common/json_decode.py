"""The one reader of JSON that somebody else may have written: dataclasses out, and a refusal of what is not so.

What has no default must be there, everything that is there must be of the kind that its field has, and keys without a
field are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")
Reader = Callable[[Any], Any]


def decode(kind: type[Kind], value: object) -> Kind:
    """Return a JSON value as a dataclass; raise KeyError, TypeError, ValueError, RecursionError where it is not so."""
    made: Kind = _cached(kind)(value)
    return made


def decode_valid_items(kind: type[Kind], values: Any) -> list[Kind]:
    """Return those of some JSON values that are of a kind; none where they are no list."""
    made = []
    for value in values if isinstance(values, list) else ():
        try:
            made.append(decode(kind, value))
        except (KeyError, TypeError, ValueError, RecursionError):
            continue
    return made


def _record(cls: Any) -> Reader:
    hints = get_type_hints(cls, include_extras=True)
    known = [
        (
            field.name,
            _reader(hints[field.name]),
            field.default is field.default_factory is MISSING,
        )
        for field in fields(cls)
    ]
    return lambda value: cls(
        **{
            name: of(value[name])
            for name, of, must in known
            if must or name in _a(dict, value)
        }
    )


_cached: Callable[[Any], Reader] = cache(_record)


def _reader(kind: Any) -> Reader:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        check: Reader = inside[1]
        return check
    if origin is UnionType:
        return partial(_either, [(_in_json(each), _reader(each)) for each in inside])
    if is_dataclass(kind):
        return _cached(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if origin is tuple and inside[-1] is ...:
        each = _reader(inside[0])
        return lambda value: tuple(map(each, _a((list, tuple), value)))
    if origin is tuple or hasattr(kind, "_make"):  # a NamedTuple
        make, held = (
            (tuple, inside) if origin else (kind._make, get_type_hints(kind).values())
        )
        places = [_reader(place) for place in held]
        return lambda value: make(
            read(item)
            for read, item in zip(places, _a((list, tuple), value), strict=True)
        )
    if origin is list:
        of_item = _reader(inside[0])
        return lambda value: [of_item(item) for item in _a(list, value)]
    if origin in (dict, Mapping):
        of_value = _reader(inside[1])
        return lambda value: {
            str(name): of_value(item) for name, item in _a(dict, value).items()
        }
    form = _in_json(kind)
    return lambda value: _a(form, value)


def _either(readers: list[tuple[Any, Reader]], value: Any) -> Any:
    for form, of in readers:
        if isinstance(value, form):
            return of(value)
    raise TypeError(f"not {value!r:.100}")


def _in_json(kind: Any) -> Any:
    """Return as which classes a value of that type stands in JSON."""
    if is_dataclass(kind):
        return dict
    origin = get_origin(kind) or kind
    return {float: (int, float), tuple: (list, tuple), Any: object}.get(origin, origin)


def _a(form: Any, value: Any) -> Any:
    if not isinstance(value, form):
        raise TypeError(f"not {value!r:.100}")
    return value
