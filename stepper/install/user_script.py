"""`stepper` for the person's own shell: one script in ~/.local/bin, made by `install.sh --link` alone. Stdlib only."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from stepper.common.errors import StepperError
from stepper.common.paths import Paths, record_root
from stepper.install.file_edits import assets, read, remove, write

MARK = b"(notebook-stepper)"
NAMED = 5  # projects in a message
# the environment that tells of itself where there is no project
ANY = re.compile(rb"^any=.*$", re.MULTILINE)


def place() -> Path:
    """Return where the script lies."""
    return Path("~/.local/bin/stepper").expanduser()


def standing() -> str:
    """Return whose the script is: `missing`, `foreign`, `ours`, or `outdated` (of another version)."""
    there = read(place())
    if MARK not in there:
        return "foreign" if os.path.lexists(place()) else "missing"
    return "ours" if ANY.sub(b"", there) == ANY.sub(b"", _shipped()) else "outdated"


def check() -> None:
    """Raise StepperError where another program has its name."""
    if standing() == "foreign":
        raise StepperError(
            f"{place()} is not stepper's", "move it away, or leave out --link"
        )


def make(paths: Paths) -> str:
    """Make the script; return what was done."""
    check()
    return f"{_put(_shipped(), f'{paths.env}/bin/stepper')}: {place()}"


def take_away() -> str | None:
    """Remove the script with the last project of this user's.

    Return '' where it was removed, None where there is none of stepper's, else that it is left, why, and what removes
    it.
    """
    there = read(place())
    if MARK not in there:
        return None
    remedy = f"To remove it, run: rm {shlex.quote(str(place()))}"
    if os.fsencode(record_root()) not in there:
        return f"{place()} (made by --link, not by an install that is recorded in {record_root()}). {remedy}"
    if others := _others():
        _put(there, others[0])
        projects = ", ".join(_project(command) for command in others[:NAMED])
        if len(others) > NAMED:
            projects += f" and {len(others) - NAMED} more"
        return (
            f"{place()} (made by --link), for your other projects: {projects}. {remedy}"
        )
    remove(place())
    return ""


def on_path() -> bool:
    """Whether the person's shell finds it."""
    return str(place().parent) in os.environ.get("PATH", "").split(os.pathsep)


def _put(script: bytes, command: str) -> str:
    any_env = os.fsencode("any=" + shlex.quote(command))
    return write(place(), ANY.sub(lambda _: any_env, script), 0o755)


def _others() -> list[str]:
    """Return the `stepper` of each project that has an environment."""
    found = []
    for at, folders, _ in os.walk(record_root()):
        if os.path.basename(at) == ".stepper":
            folders.clear()
            command = os.path.join(at, "env", "bin", "stepper")
            found += [command] * os.path.exists(command)
    return found


def _project(command: str) -> str:
    """Return the project whose recorded environment has that command."""
    folder = Path(command).parents[3]  # without .stepper/env/bin/stepper
    return os.sep + str(folder.relative_to(record_root()))


def _shipped() -> bytes:
    return read(assets("hooks") / "shell")
