"""The places where kernels run: the only module that imports their providers. A place is one folder, and one row."""

from __future__ import annotations

from collections.abc import Callable

from stepper.kernel.local.kernels import LocalKernels
from stepper.session.ports import KernelProvider

# The name of a place → what starts a notebook's kernel there, given the file for its record and the folder for sockets.
PLACES: dict[str, Callable[[str, str], KernelProvider]] = {"local": LocalKernels}
