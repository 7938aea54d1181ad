"""One notebook's kernel: found again, started, ended. What is lost with one is journaled and told with the next run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from stepper.ground.errors import KernelError
from stepper.policy.events import Event, KernelChanged
from stepper.policy.model import Death, Limits, Moment
from stepper.policy.state import State
from stepper.session.ports import Execution, Kernel, KernelPlace, KernelProvider


def now() -> Moment:
    """Return the time in UTC as ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Keeper:
    """Keeps the kernel of one notebook. `news` is what the next report must say about it first."""

    def __init__(
        self,
        provider: KernelProvider,
        place: Callable[[Mapping[str, str]], KernelPlace],
        state: State,
        log: Callable[[Event], None],
        hears: Callable[[dict[str, Any], bool], bool],
    ) -> None:
        self.hears = hears  # what comes for cells beside the one that runs
        self.provider, self.place, self.state, self.log = provider, place, state, log
        self.kernel: Kernel | None = None
        self.looked = False  # for the kernel of a former daemon
        self.foreign = False  # it is that kernel, and nobody has spoken to it yet
        self.found_dead: Death | None = None  # how that kernel ended, until somebody has seen to it
        self.looking = asyncio.Lock()  # `status` may ask while a cell is about to run
        self.starting = False
        self.news = ""

    @property
    def busy(self) -> bool:
        """Whether a cell runs in it now."""
        return self.kernel is not None and self.kernel.busy

    async def find(self) -> Kernel | None:
        """Return the kernel, which a former daemon may have left, or None where there is none. Asks it nothing."""
        async with self.looking:
            if self.kernel is None and not self.looked:
                found = await self.provider.attach()
                self.looked = True
                if isinstance(found, Death):
                    self.found_dead = found
                else:
                    self.kernel, self.foreign = found, found is not None
                    if found is not None:
                        found.hears = self.hears
        return self.kernel

    async def adopt(self) -> None:
        """Take over the kernel that a former daemon left; what still runs in it is interrupted: nobody waits for it."""
        kernel, self.foreign = self.kernel, False
        if kernel is not None:
            death = await kernel.adopt()
            if death is not None:
                self.kernel, self.found_dead = None, death

    async def recall(self, request: str, seconds: float, limits: Limits) -> Execution | None:
        """Return what came of a request that lost its daemon, when it is over; None where it never began.

        Raise KernelError where the kernel does not answer.
        """
        assert self.kernel is not None
        self.foreign = False
        try:
            return await self.kernel.recall(request, seconds, limits)
        except KernelError:
            await self.kernel.shutdown()
            raise

    async def get(self, environ: Mapping[str, str]) -> Kernel:
        """Return the live kernel, started where there is none; raise KernelError."""
        kernel = self.kernel
        if kernel is not None:
            death = await kernel.death()
            if death is None:
                return kernel
            await self.end(f"the kernel died ({death.how})")
        self.starting = True
        try:
            self.kernel = kernel = await self.provider.start(self.place(environ))
            kernel.hears = self.hears
        finally:
            self.starting = False
        if self.state.lost:
            self.news = f"state lost: {self.state.lost}. A fresh kernel is there, without any earlier variable"
        self.log(KernelChanged(what="started", kernel=kernel.id, pid=kernel.about().pid, at=now()))
        return kernel

    async def interrupt(self, reason: str) -> bool:
        """Interrupt the cell that runs; return whether one did."""
        if self.kernel is None or not self.kernel.busy:
            return False
        await self.kernel.interrupt(reason)
        return True

    async def end(self, why: str) -> bool:
        """End the kernel; return whether there was one."""
        kernel, self.kernel = self.kernel, None
        if self.found_dead is not None:
            self.found_dead = None
            self.lost(why)
        if kernel is None:
            return False
        await kernel.shutdown()
        self.lost(why)
        return True

    def died(self, why: str) -> None:
        """The kernel ended in a run."""
        self.kernel = None
        self.lost(why)

    def lost(self, why: str) -> None:
        """Journal that the kernel's state is gone."""
        self.log(KernelChanged(what="lost", why=why, at=now()))

    async def status(self) -> dict[str, Any]:
        """Return pid, state, memory and interpreter, as `stepper status --json` tells them."""
        kernel = self.kernel
        if kernel is None:
            state = "starting" if self.starting else "none"
            return {"pid": None, "state": state, "rss_bytes": None, "python": None}
        busy = kernel.busy or self.state.running is not None
        state = "dead" if await kernel.death() is not None else "busy" if busy else "idle"
        about = kernel.about()
        return {"pid": about.pid, "state": state, "rss_bytes": kernel.memory(), "python": about.python}
