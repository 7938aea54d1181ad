"""Edits whose cells run: who waits for what comes of each. What lasts longer is handed on, and its end told once.

A call is handed on only where a waker stands by: somebody who can have the agent read something although nobody asks.
What ends while none is there reached nobody (`unseen`): it is told with the next thing that the agent reads.
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
from stepper.session.clients import Call, Caller, Waker
from stepper.session.kernel_manager import now
from stepper.session.session import Session

LOOK_SECONDS = 0.5  # how often it is looked whether a call is to be handed on
MARK = 400  # characters by which what was said is known again
CLIENT = "CLAUDE_PID"  # the process that a hook is of, in its environment
# a waker may be there before its call, or ask the next daemon that late
COMES_SECONDS = 15.0

Work = Coroutine[Any, Any, "Report | None"]


def begin(
    session: Session,
    name: str | None,
    caller: Caller,
    work: Work,
    recalled: bool = False,
) -> Call:
    """Do the work of a call in a task that no request's end ends."""
    call = Call(
        name or uuid.uuid4().hex, caller, asyncio.create_task(work), recalled=recalled
    )
    former = session.calls.get(call.id)
    owed = session.state.background_calls.get(call.id)
    call.handed, call.matched = owed is not None, owed is not None and owed.matched
    call.wakers = former.wakers if former else []
    session.calls[call.id] = call
    call.work.add_done_callback(lambda _: _ended(session, call))
    return call


def waited_for(session: Session, call: Call) -> None:
    """Who asked waits: that a former daemon handed it on was not read."""
    if call.handed:
        call.handed = False
        session.log(journal_events.BackgroundReported(at=now(), call=call.id))


async def in_time(session: Session, call: Call, owner: str) -> bool:
    """Wait for what comes of a call; return False where it was handed on instead, to be told to that session."""
    while not call.work.done():
        left = backgrounding.patience(session, call) + call.began - time.monotonic()
        if (
            left <= 0
            and any(waker.waits for waker in call.wakers)
            and not call.caller.left.is_set()
        ):
            session.log(
                journal_events.Backgrounded(at=now(), call=call.id, session=owner)
            )
            call.handed, call.matched = True, bool(backgrounding.matched(session, call))
            return False
        await asyncio.wait(
            [call.work], timeout=min(left, LOOK_SECONDS) if left > 0 else LOOK_SECONDS
        )
    return True


# --- being woken
# ------------------------------------------------------------------------------------------------------


async def stands_by(session: Session, name: str, caller: Caller) -> None:
    """Stand by to wake the agent for a call, which may not be there yet."""
    until = time.monotonic() + COMES_SECONDS
    while (
        name not in session.calls
        and name not in session.over
        and not caller.left.is_set()
    ):
        if time.monotonic() > until:
            return
        await asyncio.sleep(LOOK_SECONDS / 2)
    if call := session.calls.get(name):
        await wakes([(session, call)], caller)


def owed(sessions: Iterable[Session], owner: str) -> list[tuple[Session, Call]]:
    """Return what was handed on to a session of the client and has nobody else who could wake its agent."""
    return [
        (session, call)
        for session in sessions
        for call in session.calls.values()
        if not call.said
        and (told := session.state.background_calls.get(call.id))
        and told.session == owner
        and not any(waker.waits for waker in call.wakers)
    ]


async def wakes(calls: Iterable[tuple[Session, Call]], caller: Caller) -> None:
    """Wait until one of these calls has something to tell, and tell it to that caller; where it can't, the next."""
    known: dict[Call, Session] = {call: session for session, call in calls}
    waker = Waker(caller)
    if not known:
        return
    for call, session in known.items():
        call.wakers.append(waker)
        _tell(session, call)
    gone = asyncio.ensure_future(caller.left.wait())
    await asyncio.wait(
        (asyncio.ensure_future(waker.said), gone), return_when=asyncio.FIRST_COMPLETED
    )
    gone.cancel()
    for call in known:
        if waker in call.wakers:
            call.wakers.remove(waker)
    told, news = waker.said.result() if waker.said.done() else (None, Report(""))
    waker.said.cancel()
    if told is None:
        return
    over, session = told.over, known[told]
    taken = await caller.deliver(news.text)
    told.telling = False
    if taken:
        session.news.append(news)
        if not over and (owed := session.state.background_calls.get(told.id)):
            session.log(replace(owed, at=now(), matched=True))
        told.said, told.passed, told.teller = news if over else None, 0, caller
    else:
        told.matched = told.matched and over
    if told.said:
        _let_go(told)
    else:
        _tell(session, told)


def _tell(session: Session, call: Call) -> None:
    """Hand what there is to tell of a call that was handed on to a waker; with none, its end reached nobody."""
    over, line = (
        call.work.done(),
        "" if call.matched else backgrounding.matched(session, call),
    )
    known = call.said or call.telling or session.calls.get(call.id) is not call
    if not call.handed or known or not (over or line):
        return
    about = session.name
    news = (
        background_runs.ended(about, came_of(call))
        if over
        else background_runs.matched(
            about, session.state.commands, backgrounding.name(session), line
        )
    )
    for waker in call.wakers:
        if waker.waits:
            waker.said.set_result((call, news))
            call.telling, call.over, call.matched = True, over, call.matched or not over
            return
    if over:
        _missed(session, call)


