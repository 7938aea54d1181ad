"""A request to the daemon: its caller, folder and channel for progress events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stepper.daemon.workspace.project_notebooks import Workspace
from stepper.policy.model import Consent
from stepper.session import progress_events, status_queries
from stepper.session.clients import Caller
from stepper.session.session import Session

PROGRESS_SECONDS = 1.0  # between two progress events about the running cell


@dataclass(frozen=True)
class Request:
    """A request, and the facts about the daemon that a response may contain.

    `progress` sends a progress event to the caller; `shut_down` stops the daemon once
    the request is answered.
    """

    workspace: Workspace
    caller: Caller
    cwd: str
    progress: progress_events.ProgressCallback
    daemon_info: Mapping[str, Any]
    shut_down: Callable[[], None] = lambda: None

    @property
    def owner(self) -> str:
        """The Claude Code session whose shell ran the command, or an empty string."""
        return self.caller.environ.get("STEPPER_SESSION", "")

    @property
    def consent(self) -> Consent:
        """Whether the user approved the agent's actions, as far as the client says."""
        if self.caller.environ.get("STEPPER_MODE") == "plan":
            return Consent.WITHHELD
        return Consent.ASKED


@contextlib.asynccontextmanager
async def report_progress(request: Request, session: Session) -> AsyncIterator[None]:
    """Send progress events to the caller of a request until the block exits.

    An MCP client gets the running cell every second; every caller gets the state of the
    queue that the kernel waits in, when it changes.
    """

    async def send_events() -> None:
        last_text = ""
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            running = status_queries.get_running(session)
            queued = session.kernel_manager.queue_status
            if running and request.caller.interface == "mcp":
                request.progress(progress_events.CellRunning(running=running))
            if queued and queued.text != last_text:
                last_text = queued.text
                request.progress(progress_events.Waiting(line=f"queued: {last_text}"))

    sender = asyncio.create_task(send_events())
    try:
        yield
    finally:
        sender.cancel()
