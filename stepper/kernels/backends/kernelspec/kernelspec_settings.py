"""The parsed settings of the backend `kernelspec`.

The module is imported with the configuration, so it must not do I/O or import large
modules.
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
    """Settings for kernels of a kernelspec that is installed on this machine."""

    kernelspec: str


def parse_settings(values: Any, path: KeyPath) -> KernelspecSettings:
    """Return the settings of a backend, given the name of a kernelspec.

    Raise BackendConfigError if `values` is not a valid name.
    """
    if not KERNELSPEC.is_valid(values):
        raise BackendConfigError(
            path, f"must be {KERNELSPEC.description}, not {reprlib.repr(values)}"
        )
    return KernelspecSettings(values)


def describe_settings(settings: KernelspecSettings) -> BackendDescription:
    """Return the description of a backend with these settings."""
    text = f"the kernelspec {settings.kernelspec} on this machine"
    return BackendDescription(text, is_local=True, is_python=False)
