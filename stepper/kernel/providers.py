"""The places where kernels run: the only module that imports their providers. A place is one folder, and one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stepper.kernel.local.kernels import LocalKernels
from stepper.session.ports import KernelProvider

# The name of a place → what starts a notebook's kernel there, given the file for its record, the folder for sockets and
# what the kernel's helper may load besides its own.
PLACES: dict[str, Callable[[str, str, Mapping[str, str]], KernelProvider]] = {"local": LocalKernels}
