"""One execution in a kernel: request, messages and reply, its deadline, interrupt and grace, the kernel's death."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from stepper.ground import reading
from stepper.kernel import helper
from stepper.kernel.faults import bounded, fault_of, sampled
from stepper.kernel.messages import read
from stepper.kernel.outputs import KINDS, SHOWN, UPDATE, OutputArea
from stepper.kernel.place import GRACE_SECONDS, Guard, Inbox, Process, Transport
from stepper.kernel.widgets import Widgets
from stepper.policy.model import Death, Outcome
from stepper.policy.namespace import UNKNOWN, Lasting, Namespace
from stepper.session.ports import Execution, Models

SLICE_SECONDS = 0.12  # how often death, deadline and memory are looked at: twice that is below 250 ms
MEMORY_GRACE_SECONDS = 1.0  # memory that grows on won't wait
REPLY_SECONDS = 2.0  # of silence while a reply without `idle`, or an interrupted `idle` without a reply, is there
BACKLOG_SECONDS = 60.0  # from the reply: what the kernel had sent by then may take that long to read

# Who interrupted it → how it ended; everybody else is a person.
INTERRUPTED = {"deadline": Outcome.TIMEOUT, "memory": Outcome.MEMORY}


class Host(Protocol):
    """What an execution needs of its kernel."""

    process: Process
    transport: Transport
    interrupted: str
    lasting: Lasting | None
    widgets: Widgets

    async def death(self) -> Death | None:
        """Return how the kernel ended, or None while it lives."""

    async def wait_death(self, seconds: float) -> Death | None:
        """Wait until the kernel is gone, at most `seconds`."""

    async def interrupt(self, reason: str) -> None:
        """Interrupt what runs now."""

    async def shutdown(self) -> None:
        """End the kernel and its children."""

    def heard(self, message: dict[str, Any], area: OutputArea | None) -> bool:
        """Take a message of another request than the running one, whose area is given; return whether it is taken."""

    def shown(self, message: dict[str, Any]) -> None:
        """Have a display shown wherever else it is."""

    def comm(self, message: dict[str, Any]) -> None:
        """Take a comm's message."""

    def sync_widgets(self) -> None:
        """Tell the kernel what its Output widgets hold."""

    def models(self) -> Models | None:
        """Return the state of its widgets for the notebook; None where nothing changed since."""


