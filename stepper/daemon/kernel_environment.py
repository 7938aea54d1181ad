"""What a kernel inherits of its caller's environment, wherever it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

# What a kernel must not inherit: the agent's keys and settings, and who asked for it,
# are not the notebook's business.
HIDDEN_ENVIRON = ("ANTHROPIC_", "CLAUDE", "AI_AGENT", "STEPPER_FACE", "STEPPER_MODE")


def kernel_environ(
    environ: Mapping[str, str], python: str, own: str, hidden: Sequence[str] = ()
) -> dict[str, str]:
    """Return a kernel's environment: the caller's, as if its interpreter's (`python`, '' for none) was activated.

    stepper's own environment is taken off PATH, else `!pip install` in a cell would install there. `hidden` are names
    and patterns (`AWS_*`) of what it does not get.
    """
    found = {
        name: value
        for name, value in environ.items()
        if not name.startswith(HIDDEN_ENVIRON)
        and not any(fnmatchcase(name, pattern) for pattern in hidden)
    }
    # it has two names
    folder, ours = os.path.dirname(python), os.path.realpath(os.path.join(own, "bin"))
    path = found.get("PATH", os.defpath).split(os.pathsep)
    others = [
        part for part in path if part != folder and os.path.realpath(part) != ours
    ]
    found["PATH"] = os.pathsep.join([folder, *others] if python else others)
    if python and os.path.exists(os.path.join(os.path.dirname(folder), "pyvenv.cfg")):
        found["VIRTUAL_ENV"] = os.path.dirname(folder)
    return found
