"""The command line: a thin face over the client, made of the table of commands (`policy/commands.py`)."""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import MISSING, Field, fields
from typing import IO, Any

import click

from stepper import __version__
from stepper.cli.present import PRESENT, RunProgress, say, show
from stepper.ground.errors import StepperError, UsageError
from stepper.ground.paths import Paths, find_project, project_of
from stepper.hook import client
from stepper.policy.commands import COMMANDS, Command, kind

# What does more than to ask the daemon, or something else; loaded where it is asked for.
HERE = {
    "shutdown": "stepper.cli.stop:shutdown",
    "doctor": "stepper.setup.doctor:checks",
    "trust": "stepper.setup.trust:trust",
}
PLAN_FILE = click.Option(
    ["--plan"], type=click.File(), help="The steps in YAML: titles, or maps of title, criterion, kind."
)


class Commands(click.Group):
    """The group through whose one door all errors leave."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; say an error of ours on standard error and end with its exit code."""
        try:
            return super().invoke(ctx)
        except StepperError as error:
            from stepper.words.quotes import words

            say(f"stepper: {words(error.message)}" + (f"\n         {error.hint}" if error.hint else ""), err=True)
            ctx.exit(error.exit_code)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise  # wrong usage (2), the end of a command, Ctrl-C
        except Exception as error:
            found = find_project(client.current_folder())
            say(f"stepper itself failed: {type(error).__name__}: {error}", err=True)
            click.echo(f"         see {Paths(found).log}" if found else "         no project, no log", err=True)
            ctx.exit(3)


class PlanGroup(click.Group):
    """`stepper plan [NOTEBOOK]` shows; `stepper plan add|edit|remove|move …` changes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take what is no subcommand for the notebook to show."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=Commands)
@click.version_option(__version__, prog_name="stepper")
def main() -> None:
    """Jupyter notebooks, one cell at a time: each cell runs the moment it is written."""


def plan_items(stream: IO[str]) -> list[Any]:
    """Return the steps of a plan in YAML; raise UsageError."""
    import yaml

    try:
        items = yaml.safe_load(stream)
    except yaml.YAMLError as error:
        raise UsageError(f"the plan is not valid YAML: {error}") from None
    if isinstance(items, dict):
        items = items.get("steps")
    if not isinstance(items, list) or not all(isinstance(item, str | dict) for item in items):
        raise UsageError("the plan must be a list of titles, or of maps with title, criterion, kind")
    return items


def perform(row: Command, as_json: bool = False, plan: IO[str] | None = None, **given: Any) -> None:
    """Do what a command is for and show its answer; exit 1 where that came out badly."""
    for argument in fields(row.arguments):
        value = given[argument.name]
        if isinstance(value, tuple):  # words, or an option given several times
            value = " ".join(value) if argument.metadata.get("many") else list(value)
        if value == "-" and argument.metadata.get("stdin"):
            value = sys.stdin.read()
        given[argument.name] = value
    if plan is not None:
        given["steps"] += plan_items(plan)
    project = project_of(client.current_folder(), sys.prefix)
    if project is None:
        raise UsageError("stepper is not set up in this folder or one above it", "install.sh PATH_OF_THE_REPOSITORY")
    if row.name in HERE:
        import pkgutil

        answer = pkgutil.resolve_name(HERE[row.name])(Paths(project))
    else:
        with RunProgress(quiet=as_json) as progress:
            body = client.ask(Paths(project), row.name.encode(), json.dumps(given).encode(), progress)
        answer = json.loads(body or b"null")
    if not show(row.name, answer, as_json):
        sys.exit(1)


def parameter(argument: Field[Any]) -> click.Parameter:
    """Return how a shell gives an argument of a command."""
    shell, of, required = argument.metadata, kind(argument), argument.default is MISSING
    if "about" not in shell:
        many = {"nargs": -1} if shell.get("many") else {"required": required}
        return click.Argument([argument.name], type=of, metavar=shell.get("metavar"), **many)
    kinds: dict[str, Any] = {"is_flag": True} if of is bool else {"type": of}
    if of is list:
        kinds = {"multiple": True}
    elif not required:
        kinds["default"] = argument.default
    flag = shell.get("flag", f"--{argument.name}")
    return click.Option([flag, argument.name], help=shell["about"], required=required, **kinds)


def made(row: Command, name: str, hidden: bool = False) -> click.Command:
    """Return the command of a row."""
    parameters = [parameter(argument) for argument in fields(row.arguments)]
    if row.name == "new":
        parameters.append(PLAN_FILE)
    if PRESENT[row.name].has_json:
        about = "Print one JSON document and nothing else."
        parameters.append(click.Option(["--json", "as_json"], is_flag=True, help=about))
    callback = functools.partial(perform, row)
    return click.Command(name, params=parameters, callback=callback, help=row.about, hidden=hidden)


plan = PlanGroup("plan", help="Show a notebook's plan, or change what has not run: add, edit, remove, move.")
main.add_command(plan)
for command in COMMANDS.values():
    group, _, last = command.name.rpartition(" ")
    if command.name == plan.name:
        plan.add_command(made(command, "show", hidden=True))
    else:
        (plan if group else main).add_command(made(command, last))
