"""Background runs: the calls, and how their results are delivered once.

A call is backgrounded only if a client can notify the agent. Otherwise its result
becomes an undelivered report.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import Any

from stepper.common.errors import StepperError
from stepper.messages import background_runs, run_report
from stepper.messages.run_report import Report
from stepper.policy import journal_events
from stepper.session import backgrounding
from stepper.session.clients import BackgroundCall, Caller, Waker
from stepper.session.kernel_manager import format_now
from stepper.session.session import Session

LOOK_SECONDS = 0.5  # how often it is looked whether a call is to be handed on
MARK = 400  # characters by which what was said is known again
CLIENT = "CLAUDE_PID"  # the process that a hook is of, in its environment
# a waker may be there before its call, or ask the next daemon that late
COMES_SECONDS = 15.0

Work = Coroutine[Any, Any, "Report | None"]


def start_call(
    session: Session,
    name: str | None,
    caller: Caller,
    work: Work,
    recalled: bool = False,
) -> BackgroundCall:
    """Start the work of a call in a task that outlives the request."""
    call = BackgroundCall(
        name or uuid.uuid4().hex,
        caller,
        asyncio.create_task(work),
        is_recovered=recalled,
    )
    former = session.background_calls.get(call.id)
    owed = session.state.background_calls.get(call.id)
    call.in_background, call.match_reported = (
        owed is not None,
        owed is not None and owed.matched,
    )
    call.wakers = former.wakers if former else []
    session.background_calls[call.id] = call
    call.task.add_done_callback(lambda _: _handle_finished_task(session, call))
    return call


def keep_in_foreground(session: Session, call: BackgroundCall) -> None:
    """Wait for the call again: its caller reconnected."""
    if call.in_background:
        call.in_background = False
        session.log(journal_events.BackgroundReported(at=format_now(), call=call.id))


async def wait_for_call(session: Session, call: BackgroundCall, owner: str) -> bool:
    """Wait for a call; return False if it was backgrounded for an agent session."""
    while not call.task.done():
        left = (
            backgrounding.compute_wait_seconds(session, call)
            + call.started_at
            - time.monotonic()
        )
        if (
            left <= 0
            and any(waker.is_waiting for waker in call.wakers)
            and not call.caller.disconnected.is_set()
        ):
            session.log(
                journal_events.Backgrounded(
                    at=format_now(), call=call.id, session=owner
                )
            )
            call.in_background, call.match_reported = (
                True,
                bool(backgrounding.get_matched_line(session, call)),
            )
            return False
        await asyncio.wait(
            [call.task], timeout=min(left, LOOK_SECONDS) if left > 0 else LOOK_SECONDS
        )
    return True


# --- being woken


async def wait_to_notify(session: Session, name: str, caller: Caller) -> None:
    """Wait until the agent can be notified about a call.

    The call may start later.
    """
    until = time.monotonic() + COMES_SECONDS
    while (
        name not in session.background_calls
        and name not in session.finished_call_ids
        and not caller.disconnected.is_set()
    ):
        if time.monotonic() > until:
            return
        await asyncio.sleep(LOOK_SECONDS / 2)
    if call := session.background_calls.get(name):
        await deliver_next_report([(session, call)], caller)


def list_unattended_calls(
    sessions: Iterable[Session], owner: str
) -> list[tuple[Session, BackgroundCall]]:
    """Return an agent's background calls that no client watches."""
    return [
        (session, call)
        for session in sessions
        for call in session.background_calls.values()
        if not call.delivered_report
        and (told := session.state.background_calls.get(call.id))
        and told.session == owner
        and not any(waker.is_waiting for waker in call.wakers)
    ]


