"""Decode untrusted JSON values into dataclasses, and reject values of other types.

A field without a default is required. Each value must have the type of its field;
keys without a field are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from types import UnionType
from typing import (
    Annotated,
    Any,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")
Decoder = Callable[[Any], Any]
# The classes that a value may have in parsed JSON, for type hints with other classes.
JSON_TYPES: dict[Any, Any] = {
    float: (int, float),
    tuple: (list, tuple),
    Any: object,
}


def decode(cls: type[T], value: object) -> T:
    """Return a JSON value as an instance of a dataclass.

    Raise KeyError, TypeError, ValueError or RecursionError if the value does not
    match.
    """
    instance: T = _get_dataclass_decoder(cls)(value)
    return instance


def decode_valid_items(cls: type[T], values: Any) -> list[T]:
    """Return the items of a JSON list that match a dataclass, decoded.

    Return an empty list if `values` is not a list.
    """
    if not isinstance(values, list):
        return []
    instances = []
    for value in values:
        try:
            instances.append(decode(cls, value))
        except (KeyError, TypeError, ValueError, RecursionError):
            continue
    return instances


def _build_dataclass_decoder(cls: Any) -> Decoder:
    """Return a function that decodes a JSON object into an instance of a dataclass."""
    hints = get_type_hints(cls, include_extras=True)
    decoders = {}
    required_names = set()
    for field in fields(cls):
        decoders[field.name] = _build_decoder(hints[field.name])
        if _is_required(field):
            required_names.add(field.name)

    def decode_object(value: Any) -> Any:
        """Return an instance with the values in a JSON object."""
        data = _require_type(dict, value)
        arguments = {}
        for name, decoder in decoders.items():
            if name in required_names or name in data:
                arguments[name] = decoder(data[name])
        return cls(**arguments)

    return decode_object


_get_dataclass_decoder: Callable[[Any], Decoder] = cache(_build_dataclass_decoder)


def _is_required(field: Field[Any]) -> bool:
    """Return whether a field has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def _build_decoder(hint: Any) -> Decoder:
    """Return the decoder for a type hint."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Annotated:
        validator: Decoder = arguments[1]
        return validator
    if is_dataclass(hint):
        return _get_dataclass_decoder(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if origin is UnionType:
        options = []
        for option in arguments:
            json_type = _get_json_type(option)
            options.append((json_type, _build_decoder(option)))
        return partial(_decode_union, options)
    if origin is tuple:
        return _build_tuple_decoder(arguments)
    if hasattr(hint, "_make"):  # a NamedTuple
        item_hints = get_type_hints(hint).values()
        decoders = list(map(_build_decoder, item_hints))
        return partial(_decode_record, hint._make, decoders)
    if origin in (list, Sequence):
        decoder = _build_decoder(arguments[0])
        return partial(_decode_list, decoder)
    if origin in (dict, Mapping):
        decoder = _build_decoder(arguments[1])
        return partial(_decode_mapping, decoder)
    json_type = _get_json_type(hint)
    return partial(_require_type, json_type)


def _build_tuple_decoder(arguments: tuple[Any, ...]) -> Decoder:
    """Return the decoder for a tuple with these type arguments."""
    if arguments[-1] is ...:
        decoder = _build_decoder(arguments[0])
        return partial(_decode_tuple, decoder)
    decoders = list(map(_build_decoder, arguments))
    return partial(_decode_record, tuple, decoders)


def _decode_tuple(decoder: Decoder, value: Any) -> tuple[Any, ...]:
    """Decode a list of any length into a tuple, all items with the same decoder."""
    items = _require_type((list, tuple), value)
    return tuple(map(decoder, items))


def _decode_record(
    make: Any,
    decoders: list[Decoder],
    value: Any,
) -> Any:
    """Decode a list of fixed length, each item with its own decoder.

    `make` gets the list of decoded items. Raise ValueError for another length.
    """
    items = _require_type((list, tuple), value)
    decoded_items = []
    for decoder, item in zip(decoders, items, strict=True):
        decoded_items.append(decoder(item))
    return make(decoded_items)


def _decode_list(decoder: Decoder, value: Any) -> list[Any]:
    """Decode a list of any length, all items with the same decoder."""
    items = _require_type(list, value)
    return [decoder(item) for item in items]


def _decode_mapping(decoder: Decoder, value: Any) -> dict[str, Any]:
    """Decode the values of a JSON object, all with the same decoder."""
    mapping = _require_type(dict, value)
    return {str(name): decoder(item) for name, item in mapping.items()}


def _decode_union(options: list[tuple[Any, Decoder]], value: Any) -> Any:
    """Decode a value with the first option that accepts its class.

    `options` are pairs of the accepted classes and a decoder. Raise TypeError if no
    option accepts the value.
    """
    for json_type, decoder in options:
        if isinstance(value, json_type):
            return decoder(value)
    raise TypeError(f"unexpected value: {value!r:.100}")


def _get_json_type(hint: Any) -> Any:
    """Return the class or classes of parsed JSON values that a type hint accepts."""
    if is_dataclass(hint):
        return dict
    origin = get_origin(hint) or hint
    return JSON_TYPES.get(origin, origin)


def _require_type(json_type: Any, value: Any) -> Any:
    """Return a value of a class or of one of several classes.

    Raise TypeError if the value has another class.
    """
    if not isinstance(value, json_type):
        raise TypeError(f"unexpected value: {value!r:.100}")
    return value
