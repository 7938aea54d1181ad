"""The command line: a thin face over the client, the same verbs, the same words."""

from __future__ import annotations

import json
import sys
from typing import IO, Any

import click

from stepper import __version__
from stepper.ground.errors import StepperError, UsageError
from stepper.ground.paths import Paths, find_project, project_of
from stepper.hook import client
from stepper.hook.client import current_folder

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
NOTEBOOK = click.argument("notebook", required=False)


def project() -> Paths:
    """Return the project that a command given here is for."""
    found = project_of(current_folder(), sys.prefix)
    if found is None:
        raise UsageError("stepper is not set up in this folder or one above it", "install.sh PATH_OF_THE_REPOSITORY")
    return Paths(found)


def ask(verb: str, progress: Any = None, launch: bool = True, **arguments: Any) -> Any:
    """Ask the daemon; return what its JSON holds, None where none runs and `launch` is off."""
    paths = project()

    def told(body: bytes) -> None:
        if body and progress:
            progress(json.loads(body))

    body = client.ask(paths, verb.encode(), json.dumps(arguments).encode(), told, launch)
    return None if body is None else json.loads(body)


def say(text: str, err: bool = False) -> None:
    """Print a text, without what a terminal would obey: titles, names and outputs are anybody's."""
    from stepper.ground.text import clean

    click.echo(clean(text), err=err)


def show(as_json: bool, data: Any, text: str) -> None:
    """Print the data as one JSON document, or the text."""
    if not as_json:
        return say(text)
    from stepper.ground.text import CONTROLS

    told = json.dumps(data, indent=2, ensure_ascii=False)
    return click.echo(CONTROLS.sub(lambda found: json.dumps(found[0])[1:-1], told))


class Commands(click.Group):
    """The group through whose one door all errors leave."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; say an error of ours on standard error and end with its exit code."""
        try:
            return super().invoke(ctx)
        except StepperError as error:
            from stepper.words.report import words

            say(f"stepper: {words(error.message)}", err=True)
            if error.hint:
                say(f"         {error.hint}", err=True)
            ctx.exit(error.exit_code)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise  # wrong usage (2), the end of a command, Ctrl-C
        except Exception as error:
            found = find_project(current_folder())
            say(f"stepper itself failed: {type(error).__name__}: {error}", err=True)
            click.echo(f"         see {Paths(found).log}" if found else "         no project, no log", err=True)
            ctx.exit(3)


@click.group(cls=Commands)
@click.version_option(__version__, prog_name="stepper")
def main() -> None:
    """Jupyter notebooks, one cell at a time: each cell runs the moment it is written."""


@main.command()
@click.argument("problem")
@click.option("--name", help="The file name's part; from the problem when not given.")
@click.option("--step", "steps", multiple=True, help='A step, in order: "TITLE" or "TITLE :: CRITERION".')
@click.option(
    "--plan", "plan_file", type=click.File(), help="The steps in YAML: titles, or maps of title, criterion, kind."
)
@AS_JSON
def new(problem: str, name: str | None, steps: tuple[str, ...], plan_file: IO[str] | None, as_json: bool) -> None:
    """Make a notebook for PROBLEM, with its plan; it becomes the current one."""
    told = [*steps, *(plan_items(plan_file) if plan_file else [])]
    made = ask("new", problem=problem, name=name, steps=told)
    lines = [f"Made {made['notebook']}; it is the current notebook."]
    lines += [f"  {step['id']}. {step['title']}" for step in made["steps"]]
    if made["unfinished"]:
        lines.append(f"{made['unfinished']} is unfinished; it stays as it is.")
    where = "the notebook's folder" if made["kernel_cwd"] == "notebook" else "the project's folder"
    lines.append(f"Its kernel will run in {where}: paths in cells are relative to that.")
    show(as_json, {"notebook": made["notebook"], "steps": made["steps"]}, "\n".join(lines))


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


class PlanGroup(click.Group):
    """`stepper plan [NOTEBOOK]` shows; `stepper plan add|edit|remove|move …` changes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take what is no subcommand for the notebook to show."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@main.group(cls=PlanGroup)
def plan() -> None:
    """Show a notebook's plan, or change what has not run: add, edit, remove, move."""


OF_NOTEBOOK = click.option("--notebook", help="Which notebook; the current one when not given.")


