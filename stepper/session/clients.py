"""Clients that send requests, and their calls that run in the background."""

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
    """The client that sent a request."""

    environ: Mapping[str, str] = field(default_factory=dict)  # a new kernel gets it
    # without waiting for the answer
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    call_id: str | None = None  # the tool's call that it asks for
    # the deadline in seconds that the call gives each of its cells
    timeout: float | None = None
    interface: str = "cli"  # by what it asks: hook, mcp, cli
    # tells it something at once; whether that was taken
    deliver: Callable[[str], Awaitable[bool]] = _nowhere
    # hands it what it is to ask another daemon with
    send_handover: Callable[[bytes], None] = _nothing
    # whether the agent's client that it asks for still does
    is_alive: Callable[[], bool] = _always

    @property
    def is_outside_agent(self) -> bool:
        """Whether the request comes from outside an agent's shell.

        This is a user's terminal, a script or CI.
        """
        in_agents_shell = self.environ.get("STEPPER_SESSION") or self.environ.get(
            "CLAUDECODE"
        )
        return self.interface == "cli" and not in_agents_shell


@dataclass(eq=False)
class Waker:
    """A client that can notify the agent of one background result."""

    caller: Caller
    result: asyncio.Future[tuple[BackgroundCall | None, Report]] = field(
        default_factory=asyncio.Future
    )

    @property
    def is_waiting(self) -> bool:
        """Whether the client still waits for a result."""
        return not self.result.done() and not self.caller.disconnected.is_set()


@dataclass(eq=False)
class BackgroundCall:
    """An edit whose cells run in a task of their own."""

    id: str
    caller: Caller
    task: asyncio.Task[Report | None]
    started_at: float = field(default_factory=time.monotonic)
    has_started: bool = False  # a cell of it has begun: `began` is when
    in_background: bool = False
    # of it nothing is known but its id: a former daemon was asked
    is_recovered: bool = False
    match_reported: bool = False  # the line that it was to be woken by was told
    # it is being handed to the client, to wake the agent with, and to nobody else …
    is_delivering: bool = False
    delivers_result: bool = False  # … how it ended
    # what the client was handed of its end: it may yet be lost …
    delivered_report: Report | None = None
    prompts_since: int = 0  # … though not after so many prompts and ends of turns …
    delivered_to: Caller | None = None  # … with that client
    wakers: list[Waker] = field(default_factory=list)
