"""The commands, a row each: its name, what it is told, whether it runs code, whether it is the person's.

A row is a frozen dataclass: its fields are the arguments, its docstring is what help says. All that need the table
read it here: the daemon has a case for each row (`daemon/verbs.py`), the command line makes a command of it and
has a rendering (`cli/present.py`), the gate makes its patterns of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar

from stepper.ground.errors import UsageError

Told = TypeVar("Told")
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
row = dataclass(frozen=True, kw_only=True, eq=False, repr=False)


def command(
    name: str, runs_code: bool = False, persons: bool = False, daemon: bool = True
) -> Callable[[type[Told]], type[Told]]:
    """Make a class a row of the table."""

    def made(arguments: type[Told]) -> type[Told]:
        if inspect.get_annotations(arguments):  # one that inherits all is made already: each takes a millisecond
            arguments = row(arguments)
        COMMANDS[name] = Command(name, arguments, runs_code, persons, daemon)
        return arguments

    return made


def word(default: Any = MISSING, **shell: Any) -> Any:
    """An argument that a shell gives by its place.

    `shell` may hold `metavar`, `many` (words, joined) and `stdin` (`-` is read from standard input).
    """
    return field(default=default, metadata=shell)


def option(about: str, default: Any = None, **shell: Any) -> Any:
    """An argument that a shell gives by `--NAME`, or by `flag`."""
    return field(default=default, metadata={"about": about, **shell})


def notebook_option() -> Any:
    """An option for which notebook is meant."""
    return option("Which notebook; the current one when not given.")


def kind(argument: Field[Any]) -> type:
    """Return the type of an argument that is given."""
    return KINDS[str(argument.type).removesuffix(" | None")]


def read(arguments: type[Told], told: Mapping[str, Any]) -> Told:
    """Return the arguments that a request tells, those that are null left out; raise UsageError."""
    given = {}
    for each in fields(arguments):  # type: ignore[arg-type]  # each row is a dataclass
        value = told.get(each.name)
        if value is not None:
            if not isinstance(value, kind(each)):
                raise UsageError(f"the request's argument {each.name!r} must be of the kind {kind(each).__name__}")
            given[each.name] = value
        elif each.default is MISSING:
            raise UsageError(f"the request's argument {each.name!r} is missing")
    return arguments(**given)


@row
class Nothing:
    """No arguments."""


@row
class OfNotebook:
    """Which notebook, the current one when not given."""

    notebook: str | None = word(None)


@command("new")
class New:
    """Make a notebook for PROBLEM, with its plan; it becomes the current one."""

    problem: str = word()
    name: str | None = option("The file name's part; from the problem when not given.")
    steps: list[Any] | None = option('A step, in order: "TITLE" or "TITLE :: CRITERION".', flag="--step")


@command("status")
class Status(OfNotebook):
    """Show where a notebook stands: its steps, its kernel, the daemon."""


@command("run", runs_code=True)
class Run:
    """Run the cells of NOTEBOOK that have not run here yet; exit 1 at the first that fails."""

    notebook: str = word()
    all: bool = option("Every cell from the top, in a fresh kernel.", default=False)


@command("restore", runs_code=True, persons=True)
class Restore(OfNotebook):
    """Run the cells that had ended well again, in a fresh kernel; exit 1 at the first that ends otherwise.

    For a kernel that died. The cell that ended it is left out.
    """


@command("history")
class History(OfNotebook):
    """Show every run of a notebook's cells."""


@command("report")
class Report:
    """Show again the report of a run, the last one when RUN is not given."""

    run: int | None = word(None)
    notebook: str | None = notebook_option()


@command("eval", runs_code=True)
class Eval:
    """Run CODE in the live kernel without touching the notebook (`-`: from standard input); exit 1 where it fails."""

    source: str = word(metavar="CODE", stdin=True)
    notebook: str | None = notebook_option()


@command("output")
class Output:
    """Show the text output of a code cell (its number or id), of which a report left some out."""

    cell: str = word()
    page: int = option("Which page of a long output.", default=1)
    notebook: str | None = notebook_option()


@command("interrupt")
class Interrupt(OfNotebook):
    """Interrupt the cell that runs; the kernel keeps its state."""


@command("restart", runs_code=True, persons=True)
class Restart(OfNotebook):
    """Start a fresh kernel: the state of the old one is lost."""


@command("continue", persons=True)
class Continue(OfNotebook):
    """Lift a stop; say where to go on."""


@command("fix", persons=True)
class Fix(OfNotebook):
    """Lift a stop and grant the failed step fresh retries; show what failed and what was tried."""


@command("skip", persons=True)
class Skip:
    """Skip the step that failed, else the next one; REASON is kept (`-`: from standard input)."""

    reason: str = word("", many=True, stdin=True)
    notebook: str | None = notebook_option()


@command("context")
class Context(Nothing):
    """Show what an agent must know to go on with the current notebook."""


@command("plan")
class Plan(OfNotebook):
    """Show the plan with each step's status."""


@command("plan add")
class PlanAdd:
    """Add a step: "TITLE" or "TITLE :: CRITERION"."""

    title: str = word()
    after: int | None = option("The step it comes after (0: first); at the end when not given.")
    notebook: str | None = notebook_option()


@command("plan edit")
class PlanEdit:
    """Change the title of a step that has not run."""

    id: int = word()
    title: str = word()
    notebook: str | None = notebook_option()


@command("plan remove")
class PlanRemove:
    """Remove a step that has not run."""

    id: int = word()
    notebook: str | None = notebook_option()


@command("plan move")
class PlanMove:
    """Move a step that has not run."""

    id: int = word()
    after: int = option("The step it is to come after (0: first).", default=MISSING)
    notebook: str | None = notebook_option()


@command("shutdown")
class Shutdown(Nothing):
    """End the daemon and the kernels of this project; nothing else is touched."""


@command("doctor", daemon=False)
class Doctor(Nothing):
    """Check the installation: what is wrong and the command that mends it."""


@command("trust", persons=True, daemon=False)
class Trust(Nothing):
    """Accept what this checkout names to run: its kernels' interpreter and the hook's environment."""
