"""The environment variables of a kernel, on every kernel backend.

A kernel inherits the variables of the process that requested it, without the agent's
keys and settings and without stepper's own virtual environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

# Prefixes of variables that kernels don't inherit: the agent's keys and settings, and
# the variables that describe stepper's caller.
HIDDEN_PREFIXES = ("ANTHROPIC_", "CLAUDE", "AI_AGENT", "STEPPER_FACE", "STEPPER_MODE")


def build_kernel_environ(
    environ: Mapping[str, str],
    python: str,
    own_prefix: str,
    hidden: Sequence[str] = (),
) -> dict[str, str]:
    """Return the environment variables of a kernel in an activated environment.

    `environ` is the caller's environment. `python` is the path of the kernel's
    interpreter, or an empty string. `own_prefix` is the folder of stepper's own
    environment. This folder is removed from PATH, so that `!pip install` in a cell does
    not change stepper's environment. `hidden` contains names and patterns (`AWS_*`) of
    variables to leave out.
    """
    variables = {
        name: value
        for name, value in environ.items()
        if not name.startswith(HIDDEN_PREFIXES)
        and not any(fnmatchcase(name, pattern) for pattern in hidden)
    }
    python_folder = os.path.dirname(python)
    # The folder may be on PATH under another name, through a link.
    own_folder = os.path.realpath(os.path.join(own_prefix, "bin"))
    search_path = variables.get("PATH", os.defpath).split(os.pathsep)
    folders = [
        folder
        for folder in search_path
        if folder != python_folder and os.path.realpath(folder) != own_folder
    ]
    if python:
        folders.insert(0, python_folder)
    variables["PATH"] = os.pathsep.join(folders)
    if python:
        # The caller's virtual environment may not be the one of the interpreter.
        variables.pop("VIRTUAL_ENV", None)
        environment = os.path.dirname(python_folder)
        if os.path.exists(os.path.join(environment, "pyvenv.cfg")):
            variables["VIRTUAL_ENV"] = environment
    return variables
