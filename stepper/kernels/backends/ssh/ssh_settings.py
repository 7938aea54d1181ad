"""The parsed settings of the backend `ssh`.

The module is imported with the configuration, so it must not do I/O or import large
modules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from stepper.policy.configuration import kernel_config
from stepper.policy.configuration.kernel_config import (
    FLAGS,
    SHELL,
    TEXT,
    BackendDescription,
    KeyPath,
    Rule,
)

KIND = "ssh"
HOST = re.compile(r"(?!-)[\w.@:%\[\]-]{1,255}")


@dataclass(frozen=True)
class SshSettings:
    """Settings for kernels on a host that is reachable with `ssh`."""

    host: str
    python: str = "python3"  # interpreter on the host
    # Working folder on the host; the home directory if empty.
    folder: str = ""
    setup: str = ""  # shell lines before the kernel starts
    extra: tuple[str, ...] = ()  # flags for ssh


RULES = {
    "host": Rule(
        "an SSH host, such as box or me@box", kernel_config.make_pattern_check(HOST)
    ),
    "python": TEXT,
    "folder": TEXT,
    "setup": SHELL,
    "extra": FLAGS,
}


def parse_settings(values: Any, path: KeyPath) -> SshSettings:
    """Return the validated settings of a backend.

    `path` is the sequence of keys that leads to `values`, for error messages. Raise
    BackendConfigError if the settings are not valid.
    """
    arguments = kernel_config.check_keys(values, RULES, path, required=("host",))
    return SshSettings(**arguments)


def describe_settings(settings: SshSettings) -> BackendDescription:
    """Return the description of a backend with these settings."""
    text = f"{settings.python} on {settings.host} over ssh"
    return BackendDescription(text, has_own_folder=True)
