"""The command line, built from the table of commands.

`policy/commands/cli_commands.py` declares the commands, and `RENDERINGS` formats their
responses. Most commands send a request to the daemon; `LOCAL_COMMANDS` run in this
process.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterable
from dataclasses import MISSING, Field
from typing import IO, Any, NamedTuple

import click

from stepper import __version__
from stepper.cli.keyboard_interrupt import INTERRUPTED, InterruptHandler
from stepper.cli.rendering import RENDERINGS, RunProgress, print_response
from stepper.cli.terminal import print_text, use_utc
from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import Paths, find_project, resolve_project
from stepper.hook import daemon_client
from stepper.policy.commands.cli_commands import COMMANDS
from stepper.policy.commands.command_lines import PROGRAM, CommandLines
from stepper.policy.commands.command_schema import (
    GROUPS,
    HELP,
    Command,
    format_option,
    get_type,
    is_positional,
    list_cli_arguments,
)

# Commands that run in this process. Their modules are imported only when the command
# runs.
LOCAL_COMMANDS = {
    "attach": "stepper.cli.attach:attach",
    "shutdown": "stepper.cli.shutdown:shutdown",
    "doctor": "stepper.install.doctor:run_checks",
    "statusline": "stepper.cli.statusline_command:statusline",
    "trust": "stepper.cli.trust_command:accept",
    "completion": "stepper.cli.shell_completion:make_script",
    "mcp": "stepper.cli.mcp_command:mcp",
    "view": "stepper.web.view_command:view",
    "watch": "stepper.web.watch_command:watch",
}
# Arguments whose values TAB completes.
COMPLETIONS = {
    "notebooks": "stepper.cli.shell_completion:complete_notebooks",
    "notebook": "stepper.cli.shell_completion:complete_notebooks",
    "cell": "stepper.cli.shell_completion:complete_cells",
}
# Claude Code calls `statusline`: TAB after `stat` must complete to `status`.
HIDDEN_COMMANDS = {"statusline"}
WITHOUT_PROJECT = {"completion"}
# Commands that send their requests, print their results and set the exit code.
SEPARATE_COMMANDS = {"verify": "stepper.cli.verify_command:verify"}
EXIT_CODES = (
    "0 done · 1 the work failed · 2 wrong usage · 3 internal error in stepper"
    " · 130 interrupted (Ctrl-C)"
)
PLAN_OPTION = click.Option(
    ["--plan"],
    type=click.File(),
    help="A YAML file with the steps: titles, or mappings with the keys title,"
    " criterion, kind and long.",
)
INSTALL_COMMAND = (
    "uvx notebook-stepper install PATH_OF_THE_REPOSITORY"
    "  # or ./install.sh in a checkout of stepper"
)
HELP_WIDTH = 120
INTERNAL_ERROR = 3  # an exit code


class CommandGroup(click.Group):
    """The group of all commands. It reports the errors that commands raise."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, or report its error and exit with the error's exit code."""
        try:
            return super().invoke(ctx)
        except StepperError as error:
            _report_error(error)
            ctx.exit(error.exit_code)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise  # wrong usage (2), or the command exits
        except KeyboardInterrupt:
            status = CommandLines(ctx.obj or "").shell("status")
            print_text(
                "\nstepper: interrupted. To see whether a cell is still running, run:"
                f" {status}",
                err=True,
            )
            ctx.exit(INTERRUPTED)
        except Exception as error:
            _report_internal_error(error)
            ctx.exit(INTERNAL_ERROR)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the names and summaries of the commands, by group."""
        for title in GROUPS:
            summaries = [
                (format_command_name(command), command.summary)
                for command in COMMANDS.values()
                if command.group == title
            ]
            with formatter.section(title):
                formatter.write_dl(summaries)


def _report_error(error: StepperError) -> None:
    """Print an error's message and hint."""
    from stepper.messages.error_hint import format_hint
    from stepper.messages.quoted_output import quote_message

    lines = [f"stepper: {quote_message(error.message)}"]
    for line in format_hint(error.hint).splitlines():
        lines.append(f"         {line}")
    print_text("\n".join(lines), err=True)


