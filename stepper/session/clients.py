"""Who asks for something, who can be woken, and what is under way for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from stepper.messages.run_report import Report


async def _nowhere(_: str) -> bool:
    return False


def _nothing(_: bytes) -> None:
    pass


def _always() -> bool:
    return True


@dataclass
class Caller:
    """Who asks."""

    environ: Mapping[str, str] = field(default_factory=dict)  # a new kernel gets it
    # without waiting for the answer
    left: asyncio.Event = field(default_factory=asyncio.Event)
    call: str | None = None  # the tool's call that it asks for
    # the deadline in seconds that the call gives each of its cells
    timeout: float | None = None
    by: str = "cli"  # by what it asks: hook, mcp, cli
    # tells it something at once; whether that was taken
    deliver: Callable[[str], Awaitable[bool]] = _nowhere
    # hands it what it is to ask another daemon with
    keep: Callable[[bytes], None] = _nothing
    # whether the agent's client that it asks for still does
    lives: Callable[[], bool] = _always

    @property
    def outside_agent(self) -> bool:
        """Whether a user's terminal, a script or CI asks: a command outside the shells of agents that are known."""
        in_agents_shell = self.environ.get("STEPPER_SESSION") or self.environ.get(
            "CLAUDECODE"
        )
        return self.by == "cli" and not in_agents_shell


@dataclass(eq=False)
class Waker:
    """Somebody who can have the agent of a session read something, once: what is `said`, and of which call."""

    caller: Caller
    said: asyncio.Future[tuple[Call | None, Report]] = field(
        default_factory=asyncio.Future
    )

    @property
    def waits(self) -> bool:
        """Whether it still does."""
        return not self.said.done() and not self.caller.left.is_set()


@dataclass(eq=False)
class Call:
    """An edit whose cells run, in a task of its own."""

    id: str
    caller: Caller
    work: asyncio.Task[Report | None]
    began: float = field(default_factory=time.monotonic)
    runs: bool = False  # a cell of it has begun: `began` is when
    handed: bool = False
    # of it nothing is known but its id: a former daemon was asked
    recalled: bool = False
    matched: bool = False  # the line that it was to be woken by was told
    # it is being handed to the client, to wake the agent with, and to nobody else …
    telling: bool = False
    over: bool = False  # … how it ended
    # what the client was handed of its end: it may yet be lost …
    said: Report | None = None
    passed: int = 0  # … though not after so many prompts and ends of turns …
    teller: Caller | None = None  # … with that client
    wakers: list[Waker] = field(default_factory=list)
