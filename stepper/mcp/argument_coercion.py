"""The arguments of a call as clients send them, made what the tool's schema asks for where that is unambiguous.

Models write `null` for an argument that they leave out, "60" for a number and a JSON list in a string. What is left
wrong is refused by the schema, as it was sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
INTEGER = re.compile(r"-?[0-9]{1,15}")
BOOLEANS = {"true": True, "false": False}
CONTAINERS: dict[str, type] = {"array": list, "object": dict}


def parse(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without the optional ones that are null, the others of the schema's types."""
    properties = schema.get("properties", {})
    required = schema.get("required", ())
    parsed = {}
    for name, value in arguments.items():
        optional = name in properties and name not in required
        if value is None and optional:
            continue
        parsed[name] = typed(properties.get(name, {}), value)
    return parsed


def typed(schema: Mapping[str, Any], value: Any) -> Any:
    """Return a value of the schema's type where it means one, else as it is."""
    kind = schema.get("type")
    if isinstance(value, str):
        value = _from_text(kind, value)
    if kind == "array" and isinstance(value, list):
        return [typed(schema.get("items", {}), item) for item in value]
    if kind == "object" and isinstance(value, dict):
        return parse(schema, value)
    return value


def _from_text(kind: Any, text: str) -> Any:
    stripped = text.strip()
    if kind == "number" and NUMBER.fullmatch(stripped):
        return float(stripped)
    if kind == "integer" and INTEGER.fullmatch(stripped):
        return int(stripped)
    if kind == "boolean":
        return BOOLEANS.get(stripped.lower(), text)
    if kind in CONTAINERS:
        try:
            value = json.loads(stripped)
        except (ValueError, RecursionError):
            return text
        return value if isinstance(value, CONTAINERS[kind]) else text
    return text
