"""Write the schemas of the data that MCP tools return.

    python docs/output_schemas.py

The schemas come from the response models in `stepper/session`, which the MCP server may
not import: `stepper/mcp/output_schemas.json` contains them.
`tests/test_command_declaration.py` fails if the file is not up to date.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepper.mcp import tools
from stepper.messages.stale_cells import Mark
from stepper.policy.comparison.verify_results import VerifyResult
from stepper.policy.undo.requested_undo import UndoReach
from stepper.session import mcp_responses, responses

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "stepper" / "mcp" / "output_schemas.json"
# Names that the response models import for type checking only.
NAMES = {
    "CellRunResponse": mcp_responses.CellRunResponse,
    "Mark": Mark,
    "Resources": mcp_responses.Resources,
    "UndoReach": UndoReach,
}
TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
TEXT = {"type": "string", "description": "The same, as text."}


def make_schemas() -> dict[str, Any]:
    """Return the schema of each tool that returns data."""
    entry_list = list[responses.NotebookEntry]
    history = list[responses.HistoryEntry]
    models: dict[str, tuple[type, dict[str, Any]]] = {
        "list_notebooks": (tools.NotebookPage, {"notebooks": entry_list}),
        "create_notebook": (responses.NotebookCreatedResponse, {}),
        "read_notebook": (mcp_responses.CellReadResponse, {}),
        "verify": (VerifyResult, {}),
        "notebook_status": (responses.StatusResponse, {"history": history}),
        "plan": (responses.PlanResponse, {}),
    }
    return {name: make_schema(*model) for name, model in models.items()}


def make_schema(model: type, extra_fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a response model with extra fields and a text."""
    hints = {**typing.get_type_hints(model, localns=NAMES), **extra_fields}
    properties = {name: describe_type(hint) for name, hint in hints.items()}
    properties["text"] = TEXT
    return {"type": "object", "properties": properties, "required": list(properties)}


def describe_type(hint: Any) -> dict[str, Any]:
    """Return the schema of a type; of an object, only the names of its fields."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [describe_type(argument) for argument in arguments]}
    if hint is types.NoneType:
        return {"type": "null"}
    if hint is Any:
        return {}
    if hint in TYPES:
        return {"type": TYPES[hint]}
    if dataclasses.is_dataclass(hint):
        names = [field.name for field in dataclasses.fields(hint)]
        return {"type": "object", "required": names}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"type": "string"}
    if issubclass(origin, Mapping):
        return {"type": "object"}
    return {"type": "array", "items": describe_type(arguments[0])}


def format_schemas() -> str:
    """Return the content of the file."""
    return json.dumps(make_schemas(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(format_schemas(), encoding="utf-8")