def _report_internal_error(error: Exception) -> None:
    """Print an unexpected exception, and the path of the log."""
    kind_name = type(error).__name__
    print_text(f"internal error in stepper: {kind_name}: {error}", err=True)
    project = find_project(daemon_client.get_current_folder())
    if project is not None:
        print_text(f"         For details, see {Paths(project).log}", err=True)


class SubcommandGroup(click.Group):
    """A command with subcommands. The default subcommand is `show`.

    `stepper plan [NOTEBOOK]` shows the plan, and `stepper plan add …` changes the plan.
    `stepper kernels` lists the backends, and `stepper kernels wait` waits for a kernel.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the subcommand `show` if the arguments contain no subcommand."""
        # Without `show`, completion of an empty line offers the subcommands.
        is_completing_subcommand = ctx.resilient_parsing and not args
        if not is_completing_subcommand and not self._has_subcommand(ctx, args):
            args = ["show", *args]
        return super().parse_args(ctx, args)

    def _has_subcommand(self, ctx: click.Context, args: list[str]) -> bool:
        """Return whether the first argument is a subcommand or asks for help."""
        if not args:
            return False
        return args[0] in self.commands or args[0] in ctx.help_option_names

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the options of `show`, and the list of subcommands."""
        self.commands["show"].format_options(ctx, formatter)
        prefix = f"{self.name} "
        summaries = []
        for command in _list_subcommands(self.name):
            name = format_command_name(command).removeprefix(prefix)
            summaries.append((name, command.summary))
        with formatter.section("Commands"):
            formatter.write_dl(summaries)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete the subcommands and the argument of `show`."""
        items: list[Any] = super().shell_complete(ctx, incomplete)
        parameter = self.commands["show"].params[0]
        if isinstance(parameter, click.Argument):
            items += parameter.shell_complete(ctx, incomplete)
        return items


def _list_subcommands(group_name: str | None) -> list[Command]:
    """Return the commands of a group, including `show`."""
    return [
        command
        for command in COMMANDS.values()
        if command.name.split()[0] == group_name
    ]


def format_command_name(command: Command) -> str:
    """Return the name and the alias of a command, for the help."""
    if command.name in SUBCOMMAND_GROUPS:
        return f"{command.name} show"
    if command.alias:
        return f"{command.name}, {command.alias}"
    return command.name


def format_epilog(examples: Iterable[str], program: str = PROGRAM) -> str:
    """Return the end of a command's help: the examples and the exit codes."""
    example_lines = "\n".join(f"  {program} {example}" for example in examples)
    # click does not rewrap a paragraph that starts with a line that contains only \b.
    return f"\b\nExamples:\n{example_lines}\n\n\b\nExit codes:\n  {EXIT_CODES}"


MAIN_EXAMPLES = (
    'new "How wet is Seattle?"',
    "status",
    "run analysis",
    'eval "df.head()"',
    "COMMAND --help",
)


@click.group(
    cls=CommandGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": HELP_WIDTH,
    },
    epilog=format_epilog(MAIN_EXAMPLES),
)
@click.version_option(__version__, prog_name="stepper")
def main() -> None:
    """Jupyter notebooks, one cell at a time: each cell runs when it is written."""


def load_plan_steps(stream: IO[str]) -> list[Any]:
    """Return the steps of a plan in a YAML file.

    Raise UsageError if the file does not contain a list of steps.
    """
    import yaml

    try:
        steps = yaml.safe_load(stream)
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: the text is not UTF-8, or a date such as 2024-99-99 is invalid.
        raise UsageError(f"the plan is not valid YAML: {error}") from None
    if isinstance(steps, dict):
        steps = steps.get("steps")
    is_list = isinstance(steps, list)
    if not is_list or not all(isinstance(step, str | dict) for step in steps):
        raise UsageError(
            "the plan must be a list of titles, or of mappings with the keys title,"
            " criterion, kind and long"
        )
    return list(steps)


