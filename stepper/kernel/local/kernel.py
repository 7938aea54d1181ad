"""A live local kernel: its channels, what it is asked to run, interrupts, its death, its end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import zmq
from jupyter_client import BlockingKernelClient, KernelClient

from stepper.ground import private
from stepper.ground.errors import KernelError, KernelStartFailedError
from stepper.kernel import helper
from stepper.kernel.execution import GRACE_SECONDS, Running, recorded, without_escapes
from stepper.kernel.local import launch, process
from stepper.kernel.local.launch import GONE, Files, KernelProcess
from stepper.kernel.local.memory import Guard, OomKills, usage
from stepper.kernel.messages import Inbox
from stepper.kernel.outputs import KINDS, UPDATE, OutputArea, display_id
from stepper.kernel.widgets import Widgets
from stepper.policy.model import Death, Limits, Outcome
from stepper.session.ports import Execution, Models

STDERR_CHARACTERS, STDERR_BYTES = 2000, 4 << 20  # told of what the process wrote; kept of it
RECONNECT_MS = 5  # a kernel that starts is not there at the first try; ZeroMQ would wait 100 for the next
# What faulthandler writes of a crash, innermost call first: the outer ones are the kernel's own.
OUTER_CALLS = re.compile(r"((?:^  File .*\n){4})(?:^  File .*\n)+(?:\s*^Extension modules:.*\n?)?", re.MULTILINE)
ODD = (AttributeError, KeyError, TypeError, ValueError)  # what a message may lead to that is not as the protocol says
log = logging.getLogger("stepper")
HEARD = 5000  # messages; more come from no kernel's memory
SAMPLE_SECONDS, SAMPLE_CHARACTERS = 0.5, 100_000
OUT_OF_MEMORY = "killed by the system: out of memory (SIGKILL)", "OutOfMemory"


@functools.cache
def sockets() -> zmq.Context[zmq.Socket[bytes]]:
    """Return the ZeroMQ context of all kernels: each has threads and descriptors of its own."""
    context = zmq.Context()
    context.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    return context


class LocalKernel:
    """A live kernel, its channels open. `connection` is how it is reached, as in Jupyter's connection files."""

    iopub: Inbox
    shell: Inbox

    def __init__(
        self,
        name: str,
        python: str,
        connection: dict[str, Any],
        found: KernelProcess,
        files: Files,
        parts: Mapping[str, str] = {},  # only read
    ) -> None:
        self.id, self.python, self.process, self.files = name, python, found, files
        self.pid, self.runtime = found.pid, os.path.dirname(connection["ip"])
        self.helper = helper.made(tuple(parts.items()))
        self.busy = False
        self.banner = 0  # how many bytes of stderr are ipykernel's greeting
        self.interrupted = ""  # why the running cell was interrupted
        self.hears: Callable[[dict[str, Any], bool], bool] = lambda message, late: False
        self.heard_here: deque[str] = deque(maxlen=HEARD)  # the messages that came besides runs
        self.widgets = Widgets()
        self.limits = Limits()
        self.lasting: dict[str, Any] = {}  # what the helper told and tells again only where it has changed
        self.client: KernelClient = BlockingKernelClient(context=sockets())
        # jupyter_client's type for it is a TypedDict, which no mapping from a file is
        self.client.load_connection_info(dict(connection, key=connection["key"].encode()))  # type: ignore[arg-type]
        self.oom_kills = OomKills(self.pid)
        self.ended: Death | None = None

    async def connect(self, seconds: float) -> None:
        """Open the channels, wait for an answer on both shell and iopub, install the helper; raise KernelError."""
        self._open()
        await self._reach(seconds)
        await self._set_up(seconds)

    def _open(self) -> None:
        if not self.client.channels_running:
            self.client.start_channels(stdin=False, hb=False, control=False)
            self.iopub, self.shell = Inbox(self.client.iopub_channel), Inbox(self.client.shell_channel)

    def _close(self) -> None:
        if self.client.channels_running:
            for message in self.iopub.messages():  # what came last is no less a cell's
                self.heard(message)
            self.iopub.leave()
            self.shell.leave()
            self.client.stop_channels()

    async def _reach(self, seconds: float) -> None:
        """Wait for an answer on both shell and iopub; raise KernelError."""
        deadline = time.monotonic() + seconds
        replied = heard = False
        while not (replied and heard):
            self.client.kernel_info()
            until = time.monotonic() + 0.2
            while time.monotonic() < until and not (replied and heard):
                replied = replied or await _any(self.shell)
                # iopub: once a status came through, the subscription stands and nothing will be missed
                heard = await self._listened() or heard
            death = await self.death()
            if death is not None:
                missing = "No module named" in death.stderr and "ipykernel" in death.stderr
                hint = add_ipykernel(self.python) if missing else ""
                error = KernelError if missing else KernelStartFailedError
                said = death.stderr or "it wrote nothing"
                raise error(f"the kernel died at start ({death.how}): {said.splitlines()[-1]}\n{said}", hint)
            if time.monotonic() > deadline:
                raise KernelStartFailedError(f"the kernel did not answer within {seconds:.0f} s: {self.files.stderr}")

    async def _listened(self) -> bool:
        """Whether a message comes on iopub within 10 ms; what a thread says meanwhile is taken."""
        messages = [*self.iopub.messages()] if await self.iopub.ready(0.01) else []
        for message in messages:
            self.heard(message)
        return bool(messages)

    async def _set_up(self, seconds: float) -> None:
        """Install the helper where it is not there; raise KernelError."""
        done = await self._housekeeping(helper.INSTALL, seconds, self.helper.given(str(self.files.stack)))
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
            self.oom_kills.forget()  # what a cell started may have been killed

    def listen(self) -> None:
        """Take what the kernel published while no cell ran."""
        if not self.busy and self.ended is None:
            self._open()
            for message in self.iopub.messages():
                self.heard(message)
            self.sync_widgets()

    def heard(self, message: dict[str, Any], area: OutputArea | None = None) -> bool:
        """Take a message of another request than the running one, whose area is given; return whether it is taken."""
        try:
            return self._heard(message, area)
        except ODD as error:  # a cell may send anything
            log.warning("a message of the kernel's makes no sense: %s", error)
            self.iopub.unread += 1
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
            told = self.client.session.msg("comm_msg", widget.update(), parent=widget.parent)
            if self.client.channels_running:
                self.client.shell_channel.send(told)

    def models(self) -> Models | None:
        """Return the state of its widgets for the notebook; None where nothing changed since."""
        return self.widgets.models(self.limits.max_widget_state_bytes)

    def trim(self) -> None:
        """Keep the file of what the kernel's process wrote to stderr small: children's output goes there, too."""
        with contextlib.suppress(OSError):
            if self.files.stderr.stat().st_size > self.banner + STDERR_BYTES:
                os.truncate(self.files.stderr, self.banner)

    def _guard(self, limits: Limits) -> Guard:
        self.oom_kills.forget()
        return Guard(limits.max_memory_percent, lambda: usage(self.pid), self.rss_bytes)

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
                self.process.interrupt()
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
            self._open()
            ended = await waiting.run("", silent=True, history=False)  # it is served behind what runs
        finally:
            self.busy = False
        if ended.death is not None:
            return ended
        why = self.interrupted
        await self._reach(GRACE_SECONDS)
        told = await self._housekeeping(helper.recall(request), GRACE_SECONDS)
        await self._set_up(GRACE_SECONDS)
        await self.facts()  # what lasts, which the record leaves out
        record = told.facts.get("record")
        if not record:
            return None
        self.interrupted, self.limits = why, limits
        return await waiting.again(OutputArea(limits.max_output_bytes), request, told.facts)

    async def missed(self, request: str) -> list[dict[str, Any]]:
        """Return what a request that is over published while no daemon was there, as far as the kernel remembers.

        Also what a former daemon may have put on its cell; not what was heard here.
        """
        told = await self._housekeeping(helper.recall(request), GRACE_SECONDS)
        messages = [*recorded(told.facts)]
        ends = [n for n, message in enumerate(messages) if message["content"].get("execution_state") == "idle"]
        after = messages[ends[0] + 1 :] if ends else []
        return [message for message in after if message["header"].get("msg_id") not in self.heard_here]

    async def facts(self) -> dict[str, Any]:
        """Return the namespace in short, asked of the helper; empty where it does not tell."""
        asked = await self._housekeeping(helper.ASK, GRACE_SECONDS)
        found: dict[str, Any] = asked.facts.get("namespace") or {}
        return found

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
            self.process.interrupt()

    async def sample(self) -> str:
        """Return the stacks of the kernel's threads as faulthandler writes them; '' where it can't be asked."""
        try:
            os.close(private.opened(str(self.files.stack), os.O_WRONLY | os.O_TRUNC))
            self.process.send(signal.SIGURG)  # harmless unasked
            until, size = time.monotonic() + SAMPLE_SECONDS, 0
            while time.monotonic() < until:
                await asyncio.sleep(0.02)
                before, size = size, self.files.stack.stat().st_size
                if size and size == before:  # all of it is written
                    break
            return private.read(str(self.files.stack)).decode("utf-8", "replace")[:SAMPLE_CHARACTERS]
        except OSError:
            return ""

    async def death(self) -> Death | None:
        """Return how the kernel ended, or None while it lives. What it started goes with it."""
        if self.ended is None:
            code, cause = self.process.poll(), ""
            if code is None:
                return None
            if code in (GONE, -signal.SIGKILL) and self.oom_kills.any():
                how, cause = OUT_OF_MEMORY
            elif code == GONE:
                how = "its process is gone"
            else:
                how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self.ended = Death(how, self.stderr_tail(), cause)
            await asyncio.to_thread(process.clear, self.id)
        return self.ended

    async def wait_death(self, seconds: float) -> Death | None:
        """Wait until the kernel is gone, at most `seconds`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            death = await self.death()
            if death is not None:
                return death
            await asyncio.sleep(0.02)
        return None

    def stderr_tail(self) -> str:
        """Return the last lines that the kernel's process wrote to stderr, without escapes."""
        try:
            data = private.read(str(self.files.stderr))[self.banner :][-STDERR_CHARACTERS * 4 :]
        except OSError:
            return ""
        text = OUTER_CALLS.sub(r"\1", without_escapes(data.decode("utf-8", "replace")))
        return text.strip()[-STDERR_CHARACTERS:]

    async def shutdown(self) -> None:
        """Kill the kernel with its process tree, close the channels, forget the record."""
        self._close()
        await asyncio.to_thread(process.clear, self.id, self.process.identity)
        await self.wait_death(GRACE_SECONDS)
        launch.clear_files(self.runtime, self.id)
        self.files.forget()

    def detach(self) -> None:
        """Close the channels and leave the kernel to the next daemon."""
        self._close()

    def rss_bytes(self) -> int:
        """Return the resident memory of the kernel's process tree in bytes."""
        total = 0
        for member in process.family(self.pid) if self.process.identity.alive() else ():
            try:
                total += member.memory_info().rss
            except psutil.Error:
                continue  # it ended meanwhile
        return total


def add_ipykernel(python: str) -> str:
    """Return the command that adds ipykernel to the environment of an interpreter."""
    home = Path(python).parent.parent
    if (home.parent / "uv.lock").exists():
        return "uv add --dev ipykernel"
    if any(Path(python).parent.glob("pip*")):
        return f"{python} -m pip install ipykernel"
    return f"uv pip install --python {python} ipykernel"


async def _any(inbox: Inbox) -> bool:
    """Whether a message comes on that channel within 10 ms."""
    return await inbox.ready(0.01) and any(inbox.messages())
