"""One notebook's kernel: found again, started, ended. What is lost with one is journaled and told with the next run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from stepper.common.errors import KernelError, StepperError
from stepper.policy.journal_events import Event, KernelChanged
from stepper.policy.model import Death, Limits, Moment
from stepper.policy.notebook_state import State
from stepper.session.protocols import (
    FromElsewhere,
    Kernel,
    KernelPlace,
    KernelProvider,
    Queued,
)
from stepper.session.responses import KernelStatus

# how often it is looked whether a kernel that waits in a queue is still wanted
LOOK_SECONDS = 0.2
FREE_SECONDS = 0.05  # … whether another client's execution is over
BUSY = "the kernel is busy with another client's execution"
AWAY_SECONDS = 10.0  # for a line that is down to come back before a cell is given up


def now() -> Moment:
    """Return the time in UTC as ISO 8601."""
    return (
        datetime.now(timezone.utc)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


class Activity(Enum):
    """What a notebook's kernel does, or is waited for, as an interrupt meets it."""

    NONE = "none"
    QUEUED = "queued"
    STARTING = "starting"
    OTHER_CLIENT = "other client"
    RUNNING = "running"


class Keeper:
    """Keeps the kernel of one notebook. `news` is what the next report must say about it first."""

    def __init__(
        self,
        provider: KernelProvider,
        place: Callable[[Mapping[str, str], str], KernelPlace],
        state: State,
        log: Callable[[Event], None],
        hears: Callable[[dict[str, Any], bool], bool],
        from_elsewhere: Callable[[FromElsewhere], None],
    ) -> None:
        self.hears = hears  # what comes for cells beside the one that runs
        self.from_elsewhere = from_elsewhere  # what other clients had it run
        self.provider, self.place, self.state, self.log = provider, place, state, log
        self.kernel: Kernel | None = None
        self.looked = False  # for the kernel of a former daemon
        self.foreign = False  # it is that kernel, and nobody has spoken to it yet
        # how that kernel ended, until somebody has seen to it
        self.found_dead: Death | None = None
        self.looking = asyncio.Lock()  # `status` may ask while a cell is about to run
        self.starting = False
        self.unwanted = False  # the cell for which a kernel starts, or waits in a queue
        self.waits: Queued | None = None  # for what another client has the kernel run
        self.withdrawal: Queued | None = None  # the request that is being withdrawn
        self.gave_up = ""  # what became of the last request that was withdrawn
        self.news = ""
        self.lacked = False  # ipykernel, which was said
        self.told = set[str]()  # what places can't do, which was said
        # the last kernel is, or was: what its machine has for files and clock is not
        # known here
        self.elsewhere = False
        # the name of the place where the last one was started; a former daemon knew it
        # of its own
        self.lives_in = ""

    async def find(self) -> Kernel | None:
        """Return the kernel, which a former daemon may have left, or None where there is none. Asks it nothing."""
        async with self.looking:
            if self.kernel is None and not self.looked:
                found = await self.provider.attach()
                self.looked = True
                if isinstance(found, Death):
                    self.found_dead = found
                elif found is not None:
                    self.kernel, self.foreign = found, True
                    found.hears, found.others.ended = self.hears, self.from_elsewhere
                    self.elsewhere = bool(found.about().where)
        return self.kernel

    async def adopt(self) -> None:
        """Take over the kernel that a former daemon left; what still runs in it is interrupted: nobody waits for it."""
        try:
            death = await self.kernel.adopt() if self.kernel is not None else None
        except KernelError:
            return  # it is taken over when it can be reached
        self.foreign = False
        if death is not None:
            self.kernel, self.found_dead = None, death

    @property
    def queued(self) -> Queued | None:
        """What the kernel waits for in a queue; None where it does not."""
        if self.starting:
            return self.withdrawal or self.provider.queued
        return self.waits

    @property
    def activity(self) -> Activity:
        """What an interrupt would meet now."""
        if self.starting:
            return Activity.QUEUED if self.queued else Activity.STARTING
        if self.waits:
            return Activity.OTHER_CLIENT
        busy = self.kernel is not None and self.kernel.busy
        return Activity.RUNNING if busy else Activity.NONE

    async def get(
        self, environ: Mapping[str, str], left: asyncio.Event | None = None
    ) -> Kernel:
        """Return the live kernel, started where there is none; raise KernelError.

        One that waits in a queue is given up where whoever wants it has `left`: raise StepperError.
        """
        if self.kernel is not None:
            death = await self.kernel.death()
            if death is None:
                await self._reached(self.kernel)
                if self.kernel.others.since:
                    await self._free(self.kernel, left)
                    return await self.get(environ, left)
                return self.kernel
            await self.end(f"the kernel died ({death.how})")
        self.starting, self.unwanted = True, False
        self.gave_up = ""
        try:
            place = self.place(environ, self.state.plan.kernel)
            self.lives_in = place.at.name if place.at else Limits.kernel
            self.kernel = kernel = await self._started(place, left)
            kernel.hears, kernel.others.ended = self.hears, self.from_elsewhere
        finally:
            self.starting = False
        if self.state.lost_reason:
            self.news = f"state lost: {self.state.lost_reason}. A fresh kernel is there, without any earlier variable"
        about = kernel.about()
        self.elsewhere = bool(about.where)
        if about.lacks and not self.lacked:
            self.lacked = True
            said = f"{about.python} lacks ipykernel: stepper's own copy runs the kernel, behind the project's packages"
            self.news = ". ".join(
                filter(None, (self.news, f"{said}; what adds it: {about.lacks}"))
            )
        if about.without and about.without not in self.told:
            self.told.add(about.without)
            self.news = ". ".join(filter(None, (self.news, about.without)))
        self.log(
            KernelChanged(what="started", kernel=kernel.id, pid=about.pid, at=now())
        )
        if self.unwanted:
            raise StepperError("interrupted while its kernel started: nothing ran")
        return kernel

    async def _reached(self, kernel: Kernel) -> None:
        """Wait until a kernel can be reached, for a while; raise KernelError where it can't, or was not taken over."""
        until = time.monotonic() + AWAY_SECONDS * (not self.foreign)
        # of that is to be known first what became of it
        while kernel.away or self.foreign or self.state.running:
            if time.monotonic() > until or self.state.running:
                down = kernel.away or (
                    BUSY if kernel.others.since else "the link was down"
                )
                begun = self.state.running
                open_yet = (
                    f"; what became of run {begun.run} (cell {begun.number or '?'}) is not known yet"
                    if begun
                    else ""
                )
                why = f"{down}: the cell was NOT run{open_yet}. The kernel may be well, with its variables"
                commands = self.state.commands
                status, restart = commands.shell("status"), commands.shell("restart")
                raise KernelError(
                    why, f"{status}  # shows when it is back; `{restart}` gives it up"
                )
            kernel.listen()
            await asyncio.sleep(0.1)
            await kernel.death()  # which looks for it

    async def _free(self, kernel: Kernel, left: asyncio.Event | None) -> None:
        """Wait until nothing of another client's runs in it: that is not ours to interrupt. Raise StepperError."""
        self.waits, self.unwanted = (
            Queued(BUSY, time.monotonic(), None, "that has ended"),
            False,
        )
        try:
            while kernel.others.since and await kernel.death() is None:
                if self.unwanted or (left is not None and left.is_set()):
                    raise StepperError(
                        f"interrupted while {BUSY}: nothing ran, and that goes on"
                    )
                await asyncio.sleep(FREE_SECONDS)
                kernel.listen()
        finally:
            self.waits = None

    async def _started(self, place: KernelPlace, left: asyncio.Event | None) -> Kernel:
        start = asyncio.ensure_future(self.provider.start(place))
        try:
            while not start.done():
                await asyncio.wait([start], timeout=LOOK_SECONDS)
                queued = self.provider.queued
                gone = left is not None and left.is_set()
                if queued and (self.unwanted or gone) and not start.done():
                    await self._withdraw(start, queued)
            return start.result()
        finally:
            if not start.done():
                start.cancel()
                await asyncio.wait([start])

    async def _withdraw(self, start: asyncio.Future[Kernel], queued: Queued) -> None:
        """Give up a start that waits in a queue; raise StepperError, which says so."""
        what = "interrupted while its kernel waited in a queue"
        withdrawing = f"the request is being withdrawn ({queued.text})"
        self.withdrawal = replace(queued, text=withdrawing, until="")
        try:
            start.cancel()
            await asyncio.wait([start])
            if not start.cancelled() and start.exception() is None:
                return  # the kernel is there
            await self.provider.withdraw()
            withdrawn = f"the {queued.request} was withdrawn, and " * bool(
                queued.request
            )
            self.gave_up = f"{withdrawn}there is no kernel"
            raise StepperError(f"{what}: {self.gave_up}")
        except KernelError as error:  # whoever asked for the kernel does not try again
            self.gave_up = f"the request is not withdrawn yet: {error.message}"
            raise StepperError(f"{what}: {self.gave_up}", error.hint) from None
        finally:
            self.withdrawal = None

    async def interrupt(self, reason: str) -> bool:
        """Interrupt the cell that runs, or that waits for its kernel; return whether one did."""
        if self.starting or self.waits:
            self.unwanted = True  # also where it is about to queue
            return True
        busy = self.kernel is not None and self.kernel.busy
        if self.kernel is not None and (busy or self.state.running):
            await self.kernel.interrupt(reason)
        return busy

    async def end(self, why: str) -> bool:
        """End the kernel; return whether there was one. Raise KernelError where it was let go and may live on."""
        kernel, self.kernel = self.kernel, None
        if self.found_dead is not None:
            self.found_dead = None
            self.lost(why)
        if kernel is not None:
            kept = kernel.about().kept and await kernel.death() is None
            try:
                await kernel.shutdown()
            finally:
                if not kept:
                    self.lost(why)
        else:
            await self.provider.withdraw()
        return kernel is not None

    def lost(self, why: str) -> None:
        """Journal that the kernel's state is gone, and the kernel with it."""
        self.kernel = None
        self.log(KernelChanged(what="lost", why=why, at=now()))

    async def status(self) -> KernelStatus:
        """Return pid, state, memory and interpreter."""
        kernel = self.kernel
        if kernel is None:
            queued = self.queued
            if queued is not None:
                return KernelStatus(state="queued", where=queued.text)
            return KernelStatus(state="starting" if self.starting else "none")
        others = kernel.others.since
        busy = kernel.busy or self.state.running is not None or others > 0
        state = (
            "dead" if await kernel.death() is not None else "busy" if busy else "idle"
        )
        about = kernel.about()
        beside = f"{BUSY}, for {time.monotonic() - others:.0f} s" if others else ""
        trouble = "; ".join(
            filter(
                None, [about.trouble, beside, self._left_over() if about.where else ""]
            )
        )
        return KernelStatus(
            about.pid,
            state,
            kernel.memory(),
            about.python,
            about.where,
            about.left,
            trouble,
        )

    def _left_over(self) -> str:
        """Return why the next kernel would not run where a kernel elsewhere does, '' where it would."""
        try:
            gone = self.place({}, self.state.plan.kernel).at is None
            why = "the next one is to run on this machine" if gone else ""
        except KernelError as error:
            why = error.message
        shutdown = self.state.commands.shell("shutdown")
        return f"{why}: this kernel goes on until `{shutdown}`" if why else ""
