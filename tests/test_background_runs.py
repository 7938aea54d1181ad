"""What is told of a call that was handed on: to one of those who stand by, once."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from stepper.messages.run_report import Report
from stepper.session import background_runs
from stepper.session.clients import BackgroundCall, Caller


class Client:
    """A client of the agent's that takes what it is told when it is let, or not."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.takes: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.caller = Caller(deliver=self.deliver)

    async def deliver(self, text: str) -> bool:
        self.told.append(text)
        return await self.takes


@pytest.mark.parametrize("taken", [True, False])
def test_what_is_being_told_is_told_to_nobody_else(taken: bool) -> None:
    """A turn may end, and its hook stand by, while the client still takes what another hook wakes the agent with."""

    async def played() -> None:
        log: list[object] = []
        work = asyncio.create_task(asyncio.sleep(0, Report("it ran", "✓ it ran")))
        await work
        call = BackgroundCall("toolu_1", Caller(), work, in_background=True)
        kernel_manager = SimpleNamespace(kernel=None)
        state = SimpleNamespace(
            background_calls={"toolu_1": SimpleNamespace(session="s")}, running=None
        )
        session: Any = SimpleNamespace(
            background_calls={"toolu_1": call},
            name="a.ipynb",
            log=log.append,
            state=state,
            kernel_manager=kernel_manager,
            delivered_reports=deque(),
        )
        first, second = Client(), Client()
        tasks = [
            asyncio.create_task(
                background_runs.deliver_next_report([(session, call)], first.caller)
            )
        ]
        await asyncio.sleep(0.05)
        assert len(first.told) == 1 and background_runs.list_unattended_calls(
            [session], "s"
        ) == [(session, call)]
        tasks.append(
            asyncio.create_task(
                background_runs.deliver_next_report(
                    background_runs.list_unattended_calls([session], "s"), second.caller
                )
            )
        )
        await asyncio.sleep(0.05)
        assert second.told == []
        first.takes.set_result(taken)
        await asyncio.sleep(0.05)
        assert (
            second.told == ([] if taken else first.told)
            and bool(call.delivered_report) is taken
        )
        second.takes.set_result(True)
        await asyncio.sleep(0.05)
        (told,) = {*first.told}
        assert "it ran" in told
        assert (
            background_runs.match_prompt_to_reports([session], "s", "") == []
            and not log
        )  # the end of the turn that it must wait for
        assert background_runs.match_prompt_to_reports(
            [session], "s", f"<task-notification>{told}"
        ) == ["✓ it ran"]
        assert session.background_calls == {} and len(log) == 1
        await asyncio.wait_for(asyncio.gather(*tasks), 1)  # nobody sleeps on

    asyncio.run(played())
