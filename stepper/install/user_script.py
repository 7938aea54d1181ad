"""`stepper` for the person's own shell: one script in ~/.local/bin, made by `install.sh --link` alone. Stdlib only."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from stepper.common.errors import StepperError
from stepper.common.paths import Paths, record_root
from stepper.install.install_files import find_assets, read, remove, write

MARK = b"(notebook-stepper)"
NAMED = 5  # projects in a message
# the environment that tells of itself where there is no project
ANY = re.compile(rb"^any=.*$", re.MULTILINE)


def get_script_path() -> Path:
    """Return where the script lies."""
    return Path("~/.local/bin/stepper").expanduser()


def get_script_state() -> str:
    """Return whose the script is: `missing`, `foreign`, `ours`, or `outdated` (of another version)."""
    there = read(get_script_path())
    if MARK not in there:
        return "foreign" if os.path.lexists(get_script_path()) else "missing"
    return (
        "ours"
        if ANY.sub(b"", there) == ANY.sub(b"", _read_shipped_script())
        else "outdated"
    )


def check_script_name() -> None:
    """Raise StepperError where another program has its name."""
    if get_script_state() == "foreign":
        raise StepperError(
            f"{get_script_path()} is not stepper's", "move it away, or leave out --link"
        )


def install_script(paths: Paths) -> str:
    """Make the script; return what was done."""
    check_script_name()
    return (
        f"{_write_script(_read_shipped_script(), f'{paths.env}/bin/stepper')}:"
        f" {get_script_path()}"
    )


def remove_script() -> str | None:
    """Remove the script with the last project of this user's.

    Return '' where it was removed, None where there is none of stepper's, else that it is left, why, and what removes
    it.
    """
    there = read(get_script_path())
    if MARK not in there:
        return None
    remedy = f"To remove it, run: rm {shlex.quote(str(get_script_path()))}"
    if os.fsencode(record_root()) not in there:
        return (
            f"{get_script_path()} (made by --link, not by an install that is"
            f" recorded in {record_root()}). {remedy}"
        )
    if others := _list_commands():
        _write_script(there, others[0])
        projects = ", ".join(_get_project(command) for command in others[:NAMED])
        if len(others) > NAMED:
            projects += f" and {len(others) - NAMED} more"
        return (
            f"{get_script_path()} (made by --link), for your other projects:"
            f" {projects}. {remedy}"
        )
    remove(get_script_path())
    return ""


def is_on_path() -> bool:
    """Whether the person's shell finds it."""
    return str(get_script_path().parent) in os.environ.get("PATH", "").split(os.pathsep)


def _write_script(script: bytes, command: str) -> str:
    any_env = os.fsencode("any=" + shlex.quote(command))
    return write(get_script_path(), ANY.sub(lambda _: any_env, script), 0o755)


def _list_commands() -> list[str]:
    """Return the `stepper` of each project that has an environment."""
    found = []
    for at, folders, _ in os.walk(record_root()):
        if os.path.basename(at) == ".stepper":
            folders.clear()
            command = os.path.join(at, "env", "bin", "stepper")
            found += [command] * os.path.exists(command)
    return found


def _get_project(command: str) -> str:
    """Return the project whose recorded environment has that command."""
    folder = Path(command).parents[3]  # without .stepper/env/bin/stepper
    return os.sep + str(folder.relative_to(record_root()))


def _read_shipped_script() -> bytes:
    return read(find_assets("hooks") / "shell")
