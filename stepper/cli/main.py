"""The command line: a thin face over the client, made of the table of commands (`policy/commands/cli_commands.py`)."""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import MISSING, Field
from typing import IO, Any

import click

from stepper import __version__
from stepper.cli.keyboard_interrupt import INTERRUPTED, Interrupts
from stepper.cli.rendering import PRESENT, RunProgress, show
from stepper.cli.terminal import in_utc, say
from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import Paths, find_project, resolve_project
from stepper.hook import client
from stepper.policy.commands.cli_commands import COMMANDS
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.commands.command_schema import (
    GROUPS,
    Command,
    kind,
    of_shell,
)

# What does more than to ask the daemon, or something else; loaded where it is asked
# for.
HERE = {
    "attach": "stepper.cli.attach:attach",
    "shutdown": "stepper.cli.shutdown:shutdown",
    "doctor": "stepper.install.doctor:checks",
    "statusline": "stepper.cli.mcp_command:statusline",
    "trust": "stepper.install.trust:trust",
    "completion": "stepper.cli.shell_completion:script",
    "mcp": "stepper.cli.mcp_command:mcp",
    "view": "stepper.web.view_command:view",
    "watch": "stepper.web.watch_command:watch",
}
COMPLETED = {
    "notebook": "stepper.cli.shell_completion:notebooks",
    "cell": "stepper.cli.shell_completion:cells",
}
# Claude Code calls it: a TAB after `stat` is for `status`
NOT_COMPLETED = {"statusline"}
EXIT_CODES = "0 done · 1 the work failed · 2 wrong usage · 3 stepper itself failed · 130 interrupted (Ctrl-C)"
PLAN_FILE = click.Option(
    ["--plan"],
    type=click.File(),
    help="The steps in YAML: titles, or maps of title, criterion, kind, long.",
)


class Commands(click.Group):
    """The group through whose one door all errors leave."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; say an error of ours on standard error and end with its exit code."""
        try:
            return super().invoke(ctx)
        except StepperError as error:
            from stepper.messages.quoted_output import words

            say(
                f"stepper: {words(error.message)}"
                + "".join(f"\n         {line}" for line in error.hint.splitlines()),
                err=True,
            )
            ctx.exit(error.exit_code)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise  # wrong usage (2), the end of a command
        except KeyboardInterrupt:
            status = CommandLines(ctx.obj or "").shell("status")
            say(
                f"\nstepper: interrupted; `{status}` shows whether a cell still runs",
                err=True,
            )
            ctx.exit(INTERRUPTED)
        except Exception as error:
            found = find_project(client.current_folder())
            say(f"stepper itself failed: {type(error).__name__}: {error}", err=True)
            click.echo(
                f"         see {Paths(found).log}"
                if found
                else "         no project, no log",
                err=True,
            )
            ctx.exit(3)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the commands below the titles of their groups, each with all that is said of it."""
        for title in GROUPS:
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (shown(row), row.summary)
                        for row in COMMANDS.values()
                        if row.group == title
                    ]
                )


class Subcommands(click.Group):
    """`stepper plan [NOTEBOOK]` shows, `stepper plan add|edit|rm|move …` changes; `stepper kernels [wait …]`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take what is no subcommand for what is to be shown."""
        completes = ctx.resilient_parsing and not args  # the subcommands too
        if not completes and (
            not args
            or (args[0] not in self.commands and args[0] not in ctx.help_option_names)
        ):
            args = ["show", *args]
        return super().parse_args(ctx, args)

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the options of `show`, which the group's name alone is, and the subcommands."""
        self.commands["show"].format_options(ctx, formatter)
        rows = [row for row in COMMANDS.values() if row.name.split()[0] == self.name]
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (shown(row).removeprefix(f"{self.name} "), row.summary)
                    for row in rows
                ]
            )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete the subcommands, and what may be shown, such as the notebook whose plan it is."""
        shows = self.commands["show"].params[0]
        more = (
            shows.shell_complete(ctx, incomplete)
            if isinstance(shows, click.Argument)
            else []
        )
        return [*super().shell_complete(ctx, incomplete), *more]


def shown(row: Command) -> str:
    """Return how help names a command."""
    return (
        f"{row.name} show"
        if row.name in SUBCOMMANDS
        else ", ".join(filter(None, [row.name, row.alias]))
    )


def epilog(*examples: str) -> str:
    """Return what stands below a command's options."""
    calls = "\n".join(f"  stepper {example}" for example in examples)
    return f"\b\nExamples:\n{calls}\n\n\b\nExit codes:\n  {EXIT_CODES}"


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog=epilog(
        'new "How wet is Seattle?"',
        "status",
        "run analysis",
        'eval "df.head()"',
        "COMMAND --help",
    ),
)
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
    if not isinstance(items, list) or not all(
        isinstance(item, str | dict) for item in items
    ):
        raise UsageError(
            "the plan must be a list of titles, or of maps with title, criterion, kind, long"
        )
    return items


