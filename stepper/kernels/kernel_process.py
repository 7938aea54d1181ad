"""The protocol of a kernel's process, and a base class for processes elsewhere.

A process is what a backend gives to the kernel client: its channels, its interrupt, its
death, and whatever the backend can measure.
"""

from __future__ import annotations

from typing import Protocol

from stepper.kernels.kernel_channels import KernelChannels
from stepper.kernels.memory_guard import Usage
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription

GRACE_SECONDS = 5.0  # between an interrupt and giving up
PATIENCE_SECONDS = 10.0  # while the kernel cannot be reached


class KernelProcess(Protocol):
    """The process of a kernel, on whichever machine.

    `ended` is its death if known, `log` is where its output is kept, and `stack` is the
    file on its machine for stack samples.
    """

    id: str
    ended: Death | None
    log: str
    stack: str

    @property
    def channels(self) -> KernelChannels:
        """The channels of the kernel."""

    @property
    def cuts(self) -> int:
        """How often the connection was lost: messages in between may be lost, too."""

    @property
    def away(self) -> str:
        """Why the kernel cannot be reached at present, or an empty string if it can.

        This does not mean that the kernel is dead.
        """

    def describe(self) -> KernelDescription:
        """Return its interpreter, and its process id if it runs on this machine."""

    def begin(self) -> None:
        """Prepare a run: an interrupt spares processes that were started before.

        Not all backends can distinguish them.
        """

    async def interrupt(self) -> None:
        """Interrupt the kernel and the processes in its group that the run started."""

    async def kill(self) -> None:
        """Kill the kernel and all processes that it started.

        Raise KernelError if the kernel may still be running.
        """

    async def death(self) -> Death | None:
        """Return how the kernel died, or None while it is running.

        The processes that a dead kernel has started are killed.
        """

    async def sample(self) -> str:
        """Return the stacks of all threads as faulthandler writes them, or ''."""

    def last_words(self) -> str:
        """Return the last lines of its stderr, without escapes."""

    def suggest_fix(self, death: Death) -> str:
        """Return the command that fixes the cause of a death at start, or ''."""

    def memory(self) -> int:
        """Return the resident memory of the kernel and its children, in bytes."""

    def usage(self) -> Usage:
        """Return the memory that the kernel may use, and how much of it is used."""

    def rest(self) -> None:
        """Forget the present out-of-memory count, because a run begins or is over.

        Processes that were killed before do not explain a later death.
        """

    def trim(self) -> None:
        """Limit the size of the log, which child processes also write to."""

    def forget(self) -> None:
        """Remove the record of a kernel that is dead."""


class RemoteProcess:
    """Defaults for a kernel that stepper cannot observe as a process of this machine.

    Its memory is not measured and its stacks are not sampled. A subclass implements the
    other members of KernelProcess.
    """

    stack = ""
    machine_name = "the kernel's machine"

    def begin(self) -> None:
        """Do nothing: processes that were started before are not known here."""

    async def sample(self) -> str:
        """Return an empty text: the stacks are not sampled."""
        return ""

    def suggest_fix(self, death: Death) -> str:
        """Return an empty text: there is no known fix."""
        return ""

    def memory(self) -> int:
        """Return 0: the memory of the kernel is not measured."""
        return 0

    def usage(self) -> Usage:
        """Return no usage: the limits of the other machine apply."""
        return Usage(1, 0, self.machine_name)

    def rest(self) -> None:
        """Do nothing: out-of-memory kills are not counted."""

    def trim(self) -> None:
        """Do nothing: the backend keeps the log."""