def run_command(
    command: Command,
    as_json: bool = False,
    plan: IO[str] | None = None,
    **values: Any,
) -> None:
    """Run a command and print its response.

    `values` are the values of the command's arguments, and `plan` is a file with
    further steps for `new`. Exit with 1 if the command failed, and with INTERRUPTED if
    the user interrupted its cell with Ctrl-C. A command of SEPARATE_COMMANDS prints its
    results and returns the exit code.
    """
    for argument in list_cli_arguments(command.arguments):
        value = values[argument.name]
        values[argument.name] = _convert_value(argument, value)
    if plan is not None:
        values["steps"] += load_plan_steps(plan)
    # The message after Ctrl-C names the notebook.
    click.get_current_context().find_root().obj = values.get("notebook")
    if command.name in SEPARATE_COMMANDS:
        function = import_object(SEPARATE_COMMANDS[command.name])
        sys.exit(function(as_json=as_json, **values))
    paths = _find_paths(command)
    is_interrupted = False
    if command.name in LOCAL_COMMANDS:
        function = import_object(LOCAL_COMMANDS[command.name])
        response = function(paths, **values)
    else:
        progress = RunProgress(quiet=as_json)
        interrupt_handler = InterruptHandler(command.runs_code)
        with progress, interrupt_handler:
            body = daemon_client.send_request(
                paths,
                command.name.encode(),
                json.dumps(values).encode(),
                progress,
                on_connect=interrupt_handler.add_connection,
            )
        response = json.loads(body or b"null")
        is_interrupted = interrupt_handler.interrupted
    has_succeeded = print_response(command.name, response, as_json)
    if is_interrupted:
        sys.exit(INTERRUPTED)
    if not has_succeeded:
        sys.exit(1)


def _convert_value(argument: Field[Any], value: Any) -> Any:
    """Return the value of an argument in the format of a request.

    The words of a text, which are separate arguments of the shell, are joined. If the
    argument accepts standard input, it replaces the value `-`.
    """
    if isinstance(value, tuple):
        is_text = bool(argument.metadata.get("many"))
        value = " ".join(value) if is_text else list(value)
    if value == "-" and argument.metadata.get("stdin"):
        return sys.stdin.read()
    return value


def _find_paths(command: Command) -> Paths:
    """Return the paths of the current project.

    Raise UsageError if the command needs a project and the current folder is in none.
    """
    project = resolve_project(daemon_client.get_current_folder(), sys.prefix)
    if project is None and command.name not in WITHOUT_PROJECT:
        raise UsageError(
            "stepper is not set up in this folder or a parent folder", INSTALL_COMMAND
        )
    return Paths(project or "/")


def import_object(name: str) -> Any:
    """Return the object with a name of the form `module:object`."""
    import pkgutil

    return pkgutil.resolve_name(name)


def make_parameter(argument: Field[Any]) -> click.Parameter:
    """Return the click parameter for an argument of a command."""
    if is_positional(argument):
        return _make_positional(argument)
    return _make_option(argument)


def _make_positional(argument: Field[Any]) -> click.Argument:
    """Return the click parameter for a positional argument.

    `many` means a text of several words, and `several` a list of values.
    """
    metadata = argument.metadata
    settings = _get_value_settings(argument)
    metavar = metadata.get("metavar")
    if metadata.get("several"):
        settings["type"] = str
        metavar = f"[{metavar}]..."
    if metadata.get("many") or metadata.get("several"):
        settings["nargs"] = -1
    else:
        settings["required"] = argument.default is MISSING
    return click.Argument([argument.name], metavar=metavar, **settings)


def _make_option(argument: Field[Any]) -> click.Option:
    """Return the click parameter for an option: a flag, a list or a single value."""
    metadata = argument.metadata
    value_type = get_type(argument)
    is_required = argument.default is MISSING
    settings: dict[str, Any]
    if value_type is bool:
        settings = {"is_flag": True}
    elif value_type is list:
        settings = {"multiple": True}
    else:
        settings = _get_value_settings(argument)
        if not is_required:
            settings["default"] = argument.default
    flags = [format_option(argument), argument.name]
    if "short" in metadata:
        flags.insert(0, metadata["short"])
    return click.Option(
        flags,
        help=metadata[HELP],
        required=is_required,
        metavar=metadata.get("metavar"),
        **settings,
    )