@plan.command("show", hidden=True)
@NOTEBOOK
@AS_JSON
def plan_show(notebook: str | None, as_json: bool) -> None:
    """Show the plan with each step's status."""
    show_plan(ask("plan", notebook=notebook), as_json)


@plan.command("add")
@click.argument("title")
@click.option("--after", type=int, help="The step it comes after (0: first); at the end when not given.")
@OF_NOTEBOOK
@AS_JSON
def plan_add(title: str, after: int | None, notebook: str | None, as_json: bool) -> None:
    """Add a step: "TITLE" or "TITLE :: CRITERION"."""
    show_plan(ask("plan", notebook=notebook, change="add", title=title, after=after), as_json)


@plan.command("edit")
@click.argument("number", metavar="ID", type=int)
@click.argument("title")
@OF_NOTEBOOK
@AS_JSON
def plan_edit(number: int, title: str, notebook: str | None, as_json: bool) -> None:
    """Change the title of a step that has not run."""
    show_plan(ask("plan", notebook=notebook, change="edit", id=number, title=title), as_json)


@plan.command("remove")
@click.argument("number", metavar="ID", type=int)
@OF_NOTEBOOK
@AS_JSON
def plan_remove(number: int, notebook: str | None, as_json: bool) -> None:
    """Remove a step that has not run."""
    show_plan(ask("plan", notebook=notebook, change="remove", id=number), as_json)


@plan.command("move")
@click.argument("number", metavar="ID", type=int)
@click.option("--after", type=int, required=True, help="The step it is to come after (0: first).")
@OF_NOTEBOOK
@AS_JSON
def plan_move(number: int, after: int, notebook: str | None, as_json: bool) -> None:
    """Move a step that has not run."""
    show_plan(ask("plan", notebook=notebook, change="move", id=number, after=after), as_json)


def show_plan(found: dict[str, Any], as_json: bool) -> None:
    """Print a plan."""
    from stepper.cli.present import plan_text

    show(as_json, found, plan_text(found))


@main.command("continue")
@NOTEBOOK
def go_on(notebook: str | None) -> None:
    """Lift a stop; say where to go on."""
    say(ask("continue", notebook=notebook)["text"])


@main.command()
@NOTEBOOK
def fix(notebook: str | None) -> None:
    """Lift a stop and grant the failed step fresh retries; show what failed and what was tried."""
    say(ask("fix", notebook=notebook)["text"])


@main.command()
@click.argument("reason", nargs=-1)
@OF_NOTEBOOK
def skip(reason: tuple[str, ...], notebook: str | None) -> None:
    """Skip the step that failed, else the next one; REASON is kept (`-`: from standard input)."""
    text = sys.stdin.read() if reason == ("-",) else " ".join(reason)
    say(ask("skip", notebook=notebook, reason=text)["text"])


@main.command()
@AS_JSON
def context(as_json: bool) -> None:
    """Show what an agent must know to go on with the current notebook."""
    found = ask("context")
    text = found.pop("text")
    show(as_json, found, text)


@main.command()
@click.argument("number", metavar="[RUN]", required=False, type=int)
@OF_NOTEBOOK
@AS_JSON
def report(number: int | None, notebook: str | None, as_json: bool) -> None:
    """Show again the report of a run, the last one when RUN is not given."""
    found = ask("report", notebook=notebook, run=number)
    show(as_json, found, found["text"])


@main.command("eval")
@click.argument("code")
@OF_NOTEBOOK
@AS_JSON
def evaluate(code: str, notebook: str | None, as_json: bool) -> None:
    """Run CODE in the live kernel without touching the notebook (`-`: from standard input); exit 1 where it fails."""
    found = ask("eval", notebook=notebook, source=sys.stdin.read() if code == "-" else code)
    show(as_json, found, found["text"])
    if found["outcome"] != "ok":
        sys.exit(1)


@main.command()
@click.argument("cell")
@click.option("--page", type=int, default=1, help="Which page of a long output.")
@OF_NOTEBOOK
@AS_JSON
def output(cell: str, page: int, notebook: str | None, as_json: bool) -> None:
    """Show the text output of a code cell (its number or id), of which a report left some out."""
    found = ask("output", notebook=notebook, cell=cell, page=page)
    more = f"page {found['page']} of {found['pages']}" if found["pages"] > 1 else ""
    show(as_json, found, "\n".join(filter(None, [found["text"], more])))


