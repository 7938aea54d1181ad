"""Clients that send requests to the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field


async def _deliver_nothing(_: str) -> bool:
    return False


def _ignore_handover(_: bytes) -> None:
    pass


def _is_always_alive() -> bool:
    return True


@dataclass
class Caller:
    """The client that sent a request."""

    # The client's environment variables; a new kernel gets them.
    environ: Mapping[str, str] = field(default_factory=dict)
    # Set if the client disconnects before it gets the response.
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    call_id: str | None = None  # the ID of the tool call
    timeout: float | None = None  # the deadline of each cell, in seconds
    interface: str = "cli"  # hook, mcp or cli
    # Sends a message immediately; returns whether the client accepted the message.
    deliver: Callable[[str], Awaitable[bool]] = _deliver_nothing
    # Sends the client a request to repeat if this daemon exits before the response.
    send_handover: Callable[[bytes], None] = _ignore_handover
    # Whether the agent's client is still running.
    is_alive: Callable[[], bool] = _is_always_alive

    @property
    def is_outside_agent(self) -> bool:
        """Whether the request comes from a user's terminal, a script or CI."""
        if self.interface != "cli":
            return False
        # These variables are set in the shells of agents.
        has_agent = self.environ.get("STEPPER_SESSION") or self.environ.get(
            "CLAUDECODE"
        )
        return not has_agent