async def deliver_next_report(
    calls: Iterable[tuple[Session, BackgroundCall]], caller: Caller
) -> None:
    """Wait for a report of one of these calls and deliver it.

    If this caller cannot take it, the next one gets it.
    """
    known: dict[BackgroundCall, Session] = {call: session for session, call in calls}
    waker = Waker(caller)
    if not known:
        return
    for call, session in known.items():
        call.wakers.append(waker)
        _notify_waker(session, call)
    gone = asyncio.ensure_future(caller.disconnected.wait())
    await asyncio.wait(
        (asyncio.ensure_future(waker.result), gone), return_when=asyncio.FIRST_COMPLETED
    )
    gone.cancel()
    for call in known:
        if waker in call.wakers:
            call.wakers.remove(waker)
    told, news = waker.result.result() if waker.result.done() else (None, Report(""))
    waker.result.cancel()
    if told is None:
        return
    over, session = told.delivers_result, known[told]
    taken = await caller.deliver(news.text)
    told.is_delivering = False
    if taken:
        session.delivered_reports.append(news)
        if not over and (owed := session.state.background_calls.get(told.id)):
            session.log(replace(owed, at=format_now(), matched=True))
        told.delivered_report, told.prompts_since, told.delivered_to = (
            news if over else None,
            0,
            caller,
        )
    else:
        told.match_reported = told.match_reported and over
    if told.delivered_report:
        _release_wakers(told)
    else:
        _notify_waker(session, told)


def _notify_waker(session: Session, call: BackgroundCall) -> None:
    """Pass a result or a matched line to a client that waits for it.

    Without such a client, a result becomes an undelivered report.
    """
    over, line = (
        call.task.done(),
        "" if call.match_reported else backgrounding.get_matched_line(session, call),
    )
    known = (
        call.delivered_report
        or call.is_delivering
        or session.background_calls.get(call.id) is not call
    )
    if not call.in_background or known or not (over or line):
        return
    about = session.name
    news = (
        background_runs.format_finished(about, get_report(call))
        if over
        else background_runs.format_matched(
            about,
            session.state.commands,
            backgrounding.format_running_name(session),
            line,
        )
    )
    for waker in call.wakers:
        if waker.is_waiting:
            waker.result.set_result((call, news))
            call.is_delivering, call.delivers_result, call.match_reported = (
                True,
                over,
                call.match_reported or not over,
            )
            return
    if over:
        _record_undelivered(session, call)


def _record_undelivered(session: Session, call: BackgroundCall) -> None:
    session.background_calls.pop(call.id)
    owed, text = (
        session.state.background_calls.get(call.id),
        background_runs.format_finished_meanwhile(session.name, get_report(call).text),
    )
    session.log(
        journal_events.Undelivered(
            at=format_now(),
            text=text,
            call=call.id,
            session=owed.session if owed else "",
        )
    )


def get_report(call: BackgroundCall) -> Report:
    """Return the report on a finished call."""
    try:
        found = call.task.result()
    except StepperError as error:
        found = run_report.format_not_run(error.message, error.hint)
    except Exception as error:  # noqa: BLE001  # it is told, as the request's would be
        found = run_report.format_not_run(
            f"stepper itself failed: {type(error).__name__}: {error}", "stepper doctor"
        )
    if not found:
        return Report(background_runs.NOTHING_RAN)
    return Report(
        "\n".join(filter(None, [found.text, found.stop])), found.stop or found.line
    )


def _handle_finished_task(session: Session, call: BackgroundCall) -> None:
    """Deliver or release a call when its task has finished.

    A cancelled task means that the daemon exits; the next daemon continues.
    """
    if call.task.cancelled():
        return
    if call.in_background:
        _notify_waker(session, call)
        return
    call.task.exception()  # who asked has it
    _release_wakers(call)
    if session.background_calls.get(call.id) is call:
        del session.background_calls[call.id]
    session.finished_call_ids.append(call.id)


def mark_reported(session: Session, call: BackgroundCall) -> None:
    """Record that the result of a call was reported."""
    session.background_calls.pop(call.id, None)
    session.log(journal_events.BackgroundReported(at=format_now(), call=call.id))
    _release_wakers(call)


def _release_wakers(call: BackgroundCall) -> None:
    """Release the clients that wait for a call without a report."""
    for waker in call.wakers:
        if waker.is_waiting:
            waker.result.set_result((None, Report("")))