@main.command()
@NOTEBOOK
@AS_JSON
def status(notebook: str | None, as_json: bool) -> None:
    """Show where a notebook stands: its steps, its kernel, the daemon."""
    from stepper.cli.present import status_text

    found = ask("status", notebook=notebook)
    show(as_json, found, status_text(found))


@main.command()
@click.argument("notebook")
@click.option("--all", "everything", is_flag=True, help="Every cell from the top, in a fresh kernel.")
@AS_JSON
def run(notebook: str, everything: bool, as_json: bool) -> None:
    """Run the cells of NOTEBOOK that have not run here yet; exit 1 at the first that fails."""
    nothing = "nothing to run; every cell ran here already (--all runs them again)"
    run_cells("run", as_json, nothing, notebook=notebook, all=everything)


@main.command()
@NOTEBOOK
@AS_JSON
def restore(notebook: str | None, as_json: bool) -> None:
    """Run the cells that had ended well again, in a fresh kernel; exit 1 at the first that ends otherwise.

    For a kernel that died. The cell that ended it is left out.
    """
    run_cells("restore", as_json, "nothing to restore; no cell of it had ended well", notebook=notebook)


def run_cells(verb: str, as_json: bool, nothing: str, **arguments: Any) -> None:
    """Have cells run and print what came of it; exit 1 where one failed."""
    from stepper.cli.present import RunProgress

    with RunProgress(quiet=as_json) as progress:
        ended = ask(verb, progress, **arguments)
    summary = f"{ended['ran']} of {ended['cells']} cells ran ok" if ended["cells"] else nothing
    show(as_json, ended, "\n".join(filter(None, [ended["report"], f"{ended['notebook']}: {summary}"])))
    if not ended["ok"]:
        sys.exit(1)


@main.command()
@NOTEBOOK
@AS_JSON
def history(notebook: str | None, as_json: bool) -> None:
    """Show every run of a notebook's cells."""
    from stepper.cli.present import history_text

    found = ask("history", notebook=notebook)
    show(as_json, found, history_text(found))


@main.command()
@NOTEBOOK
def interrupt(notebook: str | None) -> None:
    """Interrupt the cell that runs; the kernel keeps its state."""
    found = ask("interrupt", notebook=notebook)
    say(f"{found['notebook']}: {'interrupted' if found['interrupted'] else 'no cell is running'}")


@main.command()
@NOTEBOOK
def restart(notebook: str | None) -> None:
    """Start a fresh kernel: the state of the old one is lost."""
    found = ask("restart", notebook=notebook)
    lost = "all variables of the old one are lost" if found["had_kernel"] else "there was none before"
    say(f"{found['notebook']}: a fresh kernel runs; {lost}.")


@main.command()
def shutdown() -> None:
    """End the daemon and the kernels of this project; nothing else is touched."""
    from stepper.cli.ending import daemon_pid, kernels_on_record, wait_gone

    paths = project()
    pid = daemon_pid(paths)
    try:
        ended = ask("shutdown", launch=False)
        if ended is None:
            pid = None  # of one that is gone: another process may have it now
            ended = ask("shutdown") if kernels_on_record(paths) else None
    except StepperError as error:  # it hangs, or a wrong config keeps it from finding its notebooks
        from stepper.cli.force import end_by_force

        say(f"stepper: {error.message}; ending it by force", err=True)
        ended = {"kernels": end_by_force(paths)}
    wait_gone(paths, pid)
    if ended is None:
        click.echo("Nothing of stepper's runs in this project.")
    else:
        click.echo(f"Ended: the daemon and {ended['kernels']} kernel(s) of this project.")


@main.command()
def doctor() -> None:
    """Check the installation: what is wrong and the command that mends it."""
    from stepper.setup.doctor import checks

    bad = 0
    for check in checks(project()):
        bad += not check.ok
        say(f"{'ok  ' if check.ok else 'BAD '} {check.name}: {check.detail}")
        if not check.ok and check.mend:
            say(f"     mend: {check.mend}")
    if bad:
        sys.exit(1)


@main.command("trust")
@AS_JSON
def accept(as_json: bool) -> None:
    """Accept what this checkout names to run: its kernels' interpreter and the hook's environment."""
    from stepper.cli.present import trust_text
    from stepper.setup.trust import trust

    found = trust(project())
    show(as_json, found, trust_text(found))
