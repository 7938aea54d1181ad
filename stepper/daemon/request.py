"""Requests to the daemon, and progress events for their callers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stepper.common.errors import StepperError
from stepper.daemon.workspace.project_notebooks import Workspace
from stepper.policy.model import Consent
from stepper.session import progress_events, status_queries
from stepper.session.caller import Caller
from stepper.session.session import Session

PROGRESS_SECONDS = 1.0  # the interval of progress events about the running cell


@dataclass(frozen=True)
class Request:
    """A request to the daemon.

    `cwd` is the caller's current folder. `progress` sends a progress event to the
    caller. `daemon_info` contains the daemon's process ID, version and socket path.
    `shut_down` makes the daemon exit when it has finished its requests.
    """

    workspace: Workspace
    caller: Caller
    cwd: str
    progress: progress_events.ProgressCallback
    daemon_info: Mapping[str, Any]
    shut_down: Callable[[], None] = lambda: None

    @property
    def owner(self) -> str:
        """The ID of the Claude Code session that sent the request.

        It is empty if the user ran the command in a terminal.
        """
        return self.caller.environ.get("STEPPER_SESSION", "")

    @property
    def consent(self) -> Consent:
        """The user's consent: WITHHELD in the client's plan mode, otherwise ASKED."""
        if self.caller.environ.get("STEPPER_MODE") == "plan":
            return Consent.WITHHELD
        return Consent.ASKED


@contextlib.contextmanager
def make_current(request: Request, session: Session) -> Iterator[dict[str, str]]:
    """Make the notebook of a session the current one.

    Yield the former current notebooks, in the format of `CurrentNotebooks.get_all`.
    If the block raises StepperError before a cell runs, restore the former current
    notebook.
    """
    currents = request.workspace.currents
    former_currents = currents.get_all()
    # Set before the block, in which cells may run for long.
    currents.set(session.name, request.owner)
    next_run = session.state.next_run
    try:
        yield former_currents
    except StepperError as error:
        nothing_ran = session.state.next_run == next_run and not error.accepted
        if nothing_ran:
            currents.restore(former_currents, session.name, request.owner)
        raise


@contextlib.asynccontextmanager
async def report_progress(request: Request, session: Session) -> AsyncIterator[None]:
    """Send progress events to the caller of a request until the block exits.

    An MCP client gets the running cell every second. All callers get the kernel's queue
    status whenever it changes.
    """

    async def send_events() -> None:
        """Send the events until the task is cancelled."""
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
