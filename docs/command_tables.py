"""Write the tables of commands, options and tools in the documentation.

    python docs/command_tables.py

The tables come from the declarations in `stepper/policy/commands` and
`stepper/mcp/tools.py`. In a page, a table is between two comments, of which the first
one names it. `tests/test_command_declaration.py` fails if a page is not up to date.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any

from stepper.mcp.tools import PEERS, TOOLS, Tool
from stepper.policy.commands.cli_commands import COMMANDS
from stepper.policy.commands.command_schema import (
    GROUPS,
    HELP,
    Command,
    format_option,
    get_type,
    is_positional,
    list_cli_arguments,
)

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "docs" / "commands.md", ROOT / "docs" / "mcp.md")
TABLE = re.compile(
    r"(<!-- table: ([^>\n]+) -->\n).*?(<!-- end of table -->)", re.DOTALL
)
# Commands with a page of their own.
LINKS = {
    "attach": "[Attach](attach.md)",
    "kernels": "[Kernel backends](clusters.md)",
    "mcp": "[Other agents](mcp.md)",
    "output": "[Outputs](outputs.md)",
    "run": "[Stale cells](reports.md#stale-cells)",
    "undo": "[When a cell runs again](reports.md#when-a-cell-runs-again)",
    "statusline": "[Status line](attach.md#the-status-line)",
    "trust": "[Security](security.md)",
    "verify": "[Verify](verify.md)",
    "view": "[View](view.md)",
    "watch": "[View](view.md)",
}


def format_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"{_format_row(cells)}\n" for cells in lines)


def _format_row(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", r"\|") for cell in cells]
    row = f"| {' | '.join(escaped)} |"
    return row.replace("|  ", "| ")


def format_usage(command: Command) -> str:
    """Return how a command is called, without its options."""
    parts = ["stepper", command.name]
    for argument in list_cli_arguments(command.arguments):
        if is_positional(argument):
            metavar = argument.metadata.get("metavar") or argument.name.upper()
            part = metavar if argument.default is MISSING else f"[{metavar}]"
            parts.append(f"{part}..." if "several" in argument.metadata else part)
    return f"`{' '.join(parts)}`"


def format_command_table(commands: Iterable[Command]) -> str:
    """Return the table of commands with their help texts."""
    rows = []
    for command in commands:
        text = " ".join(command.help.split())
        if command.alias:
            group = command.name.split()[0]
            text += f" Also: `stepper {group} {command.alias}`."
        if command.name in LINKS:
            text += f" See {LINKS[command.name]}."
        rows.append((format_usage(command), text))
    return format_table(("command", "what it does"), rows)


def format_option_table(commands: Iterable[Command]) -> str:
    """Return the table of the arguments and options of commands."""
    rows = []
    for command in commands:
        name = f"`{command.name}`"
        for argument in list_cli_arguments(command.arguments):
            meaning = argument.metadata[HELP]
            has_default = isinstance(argument.default, int | float | str)
            if has_default and argument.default and "Default: " not in meaning:
                meaning += f" Default: {argument.default}."
            rows.append((name, _format_argument(argument), meaning))
            name = ""
    return format_table(("command", "argument", "meaning"), rows)


def _format_argument(argument: Field[Any]) -> str:
    metavar = argument.metadata.get("metavar") or argument.name.upper()
    choices = argument.metadata.get("choice")
    if choices:
        metavar = "|".join(choices)
    if is_positional(argument):
        return f"`{metavar}`"
    option = argument.metadata.get("short") or format_option(argument)
    if get_type(argument) is bool:
        return f"`{option}`"
    return f"`{option} {metavar}`"


def format_tool_table(tools: Iterable[Tool]) -> str:
    """Return the table of tools: arguments, hints and names in other servers."""
    rows = []
    for tool in tools:
        names = []
        for name in tool.arguments:
            names.append(name if name in tool.required else f"{name}?")
        hint = "reads" if tool.reads else ""
        if tool.destroys:
            hint = "destroys"
        peers = [f"`{peer}`" for peer in PEERS.get(tool.name, ())]
        rows.append((f"`{tool.name}`", ", ".join(names), hint, ", ".join(peers)))
    titles = ("tool", "arguments (`?`: optional)", "hint", "known elsewhere as")
    return format_table(titles, rows)


def format_argument_table(tools: Iterable[Tool]) -> str:
    """Return the table of the arguments of tools, with their meanings."""
    tools_by_meaning: dict[tuple[str, str], list[str]] = {}
    for tool in tools:
        for name, schema in tool.arguments.items():
            meaning = schema["description"]
            if "default" in schema:
                meaning += f" Default: {_format_value(schema['default'])}."
            key = (name, meaning)
            tools_by_meaning.setdefault(key, []).append(f"`{tool.name}`")
    rows = []
    for (name, meaning), tool_names in sorted(tools_by_meaning.items()):
        rows.append((f"`{name}`", ", ".join(tool_names), meaning))
    return format_table(("argument", "tools", "meaning"), rows)


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def make_table(name: str) -> str:
    """Return the table with a name."""
    commands = list(COMMANDS.values())
    makers: dict[str, Callable[[], str]] = {
        "options": lambda: format_option_table(commands),
        "tools": lambda: format_tool_table(TOOLS.values()),
        "tool arguments": lambda: format_argument_table(TOOLS.values()),
    }
    if name in makers:
        return makers[name]()
    if name not in GROUPS:
        raise ValueError(f"there is no table {name!r}")
    return format_command_table(row for row in commands if row.group == name)


def update_page(text: str) -> str:
    """Return the text of a page with current tables."""

    def replace_table(match: re.Match[str]) -> str:
        beginning, name, end = match.groups()
        return f"{beginning}\n{make_table(name)}\n{end}"

    return TABLE.sub(replace_table, text)


def main() -> None:
    """Write all tables."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(update_page(text), encoding="utf-8")


if __name__ == "__main__":
    main()
