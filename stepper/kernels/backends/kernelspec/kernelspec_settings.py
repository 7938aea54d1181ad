"""The settings of a backend `kernelspec`: its value in the configuration, parsed.

This module does no I/O and imports nothing heavy: it is loaded with the configuration.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any

from stepper.policy.configuration.kernel_config import (
    KERNELSPEC,
    BackendConfigError,
    BackendDescription,
    KeyPath,
)

KIND = "kernelspec"


@dataclass(frozen=True)
class KernelspecSettings:
    """A kernelspec that is installed on this machine, for any language."""

    kernelspec: str


def parse_settings(values: Any, path: KeyPath) -> KernelspecSettings:
    """Return the settings of a backend; raise BackendConfigError.

    The only setting, the name of the kernelspec, needs no key.
    """
    if not KERNELSPEC.is_valid(values):
        raise BackendConfigError(
            path, f"must be {KERNELSPEC.description}, not {reprlib.repr(values)}"
        )
    return KernelspecSettings(values)


def describe_settings(settings: KernelspecSettings) -> BackendDescription:
    """Return the description of a backend."""
    text = f"the kernelspec {settings.kernelspec} on this machine"
    return BackendDescription(text, is_local=True, is_python=False)
