"""The memory limit of an execution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# If memory use was above the limit before a cell ran, the kernel may grow by this share
# of the limit.
ALLOWED_GROWTH = 0.05


@dataclass(frozen=True)
class MemoryUsage:
    """Total and used memory in bytes.

    `owner` names the machine or the cgroup in messages, for example "the machine".
    """

    total: int
    used: int
    owner: str

    @property
    def percent(self) -> float:
        """The used memory, in percent of the total."""
        return 100.0 * self.used / self.total


class MemoryGuard:
    """Checks memory use against the limit during one execution.

    `max_percent` is the limit, and `get_kernel_memory` returns the kernel's memory in
    bytes. If memory use had reached the limit before the execution, `warning` is a
    message on this, and otherwise it is empty.
    """

    def __init__(
        self,
        max_percent: float,
        get_usage: Callable[[], MemoryUsage],
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
                f"memory use of {usage.owner} was at {usage.percent:.0f} % before the "
                f"cell ran (the limit is {max_percent:g} %)"
            )

    def describe_excess(self) -> str:
        """Return a message if the execution must be stopped, or an empty string.

        An execution with a limit of 100 % is never stopped: if memory runs out, the
        operating system kills a process.
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
            f"memory use of {usage.owner} reached {usage.percent:.0f} % (the limit is "
            f"{self.max_percent:g} %); this kernel uses {kernel_memory / 1e6:,.0f} MB "
            f"of {usage.total / 1e6:,.0f} MB"
        )
