"""What a place offers of one of its kernels, whatever lies between: this machine, a batch job, a host over ssh.

`local/` offers it for this machine; another place is one more folder beside it, and a row in `providers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from stepper.kernels.message_decoding import Message
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription

GRACE_SECONDS = 5.0  # from a signal to the end of all patience
PATIENCE_SECONDS = 10.0  # with a line that is down
# of the limit: how far a kernel may grow where the limit was passed before its cell
# began
GROWTH = 0.05


@dataclass(frozen=True)
class Usage:
    """How much memory there is and how much is used, in bytes; `where` names whose."""

    total: int
    used: int
    where: str

    @property
    def percent(self) -> float:
        """How full it is."""
        return 100.0 * self.used / self.total


class Guard:
    """Watches one run. `warning` is set where the limit was passed before the cell began."""

    def __init__(
        self, percent: float, look: Callable[[], Usage], tree: Callable[[], int]
    ) -> None:
        self.percent, self.look, self.tree = percent, look, tree
        now = look()
        self.above = now.percent >= percent
        self.began = tree() if self.above else 0
        self.warning = (
            f"memory was at {now.percent:.0f} % of {now.where} before the cell began (the limit is {percent:g} %)"
            if self.above
            else ""
        )

    def trip(self) -> str:
        """Return what was seen where the cell must stop, else ''. With 100 % that is the system's to decide."""
        now = self.look()
        if now.percent < self.percent or self.percent >= 100:
            return ""
        share = self.tree()
        if self.above and share - self.began <= GROWTH * now.total * self.percent / 100:
            return ""
        return (
            f"memory reached {now.percent:.0f} % of {now.where} (the limit is {self.percent:g} %);"
            f" this kernel holds {share / 1e6:,.0f} MB of {now.total / 1e6:,.0f} MB"
        )


class Inbox(Protocol):
    """The incoming messages of one channel. `unread` counts those that could not be read and are not yet told."""

    unread: int

    async def ready(self, seconds: float) -> bool:
        """Wait until there is a message, at most `seconds`; return whether there is. One waits at a time."""

    def messages(self) -> Iterator[Message]:
        """Return the messages that are there, those of a burst at most."""


class Channels(Protocol):
    """The way to a kernel, whatever carries its messages."""

    @property
    def client_session(self) -> str:
        """The id of the session whose requests its own are."""

    @property
    def connection(self) -> Mapping[str, Any]:
        """What a connection file tells of it; nothing where other clients reach it by no such file."""

    @property
    def is_open(self) -> bool:
        """Whether messages come and go."""

    @property
    def iopub(self) -> Inbox:
        """What the kernel publishes; only while it is open."""

    @property
    def shell(self) -> Inbox:
        """What it replies."""

    def open(self) -> None:
        """Have messages come and go."""

    def close(self) -> None:
        """Have none come any more; whoever waits for one goes on."""

    def send(
        self,
        kind: str,
        content: Message,
        metadata: Message | None = None,
        request: str = "",
        parent: Message | None = None,
    ) -> str:
        """Send a message on the shell channel, by the id `request` where the caller has one; return its id."""

    def came(self, request: str) -> int:
        """Return how many messages of a request the kernel has published here; 0 where that is not counted."""


class Process(Protocol):
    """A kernel's process where it runs: signalled, watched, measured. `ended` is its death as far as it is known."""

    id: str
    ended: Death | None
    log: str  # where what it writes is kept
    stack: str  # the file, on its machine, into which the helper is to write samples

    @property
    def channels(self) -> Channels:
        """The way to it."""

    @property
    def cuts(self) -> int:
        """How often the line to it was cut: what was said meanwhile may be lost on the way."""

    @property
    def away(self) -> str:
        """Why nothing reaches it now, which is no death; '' where it can be reached."""

    def describe(self) -> KernelDescription:
        """Return what it is: its interpreter, and its process where that is of this machine."""

    def begin(self) -> None:
        """A run begins: an interrupt of it spares what was started before, where that can be told."""

    async def interrupt(self) -> None:
        """Interrupt it with what the run started in its group."""

    async def kill(self) -> None:
        """Kill it with all that it started; raise KernelError where it may live on."""

    async def death(self) -> Death | None:
        """Return how it ended, or None while it lives. What it started goes with it."""

    async def sample(self) -> str:
        """Return the stacks of its threads as faulthandler writes them; '' where they can't be had."""

    def last_words(self) -> str:
        """Return the last lines that it wrote to stderr, without escapes."""

    def mends(self, death: Death) -> str:
        """Return the command that mends what it died of at its start, '' for none."""

    def memory(self) -> int:
        """Return its resident memory, its children's with it, in bytes."""

    def usage(self) -> Usage:
        """Return how full the memory is that it may use."""

    def rest(self) -> None:
        """A run begins or is over: what was killed before says nothing of a death to come."""

    def trim(self) -> None:
        """Keep small what is kept of what it writes: its children's output is there, too."""

    def forget(self) -> None:
        """Remove what is on record of it: it is gone."""
