"""The command line: a thin face over the client, the same verbs, the same words."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import click

from stepper import __version__, client
from stepper.errors import DaemonError, StepperError, UsageError
from stepper.paths import HOME, Paths, find_project

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
NOTEBOOK = click.argument("notebook", required=False)


def project() -> Paths:
    """Return the project that the current folder belongs to, else the one this stepper is installed in."""
    found = find_project(os.getcwd())
    above = os.path.dirname(sys.prefix)
    if found is None and os.path.basename(above) == HOME:
        found = os.path.dirname(above)
    if found is None:
        raise UsageError("stepper is not set up in this folder or one above it", "install.sh PATH_OF_THE_REPOSITORY")
    return Paths(found)


def ask(verb: str, progress: Any = None, launch: bool = True, **arguments: Any) -> Any:
    """Ask the daemon; return what its JSON holds, None where none runs and `launch` is off."""
    paths = project()

    def told(body: bytes) -> None:
        if progress:
            progress(json.loads(body))

    body = client.ask(paths, verb.encode(), json.dumps(arguments).encode(), told, launch)
    return None if body is None else json.loads(body)


def show(as_json: bool, data: Any, text: str) -> None:
    """Print the data as one JSON document, or the text."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False) if as_json else text)


class Commands(click.Group):
    """The group through whose one door all errors leave."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; say an error of ours on standard error and end with its exit code."""
        try:
            return super().invoke(ctx)
        except StepperError as error:
            click.echo(f"stepper: {error.message}", err=True)
            if error.hint:
                click.echo(f"         {error.hint}", err=True)
            ctx.exit(error.exit_code)
        except OSError as error:
            click.echo(f"stepper: {error}", err=True)
            ctx.exit(3)


@click.group(cls=Commands)
@click.version_option(__version__, prog_name="stepper")
def main() -> None:
    """Jupyter notebooks, one cell at a time: each cell runs the moment it is written."""


@main.command()
@click.argument("problem")
@click.option("--name", help="The file name's part; from the problem when not given.")
@click.option("--step", "steps", multiple=True, help="A step's title; repeat it for each step, in order.")
@AS_JSON
def new(problem: str, name: str | None, steps: tuple[str, ...], as_json: bool) -> None:
    """Make a notebook for PROBLEM, with its plan; it becomes the current one."""
    made = ask("new", problem=problem, name=name, steps=list(steps))
    lines = [f"Made {made['notebook']}; it is the current notebook."]
    lines += [f"  {step['id']}. {step['title']}" for step in made["steps"]]
    if made["unfinished"]:
        lines.append(f"{made['unfinished']} is unfinished; it stays as it is.")
    where = "the notebook's folder" if made["kernel_cwd"] == "notebook" else "the project's folder"
    lines.append(f"Its kernel will run in {where}: paths in cells are relative to that.")
    show(as_json, {"notebook": made["notebook"], "steps": made["steps"]}, "\n".join(lines))


@main.command()
@NOTEBOOK
@AS_JSON
def status(notebook: str | None, as_json: bool) -> None:
    """Show where a notebook stands: its steps, its kernel, the daemon."""
    from stepper.present import status_text

    found = ask("status", notebook=notebook)
    show(as_json, found, status_text(found))


@main.command()
@click.argument("notebook")
@click.option("--all", "everything", is_flag=True, help="Every cell from the top, in a fresh kernel.")
@AS_JSON
def run(notebook: str, everything: bool, as_json: bool) -> None:
    """Run the cells of NOTEBOOK that have not run here yet; exit 1 at the first that fails."""
    from stepper.present import RunProgress

    with RunProgress(quiet=as_json) as progress:
        ended = ask("run", progress, notebook=notebook, all=everything)
    summary = f"{ended['notebook']}: {ended['ran']} of {ended['cells']} cells ran ok"
    if not ended["cells"]:
        summary = f"{ended['notebook']}: nothing to run; every cell ran here already (--all runs them again)"
    show(as_json, ended, "\n".join(filter(None, [ended["report"], summary])))
    if not ended["ok"]:
        sys.exit(1)


@main.command()
@NOTEBOOK
@AS_JSON
def history(notebook: str | None, as_json: bool) -> None:
    """Show every run of a notebook's cells."""
    from stepper.present import history_text

    found = ask("history", notebook=notebook)
    show(as_json, found, history_text(found))


@main.command()
@NOTEBOOK
def interrupt(notebook: str | None) -> None:
    """Interrupt the cell that runs; the kernel keeps its state."""
    found = ask("interrupt", notebook=notebook)
    click.echo(f"{found['notebook']}: {'interrupted' if found['interrupted'] else 'no cell is running'}")


@main.command()
@NOTEBOOK
def restart(notebook: str | None) -> None:
    """Start a fresh kernel: the state of the old one is lost."""
    found = ask("restart", notebook=notebook)
    lost = "all variables of the old one are lost" if found["had_kernel"] else "there was none before"
    click.echo(f"{found['notebook']}: a fresh kernel runs; {lost}.")


@main.command()
def shutdown() -> None:
    """End the daemon and the kernels of this project; nothing else is touched."""
    paths = project()
    pid = daemon_pid(paths)
    try:
        ended = ask("shutdown", launch=False)
        if ended is None and kernels_on_record(paths):
            pid, ended = None, ask("shutdown")
    except DaemonError as error:
        from stepper.force import end_by_force

        click.echo(f"stepper: {error.message}; ending it by force", err=True)
        ended = {"kernels": end_by_force(paths)}
    wait_gone(paths, pid)
    if ended is None:
        click.echo("Nothing of stepper's runs in this project.")
    else:
        click.echo(f"Ended: the daemon and {ended['kernels']} kernel(s) of this project.")


def daemon_pid(paths: Paths) -> int | None:
    """Return the pid that the daemon wrote down, or None."""
    try:
        with open(paths.daemon_json, encoding="utf-8") as stream:
            return int(json.load(stream)["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def kernels_on_record(paths: Paths) -> bool:
    """Whether kernels may live although no daemon does."""
    return any(name.endswith(".json") for _, _, names in os.walk(paths.kernels) for name in names)


def wait_gone(paths: Paths, pid: int | None) -> None:
    """Return when the daemon's process is gone, 10 seconds at most."""
    import fcntl

    until = time.monotonic() + 10
    lock = os.open(paths.daemon_lock, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        while time.monotonic() < until:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
    finally:
        os.close(lock)
    while pid and os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
        time.sleep(0.01)


@main.command()
def doctor() -> None:
    """Check the installation: what is wrong and the command that mends it."""
    from stepper.doctor import checks

    bad = 0
    for check in checks(project()):
        bad += not check.ok
        click.echo(f"{'ok  ' if check.ok else 'BAD '} {check.name}: {check.detail}")
        if not check.ok and check.mend:
            click.echo(f"     mend: {check.mend}")
    if bad:
        sys.exit(1)