def match_prompt_to_reports(
    sessions: Iterable[Session], owner: str, prompt: str
) -> list[str]:
    """Mark the reports that a prompt contains as delivered.

    Return their lines for the user. A report is also treated as read after two further
    prompts or turns, because a client may delay it until the end of a turn.
    """
    lines = []
    for session in sessions:
        # it alters tags
        read = [
            news
            for news in session.delivered_reports
            if news.text.partition("<")[0][:MARK] in prompt
        ]
        lines += [news.line for news in read]
        for news in read:
            session.delivered_reports.remove(news)
        for call in list(session.background_calls.values()):
            owed = session.state.background_calls.get(call.id)
            call.prompts_since += bool(owed and owed.session == owner)
            if call.delivered_report and (
                call.delivered_report in read or call.prompts_since > 1
            ):
                mark_reported(session, call)
    return lines


# --- what a look sees


def check_background_calls(session: Session, since: float) -> None:
    """Deliver matched lines and take over calls of an earlier daemon.

    `since` is when this daemon started.
    """
    for call in list(session.background_calls.values()):
        if not call.task.done():
            _notify_waker(session, call)
        elif (
            call.delivered_report
            and call.delivered_to
            and not call.delivered_to.is_alive()
        ):
            _record_undelivered(session, call)
    for name in list(session.state.background_calls):
        if name not in session.background_calls and (
            session.was_handled(name) or time.monotonic() > since + COMES_SECONDS
        ):
            again = Caller(call_id=name, is_alive=lambda: False)
            start_call(
                session, name, again, _recover_call(session, name, again), recalled=True
            )


async def _recover_call(session: Session, name: str, again: Caller) -> Report | None:
    async with session.turn(again):
        if found := session.find_report(name):
            return found
        if session.kernel_manager.kernel is None:
            # a job may wait in a queue for this cell
            await session.kernel_manager.shut_down("nobody waits for it any more")
        return run_report.format_not_run("the daemon ended while it waited in line")


async def recover_calls(session: Session) -> None:
    """Take over the background calls of an earlier daemon."""
    check_background_calls(session, 0.0)
    works = [
        call.task for call in session.background_calls.values() if call.is_recovered
    ]
    if works:
        await asyncio.wait(works, timeout=3.0)  # one that still runs is none of it


def transfer_calls(session: Session, owner: str, client: str) -> None:
    """Let a new agent session get the results of background calls.

    `client` is the process ID: after /clear the same client has a new session.
    """
    for call in session.background_calls.values():
        owed, same = (
            session.state.background_calls.get(call.id),
            client and call.caller.environ.get(CLIENT) == client,
        )
        alone = not (
            call.caller.is_alive()
            or call.delivered_report
            or call.is_delivering
            or any(waker.is_waiting for waker in call.wakers)
        )
        if owed and owed.session != owner and (alone or same):
            session.log(replace(owed, at=format_now(), session=owner))


def finish_deliveries(session: Session) -> None:
    """Mark reports that running clients accepted as delivered."""
    for call in list(session.background_calls.values()):
        if call.delivered_report and call.delivered_to and call.delivered_to.is_alive():
            mark_reported(session, call)


async def interrupt_calls(session: Session, owner: str, seconds: float) -> str:
    """Interrupt the kernel; return the results of an agent's calls.

    Wait `seconds` at most.
    """
    mine = [
        call
        for call in session.background_calls.values()
        if (owed := session.state.background_calls.get(call.id))
        and owed.session == owner
        and not (call.delivered_report or call.is_delivering)
    ]
    for call in mine:
        call.is_delivering = True
    waits, interrupted = session.kernel_manager.is_starting, await session.interrupt()
    if interrupted and mine:
        await asyncio.wait([call.task for call in mine], timeout=seconds)
    texts = []
    for call in mine:
        call.is_delivering = False
        if interrupted and call.task.done():
            texts.append(get_report(call).text)
            mark_reported(session, call)
        else:
            _notify_waker(session, call)
    return "\n".join(texts) or (
        background_runs.format_interrupted(session.name, waits) if interrupted else ""
    )
