"""The server-sent events for the page.

An event replaces a part of the page, and is sent only if the part has changed. `runs`
events contain only new runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from tornado import iostream

from stepper.messages.marks import MARKS
from stepper.messages.status_text import CELL_NOTES, OUTCOME_NAMES, STATUS_NOTES
from stepper.web.access_control import ViewHandler, ViewServer, encode_json
from stepper.web.notebook_view_state import NotebookView

CHECK_SECONDS = 0.15  # the time between two checks of a notebook
LIST_SECONDS = 1.0  # the time between two checks of the list of notebooks
# The maximum time without an event, so that both sides notice a broken connection.
HEARTBEAT_SECONDS = 10.0
NO_RUNS = -1  # nothing was sent yet, not even an empty list of runs


class EventsHandler(ViewHandler):
    """Sends the changes of a notebook until the page is closed."""

    def initialize(self, server: ViewServer) -> None:
        """Initialize the state of the stream. Called by tornado."""
        super().initialize(server)
        self.is_closed = False
        self.sent_parts = dict[str, bytes]()
        self.view: NotebookView | None = None
        self.view_name = ""
        # The number of runs that were sent, and the generation of their history.
        self.sent_runs = NO_RUNS
        self.generation = 0
        self.heartbeat_at = time.monotonic() + HEARTBEAT_SECONDS

    def on_connection_close(self) -> None:
        """Stop the stream when the page is closed. Called by tornado."""
        self.is_closed = True

    async def get(self) -> None:
        """Send events until the page is closed or the server stops."""
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        next_list_at = 0.0
        with contextlib.suppress(iostream.StreamClosedError):
            await self._send_hello()
            while not (self.is_closed or self.server.stop_event.is_set()):
                if time.monotonic() > next_list_at:
                    await self.server.refresh()
                    next_list_at = time.monotonic() + LIST_SECONDS
                await self._send_changes()
                if time.monotonic() > self.heartbeat_at:
                    await self._send("beat", b"0")
                await asyncio.sleep(CHECK_SECONDS)
            await self.finish()

    async def _send_hello(self) -> None:
        """Send the first event of the stream: the time, the project and fixed texts."""
        hello = {
            "now": round(1000 * time.time()),
            "project": self.server.paths.project,
            # The texts for marks and states, which the page does not define itself.
            "marks": dict(MARKS),
            "step_notes": STATUS_NOTES,
            "cell_notes": CELL_NOTES,
            "outcome_names": OUTCOME_NAMES,
        }
        await self._send("hello", encode_json(hello))

    async def _send_changes(self) -> None:
        """Send the new runs and the changed parts of the page."""
        self._choose_view()
        parts: dict[str, object] = {"project": self._get_project()}
        view = self.view
        if view is None:
            parts["status"] = None  # there is no notebook to show
        else:
            current = self.server.current_name
            view_parts = await asyncio.to_thread(view.refresh, current)
            parts.update(view_parts)
            await self._send_new_runs(view)
        for name, value in parts.items():
            data = encode_json(value)
            if self.sent_parts.get(name) != data:
                self.sent_parts[name] = data
                await self._send(name, data)

    def _choose_view(self) -> None:
        """Select the notebook to show, and set its view.

        This is the requested notebook, or else the notebook that `stepper view` was
        started with, or else the current notebook. The view is None if the notebook
        does not exist.
        """
        requested_name = self.get_query_argument("notebook", "")
        name = requested_name or self.server.notebook or self.server.current_name
        # The page of a renamed notebook continues with the new name.
        name = self.server.notebooks.follow_rename(name)
        if self.view is not None and name == self.view_name:
            return
        self.view = self.server.notebooks.get_view(name) if name else None
        self.view_name = name
        self.sent_runs = NO_RUNS

    def _get_project(self) -> dict[str, object]:
        """Return the project's notebooks and the name of the current one.

        `missing` is the name of the selected notebook if it does not exist. `new` is
        the command that creates a notebook. `trouble` says why the notebooks can't be
        listed, or is empty.
        """
        notebooks = self.server.notebooks
        missing_name = "" if self.view else self.view_name
        return {
            "notebooks": self.server.rows,
            "current": self.server.current_name,
            "trouble": notebooks.error,
            "new": f'{notebooks.program} new "PROBLEM"',
            "missing": missing_name,
        }

    async def _send_new_runs(self, view: NotebookView) -> None:
        """Send the runs that were not sent yet, or all runs of another journal."""
        history = view.history
        if history.generation != self.generation:
            self.generation = history.generation
            self.sent_runs = NO_RUNS
        if self.sent_runs == len(history.runs):
            return
        start = 0 if self.sent_runs == NO_RUNS else self.sent_runs
        new_runs = view.list_runs(start)
        message = {"from": start, "runs": new_runs}
        await self._send("runs", encode_json(message))
        self.sent_runs = start + len(new_runs)

    async def _send(self, event: str, data: bytes) -> None:
        """Send an event with one line of data."""
        self.write(f"event: {event}\ndata: ")
        self.write(data)
        self.write("\n\n")
        await self.flush()
        self.heartbeat_at = time.monotonic() + HEARTBEAT_SECONDS