def _get_value_settings(argument: Field[Any]) -> dict[str, Any]:
    """Return click's settings for the type and the completion of a value."""
    settings: dict[str, Any] = {"type": _get_click_type(argument)}
    if argument.name in COMPLETIONS:
        completion = COMPLETIONS[argument.name]
        settings["shell_complete"] = functools.partial(complete_argument, completion)
    return settings


def _get_click_type(argument: Field[Any]) -> Any:
    """Return the Click type that validates the values of an argument."""
    metadata = argument.metadata
    value_type = get_type(argument)
    if "choice" in metadata:
        return click.Choice(metadata["choice"])
    if "minimum" not in metadata:
        return value_type
    number_range = click.IntRange if value_type is int else click.FloatRange
    return number_range(metadata["minimum"], metadata.get("maximum"))


def complete_argument(
    completion: str,
    ctx: click.Context,
    _: click.Parameter,
    incomplete: str,
) -> Any:
    """Return the completions of an incomplete argument.

    `completion` is the name of the function that returns them, as in COMPLETIONS.
    """
    function = import_object(completion)
    return function(ctx, incomplete)


def make_command(command: Command, name: str, program: str = PROGRAM) -> click.Command:
    """Return the click command for a command of the table, under the given name.

    `program` is the name of the program in its examples.
    """
    parameters = [
        make_parameter(argument) for argument in list_cli_arguments(command.arguments)
    ]
    rendering = RENDERINGS[command.name]
    if command.name == "new":
        parameters.append(PLAN_OPTION)
    if rendering.has_times:
        utc_option = click.Option(
            ["--utc"],
            is_flag=True,
            callback=use_utc,
            expose_value=False,
            help="Show times in UTC instead of the local time zone.",
        )
        parameters.append(utc_option)
    if rendering.has_json:
        json_option = click.Option(
            ["--json", "as_json"],
            is_flag=True,
            help="Print one JSON document and nothing else.",
        )
        parameters.append(json_option)
    return click.Command(
        name,
        params=parameters,
        callback=functools.partial(run_command, command),
        help=command.help,
        short_help=command.summary,
        epilog=format_epilog(command.examples, program),
        hidden=command.name in HIDDEN_COMMANDS,
    )


class SubcommandGroupHelp(NamedTuple):
    """The help of a command with subcommands, and the arguments in its usage line."""

    help: str
    usage: str


SUBCOMMAND_GROUPS = {
    "plan": SubcommandGroupHelp(
        "Show a notebook's plan (`stepper plan [NOTEBOOK] [--json]`), or change steps"
        " that have not run.",
        "[NOTEBOOK | COMMAND [ARGS]...]",
    ),
    "kernels": SubcommandGroupHelp(
        "List the kernel backends (`stepper kernels [--json]`), or wait for a kernel.",
        "[COMMAND [ARGS]...]",
    ),
}


def _add_commands() -> None:
    """Add all commands of the table to `main`."""
    groups = {}
    for group_name, group_help in SUBCOMMAND_GROUPS.items():
        examples = [
            command.examples[-1]
            for command in _list_subcommands(group_name)
            if command.examples
        ]
        group = SubcommandGroup(
            group_name,
            help=group_help.help,
            short_help=group_help.help,
            subcommand_metavar=group_help.usage,
            epilog=format_epilog(examples),
        )
        groups[group_name] = group
        main.add_command(group)
    for command in COMMANDS.values():
        first_word, _, subcommand = command.name.partition(" ")
        parent = groups.get(first_word, main)
        name = subcommand or first_word
        if command.name in groups:
            name = "show"
        parent.add_command(make_command(command, name))
        if command.alias:
            parent.add_command(make_command(command, command.alias))


_add_commands()
