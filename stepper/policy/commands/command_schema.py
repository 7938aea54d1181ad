"""What a command is told, as types: the machinery of the tables `commands` and `cellcommands`.

A row is a frozen dataclass: its fields are the arguments, its docstring is what help says.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar

from stepper.common.errors import UsageError

Told = TypeVar("Told", bound="Arguments")
NOTEBOOKS, PLAN, KERNEL, PERSONS, SETUP = (
    "Notebooks",
    "The plan",
    "The kernel",
    "Yours to decide, when a notebook is stopped",
    "The installation",
)
SECONDS = 1e9  # more than any wait
GROUPS = (NOTEBOOKS, PLAN, KERNEL, PERSONS, SETUP)
KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "list[Any]": (list,),
    "str | int": (str, int),
}


@dataclass(frozen=True)
class Command:
    """A row."""

    name: str
    arguments: type[Any]
    runs_code: bool  # nothing that an edit may not run here may be run by it
    persons: bool  # what it does is the person's to decide: an agent's call of it asks
    daemon: bool  # the daemon answers it, not the command line by itself
    group: str  # one of GROUPS
    examples: tuple[str, ...]  # calls, without `stepper`
    alias: str  # the same by another name
    face: str  # who gives it: in a shell, or through mcp

    @property
    def about(self) -> str:
        """What help says of it."""
        return inspect.cleandoc(self.arguments.__doc__ or "")

    @property
    def summary(self) -> str:
        """What the list of commands says of it: the first paragraph, in one line."""
        return " ".join(self.about.split("\n\n")[0].split())


# all that the daemon is asked for; those of `cellcommands` once that is loaded
VERBS: dict[str, Command] = {}


@dataclass(frozen=True)
class Arguments:
    """What a command is told; a class that names its command is a row of the table."""

    def __init_subclass__(
        cls,
        name: str = "",
        runs_code: bool = False,
        persons: bool = False,
        daemon: bool = True,
        group: str = NOTEBOOKS,
        examples: tuple[str, ...] = (),
        alias: str = "",
        face: str = "shell",
    ) -> None:
        """Make the class a frozen dataclass; one that inherits all is one already: each takes a millisecond."""
        if inspect.get_annotations(cls):
            dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
        if name:
            VERBS[name] = Command(
                name,
                cls,
                runs_code,
                persons,
                daemon,
                group,
                examples or (name,),
                alias,
                face,
            )


def word(default: Any = MISSING, **shell: Any) -> Any:
    """An argument that a shell gives by its place: `metavar`, `many` (words, joined), `stdin` (`-`), `choice`."""
    return field(default=default, metadata=shell)


def option(about: str, default: Any = None, **shell: Any) -> Any:
    """An argument that a shell gives by `--NAME`, or by `flag`."""
    return field(default=default, metadata={"about": about, **shell})


def unshown(about: str, default: Any = None, **more: Any) -> Any:
    """An argument that no shell gives: other agents do."""
    return field(default=default, metadata={"about": about, "unshown": True, **more})


def of_shell(arguments: type[Arguments]) -> list[Field[Any]]:
    """Return the arguments that a shell gives."""
    return [each for each in fields(arguments) if not each.metadata.get("unshown")]


def kind(argument: Field[Any]) -> type:
    """Return the type of an argument that is given."""
    return kinds(argument)[0]


def kinds(argument: Field[Any]) -> tuple[type, ...]:
    """Return the types that an argument may have."""
    return KINDS[str(argument.type).removesuffix(" | None")]


def read(arguments: type[Told], told: Mapping[str, Any]) -> Told:
    """Return the arguments that a request tells, those that are null left out; raise UsageError."""
    given = {}
    for each in fields(arguments):
        value = told.get(each.name)
        if value is not None:
            of = kinds(each)
            if not isinstance(value, of) or (
                isinstance(value, bool) and bool not in of
            ):
                named = " or ".join(one.__name__ for one in of)
                raise UsageError(
                    f"the request's argument {each.name!r} must be of the kind {named}"
                )
            if (
                of[0] is float
                and isinstance(value, float | int)
                and not abs(value) < SECONDS
            ):
                raise UsageError(
                    f"the request's argument {each.name!r} is out of all bounds"
                )
            if (
                each.metadata.get("positive")
                and isinstance(value, float | int)
                and value <= 0
            ):
                raise UsageError(
                    f"the request's argument {each.name!r} must be more than 0"
                )
            if value not in (choice := each.metadata.get("choice", [value])):
                raise UsageError(
                    f"the request's argument {each.name!r} must be one of {', '.join(choice)}"
                )
            given[each.name] = value
        elif each.default is MISSING:
            raise UsageError(f"the request's argument {each.name!r} is missing")
    return arguments(**given)
