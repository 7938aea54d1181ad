"""The commands, a row each: its name, what it is told, whether it runs code, whether it is the person's.

A row is a frozen dataclass: its fields are the arguments, its docstring is what help says. The daemon has a case for
each (`daemon/verbs.py`), the command line a command and a rendering (`cli/present.py`), the gate its patterns.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar

from stepper.ground.errors import UsageError

Told = TypeVar("Told", bound="Arguments")
WHICH = "Which notebook; the current one when not given."
KINDS: dict[str, type] = {"str": str, "int": int, "bool": bool, "list[Any]": list}


@dataclass(frozen=True)
class Command:
    """A row."""

    name: str
    arguments: type[Any]
    runs_code: bool  # nothing that an edit may not run here may be run by it
    persons: bool  # what it does is the person's to decide: an agent's call of it asks
    daemon: bool  # the daemon answers it, not the command line by itself

    @property
    def about(self) -> str:
        """What help says of it."""
        return inspect.cleandoc(self.arguments.__doc__ or "")


COMMANDS: dict[str, Command] = {}


@dataclass(frozen=True)
class Arguments:
    """What a command is told; a class that names its command is a row of the table."""

    def __init_subclass__(
        cls, name: str = "", runs_code: bool = False, persons: bool = False, daemon: bool = True
    ) -> None:
        """Make the class a frozen dataclass; one that inherits all is one already: each takes a millisecond."""
        if inspect.get_annotations(cls):
            dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
        if name:
            COMMANDS[name] = Command(name, cls, runs_code, persons, daemon)


def word(default: Any = MISSING, **shell: Any) -> Any:
    """An argument that a shell gives by its place: `metavar`, `many` (words, joined), `stdin` (`-`: from there)."""
    return field(default=default, metadata=shell)


def option(about: str, default: Any = None, **shell: Any) -> Any:
    """An argument that a shell gives by `--NAME`, or by `flag`."""
    return field(default=default, metadata={"about": about, **shell})


def kind(argument: Field[Any]) -> type:
    """Return the type of an argument that is given."""
    return KINDS[str(argument.type).removesuffix(" | None")]


def read(arguments: type[Told], told: Mapping[str, Any]) -> Told:
    """Return the arguments that a request tells, those that are null left out; raise UsageError."""
    given = {}
    for each in fields(arguments):
        value = told.get(each.name)
        if value is not None:
            if not isinstance(value, kind(each)):
                raise UsageError(f"the request's argument {each.name!r} must be of the kind {kind(each).__name__}")
            given[each.name] = value
        elif each.default is MISSING:
            raise UsageError(f"the request's argument {each.name!r} is missing")
    return arguments(**given)


class OfNotebook(Arguments):
    """Which notebook, the current one when not given."""

    notebook: str | None = word(None)


class New(Arguments, name="new"):
    """Make a notebook for PROBLEM, with its plan; it becomes the current one."""

    problem: str = word()
    name: str | None = option("The file name's part; from the problem when not given.")
    steps: list[Any] | None = option('A step, in order: "TITLE" or "TITLE :: CRITERION".', flag="--step")


class Status(OfNotebook, name="status"):
    """Show where a notebook stands: its steps, its kernel, the daemon."""


class Run(Arguments, name="run", runs_code=True):
    """Run the cells of NOTEBOOK that have not run here yet; exit 1 at the first that fails."""

    notebook: str = word()
    all: bool = option("Every cell from the top, in a fresh kernel.", default=False)


class Restore(OfNotebook, name="restore", runs_code=True, persons=True):
    """Run the cells that had ended well again, in a fresh kernel; exit 1 at the first that ends otherwise.

    For a kernel that died. The cell that ended it is left out.
    """


class History(OfNotebook, name="history"):
    """Show every run of a notebook's cells."""


class Report(Arguments, name="report"):
    """Show again the report of a run, the last one when RUN is not given."""

    run: int | None = word(None)
    notebook: str | None = option(WHICH)


class Eval(Arguments, name="eval", runs_code=True):
    """Run CODE in the live kernel without touching the notebook (`-`: from standard input); exit 1 where it fails."""

    source: str = word(metavar="CODE", stdin=True)
    notebook: str | None = option(WHICH)


class Output(Arguments, name="output"):
    """Show the text output of a code cell (its number or id), of which a report left some out."""

    cell: str = word()
    page: int = option("Which page of a long output.", default=1)
    follow: bool = option("Go on with what comes until the cell ends; Ctrl-C ends this, not the cell.", default=False)
    notebook: str | None = option(WHICH)


class Interrupt(OfNotebook, name="interrupt"):
    """Interrupt the cell that runs; the kernel keeps its state."""


class Restart(OfNotebook, name="restart", runs_code=True, persons=True):
    """Start a fresh kernel: the state of the old one is lost."""


class Continue(OfNotebook, name="continue", persons=True):
    """Lift a stop; say where to go on."""


class Fix(OfNotebook, name="fix", persons=True):
    """Lift a stop and grant the failed step fresh retries; show what failed and what was tried."""


class Skip(Arguments, name="skip", persons=True):
    """Skip the step that failed, else the next one; REASON is kept (`-`: from standard input)."""

    reason: str = word("", many=True, stdin=True)
    notebook: str | None = option(WHICH)


class Context(Arguments, name="context"):
    """Show what an agent must know to go on with the current notebook."""


class Plan(OfNotebook, name="plan"):
    """Show the plan with each step's status."""


class PlanAdd(Arguments, name="plan add"):
    """Add a step: "TITLE" or "TITLE :: CRITERION"."""

    title: str = word()
    after: int | None = option("The step it comes after (0: first); at the end when not given.")
    notebook: str | None = option(WHICH)


class PlanEdit(Arguments, name="plan edit"):
    """Change the title of a step that has not run."""

    id: int = word()
    title: str = word()
    notebook: str | None = option(WHICH)


class PlanRemove(Arguments, name="plan remove"):
    """Remove a step that has not run."""

    id: int = word()
    notebook: str | None = option(WHICH)


class PlanMove(Arguments, name="plan move"):
    """Move a step that has not run."""

    id: int = word()
    after: int = option("The step it is to come after (0: first).", default=MISSING)
    notebook: str | None = option(WHICH)


class Shutdown(Arguments, name="shutdown"):
    """End the daemon and the kernels of this project; nothing else is touched."""


class Doctor(Arguments, name="doctor", daemon=False):
    """Check the installation: what is wrong and the command that mends it."""


class Trust(Arguments, name="trust", persons=True, daemon=False):
    """Accept what this checkout names to run: its kernels' interpreter and the hook's environment."""