def _missed(session: Session, call: Call) -> None:
    session.calls.pop(call.id)
    owed, text = (
        session.state.background_calls.get(call.id),
        background_runs.meanwhile(session.name, came_of(call).text),
    )
    session.log(
        journal_events.Undelivered(
            at=now(), text=text, call=call.id, session=owed.session if owed else ""
        )
    )


def came_of(call: Call) -> Report:
    """Return what came of a call that is over; a stop's block is read by both."""
    try:
        found = call.work.result()
    except StepperError as error:
        found = run_report.format_not_run(error.message, error.hint)
    except Exception as error:  # noqa: BLE001  # it is told, as the request's would be
        found = run_report.format_not_run(
            f"stepper itself failed: {type(error).__name__}: {error}", "stepper doctor"
        )
    if not found:
        return Report(background_runs.NOTHING)
    return Report(
        "\n".join(filter(None, [found.text, found.stop])), found.stop or found.line
    )


def _ended(session: Session, call: Call) -> None:
    """The work of a call is through, or the daemon ends, which leaves what was handed on to the next one."""
    if call.work.cancelled():
        return
    if call.handed:
        _tell(session, call)
        return
    call.work.exception()  # who asked has it
    _let_go(call)
    if session.calls.get(call.id) is call:
        del session.calls[call.id]
    session.over.append(call.id)


def forget(session: Session, call: Call) -> None:
    """How a call ended was told."""
    session.calls.pop(call.id, None)
    session.log(journal_events.BackgroundReported(at=now(), call=call.id))
    _let_go(call)


def _let_go(call: Call) -> None:
    """Let those who stand by for a call that nobody is to be woken for go."""
    for waker in call.wakers:
        if waker.waits:
            waker.said.set_result((None, Report("")))


def arrived(sessions: Iterable[Session], owner: str, prompt: str) -> list[str]:
    """The client goes on, maybe with a prompt that it made of what woke the agent: return its lines for the person.

    What wakes the agent may wait for the end of a turn, and a client that ends takes it along: another prompt or the
    turn's end is no sign that it was read, a second one is.
    """
    lines = []
    for session in sessions:
        # it alters tags
        read = [
            news
            for news in session.news
            if news.text.partition("<")[0][:MARK] in prompt
        ]
        lines += [news.line for news in read]
        for news in read:
            session.news.remove(news)
        for call in list(session.calls.values()):
            owed = session.state.background_calls.get(call.id)
            call.passed += bool(owed and owed.session == owner)
            if call.said and (call.said in read or call.passed > 1):
                forget(session, call)
    return lines


# --- what a look sees
# -------------------------------------------------------------------------------------------------


def look(session: Session, since: float) -> None:
    """Tell of lines that were waited for; take up what a former daemon had handed on and nobody has asked for.

    `since` is when this daemon began. What had not begun is its waker's to have run.
    """
    for call in list(session.calls.values()):
        if not call.work.done():
            _tell(session, call)
        elif call.said and call.teller and not call.teller.lives():
            _missed(session, call)
    for name in list(session.state.background_calls):
        if name not in session.calls and (
            session.seen(name) or time.monotonic() > since + COMES_SECONDS
        ):
            again = Caller(call=name, lives=lambda: False)
            begin(session, name, again, _recalled(session, name, again), recalled=True)


async def _recalled(session: Session, name: str, again: Caller) -> Report | None:
    async with session.turn(again):
        if found := session.answered(name):
            return found
        if session.keeper.kernel is None:
            # a job may wait in a queue for this cell
            await session.keeper.end("nobody waits for it any more")
        return run_report.format_not_run("the daemon ended while it waited in line")


async def caught_up(session: Session) -> None:
    """See what a former daemon had handed on: what is over reached nobody."""
    look(session, 0.0)
    works = [call.work for call in session.calls.values() if call.recalled]
    if works:
        await asyncio.wait(works, timeout=3.0)  # one that still runs is none of it


def taken_over(session: Session, owner: str, client: str) -> None:
    """A session of the client learns what goes on: it is told how that ends, where nobody else is.

    `client` is the process: after /clear it goes on, with what stands by to wake its agent, as another session.
    """
    for call in session.calls.values():
        owed, same = (
            session.state.background_calls.get(call.id),
            client and call.caller.environ.get(CLIENT) == client,
        )
        alone = not (
            call.caller.lives()
            or call.said
            or call.telling
            or any(waker.waits for waker in call.wakers)
        )
        if owed and owed.session != owner and (alone or same):
            session.log(replace(owed, at=now(), session=owner))


def parting(session: Session) -> None:
    """The daemon ends: what clients that live have taken, they tell."""
    for call in list(session.calls.values()):
        if call.said and call.teller and call.teller.lives():
            forget(session, call)


async def stopped(session: Session, owner: str, seconds: float) -> str:
    """Interrupt what runs; return what came of that session's own within so many seconds: it is told so."""
    mine = [
        call
        for call in session.calls.values()
        if (owed := session.state.background_calls.get(call.id))
        and owed.session == owner
        and not (call.said or call.telling)
    ]
    for call in mine:
        call.telling = True
    waits, interrupted = session.keeper.starting, await session.interrupt()
    if interrupted and mine:
        await asyncio.wait([call.work for call in mine], timeout=seconds)
    texts = []
    for call in mine:
        call.telling = False
        if interrupted and call.work.done():
            texts.append(came_of(call).text)
            forget(session, call)
        else:
            _tell(session, call)
    return "\n".join(texts) or (
        background_runs.interrupted(session.name, waits) if interrupted else ""
    )
