"""How `stepper` is called in a user's shell: by its name if that is on the PATH, else by its path in the project."""

from __future__ import annotations

import os
import shlex
import shutil

from stepper.common.paths import Paths

NAME = "stepper"
LINKED = os.path.join(".stepper", "env", "bin", NAME)
# what our scripts contain: that of `install.sh --link`, the plugin's, an environment's
MARKS = (b"notebook-stepper", b"stepper.cli")
SCRIPT_BYTES = 2000


def find_program(paths: Paths, path: str, folder: str) -> str:
    """Return what calls stepper in a shell with that PATH, in that folder, quoted for the shell.

    The name is returned if there is no path that would work better.
    """
    found = shutil.which(NAME, path=path)
    if found is not None and _is_ours(found):
        return NAME
    linked = os.path.join(paths.environment_checkout, LINKED)
    if not os.path.exists(linked):
        return NAME
    folder = os.path.realpath(folder)
    is_inside = os.path.commonpath([folder, paths.project]) == paths.project
    return shlex.quote(os.path.relpath(linked, folder) if is_inside else linked)


def _is_ours(script: str) -> bool:
    """Whether a program of that name is this one: another package may have a `stepper`, too."""
    try:
        with open(script, "rb") as stream:
            beginning = stream.read(SCRIPT_BYTES)
    except OSError:
        return False
    return any(mark in beginning for mark in MARKS)
