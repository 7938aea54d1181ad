"""`stepper` for the user's own shell: the script that `install.sh --link` creates.

One script in ~/.local/bin serves all projects. Standard library only.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from stepper.common.errors import StepperError
from stepper.common.paths import Paths, get_record_root
from stepper.install.installed_files import find_assets, read, remove, write

MARK = b"(notebook-stepper)"
MAX_NAMED_PROJECTS = 5
# The line that names the environment which answers outside of projects.
ENVIRONMENT_LINE = re.compile(rb"^any=.*$", re.MULTILINE)


def get_script_path() -> Path:
    """Return the path of the script."""
    return Path("~/.local/bin/stepper").expanduser()


def get_script_state() -> str:
    """Return the state of the script.

    It is `missing`, `foreign` (of another program), `ours`, or `outdated` (of another
    version of stepper).
    """
    content = read(get_script_path())
    if MARK not in content:
        return "foreign" if os.path.lexists(get_script_path()) else "missing"
    installed = ENVIRONMENT_LINE.sub(b"", content)
    shipped = ENVIRONMENT_LINE.sub(b"", _read_shipped_script())
    return "ours" if installed == shipped else "outdated"


def check_script_name() -> None:
    """Raise StepperError if another program has the path of the script."""
    if get_script_state() == "foreign":
        raise StepperError(
            f"{get_script_path()} is not stepper's", "move it away, or leave out --link"
        )


def install_script(paths: Paths) -> str:
    """Write the script; return what was done."""
    check_script_name()
    change = _write_script(_read_shipped_script(), f"{paths.env}/bin/stepper")
    return f"{change}: {get_script_path()}"


def remove_script() -> str | None:
    """Remove the script, unless other projects of the user need it.

    Return an empty string if it was removed, or None if stepper has no script here, and
    else a message on why it was kept.
    """
    path = get_script_path()
    content = read(path)
    if MARK not in content:
        return None
    repair = f"To remove it, run: rm {shlex.quote(str(path))}"
    if os.fsencode(get_record_root()) not in content:
        return (
            f"{path} (made by --link of an installation that is not recorded in"
            f" {get_record_root()}). {repair}"
        )
    commands = _list_commands()
    if not commands:
        remove(path)
        return ""
    _write_script(content, commands[0])
    named = [_get_project(command) for command in commands[:MAX_NAMED_PROJECTS]]
    projects = ", ".join(named)
    if len(commands) > len(named):
        projects += f" and {len(commands) - len(named)} more"
    return f"{path} (made by --link), for your other projects: {projects}. {repair}"


def is_on_path() -> bool:
    """Return whether the folder of the script is on the PATH."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    return str(get_script_path().parent) in folders


def _write_script(script: bytes, command: str) -> str:
    """Write the script, which uses `command` outside of projects."""
    line = os.fsencode("any=" + shlex.quote(command))
    content = ENVIRONMENT_LINE.sub(lambda _: line, script)
    return write(get_script_path(), content, 0o755)


def _list_commands() -> list[str]:
    """Return the `stepper` of each project that has an environment."""
    commands = []
    for path, folders, _ in os.walk(get_record_root()):
        if os.path.basename(path) != ".stepper":
            continue
        folders.clear()
        command = os.path.join(path, "env", "bin", "stepper")
        if os.path.exists(command):
            commands.append(command)
    return commands


def _get_project(command: str) -> str:
    """Return the project of a `stepper` in a recorded environment."""
    folder = Path(command).parents[3]  # without .stepper/env/bin/stepper
    return os.sep + str(folder.relative_to(get_record_root()))


def _read_shipped_script() -> bytes:
    return read(find_assets("hooks") / "shell")
