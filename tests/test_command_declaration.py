"""An argument is declared once: click, requests, input schemas and documentation derive from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from docs import command_tables, output_schemas
from stepper.cli import main as command_line
from stepper.cli.rendering import RENDERINGS
from stepper.common.errors import UsageError
from stepper.mcp.tools import TOOLS, Tool
from stepper.policy.commands import command_schema
from stepper.policy.commands.command_schema import (
    Arguments,
    Command,
    hidden,
    option,
    positional,
)

NAMES = ("text", "count", "ratio", "flag", "cell", "names", "level")


@pytest.fixture
def dummy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """A command with an argument of each type."""

    class Dummy(Arguments, name="dummy", examples=("dummy x",)):
        """Do nothing."""

        text: str = positional("A text about nothing.", min_length=2)
        count: int | None = option("A whole count.", minimum=1, maximum=9)
        ratio: float = option("A decimal ratio.", 0.5)
        flag: bool = option("A simple flag.", default=False, flag="--no-flag")
        cell: str | int | None = option("A cell or its number.")
        names: list[str] | None = option("Several names.", flag="--name")
        level: str = option("One of the levels.", "low", choice=("low", "high"))
        secret: int | None = hidden("A hidden number.", tool_name="public")

    monkeypatch.setitem(RENDERINGS, "dummy", RENDERINGS["use"])
    try:
        yield command_schema.ALL_COMMANDS["dummy"]
    finally:
        del command_schema.ALL_COMMANDS["dummy"]


def get_helps(command: Command, *names: str) -> list[str]:
    fields = command.arguments.__dataclass_fields__
    return [fields[name].metadata["help"] for name in names]


def test_declared_argument_appears_in_click_help(dummy: Command) -> None:
    click_command = command_line.make_command(dummy, "dummy")
    result = CliRunner().invoke(click_command, ["--help"])
    for help_text in get_helps(dummy, *NAMES[1:]):
        assert help_text in result.output
    assert "TEXT" in result.output and "low|high" in result.output
    assert "hidden" not in result.output
    types = {parameter.name: parameter.type for parameter in click_command.params}
    count_type = types["count"]
    assert isinstance(count_type, click.IntRange) and count_type.min == 1
    assert types["ratio"] is click.FLOAT
    assert types["level"].choices == ("low", "high")


def test_declared_argument_appears_in_tool_schema(dummy: Command) -> None:
    schema = Tool("dummy", "Dummy", command="dummy").schema
    Draft202012Validator.check_schema(schema)
    assert schema["required"] == ["text"]
    properties = schema["properties"]
    assert list(properties) == [*NAMES, "public"]
    for name, help_text in zip(NAMES, get_helps(dummy, *NAMES), strict=True):
        assert properties[name].pop("description") == help_text
    del properties["public"]["description"]
    assert properties == {
        "text": {"type": "string", "minLength": 2},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "ratio": {"type": "number", "default": 0.5},
        "flag": {"type": "boolean", "default": False},
        "cell": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "names": {"type": "array", "items": {"type": "string"}},
        "level": {"type": "string", "enum": ["low", "high"], "default": "low"},
        "public": {"type": "integer"},
    }


def test_declared_argument_appears_in_docs_tables(dummy: Command) -> None:
    table = command_tables.format_option_table([dummy])
    for help_text in get_helps(dummy, *NAMES):
        assert help_text in table
    for name in ("`TEXT`", "`--count COUNT`", "`--no-flag`", r"`--level low\|high`"):
        assert f"| {name} |" in table
    tool = Tool("dummy", "Dummy", command="dummy")
    assert "| text, count?, ratio?," in command_tables.format_tool_table([tool])
    assert "| `public` | `dummy` |" in command_tables.format_argument_table([tool])


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "'text' is missing"),
        ({"text": "a", "count": 0}, "'count' must be at least 1"),
        ({"text": "a", "count": 10}, "'count' must be at most 9"),
        ({"text": "a", "flag": 1}, "'flag' must be of type bool"),
        ({"text": "a", "cell": 1.5}, "'cell' must be of type str or int"),
        ({"text": "a", "names": "b"}, "'names' must be of type list"),
        ({"text": "a", "level": "mid"}, "'level' must be one of low, high"),
    ],
)
def test_daemon_checks_declared_arguments(
    dummy: Command, values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        command_schema.parse_arguments(dummy.arguments, values)
    parsed = command_schema.parse_arguments(dummy.arguments, {"text": "a", "cell": 3})
    assert (parsed.text, parsed.cell, parsed.ratio) == ("a", 3, 0.5)


def test_tools_declare_no_arguments_of_their_own() -> None:
    for tool in TOOLS.values():
        for name, schema in tool.arguments.items():
            declaration = tool.declarations.get(name)
            if declaration is None:
                assert name == "action" and set(schema["enum"]) == set(tool.actions)
            else:
                assert schema["description"] == declaration.metadata["help"]
                if name in tool.required:
                    assert "default" not in schema
                    assert declaration.default is MISSING


@pytest.mark.parametrize("page", command_tables.PAGES, ids=lambda page: page.name)
def test_docs_tables_are_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    update = "to update the tables, run: python docs/command_tables.py"
    assert command_tables.update_page(text) == text, update
    assert "<!-- table: " in text


def test_output_schemas_of_tools_are_current() -> None:
    content = output_schemas.FILE.read_text(encoding="utf-8")
    update = "to update the file, run: python docs/output_schemas.py"
    assert output_schemas.format_schemas() == content, update
    for tool in TOOLS.values():
        assert (tool.output_schema is not None) == (tool.name in json.loads(content))
