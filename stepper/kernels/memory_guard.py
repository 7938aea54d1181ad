"""The memory limit of a run: the memory guard, and the memory use that it compares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# If memory was above the limit before a cell began, the kernel may grow by this share
# of the limit.
ALLOWED_GROWTH = 0.05


@dataclass(frozen=True)
class Usage:
    """The total and the used memory in bytes; `where` names the machine or job."""

    total: int
    used: int
    where: str

    @property
    def percent(self) -> float:
        """The used memory in percent."""
        return 100.0 * self.used / self.total


class MemoryGuard:
    """The memory limit of one run.

    `warning` is a message if memory was above the limit before the cell began.
    """

    def __init__(
        self,
        max_percent: float,
        get_usage: Callable[[], Usage],
        get_kernel_memory: Callable[[], int],
    ) -> None:
        self.max_percent = max_percent
        self.get_usage = get_usage
        self.get_kernel_memory = get_kernel_memory
        self.warning = ""
        self.initial_memory = 0
        usage = get_usage()
        self.was_above = usage.percent >= max_percent
        if self.was_above:
            self.initial_memory = get_kernel_memory()
            self.warning = (
                f"memory was at {usage.percent:.0f} % of {usage.where} before the cell "
                f"began (the limit is {max_percent:g} %)"
            )

    def check(self) -> str:
        """Return a message if the cell must be stopped, or an empty string.

        With a limit of 100 %, that is left to the operating system.
        """
        usage = self.get_usage()
        if usage.percent < self.max_percent or self.max_percent >= 100:
            return ""
        kernel_memory = self.get_kernel_memory()
        growth = kernel_memory - self.initial_memory
        max_bytes = usage.total * self.max_percent / 100
        if self.was_above and growth <= ALLOWED_GROWTH * max_bytes:
            return ""
        return (
            f"memory reached {usage.percent:.0f} % of {usage.where} (the limit is "
            f"{self.max_percent:g} %); this kernel uses {kernel_memory / 1e6:,.0f} MB "
            f"of {usage.total / 1e6:,.0f} MB"
        )
