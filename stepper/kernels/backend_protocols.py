"""The protocols that a kernel backend implements, and the memory guard.

`backends/local/` implements them for this machine. A new backend is another folder
there and a row in `backend_registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from stepper.kernels.message_decoding import Message
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription

GRACE_SECONDS = 5.0  # between an interrupt and giving up
PATIENCE_SECONDS = 10.0  # while the kernel cannot be reached
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
        """Return a message if the cell must be stopped, else ''.

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


class Inbox(Protocol):
    """The incoming messages of one channel.

    `unread` counts those that could not be decoded and were not reported yet.
    """

    unread: int

    async def ready(self, seconds: float) -> bool:
        """Wait at most `seconds` for a message; return whether there is one.

        Only one caller may wait at a time.
        """

    def messages(self) -> Iterator[Message]:
        """Yield the messages that have arrived, for a limited time."""


class Channels(Protocol):
    """The channels of a kernel, over ZeroMQ or a WebSocket."""

    @property
    def client_session(self) -> str:
        """The session id in the headers of this client's requests."""

    @property
    def connection(self) -> Mapping[str, Any]:
        """The content of a connection file for other clients, {} if there is none."""

    @property
    def is_open(self) -> bool:
        """Whether the channels are connected."""

    @property
    def iopub(self) -> Inbox:
        """The messages that the kernel publishes, while the channels are open."""

    @property
    def shell(self) -> Inbox:
        """The kernel's replies, while the channels are open."""

    def open(self) -> None:
        """Connect the channels."""

    def close(self) -> None:
        """Disconnect the channels and stop waiting for messages."""

    def send(
        self,
        message_type: str,
        content: Message,
        metadata: Message | None = None,
        request: str = "",
        parent: Message | None = None,
    ) -> str:
        """Send a message on the shell channel and return its id.

        `request` is the id if the caller chose one.
        """

    def count_received(self, request: str) -> int:
        """Return how many messages of a request were received, 0 if not counted."""


class Process(Protocol):
    """The process of a kernel, on whichever machine.

    `ended` is its death if known, `log` is where its output is kept, and `stack` is the
    file on its machine for stack samples.
    """

    id: str
    ended: Death | None
    log: str
    stack: str

    @property
    def channels(self) -> Channels:
        """The channels of the kernel."""

    @property
    def cuts(self) -> int:
        """How often the connection was lost: messages in between may be lost, too."""

    @property
    def away(self) -> str:
        """Why the kernel cannot be reached at present, '' if it can.

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

        Raises KernelError if the kernel may still be running.
        """

    async def death(self) -> Death | None:
        """Return how the kernel died, None while it is running.

        The processes that a dead kernel has started are killed.
        """

    async def sample(self) -> str:
        """Return the stacks of all threads as faulthandler writes them, or ''."""

    def last_words(self) -> str:
        """Return the last lines of its stderr, without escapes."""

    def suggest_fix(self, death: Death) -> str:
        """Return the command that fixes the cause of a death at start, '' for none."""

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
