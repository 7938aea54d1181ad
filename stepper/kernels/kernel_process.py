"""The protocol of a kernel's process, and a base class for remote processes.

A backend implements the process of its kernels. The kernel client uses the process for
the channels, interrupts, memory use, and to find out whether the kernel has died.
"""

from __future__ import annotations

import signal
from typing import Protocol

from stepper.kernels.kernel_channels import KernelChannels
from stepper.kernels.memory_guard import MemoryUsage
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription

GRACE_SECONDS = 5.0  # how long an interrupt may take
PATIENCE_SECONDS = 10.0  # how long to wait for an unreachable kernel


class KernelProcess(Protocol):
    """The process of a kernel, on this machine or a remote one.

    `death` says how the kernel died. It is None if the kernel is not known to be dead.
    `log_location` names the file or log with the kernel's stderr. `stack_path` is the
    file on the kernel's machine to which the kernel writes its stacks on a signal, or
    an empty string if it writes none.
    """

    id: str
    death: Death | None
    log_location: str
    stack_path: str

    @property
    def channels(self) -> KernelChannels:
        """The channels of the kernel."""

    @property
    def disconnect_count(self) -> int:
        """The number of times the connection was lost.

        Messages may be missing after each loss.
        """

    @property
    def unreachable_reason(self) -> str:
        """Why the kernel cannot be reached now, or an empty string if it can be.

        An unreachable kernel may still be running.
        """

    def describe(self) -> KernelDescription:
        """Return the kernel's interpreter and location, and its pid if it is local."""

    def prepare_run(self) -> None:
        """Record the running processes before an execution.

        An interrupt of the execution spares these processes. Backends that cannot
        distinguish processes do nothing.
        """

    async def interrupt(self) -> None:
        """Interrupt the kernel and the processes that the execution has started."""

    async def kill(self) -> None:
        """Kill the kernel and all processes that it started.

        Raise KernelError if the kernel may still be running.
        """

    async def poll(self) -> Death | None:
        """Return how the kernel died, or None while it is running.

        If the kernel died, also kill the processes that it started.
        """

    async def sample_stacks(self) -> str:
        """Return the stacks of all threads in faulthandler's format.

        Return an empty string if the stacks are not available.
        """

    def read_log_tail(self) -> str:
        """Return the last lines of the kernel's stderr, without escape sequences."""

    def suggest_fix(self, death: Death) -> str:
        """Return a command that fixes a failed start, or an empty string.

        `death` is how the kernel died while it was starting.
        """

    def measure_memory(self) -> int:
        """Return the resident memory of the kernel and its children, in bytes."""

    def get_memory_usage(self) -> MemoryUsage:
        """Return the total and the used memory of the kernel's machine or cgroup."""

    def reset_oom_count(self) -> None:
        """Ignore the out-of-memory kills that have happened so far.

        This method is called before and after an execution, because only a kill during
        the execution explains the death of the kernel.
        """

    def trim_log(self) -> None:
        """Limit the size of the log, to which child processes also write."""

    def remove_record(self) -> None:
        """Remove the record of a dead kernel."""


def describe_exit(exit_code: int) -> str:
    """Return how a process has exited, such as "exit code 1" or "SIGKILL".

    A negative exit code is the number of the signal that killed the process.
    """
    if exit_code >= 0:
        return f"exit code {exit_code}"
    number = -exit_code
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


class RemoteProcess:
    """A base class for kernels that are not processes of this machine.

    Memory is not measured, and stacks are not sampled. Subclasses implement the other
    members of KernelProcess. `machine_name` is the name of the kernel's machine in
    messages.
    """

    stack_path = ""
    machine_name = "the kernel's machine"

    def prepare_run(self) -> None:
        """Do nothing: the processes on the kernel's machine are not known."""

    async def sample_stacks(self) -> str:
        """Return an empty string: the stacks are not available."""
        return ""

    def suggest_fix(self, death: Death) -> str:
        """Return an empty string: no fix is known."""
        return ""

    def measure_memory(self) -> int:
        """Return 0: the kernel's memory is not measured."""
        return 0

    def get_memory_usage(self) -> MemoryUsage:
        """Return a usage of 0 %, so that stepper's memory limit never applies."""
        return MemoryUsage(1, 0, self.machine_name)

    def reset_oom_count(self) -> None:
        """Do nothing: out-of-memory kills are not counted."""

    def trim_log(self) -> None:
        """Do nothing: the backend manages the log."""
