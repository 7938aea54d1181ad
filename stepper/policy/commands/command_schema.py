"""Base of the command tables: a command is a dataclass of typed arguments.

The fields of the class are the arguments, its docstring is the help text. A subclass of
`Arguments` that names its command is added to `ALL_COMMANDS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar

from stepper.common.errors import UsageError

ArgumentsType = TypeVar("ArgumentsType", bound="Arguments")
# The titles of the groups in the help, in this order.
NOTEBOOKS = "Notebooks"
PLAN = "The plan"
KERNEL = "The kernel"
USER_DECISIONS = "Resuming a stopped notebook"
SETUP = "The installation"
GROUPS = (NOTEBOOKS, PLAN, KERNEL, USER_DECISIONS, SETUP)
# Every number of seconds must be below this.
MAX_SECONDS = 1e9
# Where a command is available: in a shell, as an MCP tool, for the web page.
SHELL = "shell"
MCP = "mcp"
WEB = "web"
# The key of a field's metadata that contains the help of an option.
HELP = "help"
# The types that an annotation accepts. The first one is the type of the argument.
TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "list[Any]": (list,),
    "str | int": (str, int),
}


@dataclass(frozen=True)
class Command:
    """A row of the command table."""

    name: str
    arguments: type[Any]
    # Whether the command runs code. If edits may not run code, neither may agents call
    # this command.
    runs_code: bool
    # Whether only the user may decide on it: a call from an agent asks the user.
    needs_user: bool
    # Whether the daemon executes the command, not the command line process.
    needs_daemon: bool
    group: str  # one of GROUPS
    examples: tuple[str, ...]  # without `stepper`
    alias: str  # another name of a subcommand
    interface: str  # SHELL, MCP or WEB

    @property
    def help(self) -> str:
        """The help text."""
        return inspect.cleandoc(self.arguments.__doc__ or "")

    @property
    def summary(self) -> str:
        """The first paragraph of the help text, in one line."""
        first_paragraph = self.help.split("\n\n")[0]
        return " ".join(first_paragraph.split())


# All commands that were imported. Those for MCP are in `mcp_commands`.
ALL_COMMANDS: dict[str, Command] = {}


@dataclass(frozen=True)
class Arguments:
    """The arguments of a command."""

    def __init_subclass__(
        cls,
        name: str = "",
        runs_code: bool = False,
        needs_user: bool = False,
        needs_daemon: bool = True,
        group: str = NOTEBOOKS,
        examples: tuple[str, ...] = (),
        alias: str = "",
        interface: str = SHELL,
    ) -> None:
        """Make the class a frozen dataclass, and add its command to the table.

        A class without own fields already is one. Making one takes a millisecond.
        """
        if inspect.get_annotations(cls):
            dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
        if name:
            ALL_COMMANDS[name] = Command(
                name,
                cls,
                runs_code,
                needs_user,
                needs_daemon,
                group,
                examples or (name,),
                alias,
                interface,
            )


def positional(default: Any = MISSING, **metadata: Any) -> Any:
    """Declare a positional argument of the command line.

    Metadata: `metavar`, `many` (join all words), `stdin` (`-` reads standard input),
    `choice` (allowed values).
    """
    return field(default=default, metadata=metadata)


def option(text: str, default: Any = None, **metadata: Any) -> Any:
    """Declare an option with a help text: `--NAME`, or `flag` in the metadata."""
    return field(default=default, metadata={HELP: text, **metadata})


def hidden(text: str, default: Any = None, **metadata: Any) -> Any:
    """Declare an argument that the command line does not have."""
    return field(default=default, metadata={HELP: text, "hidden": True, **metadata})


def list_cli_arguments(arguments: type[Arguments]) -> list[Field[Any]]:
    """Return the arguments that the command line has."""
    return [
        argument
        for argument in fields(arguments)
        if not argument.metadata.get("hidden")
    ]


def argument_type(argument: Field[Any]) -> type:
    """Return the type of an argument."""
    return accepted_types(argument)[0]


def accepted_types(argument: Field[Any]) -> tuple[type, ...]:
    """Return all types that an argument accepts."""
    return TYPES[str(argument.type).removesuffix(" | None")]


def parse_arguments(
    arguments: type[ArgumentsType], values: Mapping[str, Any]
) -> ArgumentsType:
    """Return the arguments of a request; raise UsageError.

    Unknown arguments are ignored, and null counts as missing.
    """
    parsed = {}
    for argument in fields(arguments):
        value = values.get(argument.name)
        if value is not None:
            _check_value(argument, value)
            parsed[argument.name] = value
        elif argument.default is MISSING:
            raise UsageError(f"the request's argument {argument.name!r} is missing")
    return arguments(**parsed)


def _check_value(argument: Field[Any], value: Any) -> None:
    """Raise UsageError if an argument does not accept a value."""
    name = f"the request's argument {argument.name!r}"
    types = accepted_types(argument)
    is_unexpected_bool = isinstance(value, bool) and bool not in types
    if not isinstance(value, types) or is_unexpected_bool:
        type_names = " or ".join(accepted.__name__ for accepted in types)
        raise UsageError(f"{name} must be of type {type_names}")
    if isinstance(value, float | int):
        # The comparison is false for NaN.
        if types[0] is float and not abs(value) < MAX_SECONDS:
            raise UsageError(f"{name} is out of range")
        if argument.metadata.get("positive") and value <= 0:
            raise UsageError(f"{name} must be greater than 0")
    choices = argument.metadata.get("choice")
    if choices is not None and value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}")