def perform(
    row: Command, as_json: bool = False, plan: IO[str] | None = None, **given: Any
) -> None:
    """Do what a command is for and show its answer; exit 1 where that came out badly."""
    for argument in of_shell(row.arguments):
        value = given[argument.name]
        if isinstance(value, tuple):  # words, or an option given several times
            value = " ".join(value) if argument.metadata.get("many") else list(value)
        if value == "-" and argument.metadata.get("stdin"):
            value = sys.stdin.read()
        given[argument.name] = value
    if plan is not None:
        given["steps"] += plan_items(plan)
    # for what is said after a Ctrl-C
    click.get_current_context().find_root().obj = given.get("notebook")
    project = resolve_project(client.current_folder(), sys.prefix)
    if project is None and row.name != "completion":
        mend = "uvx notebook-stepper install PATH_OF_THE_REPOSITORY  # or install.sh, in a checkout of stepper"
        raise UsageError("stepper is not set up in this folder or one above it", mend)
    paths = Paths(project or "/")
    if row.name in HERE:
        answer, interrupted = loaded(HERE[row.name])(paths, **given), False
    else:
        with (
            RunProgress(quiet=as_json) as progress,
            Interrupts(row.runs_code) as interrupts,
        ):
            body = client.ask(
                paths,
                row.name.encode(),
                json.dumps(given).encode(),
                progress,
                begun=interrupts.watch,
            )
        answer, interrupted = json.loads(body or b"null"), interrupts.came
    well = show(row.name, answer, as_json)
    if interrupted or not well:
        sys.exit(INTERRUPTED if interrupted else 1)


def loaded(name: str) -> Any:
    """Return what a name `module:function` means; what few commands need is loaded for those alone."""
    import pkgutil

    return pkgutil.resolve_name(name)


def parameter(argument: Field[Any]) -> click.Parameter:
    """Return how a shell gives an argument of a command."""
    shell, of, required = argument.metadata, kind(argument), argument.default is MISSING
    more: dict[str, Any] = {
        "type": click.Choice(shell["choice"]) if "choice" in shell else of
    }
    if argument.name in COMPLETED:
        more["shell_complete"] = functools.partial(completed, COMPLETED[argument.name])
    if "about" not in shell:
        more |= {"nargs": -1} if shell.get("many") else {"required": required}
        return click.Argument([argument.name], metavar=shell.get("metavar"), **more)
    if of is bool:
        more = {"is_flag": True}
    elif of is list:
        more = {"multiple": True}
    elif not required:
        more["default"] = argument.default
    flag = shell.get("flag", f"--{argument.name}")
    return click.Option(
        [flag, argument.name], help=shell["about"], required=required, **more
    )


def completed(by: str, ctx: click.Context, _: click.Parameter, incomplete: str) -> Any:
    """Return what completes an argument's value; what that needs is loaded at a TAB alone."""
    return loaded(by)(ctx, incomplete)


def made(row: Command, name: str) -> click.Command:
    """Return the command of a row."""
    parameters = [parameter(argument) for argument in of_shell(row.arguments)]
    if row.name == "new":
        parameters.append(PLAN_FILE)
    if PRESENT[row.name].has_times:
        about = "Times in UTC, not in the zone of this machine."
        parameters.append(
            click.Option(
                ["--utc"], is_flag=True, callback=in_utc, expose_value=False, help=about
            )
        )
    if PRESENT[row.name].has_json:
        about = "Print one JSON document and nothing else."
        parameters.append(click.Option(["--json", "as_json"], is_flag=True, help=about))
    return click.Command(
        name,
        params=parameters,
        callback=functools.partial(perform, row),
        help=row.about,
        short_help=row.summary,
        epilog=epilog(*row.examples),
        hidden=row.name in NOT_COMPLETED,
    )


# A command that has subcommands → what is said of all of them, what stands for their
# words in its usage.
SUBCOMMANDS = {
    "plan": (
        "Show a notebook's plan (`stepper plan [NOTEBOOK] [--json]`), or change what has not run.",
        "NOTEBOOK | ",
    ),
    "kernels": (
        "List the places where kernels may run (`stepper kernels [--json]`), or wait for a kernel.",
        "",
    ),
}
groups = {}
for name, (about, words) in SUBCOMMANDS.items():
    groups[name] = Subcommands(
        name,
        help=about,
        short_help=about,
        subcommand_metavar=f"[{words}COMMAND [ARGS]...]",
    )
    of_group = [
        row for row in COMMANDS.values() if row.name.split()[0] == name and row.examples
    ]
    groups[name].epilog = epilog(*(row.examples[-1] for row in of_group))
    main.add_command(groups[name])
for command in COMMANDS.values():
    first, _, last = command.name.partition(" ")
    for name in filter(
        None, (last or ("show" if first in groups else first), command.alias)
    ):
        groups.get(first, main).add_command(made(command, name))
