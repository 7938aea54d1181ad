"""What a place offers of one of its kernels, whatever lies between: this machine, a batch job, a host over ssh.

`local/` offers it for this machine; another place is one more folder beside it, and a row in `providers`.
"""

from __future__ import annotations

from typing import Protocol

from stepper.kernel.channels import Channels
from stepper.policy.model import Death
from stepper.session.ports import About

GRACE_SECONDS = 5.0  # from a signal to the end of all patience


class Guard(Protocol):
    """Watches the memory of one run. `warning` is set where it was used up before the cell began."""

    warning: str

    def trip(self) -> str:
        """Return what was seen where the cell must stop, else ''."""


class Process(Protocol):
    """A kernel's process where it runs: signalled, watched, measured. `ended` is its death as far as it is known."""

    id: str
    about: About
    ended: Death | None
    channels: Channels
    log: str  # where what it writes is kept
    stack: str  # the file, on its machine, into which the helper is to write samples

    async def interrupt(self) -> None:
        """Interrupt it with what it started in its group."""

    async def kill(self) -> None:
        """Kill it with all that it started."""

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

    def guard(self, percent: float) -> Guard:
        """Watch a run that begins now, so that its place never uses more of its memory than that."""

    def rest(self) -> None:
        """A run is over: what was killed in it says nothing of a death to come."""

    def trim(self) -> None:
        """Keep small what is kept of what it writes: its children's output is there, too."""

    def forget(self) -> None:
        """Remove what is on record of it: it is gone."""
