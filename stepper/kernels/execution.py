"""One execution in a kernel: request, messages and reply, its deadline, interrupt and grace, the kernel's death."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepper.common import json_decode
from stepper.common.errors import KernelError, KernelUnreachableError
from stepper.kernels import helper_loader
from stepper.kernels.backend_protocols import (
    GRACE_SECONDS,
    PATIENCE_SECONDS,
    Guard,
    Inbox,
)
from stepper.kernels.client_base import ODD, Connection
from stepper.kernels.error_parsing import bounded, fault_of, sampled
from stepper.kernels.output_area import KINDS, SHOWN, UPDATE, OutputArea
from stepper.kernels.wake_pattern import Watch
from stepper.policy import error_classification
from stepper.policy.local_modules import ModuleChanges
from stepper.policy.model import Death, Fault, Limits, Outcome
from stepper.session.protocols import Execution

# how often death, deadline and memory are looked at: twice that is below 250 ms
SLICE_SECONDS = 0.12
MEMORY_GRACE_SECONDS = 1.0  # memory that grows on won't wait
# of silence while a reply without `idle`, or an interrupted `idle` without a reply, is
# there
REPLY_SECONDS = 2.0
# from the reply: what the kernel had sent by then may take that long to read
BACKLOG_SECONDS = 60.0
# from when it can be reached again until a deadline counts: it may have ended long
# since
BACK_SECONDS = 2.0

OWN_BYTES = 10_000  # of output that code of stepper's own may have

NO_DAEMON = "no daemon was there to take them"
CUT = "its line was cut, or its server leaves out what is above its limits"
NOT_HEARD = "it ran while no daemon was there: whether it ended well is not known, and this kernel does not remember it"
NOT_REMEMBERED = "what it printed while no daemon was there is missing: this kernel does not remember it"
# Who interrupted it → how it ended; everybody else is a person.
INTERRUPTED = {"deadline": Outcome.TIMEOUT, "memory": Outcome.MEMORY}


@dataclass
class Before:
    """A request that runs before, a former daemon's or one whose line was cut: what is heard of it from now on."""

    request: str
    area: OutputArea
    kernel: Connection
    cut: Running | None = None
    over: bool = False
    error: dict[str, Any] | None = None

    def take(self, message: dict[str, Any]) -> None:
        """Take one of its messages."""
        if self.cut is not None:
            self.cut.take(message)
            self.over = self.over or self.cut.idle
            return
        self.kernel.heard(message, self.area)
        self.over = self.area.take(message) or self.over
        if message["msg_type"] == "error":
            self.error = bounded(message["content"])


class LineCutError(Exception):
    """The line to the kernel was cut while a request ran: what came of it is not known here."""


