"""A live kernel, wherever it runs: what it is asked to run and what it says, interrupts, its death, its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from stepper.ground.errors import KernelError, KernelStartFailedError
from stepper.kernel import helper
from stepper.kernel.execution import Running, recorded
from stepper.kernel.outputs import KINDS, UPDATE, OutputArea, display_id
from stepper.kernel.place import GRACE_SECONDS, Guard, Inbox, Process
from stepper.kernel.widgets import Widgets
from stepper.policy.model import Death, Limits, Outcome
from stepper.policy.namespace import Lasting, Namespace
from stepper.session.ports import About, Execution, Models

ODD = (AttributeError, KeyError, TypeError, ValueError)  # what a message may lead to that is not as the protocol says
log = logging.getLogger("stepper")
HEARD = 5000  # messages; more come from no kernel's memory


class LiveKernel:
    """A live kernel over its process, which its place offers. `parts` are what its helper may load besides its own."""

    def __init__(self, process: Process, parts: Mapping[str, str] = {}) -> None:  # only read
        self.helper = helper.made(tuple(parts.items()))
        self.process, self.transport, self.id = process, process.transport, process.id
        self.busy = False
        self.interrupted = ""  # why the running cell was interrupted
        self.hears: Callable[[dict[str, Any], bool], bool] = lambda message, late: False
        self.heard_here: deque[str] = deque(maxlen=HEARD)  # the messages that came besides runs
        self.widgets = Widgets()
        self.limits = Limits()
        self.lasting: Lasting | None = None  # what the helper told and tells again only where it has changed

    def about(self) -> About:
        """Return what it is: its interpreter and its process."""
        return self.process.about

    def memory(self) -> int:
        """Return the resident memory of the kernel with its children in bytes."""
        return self.process.memory()

    async def connect(self, seconds: float) -> None:
        """Open the channels, wait for an answer on both shell and iopub, install the helper; raise KernelError."""
        self.transport.open()
        await self._reach(seconds)
        await self._set_up(seconds)

    def _close(self) -> None:
        if self.transport.is_open:
            for message in self.transport.iopub.messages():  # what came last is no less a cell's
                self.heard(message)
            self.transport.close()

    async def _reach(self, seconds: float) -> None:
        """Wait for an answer on both shell and iopub; raise KernelError."""
        deadline = time.monotonic() + seconds
        replied = heard = False
        while not (replied and heard):
            self.transport.send("kernel_info_request", {})
            until = time.monotonic() + 0.2
            while time.monotonic() < until and not (replied and heard):
                replied = replied or await _any(self.transport.shell)
                # iopub: once a status came through, the subscription stands and nothing will be missed
                heard = await self._listened() or heard
            death = await self.death()
            if death is not None:
                hint = self.process.mends(death)
                error = KernelError if hint else KernelStartFailedError
                said = death.stderr or "it wrote nothing"
                raise error(f"the kernel died at start ({death.how}): {said.splitlines()[-1]}\n{said}", hint)
            if time.monotonic() > deadline:
                raise KernelStartFailedError(f"the kernel did not answer within {seconds:.0f} s: {self.process.log}")

    async def _listened(self) -> bool:
        """Whether a message comes on iopub within 10 ms; what a thread says meanwhile is taken."""
        messages = [*self.transport.iopub.messages()] if await self.transport.iopub.ready(0.01) else []
        for message in messages:
            self.heard(message)
        return bool(messages)

    async def _set_up(self, seconds: float) -> None:
        """Install the helper where it is not there; raise KernelError."""
        done = await self._housekeeping(helper.INSTALL, seconds, self.helper.given(self.process.stack))
        if done.outcome is not Outcome.OK:
            why = f"{done.fault.ename}: {done.fault.evalue}" if done.fault else f"{done.death or done.outcome.value}"
            raise KernelError(f"stepper's helper can't be installed: {why}")

    async def execute(
        self, code: str, timeout: float, limits: Limits, request: str = "", scratch: bool = False
    ) -> Execution:
        """Run code to its end, its deadline in seconds, an interrupt, the memory limit or the kernel's death.

        `request` is what `recall` knows it by. With `scratch` it gets no execution count and is in no history.
        """
        self.busy, self.interrupted, self.limits = True, "", limits
        try:
            area, until = OutputArea(limits.max_output_bytes), time.monotonic() + timeout
            running = Running(self, area, until, lambda: self._guard(limits))
            return await running.run(code, history=not scratch, request=request)
        finally:
            self.busy = False
            self.process.rest()

    def listen(self) -> None:
        """Take what the kernel published while no cell ran."""
        if not self.busy and self.process.ended is None:
            self.transport.open()
            for message in self.transport.iopub.messages():
                self.heard(message)
            self.sync_widgets()

    def heard(self, message: dict[str, Any], area: OutputArea | None = None) -> bool:
        """Take a message of another request than the running one, whose area is given; return whether it is taken."""
        try:
            return self._heard(message, area)
        except ODD as error:  # a cell may send anything
            log.warning("a message of the kernel's makes no sense: %s", error)
            self.transport.iopub.unread += 1
            return True

    def _heard(self, message: dict[str, Any], area: OutputArea | None) -> bool:
        kind = message["msg_type"]
        self.heard_here.append(message["header"].get("msg_id"))
        if kind.startswith("comm_"):
            self.comm(message)
        elif kind in KINDS:
            self.shown(message, area)
            widget = self.widgets.takes(message["parent_header"].get("msg_id"))
            if widget is None or kind == UPDATE:
                return self.hears(message, True)
            widget.take(message)
        return True

    def shown(self, message: dict[str, Any], area: OutputArea | None = None) -> None:
        """Have a display shown wherever else it is: in cells, in Output widgets, in the running cell's area."""
        mark = display_id(message)
        if mark:
            areas = [widget.area for widget in self.widgets.captured.values()] + ([area] if area else [])
            for shows in areas:
                if mark in shows.displays:
                    shows.take({**message, "msg_type": UPDATE})
            self.hears(message, False)

    def comm(self, message: dict[str, Any]) -> None:
        """Take a comm's message."""
        try:
            self.widgets.comm(message, self.limits.max_output_bytes, self.limits.max_widget_state_bytes)
        except ODD as error:
            log.warning("a comm's message makes no sense: %s", error)

    def sync_widgets(self) -> None:
        """Tell the kernel what its Output widgets hold."""
        for widget in self.widgets.untold():
            content = widget.update()
            if self.transport.is_open:
                self.transport.send("comm_msg", content, parent=widget.parent)

    def models(self) -> Models | None:
        """Return the state of its widgets for the notebook; None where nothing changed since."""
        return self.widgets.models(self.limits.max_widget_state_bytes)

    def _guard(self, limits: Limits) -> Guard:
        return self.process.guard(limits.max_memory_percent)

    async def adopt(self) -> Death | None:
        """Take over a kernel found again, interrupting what runs in it; return its end where it gives no answer."""
        for again in (True, False):
            try:
                await self.connect(GRACE_SECONDS)
                return None
            except KernelError as error:
                death, why = await self.death(), error.message
            if death is not None:
                break
            if again:
                await self.process.interrupt()
        await self.shutdown()
        return death or Death(f"it did not answer, not even to an interrupt: {why}")

    async def recall(self, request: str, seconds: float, limits: Limits) -> Execution | None:
        """Return what came of a request whose daemon is gone, when it is over; None where it never began.

        It has that many seconds left. What it published is in the helper's record: nothing is listened to meanwhile.
        Raise KernelError where the kernel does not answer.
        """
        waiting = Running(self, OutputArea(10000), time.monotonic() + max(0.0, seconds), lambda: self._guard(limits))
        self.busy, self.interrupted = True, ""
        try:
            self.transport.open()
            ended = await waiting.run("", silent=True, history=False)  # it is served behind what runs
        finally:
            self.busy = False
        if ended.death is not None:
            return ended
        why = self.interrupted
        await self._reach(GRACE_SECONDS)
        told = await self._housekeeping(helper.recall(request), GRACE_SECONDS)
        await self._set_up(GRACE_SECONDS)
        await self.namespace()  # what lasts, which the record leaves out
        record = told.told.get("record")
        if not record:
            return None
        self.interrupted, self.limits = why, limits
        return await waiting.again(OutputArea(limits.max_output_bytes), request, told.told)

    async def missed(self, request: str) -> list[dict[str, Any]]:
        """Return what a request that is over published while no daemon was there, as far as the kernel remembers.

        Also what a former daemon may have put on its cell; not what was heard here.
        """
        told = await self._housekeeping(helper.recall(request), GRACE_SECONDS)
        messages = [*recorded(told.told)]
        ends = [n for n, message in enumerate(messages) if message["content"].get("execution_state") == "idle"]
        after = messages[ends[0] + 1 :] if ends else []
        return [message for message in after if message["header"].get("msg_id") not in self.heard_here]

    async def namespace(self) -> Namespace:
        """Return the namespace in short, asked of the helper; UNKNOWN where it does not tell."""
        return (await self._housekeeping(helper.ASK, GRACE_SECONDS)).namespace

    async def _housekeeping(self, code: str, seconds: float, given: Mapping[str, Any] = {}) -> Execution:
        """Run silent code of stepper's own, with a deadline."""
        self.busy, self.interrupted = True, ""
        try:
            return await Running(self, OutputArea(10000), time.monotonic() + seconds).run(
                code, silent=True, history=False, given=given
            )
        finally:
            self.busy = False

    async def interrupt(self, reason: str) -> None:
        """Interrupt what runs now; `reason` is `deadline` or who asked."""
        if self.busy:
            self.interrupted = self.interrupted or reason
            await self.process.interrupt()

    async def death(self) -> Death | None:
        """Return how the kernel ended, or None while it lives. What it started goes with it."""
        return await self.process.death()

    async def wait_death(self, seconds: float) -> Death | None:
        """Wait until the kernel is gone, at most `seconds`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            death = await self.death()
            if death is not None:
                return death
            await asyncio.sleep(0.02)
        return None

    async def shutdown(self) -> None:
        """Kill the kernel with its process tree, close the channels, forget the record."""
        self._close()
        await self.process.kill()
        await self.wait_death(GRACE_SECONDS)
        self.process.forget()

    def detach(self) -> None:
        """Close the channels and leave the kernel to the next daemon."""
        self._close()


async def _any(inbox: Inbox) -> bool:
    """Whether a message comes on that channel within 10 ms."""
    return await inbox.ready(0.01) and any(inbox.messages())