class Running:
    """One execution. `deadline` is on the monotonic clock."""

    def __init__(
        self,
        kernel: Host,
        area: OutputArea,
        deadline: float,
        watch: Callable[[], Guard] | None = None,
    ) -> None:
        self.kernel, self.area, self.deadline, self.watch = kernel, area, deadline, watch
        self.of_cell = False  # no silent code of stepper's own, nor a look beside the notebook
        self.captured = OutputArea(area.limit)  # what went into Output widgets
        self.caught = False  # an error did
        self.guard: Guard | None = None
        self.memory = self.stack = self.msg_id = ""
        self.idle = self.insisted = False
        self.reply: dict[str, Any] | None = None
        self.replied_at = self.interrupted_at = self.heard_at = 0.0
        self.error: dict[str, Any] | None = None
        self.told: dict[str, Any] = {}  # by the helper
        self.namespace = UNKNOWN
        self.died: Death | None = None

    async def run(
        self, code: str, silent: bool = False, history: bool = True, request: str = "", given: Mapping[str, Any] = {}
    ) -> Execution:
        """Execute the code and return what came of it; never raises for what the code does.

        `request` is the message's id where the caller keeps one of its own, `given` is metadata that the code asks for.
        """
        self.of_cell = history
        asked = {
            "code": code, "silent": silent, "store_history": history, "user_expressions": {}, "allow_stdin": False,
            "stop_on_error": False,  # else requests that wait behind a failed one are aborted
        }  # fmt: skip
        known = {
            "stepper_known": self.kernel.lasting and self.kernel.lasting.mark,
            **given,
        }  # what it need not tell again
        transport = self.kernel.transport
        self.msg_id = transport.send("execute_request", asked, known, request)
        if self.watch:
            self.guard = self.watch()  # it looks while the kernel takes the request in
        iopub, shell = transport.iopub, transport.shell
        looked = time.monotonic()
        while not (self.idle and self.reply):
            inbox = shell if self.idle else iopub
            quiet = not await inbox.ready(SLICE_SECONDS)
            self.take_all(inbox)
            # A flood must not hide the deadline, nor a quiet cell the kernel's death.
            if quiet or time.monotonic() - looked > SLICE_SECONDS:
                looked = time.monotonic()
                self.kernel.process.trim()
                if self.reply is None and not self.idle:
                    self.take_all(shell)
                if await self.over(looked, quiet):
                    break
        return await self.ended()

    async def again(self, area: OutputArea, request: str, told: dict[str, Any]) -> Execution:
        """Return what came of a request that ran while nobody listened, from the helper's record of it."""
        self.of_cell = True
        self.area, self.msg_id, self.reply, self.replied_at, self.error, self.told = area, request, None, 0.0, None, {}
        record, header = told["record"], dict[str, Any]()
        for message in recorded(told):
            self.take(message)
            header = message["header"] if message["msg_type"] == "status" else header
        failed = self.error is not None or "fault" in self.told
        reply = {"status": "error" if failed else "ok", "payload": record["payload"]}
        self.take({"msg_type": "execute_reply", "header": header, "parent_header": {}, "content": reply})
        ended = await self.ended()
        if record["lost"]:
            ended.notes.append(f"{record['lost']:,} bytes of its output are missing: no daemon was there to take them")
        return ended

    def take_all(self, inbox: Inbox) -> None:
        """Take the messages that are there, up to the last of this execution."""
        for message in inbox.messages():
            if message["parent_header"].get("msg_id") == self.msg_id:
                self.heard_at = time.monotonic()
                self.take(message)
                if self.idle and inbox is self.kernel.transport.iopub:
                    break
            elif not self.kernel.heard(message, self.area) and self.of_cell:
                self.area.take(message)

    def take(self, message: dict[str, Any]) -> None:
        """Take one message of this execution, from whichever channel."""
        kind, content = message["msg_type"], message["content"]
        if kind in SHOWN:
            self.kernel.shown(message)
        if kind == "execute_reply":
            self.area.reply(message)
            self.reply = {name: content.get(name) for name in ("status", "payload")}
            self.replied_at = time.monotonic()
            if content.get("status") == "error":  # an `error` on iopub may have been lost
                self.error = self.error or bounded(content)
            for item in content.get("payload") or []:
                if item.get("source") == "page" and isinstance(item.get("data"), dict):
                    self.area.page(item["data"])
        elif kind.startswith("comm_"):
            self.kernel.comm(message)
        elif kind in KINDS and kind != UPDATE and (widget := self.kernel.widgets.takes(self.msg_id)):
            widget.take(message)
            self.captured.take(message)
            self.caught = self.caught or kind == "error"
        elif kind == helper.MESSAGE:
            self.told = {**content, "frames": message["buffers"]} if "record" in content else content
            with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError, RecursionError):  # a cell's
                self.namespace = self.complete(content["namespace"])
        else:
            if kind == "error":
                self.error = bounded(content)
            self.idle = self.area.take(message)

    def complete(self, told: dict[str, Any]) -> Namespace:
        """Read a namespace; add what lasts from run to run, which the helper tells once; raise where it is not so."""
        lasts = told.pop("lasting", None) or {}
        if len(lasts) > 1:
            self.kernel.lasting = reading.read(Lasting, lasts)
        found, known = reading.read(Namespace, told), self.kernel.lasting
        if known is None or lasts.get("mark") != known.mark:
            return replace(found, names=())
        return replace(found, names=(*found.names, *known.builtins) if found.names else (), lasting=known)

    async def over(self, now: float, quiet: bool) -> bool:
        """Whether there is nothing more to wait for. Interrupts at the deadline, kills when that has no effect."""
        kernel = self.kernel
        if quiet:  # all that it still had to say is read
            self.died = await kernel.death()
        if self.died is not None:
            return True
        if self.reply is not None:  # what is left is to be read: no deadline counts any more
            lost = quiet and now > self.heard_at + REPLY_SECONDS
            return lost or now > self.replied_at + BACKLOG_SECONDS
        if self.idle and kernel.interrupted and now > self.heard_at + REPLY_SECONDS:
            return True  # interrupted between the cell's end and the reply, which ipykernel then never sends
        if not kernel.interrupted:
            self.memory = self.guard.trip() if self.guard else ""
            if self.memory:
                await kernel.interrupt("memory")
            elif now > self.deadline:
                self.stack = await kernel.process.sample()
                await kernel.interrupt("deadline")
        if kernel.interrupted:
            self.interrupted_at = self.interrupted_at or now
            grace = MEMORY_GRACE_SECONDS if self.memory else GRACE_SECONDS
            if now > self.interrupted_at + grace / 2 and not self.insisted:
                self.insisted = True  # the first may have met code that catches everything, such as a destructor
                await kernel.interrupt(kernel.interrupted)
            if now > self.interrupted_at + grace:
                how = f"killed by stepper: the interrupt had no effect for {grace:.0f} s"
                self.died = Death(how, kernel.process.last_words())
                return True
        return False

    async def ended(self) -> Execution:
        """Return the result; where the kernel is gone, what is left of it is cleared away."""
        content = self.reply or {}
        if self.died is None and any(item.get("source") == "ask_exit" for item in content.get("payload") or []):
            # exit() and quit() answer `ok` and end the kernel
            gone = await self.kernel.wait_death(GRACE_SECONDS)
            self.died = Death("ended by exit() or quit()", gone.stderr if gone else "", "SystemExit")
        if self.died is not None:
            await self.kernel.shutdown()
        self.kernel.sync_widgets()
        count = self.area.execution_count
        outputs = self.area.outputs()
        return Execution(
            self.outcome(str(content.get("status"))),
            outputs,
            count,
            self.area.timings,
            fault_of(self.told, self.error, count) or sampled(self.stack, count),
            self.died,
            self.namespace,
            self.told,
            self.notes(),
            self.memory,
            self.area.pictures(),
            self.area.left_out,
            self.area.placed,
            self.kernel.models() if self.of_cell else None,
            self.captured.outputs(),
            next_inputs(content.get("payload") or []),
        )

    def notes(self) -> list[str]:
        """Return what is to be told besides: memory that was full before, messages that could not be read."""
        said = [self.guard.warning] if self.guard and self.guard.warning else []
        iopub = self.kernel.transport.iopub
        if iopub.unread:
            said.append(f"{iopub.unread} message(s) of the kernel's could not be read: what they say is missing")
            iopub.unread = 0
        return said

    def outcome(self, status: str) -> Outcome:
        """Return how it ended; whatever follows an interrupt is its doing."""
        if self.kernel.interrupted:
            return INTERRUPTED.get(self.kernel.interrupted, Outcome.CANCELLED)
        if self.died is not None:
            return Outcome.KERNEL_DIED
        # %%capture shows an error and replies `ok`: the helper knows better. In an Output widget it fails no cell.
        fails = "fault" in self.told and (self.error is not None or not self.caught)
        return Outcome.OK if status == "ok" and not fails else Outcome.ERROR


def recorded(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the messages of the helper's record, as far as they can be read."""
    frames = iter(told.get("frames") or [])
    for count in (told.get("record") or {}).get("counts", []):
        message = read([frame for _, frame in zip(range(count), frames, strict=False)])
        if message is not None:
            yield message


def next_inputs(payload: list[dict[str, Any]]) -> list[str]:
    """Return the sources of the cells that Jupyter would make next (`%load`, `set_next_input`)."""
    return [str(item.get("text")) for item in payload if item.get("source") == "set_next_input"]
