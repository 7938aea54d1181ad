"""Base of the command tables: a command is a dataclass of typed arguments.

The fields of the class are the arguments, its docstring is the help text. If a subclass
of `Arguments` has a `name`, its command is added to `ALL_COMMANDS`. The fields define
the click parameters (`cli/main.py`), the input schemas of MCP tools
(`json_schema.py`), the tables in the documentation (`docs/command_tables.py`) and the
daemon's validation of requests (`parse_arguments`).
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
# Floats, which are numbers of seconds, must be below this.
MAX_SECONDS = 1e9
# Where a command is available: in a shell, as an MCP tool, for the web page.
SHELL = "shell"
MCP = "mcp"
WEB = "web"
# Keys of a field's metadata. `positional`, `option` and `hidden` explain further keys.
HELP = "help"
KIND = "kind"  # one of the values below
POSITIONAL = "positional"
OPTION = "option"
HIDDEN = "hidden"  # only in requests, for example from MCP tools
TOOL_NAME = "tool_name"
TOOL_DEFAULT = "tool_default"
# The accepted types by annotation. The first type is the type of the argument.
TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "str | int": (str, int),
    "list[Any]": (list,),
    "list[str]": (list,),
    "list[str | int]": (list,),
}


@dataclass(frozen=True)
class Command:
    """A row of the command table."""

    name: str
    arguments: type[Any]
    # Whether the command runs code in a kernel. While edits may not run code, agents
    # may not call the command.
    runs_code: bool
    # Whether a call from an agent needs the user's permission.
    needs_user: bool
    # Whether the daemon executes the command, not the process of the command line.
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
        """The first paragraph of the help text, on one line."""
        first_paragraph = self.help.split("\n\n")[0]
        return " ".join(first_paragraph.split())


# The commands of all imported modules, by name. Commands that only MCP has are in
# `mcp_cell_commands`.
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
        """Make a class with fields a frozen dataclass, and register its command.

        Without a `name`, the class has no command. A class without fields of its own
        needs no decorator. Leaving out the decorator saves time at the start of each
        command.
        """
        if inspect.get_annotations(cls):
            dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
        if name:
            ALL_COMMANDS[name] = Command(
                name=name,
                arguments=cls,
                runs_code=runs_code,
                needs_user=needs_user,
                needs_daemon=needs_daemon,
                group=group,
                examples=examples or (name,),
                alias=alias,
                interface=interface,
            )


def positional(text: str, default: Any = MISSING, **metadata: Any) -> Any:
    """Declare a positional argument of the command line with a help text.

    Further metadata: `metavar` (the argument's name in the help), `many` (several words
    are joined), `several` (several values), `stdin` (`-` reads standard input), and the
    metadata of `hidden`.
    """
    return _declare(POSITIONAL, text, default, metadata)


def option(text: str, default: Any = None, **metadata: Any) -> Any:
    """Declare an option of the command line with a help text.

    Further metadata: `flag` (default: `--NAME`), `short` (a flag with one letter),
    `metavar`, and the metadata of `hidden`.
    """
    return _declare(OPTION, text, default, metadata)


def hidden(text: str, default: Any = None, **metadata: Any) -> Any:
    """Declare an argument that requests have, but not the command line.

    Further metadata:

    - `choice`: the allowed values.
    - `minimum` and `maximum`: the limits of a number.
    - `min_length`: the minimum length of a text or a list, in MCP tools.
    - `items`: the items of a list in MCP tools, if the annotation is `list[Any]`: a
      JSON Schema, or a subclass of `Arguments` for objects.
    - `tool_name`: the argument's name in MCP tools, if it differs.
    - `tool_default`: the default in MCP tools, if it differs. `MISSING` makes the
      argument required.
    """
    return _declare(HIDDEN, text, default, metadata)


def _declare(kind: str, text: str, default: Any, metadata: dict[str, Any]) -> Any:
    """Return a dataclass field with metadata."""
    return field(default=default, metadata={KIND: kind, HELP: text, **metadata})


def list_cli_arguments(arguments: type[Arguments]) -> list[Field[Any]]:
    """Return the arguments that are available on the command line."""
    return [
        argument for argument in fields(arguments) if argument.metadata[KIND] != HIDDEN
    ]


def is_positional(argument: Field[Any]) -> bool:
    """Return whether an argument is a positional argument of the command line."""
    return bool(argument.metadata[KIND] == POSITIONAL)


def format_option(argument: Field[Any]) -> str:
    """Return the command-line option of an argument, such as `--notebook`."""
    flag: str = argument.metadata.get("flag", f"--{argument.name}")
    return flag


def get_annotation(argument: Field[Any]) -> str:
    """Return the annotation of an argument without `| None`."""
    return str(argument.type).removesuffix(" | None")


def get_type(argument: Field[Any]) -> type:
    """Return the type of an argument's values."""
    return list_accepted_types(argument)[0]


def list_accepted_types(argument: Field[Any]) -> tuple[type, ...]:
    """Return the types that an argument accepts; an argument can also be None."""
    return TYPES[get_annotation(argument)]


def parse_arguments(
    arguments: type[ArgumentsType], values: Mapping[str, Any]
) -> ArgumentsType:
    """Return the validated arguments of a request.

    Unknown arguments are ignored, and None counts as missing. Raise UsageError if a
    required argument is missing or a value is invalid.
    """
    valid_values = {}
    for argument in fields(arguments):
        value = values.get(argument.name)
        if value is not None:
            _check_value(argument, value)
            valid_values[argument.name] = value
        elif argument.default is MISSING:
            raise UsageError(f"the request's argument {argument.name!r} is missing")
    return arguments(**valid_values)


def _check_value(argument: Field[Any], value: Any) -> None:
    """Raise UsageError if an argument does not accept a value.

    The items of a list are not checked.
    """
    name = f"the request's argument {argument.name!r}"
    types = list_accepted_types(argument)
    is_unexpected_bool = isinstance(value, bool) and bool not in types
    if not isinstance(value, types) or is_unexpected_bool:
        type_names = " or ".join(accepted.__name__ for accepted in types)
        raise UsageError(f"{name} must be of type {type_names}")
    if isinstance(value, float | int):
        _check_limits(argument, name, value)
    choices = argument.metadata.get("choice")
    if choices is not None and value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}")


def _check_limits(argument: Field[Any], name: str, value: float) -> None:
    """Raise UsageError if a number is out of range; `name` is for the message."""
    is_float = get_type(argument) is float
    # The comparison is false for NaN.
    if is_float and not abs(value) < MAX_SECONDS:
        raise UsageError(f"{name} is out of range")
    minimum = argument.metadata.get("minimum")
    if minimum is not None and value < minimum:
        raise UsageError(f"{name} must be at least {minimum:g}")
    maximum = argument.metadata.get("maximum")
    if maximum is not None and value > maximum:
        raise UsageError(f"{name} must be at most {maximum:g}")
