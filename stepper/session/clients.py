"""Clients that send requests, and their calls that run in the background."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from stepper.messages.run_report import Report


async def _deliver_nothing(_: str) -> bool:
    return False


def _ignore_handover(_: bytes) -> None:
    pass


def _is_always_alive() -> bool:
    return True


@dataclass
class Caller:
    """The client that sent a request."""

    environ: Mapping[str, str] = field(default_factory=dict)  # for a new kernel
    # Set if the client disconnects before it gets the response.
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    call_id: str | None = None  # the ID of the tool call
    timeout: float | None = None  # the deadline of each of its cells, in seconds
    interface: str = "cli"  # hook, mcp or cli
    # Sends a message at once; returns whether the client accepted it.
    deliver: Callable[[str], Awaitable[bool]] = _deliver_nothing
    # Sends the request that the client must send if this daemon exits.
    send_handover: Callable[[bytes], None] = _ignore_handover
    # Whether the agent's client is still running.
    is_alive: Callable[[], bool] = _is_always_alive

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
    """A tool call whose cells run in a task of their own."""

    id: str
    caller: Caller
    task: asyncio.Task[Report | None]
    # When the call, or the first of its cells, started, by `time.monotonic`.
    started_at: float = field(default_factory=time.monotonic)
    has_started: bool = False  # a cell has started
    in_background: bool = False
    is_recovered: bool = False  # an earlier daemon got the call: only its ID is known
    match_reported: bool = False  # the line that matches `wake=` was reported
    is_delivering: bool = False  # a client is receiving a report on this call
    delivers_result: bool = False  # the report that is being delivered is the result
    # The result, if a client accepted it. A client can still lose it before the agent
    # reads it.
    delivered_report: Report | None = None
    delivered_to: Caller | None = None  # the client that accepted the result
    prompts_since: int = 0  # prompts and ends of turns since then
    wakers: list[Waker] = field(default_factory=list)
