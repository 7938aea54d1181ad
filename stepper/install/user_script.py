"""The script `stepper` for the user's shell, which `install.sh --link` creates.

One script in ~/.local/bin serves all projects. This module uses only the standard
library.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import NamedTuple

from stepper.common.errors import StepperError
from stepper.common.paths import Paths, get_record_root
from stepper.install.install_file_io import find_assets, read, remove, write

MARK = b"(notebook-stepper)"
MAX_NAMED_PROJECTS = 5
# The line with the command that the script runs outside of projects.
ENVIRONMENT_LINE = re.compile(rb"^any=.*$", re.MULTILINE)


class ScriptRemoval(NamedTuple):
    """The result of `remove_script`.

    If a script of stepper was not removed, `kept` contains its path and the reason.
    """

    is_removed: bool = False
    kept: str = ""


def get_script_path() -> Path:
    """Return the path of the script."""
    return Path("~/.local/bin/stepper").expanduser()


def get_script_state() -> str:
    """Return the state of the script.

    The state is `missing`, `foreign` (from another program), `ours`, or `outdated`
    (from another version of stepper).
    """
    content = read(get_script_path())
    if MARK not in content:
        return "foreign" if os.path.lexists(get_script_path()) else "missing"
    installed = ENVIRONMENT_LINE.sub(b"", content)
    shipped = ENVIRONMENT_LINE.sub(b"", _read_shipped_script())
    return "ours" if installed == shipped else "outdated"


def check_script_name() -> None:
    """Raise StepperError if the path of the script belongs to another program."""
    path = get_script_path()
    if get_script_state() == "foreign":
        raise StepperError(
            f"{path} belongs to another program",
            f"move {path} away, or install without --link",
        )


def install_script(paths: Paths) -> str:
    """Write the script; return a message on the change."""
    check_script_name()
    change = _write_script(_read_shipped_script(), f"{paths.env}/bin/stepper")
    return f"{change}: {get_script_path()}"


def remove_script() -> ScriptRemoval:
    """Remove the script, unless other projects of the user need the script.

    If other projects need the script, it runs the environment of one of them outside of
    projects. A script of another program is left unchanged.
    """
    path = get_script_path()
    content = read(path)
    if MARK not in content:
        return ScriptRemoval()
    repair = f"To remove it, run: rm {shlex.quote(str(path))}"
    # The script contains the path of a recorded environment (see `_write_script`).
    if os.fsencode(get_record_root()) not in content:
        kept = (
            f"{path} (created by --link of an installation that is not recorded in"
            f" {get_record_root()}). {repair}"
        )
        return ScriptRemoval(kept=kept)
    commands = _list_commands()
    if not commands:
        remove(path)
        return ScriptRemoval(is_removed=True)
    _write_script(content, commands[0])
    names = [_get_project(command) for command in commands[:MAX_NAMED_PROJECTS]]
    projects = ", ".join(names)
    if len(commands) > len(names):
        projects += f" and {len(commands) - len(names)} more"
    kept = f"{path} (created by --link), for your other projects: {projects}. {repair}"
    return ScriptRemoval(kept=kept)


def is_on_path() -> bool:
    """Return whether the folder of the script is on the PATH."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    return str(get_script_path().parent) in folders


def _write_script(script: bytes, command: str) -> str:
    """Write the script, with the command that it runs outside of projects."""
    line = os.fsencode("any=" + shlex.quote(command))
    content = ENVIRONMENT_LINE.sub(lambda _: line, script)
    return write(get_script_path(), content, 0o755)


def _list_commands() -> list[str]:
    """Return the path of the `stepper` command of each project with an environment."""
    commands = []
    for path, folders, _ in os.walk(get_record_root()):
        if os.path.basename(path) != ".stepper":
            continue
        folders.clear()  # don't search in the environment
        command = os.path.join(path, "env", "bin", "stepper")
        if os.path.exists(command):
            commands.append(command)
    return commands


def _get_project(command: str) -> str:
    """Return the project of a `stepper` command in a recorded environment."""
    folder = Path(command).parents[3]  # without .stepper/env/bin/stepper
    return os.sep + str(folder.relative_to(get_record_root()))


def _read_shipped_script() -> bytes:
    """Return the script of this version of stepper."""
    return read(find_assets("hooks") / "shell")
