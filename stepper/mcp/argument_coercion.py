"""Convert arguments to the types of a tool's schema, if their meaning is unambiguous.

Models may write `null` for an omitted argument, "60" for a number, or a list as a JSON
string. Arguments that can't be converted stay unchanged, and validation rejects them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]
Arguments = Mapping[str, Any]
NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
INTEGER = re.compile(r"-?[0-9]{1,15}")
BOOLEANS = {"true": True, "false": False}
CONTAINERS: dict[str, type] = {"array": list, "object": dict}


def coerce_arguments(schema: Schema, arguments: Arguments) -> dict[str, Any]:
    """Return the arguments with the schema's types, without optional null values.

    Arguments that can't be converted, and arguments that the schema does not contain,
    are returned unchanged.
    """
    properties = schema.get("properties", {})
    required = schema.get("required", ())
    result = {}
    for name, value in arguments.items():
        is_optional = name in properties and name not in required
        if value is None and is_optional:
            continue
        property_schema = properties.get(name, {})
        result[name] = _coerce_value(property_schema, value)
    return result


def _coerce_value(schema: Schema, value: Any) -> Any:
    """Return a value with the schema's type, or unchanged if it can't be converted.

    The items of a list and of an object are also converted.
    """
    schema_type = schema.get("type", "")
    if isinstance(value, str):
        value = _coerce_text(schema_type, value)
    if schema_type == "array" and isinstance(value, list):
        item_schema = schema.get("items", {})
        return [_coerce_value(item_schema, item) for item in value]
    if schema_type == "object" and isinstance(value, dict):
        return coerce_arguments(schema, value)
    return value


def _coerce_text(schema_type: str, text: str) -> Any:
    """Return a text as a value of a JSON type, or unchanged if it has another type."""
    literal = text.strip()
    if schema_type == "number" and NUMBER.fullmatch(literal):
        return float(literal)
    if schema_type == "integer" and INTEGER.fullmatch(literal):
        return int(literal)
    if schema_type == "boolean":
        return BOOLEANS.get(literal.lower(), text)
    container = CONTAINERS.get(schema_type)
    if container is None:
        return text
    try:
        value = json.loads(literal)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, container):
        return value
    return text
