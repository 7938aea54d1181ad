"""The tool calls of a notebook that run cells in separate tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from stepper.messages.run_report import Report
from stepper.session.session_state.background_call_states import BackgroundCall

FINISHED_CALLS = 200  # how many IDs of finished calls are remembered
DELIVERED_REPORTS = 20  # how many delivered reports can be recognized in a prompt


class BackgroundCalls:
    """The tool calls of a notebook, and the reports that clients accepted.

    Only `background_runs` adds or removes calls; any code may look up calls. The next
    daemon restores background calls from the journal (`State.background_calls`).
    """

    def __init__(self) -> None:
        self._calls: dict[str, BackgroundCall] = {}  # by call ID
        self._finished_ids: deque[str] = deque(maxlen=FINISHED_CALLS)
        # The agent may not have read these reports yet.
        self._delivered_reports: deque[Report] = deque(maxlen=DELIVERED_REPORTS)

    def __iter__(self) -> Iterator[BackgroundCall]:
        """Iterate over a copy of the calls, so that a loop may remove calls."""
        return iter(list(self._calls.values()))

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self._calls)

    def __contains__(self, call_id: object) -> bool:
        """Return whether there is a call with an ID."""
        return call_id in self._calls

    def is_current(self, call: BackgroundCall) -> bool:
        """Return whether a call was neither removed nor replaced."""
        return self._calls.get(call.id) is call

    def find(self, call_id: str) -> BackgroundCall | None:
        """Return the call with an ID, or None if there is no such call."""
        return self._calls.get(call_id)

    def add(self, call: BackgroundCall) -> None:
        """Add a call, which replaces a call with the same ID.

        Clients that wait for the replaced call then wait for the new call.
        """
        replaced = self._calls.get(call.id)
        if replaced is not None:
            call.share_wakers(replaced)
        self._calls[call.id] = call

    def remove(self, call: BackgroundCall) -> None:
        """Remove a call, unless it was already removed or replaced."""
        if self.is_current(call):
            del self._calls[call.id]

    def finish(self, call: BackgroundCall) -> None:
        """Remove a call that finished while its client waited, and remember its ID."""
        self.remove(call)
        self._finished_ids.append(call.id)

    def has_finished(self, call_id: str) -> bool:
        """Return whether a call finished recently while its client waited for it."""
        return call_id in self._finished_ids

    # Delivered reports

    @property
    def delivered_reports(self) -> list[Report]:
        """The reports that clients accepted but the agent may not have read yet."""
        return list(self._delivered_reports)

    def add_delivered_report(self, report: Report) -> None:
        """Add a report that a client accepted."""
        self._delivered_reports.append(report)

    def remove_delivered_reports(self, reports: Iterable[Report]) -> None:
        """Remove reports that the agent has read."""
        for report in reports:
            self._delivered_reports.remove(report)