class Running:
    """One execution, which has that many seconds. Without limits it is code of stepper's own, silent and unguarded."""

    def __init__(
        self,
        kernel: Connection,
        seconds: float,
        limits: Limits | None = None,
        wake: str = "",
    ) -> None:
        self.kernel, self.limits, self.deadline = (
            kernel,
            limits,
            time.monotonic() + seconds,
        )
        self.seconds, self.begun = seconds, False
        self.due, self.away_at = self.deadline, 0.0
        self.area = OutputArea(limits.max_output_bytes if limits else OWN_BYTES)
        self.captured = OutputArea(self.area.limit)  # what went into Output widgets
        self.area.watch = self.captured.watch = Watch(wake) if wake else None
        self.before: Before | None = None
        self.caught = False  # an error did
        # no silent code of stepper's own, nor a look beside the notebook
        self.of_cell = False
        self.done = Execution(Outcome.OK)
        self.guard: Guard | None = None
        self.stack = self.msg_id = ""
        self.idle = self.insisted = False
        self.reply: dict[str, Any] | None = None
        self.replied_at = self.interrupted_at = self.heard_at = 0.0
        self.error: dict[str, Any] | None = None

    async def run(
        self,
        code: str,
        silent: bool = False,
        history: bool = False,
        request: str = "",
        given: Mapping[str, Any] = {},
    ) -> Execution:
        """Execute the code and return what came of it; never raises for what the code does.

        `request` is the message's id where the caller keeps one of its own, `given` is metadata that the code asks for.
        """
        self.of_cell = history
        asked = {
            "code": code,
            "silent": silent,
            "store_history": history,
            "user_expressions": {},
            "allow_stdin": False,
            # else requests that wait behind a failed one are aborted
            "stop_on_error": False,
        }
        lasting = self.kernel.lasting
        # what it need not tell again
        known = {"stepper_known": lasting and lasting.mark, **given}
        channels, process = self.kernel.channels, self.kernel.process
        cuts = process.cuts
        if self.before is None:  # what runs already has begun before
            process.begin()
        self.msg_id = channels.send("execute_request", asked, known, request)
        if self.limits:
            # It looks while the kernel takes the request in.
            process.rest()
            self.guard = Guard(
                self.limits.max_memory_percent, process.usage, process.memory
            )
        iopub, shell = channels.iopub, channels.shell
        looked = time.monotonic()
        while not (self.idle and self.reply):
            inbox = shell if self.idle else iopub
            quiet = not await inbox.ready(SLICE_SECONDS)
            self.take_all(inbox)
            if self.idle and self.reply is None:  # which the kernel sent before
                self.take_all(shell)
            # A flood must not hide the deadline, nor a quiet cell the kernel's death.
            if quiet or time.monotonic() - looked > SLICE_SECONDS:
                looked = time.monotonic()
                process.trim()
                if self.reply is None and not self.idle:
                    self.take_all(shell)
                if await self.over(looked, quiet):
                    break
                if process.cuts != cuts:
                    break
        if process.cuts != cuts and self.done.death is None:
            raise LineCutError
        return await self.ended()

    async def again(self, request: str, told: dict[str, Any], why: str) -> Execution:
        """Return what came of a request that ran while nobody listened, from the helper's record of it.

        `why` is told where that does not have all.
        """
        self.of_cell, self.msg_id, self.reply, self.error = True, request, None, None
        self.done = Execution(Outcome.OK, memory=self.done.memory)
        record, header = told["record"], dict[str, Any]()
        missing = f"{record['lost']:,} bytes of its output are missing: {why}"
        for place, message in enumerate(helper_loader.iterate_recorded_messages(told)):
            if record["lost"] and place == record.get("head"):
                said = {"name": "stderr", "text": f"… {missing} …\n"}
                self.take(
                    {
                        "msg_type": "stream",
                        "header": {},
                        "parent_header": {},
                        "content": said,
                    }
                )
            self.take(message)
            header = message["header"] if message["msg_type"] == "status" else header
        failed = self.error is not None or "fault" in self.done.diagnosis_data
        reply = {"status": "error" if failed else "ok", "payload": record["payload"]}
        self.take(
            {
                "msg_type": "execute_reply",
                "header": header,
                "parent_header": {},
                "content": reply,
            }
        )
        ended = await self.ended()
        if record["lost"]:
            ended.notes.append(missing)
        return ended

    async def heard(self, before: Before) -> Execution:
        """Return what came of a request of which no more is known than what was heard, not from its beginning on."""
        self.of_cell, self.area, self.error = True, before.area, before.error
        self.reply = {"status": "error" if before.error else "ok", "payload": []}
        ended = await self.ended()
        if not (before.over or self.kernel.interrupted):
            ended.outcome = Outcome.ERROR
            ended.fault = ended.fault or Fault(
                error_classification.UNOBSERVED_RUN,
                NOT_HEARD,
                (error_classification.UNOBSERVED_RUN,),
            )
        ended.notes.append(NOT_REMEMBERED)
        return ended

    def take_all(self, inbox: Inbox) -> None:
        """Take the messages that are there, up to the last of this execution."""
        for message in inbox.messages():
            if message["parent_header"].get("msg_id") == self.msg_id:
                self.heard_at, self.begun = time.monotonic(), True
                self.take(message)
                if self.idle and inbox is self.kernel.channels.iopub:
                    break
            elif (
                self.before
                and message["parent_header"].get("msg_id") == self.before.request
            ):
                self.before.take(message)
            elif not self.kernel.heard(message, self.area) and self.of_cell:
                self.area.take(message)

    @property
    def aborted(self) -> bool:
        """Whether the kernel did not run it, since what came before it failed."""
        return (
            self.reply is not None
            and self.reply.get("status") == "aborted"
            and not self.kernel.interrupted
        )

    def take(self, message: dict[str, Any]) -> None:
        """Take one message of this execution, from whichever channel."""
        try:
            self._take(message["msg_type"], message["content"], message)
        except ODD as error:
            self.kernel.odd(error)

    def _take(
        self, kind: str, content: dict[str, Any], message: dict[str, Any]
    ) -> None:
        if kind in SHOWN:
            self.kernel.shown(message)
        if kind == "execute_reply":
            self.area.take(message)
            self.reply = {name: content.get(name) for name in ("status", "payload")}
            self.replied_at = time.monotonic()
            # an `error` on iopub may have been lost
            if content.get("status") == "error":
                self.error = self.error or bounded(content)
            for item in content.get("payload") or []:
                if item.get("source") == "page" and isinstance(item.get("data"), dict):
                    # what a pager would, as JupyterLab
                    self.area.take({"msg_type": "display_data", "content": item})
        elif kind.startswith("comm_"):
            self.kernel.widgets.comm(message)
        elif (
            kind in KINDS
            and kind != UPDATE
            and (widget := self.kernel.widgets.takes(self.msg_id))
        ):
            widget.take(message)
            self.captured.take(message)
            self.caught = self.caught or kind == "error"
        elif kind == helper_loader.MESSAGE_TYPE:
            self.done.diagnosis_data = (
                {**content, "frames": message["buffers"]}
                if "record" in content
                else content
            )
            # it may be a cell's
            with contextlib.suppress(*ODD, LookupError, RecursionError):
                self.done.namespace = self.kernel.complete(content["namespace"])
            if "modules" in content:
                with contextlib.suppress(*ODD, LookupError, RecursionError):
                    self.done.module_changes = json_decode.decode(
                        ModuleChanges, content["modules"]
                    )
        else:
            if kind == "error":
                self.error = bounded(content)
            self.idle = self.area.take(message)

    async def over(self, now: float, quiet: bool) -> bool:
        """Whether there is nothing more to wait for. Interrupts at the deadline, kills when that has no effect."""
        kernel, done = self.kernel, self.done
        if quiet:  # all that it still had to say is read
            done.death = await kernel.check_death()
        if done.death is not None:
            return True
        # what is left is to be read: no deadline counts any more
        if self.reply is not None:
            lost = quiet and now > self.heard_at + REPLY_SECONDS
            return lost or now > self.replied_at + BACKLOG_SECONDS
        if self.idle and kernel.interrupted and now > self.heard_at + REPLY_SECONDS:
            # interrupted between the cell's end and the reply, which ipykernel then
            # never sends
            return True
        if kernel.process.away:  # nothing reaches it: what it does, it does on
            self.away_at = self.away_at or now
            if (
                now
                > max(self.away_at, 0.0 if kernel.interrupted else self.due)
                + PATIENCE_SECONDS
            ):
                raise KernelUnreachableError(kernel.process.away)
            self.deadline = max(self.deadline, now + BACK_SECONDS)
            return False
        self.away_at = 0.0
        # another client's came first: that is not ours to interrupt
        if not self.begun and kernel.external_executions.running_since:
            self.deadline = max(self.deadline, now + self.seconds)
        if not kernel.interrupted:
            done.memory = self.guard.trip() if self.guard else ""
            if done.memory:
                await kernel.interrupt("memory")
            elif now > self.deadline:
                self.stack = await kernel.process.sample() if kernel.helped else ""
                await kernel.interrupt("deadline")
        if kernel.interrupted:
            self.interrupted_at = self.interrupted_at or now
            grace = MEMORY_GRACE_SECONDS if done.memory else GRACE_SECONDS
            if now > self.interrupted_at + grace / 2 and not self.insisted:
                # the first may have met code that catches everything, such as a
                # destructor
                self.insisted = True
                await kernel.interrupt(kernel.interrupted)
            if now > self.interrupted_at + grace:
                how = (
                    f"killed by stepper: the interrupt had no effect for {grace:.0f} s"
                )
                done.death = Death(how, kernel.process.last_words())
        return done.death is not None

    async def ended(self) -> Execution:
        """Return the result; where the kernel is gone, what is left of it is cleared away."""
        done, area, kernel, reply = self.done, self.area, self.kernel, self.reply or {}
        payload = reply.get("payload") or []
        if done.death is None and any(
            item.get("source") == "ask_exit" for item in payload
        ):
            # exit() and quit() answer `ok` and end the kernel
            gone = await kernel.wait_death()
            done.death = Death(
                "ended by exit() or quit()", gone.stderr if gone else "", "SystemExit"
            )
        if done.death is not None:
            try:
                await kernel.shutdown()
            except KernelError as error:
                done.notes.append(": ".join(filter(None, (error.message, error.hint))))
        kernel.sync_widgets()
        done.outputs, done.images, done.widget_outputs = (
            area.outputs(),
            area.pictures(),
            self.captured.outputs(),
        )
        done.left_out, done.displays = area.left_out, area.placed
        done.execution_count, done.timings = area.execution_count, area.timings
        done.fault = fault_of(done.diagnosis_data, self.error, area.execution_count)
        done.fault = done.fault or sampled(self.stack, area.execution_count)
        done.widgets = kernel.widgets.models() if self.of_cell else None
        # What Jupyter would make of `%load` and `set_next_input`.
        done.next_inputs = [
            str(item.get("text"))
            for item in payload
            if item.get("source") == "set_next_input"
        ]
        done.notes += [self.guard.warning] if self.guard and self.guard.warning else []
        if area.watch and area.watch.unseen and not area.watch.matched:
            done.notes.append(
                f"{area.watch.unseen:,} characters came too fast to look for its wake pattern in them"
            )
        if kernel.channels.iopub.unread:
            unread, kernel.channels.iopub.unread = kernel.channels.iopub.unread, 0
            done.notes.append(
                f"{unread} message(s) of the kernel's could not be read: what they say is missing"
            )
        done.outcome = self.outcome(str(reply.get("status")))
        return done

    def outcome(self, status: str) -> Outcome:
        """Return how it ended; whatever follows an interrupt is its doing."""
        if self.kernel.interrupted:
            return INTERRUPTED.get(self.kernel.interrupted, Outcome.CANCELLED)
        if self.done.death is not None:
            return Outcome.KERNEL_DIED
        # %%capture shows an error and replies `ok`: the helper knows better. In an
        # Output widget it fails no cell.
        fails = "fault" in self.done.diagnosis_data and (
            self.error is not None or not self.caught
        )
        return Outcome.OK if status == "ok" and not fails else Outcome.ERROR
