"""Background runs are reported once, to one of the waiting callers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from stepper.common.errors import KernelUnreachableError
from stepper.messages.run_report import Report
from stepper.session.background import background_runs, time_limited_runs
from stepper.session.caller import Caller
from stepper.session.mcp_responses import CellRunResponse
from stepper.session.session_state.background_call_states import (
    TRANSITIONS,
    BackgroundCall,
    CallEvent,
    CallState,
    IllegalTransitionError,
)
from stepper.session.session_state.background_calls import BackgroundCalls


class Client:
    """A client that accepts or rejects a delivery when the test decides."""

    def __init__(self) -> None:
        self.delivered_texts: list[str] = []
        self.takes: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.caller = Caller(deliver=self.deliver)

    async def deliver(self, text: str) -> bool:
        self.delivered_texts.append(text)
        return await self.takes


@pytest.mark.parametrize("accepted", [True, False])
def test_cell_that_may_have_run_is_not_reported_as_not_run(accepted: bool) -> None:
    async def fail() -> Report | None:
        error = KernelUnreachableError("cell 1 may still be running: no connection")
        error.accepted = accepted
        raise error

    async def get_response() -> CellRunResponse:
        task = asyncio.create_task(fail())
        await asyncio.wait([task])
        call = BackgroundCall("toolu_1", Caller(), task, CallState.BACKGROUND)
        session: Any = SimpleNamespace(name="a.ipynb")
        return time_limited_runs.create_response(session, call)

    response = asyncio.run(get_response())
    assert "may still be running" in response.text
    assert ("NOT run" in response.text) != accepted
    assert response.state == ("unknown" if accepted else "not run")


async def run_pending_tasks() -> None:
    """Let the other tasks of the event loop run until each of them waits."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.parametrize("accepted", [True, False])
def test_report_in_delivery_is_not_delivered_twice(accepted: bool) -> None:
    """The turn ends and its hook waits while another hook is delivering the report."""

    async def played() -> None:
        log: list[object] = []
        work = asyncio.create_task(asyncio.sleep(0, Report("it ran", "✓ it ran")))
        await work
        call = BackgroundCall("toolu_1", Caller(), work, CallState.BACKGROUND)
        background_calls = BackgroundCalls()
        background_calls.add(call)
        kernel_manager = SimpleNamespace(kernel=None)
        state = SimpleNamespace(
            background_calls={"toolu_1": SimpleNamespace(session="s")}, running=None
        )
        session: Any = SimpleNamespace(
            background_calls=background_calls,
            name="a.ipynb",
            journal=SimpleNamespace(log=log.append),
            state=state,
            kernel_manager=kernel_manager,
        )
        first, second = Client(), Client()
        tasks = [
            asyncio.create_task(
                background_runs.deliver_next_report([(session, call)], first.caller)
            )
        ]
        await run_pending_tasks()
        assert len(
            first.delivered_texts
        ) == 1 and background_runs.list_unattended_calls([session], "s") == [
            (session, call)
        ]
        tasks.append(
            asyncio.create_task(
                background_runs.deliver_next_report(
                    background_runs.list_unattended_calls([session], "s"), second.caller
                )
            )
        )
        await run_pending_tasks()
        assert second.delivered_texts == []
        first.takes.set_result(accepted)
        await run_pending_tasks()
        assert (
            second.delivered_texts == ([] if accepted else first.delivered_texts)
            and bool(call.delivery) is accepted
        )
        second.takes.set_result(True)
        await run_pending_tasks()
        (text,) = {*first.delivered_texts}
        assert "it ran" in text
        # the end of the turn that it must wait for
        assert (
            background_runs.mark_reports_in_prompt([session], "s", "") == [] and not log
        )
        assert background_runs.mark_reports_in_prompt(
            [session], "s", f"<task-notification>{text}"
        ) == ["✓ it ran"]
        assert len(session.background_calls) == 0 and len(log) == 1
        await asyncio.wait_for(asyncio.gather(*tasks), 60)  # no caller waits any longer

    asyncio.run(played())


FINAL = {CallState.RETURNED, CallState.REPORTED, CallState.UNDELIVERED}


def test_cancelled_request_no_longer_waits_for_a_report() -> None:
    async def play() -> None:
        work = asyncio.create_task(asyncio.sleep(60, None))
        call = BackgroundCall("toolu_1", Caller(), work)
        session: Any = None  # the call is in the foreground: nothing is reported
        request = asyncio.create_task(
            background_runs.wait_for_report({call: session}, Caller())
        )
        await asyncio.sleep(0)
        assert call.has_waker
        request.cancel()
        await asyncio.wait([request])
        assert request.cancelled()
        assert not call.has_waker
        work.cancel()

    asyncio.run(play())


def test_removal_of_a_replaced_call_keeps_the_new_call() -> None:
    async def play() -> None:
        work = asyncio.create_task(asyncio.sleep(0, None))
        replaced = BackgroundCall("toolu_1", Caller(), work, CallState.BACKGROUND)
        current = BackgroundCall("toolu_1", Caller(), work, CallState.BACKGROUND)
        calls = BackgroundCalls()
        calls.add(replaced)
        calls.add(current)
        calls.remove(replaced)
        assert calls.find("toolu_1") is current
        calls.remove(current)
        calls.remove(current)
        assert len(calls) == 0

    asyncio.run(play())


@pytest.mark.parametrize("state", CallState)
@pytest.mark.parametrize("event", CallEvent)
def test_each_event_in_each_state_follows_the_table_or_raises(
    state: CallState, event: CallEvent
) -> None:
    async def apply() -> BackgroundCall:
        work = asyncio.create_task(asyncio.sleep(0, None))
        call = BackgroundCall("toolu_1", Caller(), work, state)
        call.apply(event)
        return call

    expected = TRANSITIONS[state].get(event)
    if expected is None:
        with pytest.raises(
            IllegalTransitionError, match=f"toolu_1 is in the state '{state.value}'"
        ):
            asyncio.run(apply())
        return
    call = asyncio.run(apply())
    assert call.state is expected
    assert call.in_background is (expected not in {*FINAL, CallState.FOREGROUND})
    assert call.is_settled is (expected in FINAL)
    assert call.is_being_reported is (
        call.in_background and expected is not CallState.BACKGROUND
    )


def test_each_state_is_reachable_and_leads_to_a_final_state() -> None:
    assert TRANSITIONS.keys() == set(CallState)
    assert {state for state in CallState if not TRANSITIONS[state]} == FINAL
    targets = {state: set(events.values()) for state, events in TRANSITIONS.items()}
    # A call starts in the foreground, or is restored from the journal.
    reachable = {CallState.FOREGROUND, CallState.BACKGROUND}
    for _ in CallState:
        reachable |= {target for state in reachable for target in targets[state]}
    assert reachable == set(CallState)
    ending = set(FINAL)
    for _ in CallState:
        ending |= {state for state in CallState if targets[state] & ending}
    assert ending == set(CallState)
    used = {event for events in TRANSITIONS.values() for event in events}
    assert used == set(CallEvent)
