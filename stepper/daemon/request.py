"""What the daemon is asked: by whom, from where, with what way to tell of progress."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stepper.daemon.project_notebooks import Workspace
from stepper.policy.model import Consent
from stepper.session import progress_events, status_queries
from stepper.session.clients import Caller
from stepper.session.session import Session

TICK_SECONDS = 1.0  # between two words to another agent on the cell that it waits for


@dataclass(frozen=True)
class Request:
    """One request: who asks, the folder it was asked in, the way to tell of progress, what the daemon is."""

    workspace: Workspace
    caller: Caller
    cwd: str
    progress: progress_events.Progress
    about: Mapping[str, Any]
    end: Callable[[], None] = lambda: None  # the daemon, once this is answered

    @property
    def owner(self) -> str:
        """The session of Claude Code in whose shell the command was given; '' elsewhere."""
        return self.caller.environ.get("STEPPER_SESSION", "")

    @property
    def consent(self) -> Consent:
        """Whether the person has accepted what other agents do: as far as their client tells its mode."""
        return (
            Consent.WITHHELD
            if self.caller.environ.get("STEPPER_MODE") == "plan"
            else Consent.ASKED
        )


@contextlib.asynccontextmanager
async def telling(request: Request, session: Session) -> AsyncIterator[None]:
    """Tell another agent each second what runs, as long as it waits; anybody how the queue stands for the kernel."""

    async def tell() -> None:
        told = ""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            running, queued = status_queries.running(session), session.keeper.queued
            if running and request.caller.by == "mcp":
                request.progress(progress_events.CellRuns(running=running))
            if queued and queued.text != told:
                told = queued.text
                request.progress(progress_events.Waits(line=f"queued: {told}"))

    teller = asyncio.create_task(tell())
    try:
        yield
    finally:
        teller.cancel()
