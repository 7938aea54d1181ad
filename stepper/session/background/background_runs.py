"""Runs tool calls in the background and delivers each result exactly once.

A call runs in the background only if a client can notify the agent. If no client waits
when the call finishes, its result becomes an undelivered report. Only this module
changes the states of calls, which `session_state/background_call_states` defines.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any

from stepper.common.errors import StepperError
from stepper.messages import background_runs, run_report
from stepper.messages.run_report import Report
from stepper.policy import journal_events
from stepper.session.background import backgrounding
from stepper.session.caller import Caller
from stepper.session.session import Session
from stepper.session.session_state.background_call_states import (
    BackgroundCall,
    CallEvent,
    CallState,
    Waker,
)
from stepper.session.session_state.notebook_journal import format_now

POLL_SECONDS = 0.5  # how often to check whether a call continues in the background
MATCHED_CHARACTERS = 400  # of a report that must be in a prompt to recognize it
CLIENT_PID = "CLAUDE_PID"  # environment variable of hooks: the client's process ID
# How long a client waits for a call that has not started, and how long after its start
# a daemon waits for the client of a call that an earlier daemon started.
CLIENT_GRACE_SECONDS = 15.0
RECOVERY_SECONDS = 3.0  # for the calls of an earlier daemon
# A result counts as read after more prompts and ends of turns than this.
MAX_PROMPTS = 1

Work = Coroutine[Any, Any, "Report | None"]  # runs the cells of a call


def start_call(
    session: Session,
    call_id: str | None,
    caller: Caller,
    work: Work,
    is_recovered: bool = False,
) -> BackgroundCall:
    """Start the work of a call in a task that outlives the request; return the call.

    Without a call ID, the call gets a new ID. `is_recovered` means that an earlier
    daemon started the call.
    """
    call = BackgroundCall(
        call_id or uuid.uuid4().hex,
        caller,
        asyncio.create_task(work),
        is_recovered=is_recovered,
    )
    entry = session.state.background_calls.get(call.id)
    if entry is not None:
        call.restore(has_reported_match=entry.matched)
    session.background_calls.add(call)
    call.task.add_done_callback(lambda _: _handle_finished_task(session, call))
    return call


def move_to_foreground(session: Session, call: BackgroundCall) -> None:
    """Move a background call to the foreground, because its client reconnected.

    Do nothing if the call is in the foreground already.
    """
    if call.in_background:
        call.apply(CallEvent.RECONNECTED)
        session.journal.log(
            journal_events.BackgroundReported(at=format_now(), call=call.id)
        )


def continue_in_background(session: Session, call: BackgroundCall, owner: str) -> None:
    """Move a call to the background.

    `owner` is the ID of the agent session that gets the result.
    """
    session.journal.log(
        journal_events.Backgrounded(at=format_now(), call=call.id, session=owner)
    )
    # A call that a client requests again may be in the background already.
    if not call.in_background:
        call.apply(CallEvent.BACKGROUNDED)


async def wait_for_call(session: Session, call: BackgroundCall, owner: str) -> bool:
    """Wait until a call finishes, or move it to the background after some time.

    Return whether the call finished. A call moves to the background only if a client
    waits to notify the agent. `owner` is the ID of the agent session that then gets the
    result.
    """
    while not call.task.done():
        backgrounding.record_first_cell(session, call)
        wait_seconds = backgrounding.compute_wait_seconds(session, call)
        remaining = call.started_at + wait_seconds - time.monotonic()
        is_connected = not call.caller.disconnected.is_set()
        if remaining <= 0 and call.has_waker and is_connected:
            continue_in_background(session, call, owner)
            matched_line = backgrounding.get_matched_line(session, call)
            call.set_match_reported(bool(matched_line))
            return False
        poll_seconds = POLL_SECONDS
        if remaining > 0:
            poll_seconds = min(remaining, POLL_SECONDS)
        await asyncio.wait([call.task], timeout=poll_seconds)
    return True


# --- notifying the agent


async def wait_to_notify(session: Session, call_id: str, caller: Caller) -> None:
    """Wait for a call to start, and deliver its next report to a caller.

    Return without a report if the call finished in the foreground or does not start
    within CLIENT_GRACE_SECONDS.
    """
    deadline = time.monotonic() + CLIENT_GRACE_SECONDS
    while (
        call_id not in session.background_calls
        and not session.background_calls.has_finished(call_id)
        and not caller.disconnected.is_set()
    ):
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(POLL_SECONDS / 2)
    call = session.background_calls.find(call_id)
    if call:
        await deliver_next_report([(session, call)], caller)


def list_unattended_calls(
    sessions: Iterable[Session], owner: str
) -> list[tuple[Session, BackgroundCall]]:
    """Return the background calls for which no client waits, with their sessions.

    Calls whose result a client accepted are left out. `owner` is the ID of the agent
    session that gets the results.
    """
    unattended = []
    for session in sessions:
        for call in session.background_calls:
            if call.delivery or call.has_waker:
                continue
            if get_owner(session, call) == owner:
                unattended.append((session, call))
    return unattended


def get_owner(session: Session, call: BackgroundCall) -> str | None:
    """Return the ID of the agent session that gets the result of a background call.

    Return None for a call in the foreground.
    """
    entry = session.state.background_calls.get(call.id)
    return entry.session if entry else None


async def deliver_next_report(
    calls: Iterable[tuple[Session, BackgroundCall]], caller: Caller
) -> None:
    """Wait for a report on one of the calls, and deliver the report to a caller.

    If the caller does not accept the report, the next waiting client gets it.
    """
    sessions = {call: session for session, call in calls}
    if not sessions:
        return
    call, report = await wait_for_report(sessions, caller)
    if call is None:
        return
    session = sessions[call]
    is_accepted = await caller.deliver(report.text)
    if call.is_settled:
        return  # meanwhile another request returned the result
    if not is_accepted:
        refuse_report(session, call)
        return
    session.background_calls.add_delivered_report(report)
    if call.state is CallState.SENDING_LINE:
        accept_line(session, call)
        return
    call.accept_result(report, caller)


def accept_line(session: Session, call: BackgroundCall) -> None:
    """Record that a client accepted the line that matches the wake pattern."""
    call.apply(CallEvent.ACCEPTED)
    entry = session.state.background_calls.get(call.id)
    if entry:
        session.journal.log(replace(entry, at=format_now(), matched=True))
    # The call may have finished meanwhile.
    _notify_waker(session, call)


async def wait_for_report(
    sessions: Mapping[BackgroundCall, Session],
    caller: Caller,
    seconds: float | None = None,
    first: bool = False,
) -> tuple[BackgroundCall | None, Report]:
    """Wait until one of the calls has a report for a caller.

    Return the call and the report. The call is then in the state SENDING_LINE or
    SENDING_RESULT, and the report must be accepted or refused. Return None and an empty
    report after `seconds`, if the caller disconnects, or if another client got the
    result. `first` gives the caller precedence over other waiting clients.
    """
    waker = Waker(caller)
    for call, session in sessions.items():
        call.add_waker(waker, first=first)
        _notify_waker(session, call)
    disconnected = asyncio.ensure_future(caller.disconnected.wait())
    futures: list[asyncio.Future[Any]] = [waker.result, disconnected]
    try:
        await asyncio.wait(
            futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        disconnected.cancel()
        for call in sessions:
            call.remove_waker(waker)
    if waker.result.done():
        return waker.result.result()
    waker.result.cancel()
    return None, Report("")


def _notify_waker(session: Session, call: BackgroundCall) -> None:
    """Pass the result or the matched line of a background call to a waiting client.

    If no client waits, the result becomes an undelivered report. Do nothing if a report
    is being sent, or if there is nothing to report.
    """
    if call.state is not CallState.BACKGROUND:
        return
    if not session.background_calls.is_current(call):
        return
    report = _create_notification(session, call)
    if report is None:
        return
    is_finished = call.task.done()
    waker = call.find_waker()
    if waker is None:
        if is_finished:
            _record_undelivered(session, call)
        return
    if is_finished:
        call.apply(CallEvent.SENDS_RESULT)
    else:
        call.apply(CallEvent.SENDS_LINE)
        call.set_match_reported(True)
    waker.result.set_result((call, report))


def _create_notification(session: Session, call: BackgroundCall) -> Report | None:
    """Return the notification of the result or the matched line of a call.

    Return None if the call is running and no line has matched since the last report.
    """
    if call.task.done():
        return background_runs.format_finished(session.name, get_report(call))
    if call.match_reported:
        return None
    matched_line = backgrounding.get_matched_line(session, call)
    if not matched_line:
        return None
    return background_runs.format_matched(
        session.name,
        session.state.commands,
        backgrounding.format_running_name(session),
        matched_line,
    )


def _record_undelivered(session: Session, call: BackgroundCall) -> None:
    """Record the result of a call as an undelivered report."""
    call.apply(CallEvent.HAS_NO_CLIENT)
    session.background_calls.remove(call)
    text = background_runs.format_finished_meanwhile(
        session.name, get_report(call).text
    )
    session.journal.log(
        journal_events.Undelivered(
            at=format_now(),
            text=text,
            call=call.id,
            session=get_owner(session, call) or "",
        )
    )


def get_report(call: BackgroundCall) -> Report:
    """Return the report on a finished call.

    If the task raised an error, return a report on the error.
    """
    try:
        report = call.task.result()
    except StepperError as error:
        report = run_report.format_error(error)
    except Exception as error:  # noqa: BLE001  # reported like the error of a request
        report = run_report.format_unknown(
            "it is not known whether the cell ran, because of an internal error in"
            f" stepper: {type(error).__name__}: {error}"
        )
    if not report:
        return Report(background_runs.NOTHING_RAN)
    text = "\n".join(filter(None, [report.text, report.stop]))
    return Report(text, report.stop or report.line, is_unknown=report.is_unknown)


def _handle_finished_task(session: Session, call: BackgroundCall) -> None:
    """Deliver the result of a background call, or finish a foreground call.

    Do nothing for a cancelled task: the daemon exits, and the next daemon recovers the
    call.
    """
    if call.task.cancelled():
        return
    if call.in_background:
        _notify_waker(session, call)
        return
    call.task.exception()  # keeps asyncio from logging an error that the caller gets
    call.apply(CallEvent.FINISHED)
    call.release_wakers()
    session.background_calls.finish(call)


def mark_reported(session: Session, call: BackgroundCall) -> None:
    """Record that the agent has the result of a background call."""
    if call.is_settled:
        return
    call.apply(CallEvent.READ)
    session.background_calls.remove(call)
    session.journal.log(
        journal_events.BackgroundReported(at=format_now(), call=call.id)
    )
    call.release_wakers()


def refuse_report(session: Session, call: BackgroundCall) -> None:
    """Record that a client did not accept a report; offer it to other clients."""
    if call.is_settled:
        return
    if call.state is CallState.SENDING_LINE:
        call.set_match_reported(False)
    call.apply(CallEvent.REFUSED)
    _notify_waker(session, call)


def mark_reports_in_prompt(
    sessions: Iterable[Session], owner: str, prompt: str
) -> list[str]:
    """Mark the reports that a prompt contains as read by the agent.

    Return the lines of these reports for the user. A report also counts as read after
    more than MAX_PROMPTS prompts and ends of turns of the agent session `owner`,
    because a client may delay a report until the end of a turn.
    """
    lines = []
    for session in sessions:
        found_reports = [
            report
            for report in session.background_calls.delivered_reports
            if _contains_report(prompt, report)
        ]
        lines += [report.line for report in found_reports]
        session.background_calls.remove_delivered_reports(found_reports)
        for call in session.background_calls:
            delivery = call.delivery
            if delivery is None:
                continue
            if get_owner(session, call) == owner:
                delivery.count_prompt()
            is_found = delivery.report in found_reports
            if is_found or delivery.prompts_since > MAX_PROMPTS:
                mark_reported(session, call)
    return lines


def _contains_report(prompt: str, report: Report) -> bool:
    """Return whether a prompt contains a report.

    The client alters tags, so only the text before the first tag is compared.
    """
    return report.text.partition("<")[0][:MATCHED_CHARACTERS] in prompt


# --- calls of earlier daemons and other agent sessions


def process_background_calls(session: Session, since: float) -> None:
    """Deliver matched lines, and handle calls of exited clients and earlier daemons.

    `since` is the start of this daemon (monotonic clock). For CLIENT_GRACE_SECONDS
    after this time, only calls whose results are in the journal are recovered, because
    the clients of the other calls may request the results themselves.
    """
    for call in session.background_calls:
        if not call.task.done():
            _notify_waker(session, call)
            continue
        if call.delivery and not call.delivery.client.is_alive():
            _record_undelivered(session, call)
    is_grace_over = time.monotonic() > since + CLIENT_GRACE_SECONDS
    for call_id in list(session.state.background_calls):
        if call_id in session.background_calls:
            continue
        if is_grace_over or session.journal.has_handled(call_id):
            caller = Caller(call_id=call_id, is_alive=lambda: False)
            work = _recover_call(session, call_id, caller)
            start_call(session, call_id, caller, work, is_recovered=True)


async def _recover_call(session: Session, call_id: str, caller: Caller) -> Report:
    """Return the report on a call that an earlier daemon started.

    If the journal has no result of the call, report that the cell did not run.
    """
    async with session.take_turn(reconnecting=caller):
        report = session.journal.take_report(call_id)
        if report:
            return report
        if session.kernel_manager.kernel is None:
            # Withdraw a job that may be queued for this cell.
            await session.kernel_manager.shut_down("no client is waiting for the cell")
        return run_report.format_not_run("the daemon exited while the cell was queued")


async def recover_calls(session: Session) -> None:
    """Recover the background calls of an earlier daemon.

    Wait for at most RECOVERY_SECONDS, because a cell may still be running.
    """
    # No grace period: all calls are recovered at once.
    process_background_calls(session, since=-math.inf)
    tasks = [call.task for call in session.background_calls if call.is_recovered]
    if tasks:
        # A task that takes longer waits for a running cell.
        await asyncio.wait(tasks, timeout=RECOVERY_SECONDS)


def transfer_calls(session: Session, owner: str, client_pid: str) -> None:
    """Assign background calls of other agent sessions to a new agent session.

    `owner` is the ID of the new session, and `client_pid` the ID of its client process.
    The session gets the calls that this process started before /clear. The session also
    gets the calls whose client has exited, unless another client waits for them.
    """
    for call in session.background_calls:
        entry = session.state.background_calls.get(call.id)
        if entry is None or entry.session == owner:
            continue
        is_same_client = (
            client_pid and call.caller.environ.get(CLIENT_PID) == client_pid
        )
        if is_same_client or not _has_client(call):
            session.journal.log(replace(entry, at=format_now(), session=owner))


def _has_client(call: BackgroundCall) -> bool:
    """Return whether a client that gets the result of a call is running."""
    return call.caller.is_alive() or call.is_being_reported or call.has_waker


def finish_deliveries(session: Session) -> None:
    """Mark results as reported if a running client accepted them.

    This is called when the daemon exits, because the daemon can then no longer check
    whether the agent has read the results.
    """
    for call in session.background_calls:
        if call.delivery and call.delivery.client.is_alive():
            mark_reported(session, call)


async def interrupt_calls(session: Session, owner: str, seconds: float) -> str:
    """Interrupt the kernel; return the reports on an agent session's background calls.

    `owner` is the ID of the agent session. Wait for the results for at most `seconds`,
    and mark them as reported. If no call finishes, return a message on the interrupt.
    Return an empty string if nothing was interrupted.
    """
    calls = [
        call
        for call in session.background_calls
        if call.state is CallState.BACKGROUND and get_owner(session, call) == owner
    ]
    # Keep other clients from getting the results during the interrupt.
    for call in calls:
        call.apply(CallEvent.SENDS_RESULT)
    is_starting = session.kernel_manager.is_starting
    is_interrupted = await session.interrupt()
    if is_interrupted and calls:
        await asyncio.wait([call.task for call in calls], timeout=seconds)
    texts = []
    for call in calls:
        if is_interrupted and call.task.done():
            texts.append(get_report(call).text)
            mark_reported(session, call)
        else:
            refuse_report(session, call)
    if texts or not is_interrupted:
        return "\n".join(texts)
    return background_runs.format_interrupted(session.name, is_starting)
