"""Input schemas of MCP tools, derived from the declarations of arguments.

In MCP tools, an argument can have another name or another default than in the request
to the daemon: `get_tool_name` and `get_tool_default` return them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from typing import Any

from stepper.policy.commands.command_schema import (
    HELP,
    TOOL_DEFAULT,
    TOOL_NAME,
    get_annotation,
    list_accepted_types,
)

Schema = dict[str, Any]
# Schemas by annotation. `anyOf` is used because some clients do not support lists of
# types.
TYPES: dict[str, Schema] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "str | int": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    "Any": {},
}
# Key of an argument's metadata → the schema's keyword for a value, and for a list.
KEYWORDS = {
    "minimum": ("minimum", "minimum"),
    "maximum": ("maximum", "maximum"),
    "min_length": ("minLength", "minItems"),
    "choice": ("enum", "enum"),
}


def get_tool_name(argument: Field[Any]) -> str:
    """Return the name of an argument in MCP tools."""
    name: str = argument.metadata.get(TOOL_NAME, argument.name)
    return name


def get_tool_default(argument: Field[Any]) -> Any:
    """Return the default of an argument in MCP tools; MISSING if it is required."""
    return argument.metadata.get(TOOL_DEFAULT, argument.default)


def make_object_schema(arguments: Iterable[Field[Any]]) -> Schema:
    """Return the schema of an object whose only properties are these arguments."""
    properties = {}
    required_names = []
    for argument in arguments:
        name = get_tool_name(argument)
        properties[name] = make_argument_schema(argument)
        if get_tool_default(argument) is MISSING:
            required_names.append(name)
    schema: Schema = {"type": "object", "properties": properties}
    if required_names:
        schema["required"] = required_names
    schema["additionalProperties"] = False
    return schema


def make_argument_schema(argument: Field[Any]) -> Schema:
    """Return the schema of an argument: type, limits, choices, default, description."""
    metadata = argument.metadata
    is_list = list in list_accepted_types(argument)
    schema = _make_type_schema(argument, is_list=is_list)
    for key, (value_keyword, list_keyword) in KEYWORDS.items():
        if key in metadata:
            keyword = list_keyword if is_list else value_keyword
            limit = metadata[key]
            schema[keyword] = list(limit) if key == "choice" else limit
    default = get_tool_default(argument)
    if default is not None and default is not MISSING:
        schema["default"] = default
    schema["description"] = metadata[HELP]
    return schema


def _make_type_schema(argument: Field[Any], *, is_list: bool) -> Schema:
    """Return the schema of an argument's type, with the schema of the items of a list.

    The result is a new dict, to which the caller may add keys.
    """
    annotation = get_annotation(argument)
    if not is_list:
        return {**TYPES[annotation]}
    items = argument.metadata.get("items")
    if items is None:
        item_annotation = annotation.removeprefix("list[").removesuffix("]")
        item_schema = {**TYPES[item_annotation]}
    elif isinstance(items, dict):
        item_schema = items
    else:
        item_schema = make_object_schema(fields(items))
    return {"type": "array", "items": item_schema}
