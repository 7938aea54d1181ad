"""A tool call that may continue in the background, as a state machine.

TRANSITIONS defines the order of the states. `background_runs` causes the transitions,
and logs which calls are in the background, for the next daemon.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from stepper.messages.run_report import Report
from stepper.session.caller import Caller


class CallState(Enum):
    """The state of a tool call and the delivery of its result."""

    FOREGROUND = "foreground"  # its client waits for the response
    RETURNED = "returned"  # the response contained the result
    BACKGROUND = "background"  # the client got an interim report
    SENDING_LINE = "sending line"  # a client receives a line that matches `wake=`
    SENDING_RESULT = "sending result"  # a client receives the result
    # A client accepted the result, but may exit before the agent reads the result.
    ACCEPTED = "accepted"
    REPORTED = "reported"  # the agent has the result
    UNDELIVERED = "undelivered"  # the result became an undelivered report


class CallEvent(Enum):
    """An event that changes the state of a call."""

    FINISHED = "finished"  # while its client waited
    BACKGROUNDED = "backgrounded"
    RECONNECTED = "reconnected"  # its client waits again
    SENDS_LINE = "sends line"
    SENDS_RESULT = "sends result"
    ACCEPTED = "accepted"
    REFUSED = "refused"  # the client did not take the report
    READ = "read"  # the agent has the result
    # No client waits for the result, or the client that accepted the result exited.
    HAS_NO_CLIENT = "has no client"


TRANSITIONS: Mapping[CallState, Mapping[CallEvent, CallState]] = {
    CallState.FOREGROUND: {
        CallEvent.FINISHED: CallState.RETURNED,
        CallEvent.BACKGROUNDED: CallState.BACKGROUND,
    },
    CallState.BACKGROUND: {
        CallEvent.RECONNECTED: CallState.FOREGROUND,
        CallEvent.SENDS_LINE: CallState.SENDING_LINE,
        CallEvent.SENDS_RESULT: CallState.SENDING_RESULT,
        CallEvent.READ: CallState.REPORTED,
        CallEvent.HAS_NO_CLIENT: CallState.UNDELIVERED,
    },
    CallState.SENDING_LINE: {
        CallEvent.ACCEPTED: CallState.BACKGROUND,
        CallEvent.REFUSED: CallState.BACKGROUND,
        CallEvent.READ: CallState.REPORTED,
    },
    CallState.SENDING_RESULT: {
        CallEvent.ACCEPTED: CallState.ACCEPTED,
        CallEvent.REFUSED: CallState.BACKGROUND,
        CallEvent.READ: CallState.REPORTED,
    },
    CallState.ACCEPTED: {
        CallEvent.READ: CallState.REPORTED,
        CallEvent.HAS_NO_CLIENT: CallState.UNDELIVERED,
    },
    CallState.RETURNED: {},
    CallState.REPORTED: {},
    CallState.UNDELIVERED: {},
}
BACKGROUND_STATES = (
    CallState.BACKGROUND,
    CallState.SENDING_LINE,
    CallState.SENDING_RESULT,
    CallState.ACCEPTED,
)


class IllegalTransitionError(RuntimeError):
    """Raised for an event that is not allowed in the current state of a call."""


@dataclass(eq=False)
class Waker:
    """A client that can notify the agent of one report on a background run.

    `result` contains the call and its report. If the client is released without a
    report, `result` contains None and an empty report.
    """

    caller: Caller
    result: asyncio.Future[tuple[BackgroundCall | None, Report]] = field(
        default_factory=asyncio.Future
    )

    @property
    def is_waiting(self) -> bool:
        """Whether the client still waits for a report."""
        return not self.result.done() and not self.caller.disconnected.is_set()


@dataclass
class Delivery:
    """A report on a result, and the client that accepted it."""

    report: Report
    client: Caller
    # The number of prompts and ends of turns since the client accepted the report.
    prompts_since: int = 0

    def count_prompt(self) -> None:
        """Count a prompt or the end of a turn of the agent that gets the report."""
        self.prompts_since += 1


@dataclass(eq=False)
class BackgroundCall:
    """A tool call that runs cells in a separate task.

    Only `background_runs` and `backgrounding` change calls.
    """

    id: str
    caller: Caller
    task: asyncio.Task[Report | None]
    state: CallState = CallState.FOREGROUND
    # The start of the call; after its first cell started, the start of this cell
    # (monotonic clock).
    started_at: float = field(default_factory=time.monotonic)
    has_started: bool = False  # a cell has started
    is_recovered: bool = False  # an earlier daemon started the call
    match_reported: bool = False  # the line that matches `wake=` was reported
    delivery: Delivery | None = None  # in the state ACCEPTED
    wakers: list[Waker] = field(default_factory=list)

    def apply(self, event: CallEvent) -> None:
        """Change the state as TRANSITIONS defines for an event.

        Raise IllegalTransitionError if the event is not allowed in the current state.
        """
        next_state = TRANSITIONS[self.state].get(event)
        if next_state is None:
            raise IllegalTransitionError(
                f"call {self.id} is in the state {self.state.value!r}, in which the"
                f" event {event.value!r} is not allowed"
            )
        self.state = next_state

    def restore(self, *, has_reported_match: bool) -> None:
        """Set the state of a background call of an earlier daemon.

        `has_reported_match` means that the line that matches `wake=` was reported.
        """
        self.state = CallState.BACKGROUND
        self.match_reported = has_reported_match

    def record_cell_start(self, started_at: float) -> None:
        """Set the start of the call to the start of its first cell (monotonic clock).

        This excludes the start of the kernel from the time that the client waits. Calls
        for later cells have no effect.
        """
        if not self.has_started:
            self.has_started = True
            self.started_at = max(self.started_at, started_at)

    def set_match_reported(self, is_reported: bool) -> None:
        """Record whether the line that matches `wake=` was reported."""
        self.match_reported = is_reported

    def accept_result(self, report: Report, client: Caller) -> None:
        """Record that a client accepted the result, and release the other clients."""
        self.apply(CallEvent.ACCEPTED)
        self.delivery = Delivery(report, client)
        self.release_wakers()

    @property
    def in_background(self) -> bool:
        """Whether the call is in the background and the agent has no result yet."""
        return self.state in BACKGROUND_STATES

    @property
    def is_settled(self) -> bool:
        """Whether the state is final."""
        return not TRANSITIONS[self.state]

    @property
    def is_being_reported(self) -> bool:
        """Whether a client is receiving a report on the call or accepted its result."""
        return self.in_background and self.state is not CallState.BACKGROUND

    @property
    def has_waker(self) -> bool:
        """Whether a client waits to notify the agent."""
        return self.find_waker() is not None

    def find_waker(self) -> Waker | None:
        """Return the first client that waits to notify the agent, or None."""
        for waker in self.wakers:
            if waker.is_waiting:
                return waker
        return None

    def add_waker(self, waker: Waker, *, first: bool = False) -> None:
        """Add a client that waits for the call.

        With `first`, this client gets a report before the other clients.
        """
        index = 0 if first else len(self.wakers)
        self.wakers.insert(index, waker)

    def remove_waker(self, waker: Waker) -> None:
        """Remove a client that no longer waits for the call."""
        if waker in self.wakers:
            self.wakers.remove(waker)

    def share_wakers(self, other: BackgroundCall) -> None:
        """Use the list of waiting clients of another call with the same ID."""
        self.wakers = other.wakers

    def release_wakers(self) -> None:
        """Release the clients that wait for the call, without a report."""
        for waker in self.wakers:
            if waker.is_waiting:
                waker.result.set_result((None, Report("")))
