"""Find the command with which the user's shell calls stepper: its name or a path."""

from __future__ import annotations

import os
import shlex
import shutil

from stepper.common.paths import Paths

NAME = "stepper"
ENV_PROGRAM = os.path.join(".stepper", "env", "bin", NAME)
# Texts in the scripts of `install.sh --link`, of the plugin and of an environment.
SCRIPT_MARKERS = (b"notebook-stepper", b"stepper.cli")
SCRIPT_BYTES = 2000


def find_program(
    paths: Paths,
    search_path: str,
    folder: str,
) -> str:
    """Return the command that calls stepper, quoted for the shell.

    This is `stepper` if `search_path`, the shell's PATH, contains stepper. Otherwise,
    it is the path of the program in the project's environment. The path is relative if
    `folder`, the shell's working folder, is in the project. If this program does not
    exist, return `stepper`, too.
    """
    program = shutil.which(NAME, path=search_path)
    if program is not None and _is_our_script(program):
        return NAME
    env_program = os.path.join(paths.environment_checkout, ENV_PROGRAM)
    if not os.path.exists(env_program):
        return NAME
    real_folder = os.path.realpath(folder)
    is_in_project = os.path.commonpath([real_folder, paths.project]) == paths.project
    if is_in_project:
        env_program = os.path.relpath(env_program, real_folder)
    return shlex.quote(env_program)


def _is_our_script(path: str) -> bool:
    """Return whether a program is stepper, not another program with the same name."""
    try:
        with open(path, "rb") as stream:
            start = stream.read(SCRIPT_BYTES)
    except OSError:
        return False
    return any(marker in start for marker in SCRIPT_MARKERS)
