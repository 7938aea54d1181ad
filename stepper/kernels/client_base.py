"""A kernel as one talks with it: its process and channels, what it says besides a run, interrupts, its end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stepper.common import json_decode, private_files
from stepper.common.errors import KernelUnreachableError
from stepper.kernels.backend_protocols import GRACE_SECONDS, PATIENCE_SECONDS, Process
from stepper.kernels.external_executions import ExternalExecutions
from stepper.kernels.output_area import KINDS, UPDATE, OutputArea, display_id
from stepper.kernels.widgets import Widgets
from stepper.policy.kernel_namespace import KernelEnvironment, Namespace
from stepper.policy.model import Death

# what a message may lead to that is not as the protocol says
ODD = (AttributeError, KeyError, TypeError, ValueError)
HEARD = 5000  # messages; more come from no kernel's memory
log = logging.getLogger("stepper")


class Connection:
    """A kernel over its process, which its place offers. `parts` are what its helper may load besides its own.

    In `folder` lies the file by which other clients reach it.
    """

    # only read
    def __init__(
        self, process: Process, parts: Mapping[str, str] = {}, folder: str = ""
    ) -> None:
        self.process, self.channels, self.id, self.parts = (
            process,
            process.channels,
            process.id,
            parts,
        )
        self.file = os.path.join(folder, f"k{self.id[:8]}.json") if folder else ""
        self.is_busy = False
        self.language = ""  # as it tells when it is reached
        self.language_info: dict[str, Any] = {}  # from its kernel_info_reply
        # by stepper's helper, which needs IPython: what a kernel is, it tells when it
        # is reached
        self.helped = True
        self.partial_output: OutputArea | None = (
            None  # what the running cell has shown so far
        )
        self.interrupted = ""  # why the running cell was interrupted
        # … the one with which the line was cut: the interrupt may not have reached it
        self.owed = ""
        self.on_display: Callable[[dict[str, Any], bool], bool] = lambda message, late: (
            False
        )
        # the messages that came besides runs
        self.heard_here: deque[str] = deque(maxlen=HEARD)
        self.widgets = Widgets()
        self.describe, self.measure_memory, self.check_death = (
            process.describe,
            process.memory,
            process.death,
        )
        self.take_widget_state = self.widgets.models
        # what the helper told and tells again only where it has changed
        self.lasting: KernelEnvironment | None = None
        self.external_executions = ExternalExecutions(
            lambda: self.channels.client_session, self.complete
        )

    @property
    def unreachable_reason(self) -> str:
        """Why nothing reaches it now, which is no death; '' where it can be reached."""
        return self.process.away

    def heard(self, message: dict[str, Any], area: OutputArea | None = None) -> bool:
        """Take a message of another request than the running one, whose area is given; return whether it is taken."""
        try:
            kind, of_others = (
                message["msg_type"],
                self.external_executions.take(message),
            )
            self.heard_here.append(message["header"].get("msg_id"))
            if kind.startswith("comm_"):
                self.widgets.comm(message)
            elif kind in KINDS:
                self.shown(message, area)
                widget = self.widgets.takes(message["parent_header"].get("msg_id"))
                if widget is None or kind == UPDATE:
                    return of_others or self.on_display(message, True)
                widget.take(message)
        except ODD as error:
            self.odd(error)
        return True

    def complete(self, told: dict[str, Any]) -> Namespace:
        """Read a namespace; add what lasts from run to run, which the helper tells once; raise where it is not so."""
        lasts = told.pop("lasting", None) or {}
        if len(lasts) > 1:
            self.lasting = json_decode.decode(KernelEnvironment, lasts)
        found, known = json_decode.decode(Namespace, told), self.lasting
        if known is None or lasts.get("mark") != known.mark:
            return replace(found, names=())
        return replace(
            found,
            names=(*found.names, *known.builtins) if found.names else (),
            lasting=known,
        )

    def odd(self, error: Exception) -> None:
        """Take note of a message that makes no sense: a cell may send anything."""
        log.warning("a message of the kernel's makes no sense: %s", error)
        self.channels.iopub.unread += 1

    def shown(self, message: dict[str, Any], area: OutputArea | None = None) -> None:
        """Have a display shown wherever else it is: in cells, in Output widgets, in the running cell's area."""
        mark = display_id(message)
        if mark:
            areas = [widget.area for widget in self.widgets.captured.values()] + (
                [area] if area else []
            )
            for shows in areas:
                if mark in shows.displays:
                    shows.take({**message, "msg_type": UPDATE})
            self.on_display(message, False)

    def sync_widgets(self) -> None:
        """Tell the kernel what its Output widgets hold."""
        for widget in self.widgets.captured.values():
            if not widget.told:
                content = widget.update()
                if self.channels.is_open:
                    self.channels.send("comm_msg", content, parent=widget.parent)

    def get_connection_file(self) -> str:
        """Return the file, the user's alone, by which other clients reach it; '' where none can by one."""
        if not self.channels.connection:
            return ""
        # it was started elsewhere, or ipykernel took it away
        if not os.path.exists(self.file):
            name = {"python": "python3"}.get(self.language, self.language)
            private_files.replace(
                self.file,
                json.dumps({**self.channels.connection, "kernel_name": name}).encode(),
            )
        return self.file

    async def interrupt(self, reason: str) -> None:
        """Interrupt what runs now; `reason` is `deadline` or who asked."""
        if self.is_busy:
            self.interrupted = self.interrupted or reason
            await self.process.interrupt()
        elif self.process.away:
            self.owed = self.owed or reason

    async def reached(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Return once something reaches it, or it is known to be dead; raise KernelUnreachableError, soon after an interrupt."""
        until = time.monotonic() + seconds
        while (why := self.process.away) and await self.check_death() is None:
            until = (
                min(until, time.monotonic() + PATIENCE_SECONDS) if self.owed else until
            )
            if time.monotonic() > until:
                raise KernelUnreachableError(why)
            await asyncio.sleep(0.02)

    async def wait_death(self) -> Death | None:
        """Wait until the kernel is gone, for the time of grace at most."""
        until = time.monotonic() + GRACE_SECONDS
        while (death := await self.check_death()) is None and time.monotonic() < until:
            await asyncio.sleep(0.02)
        return death

    async def shutdown(self) -> None:
        """Kill the kernel with its process tree, close the channels, forget the record.

        Raise KernelError where it may live on: it is let go all the same.
        """
        self.detach()
        try:
            await self.process.kill()
        finally:
            await self.wait_death()
            self.process.forget()
            if self.file:
                private_files.remove(self.file)

    def detach(self) -> None:
        """Close the channels and leave the kernel to the next daemon."""
        if self.channels.is_open:
            # what came last is no less a cell's
            for message in self.channels.iopub.messages():
                self.heard(message)
            self.channels.close()
