"""One ssh to a host: a master that carries all, the kernel's ports as sockets of this machine, and what is asked there.

The sockets are files in the user's own folder. A master that ends, whatever ended it, is started again on the same
ones: ZeroMQ goes on by itself on sockets that come back. It ends with the daemon, whose pipe it reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import time
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from stepper.common.errors import KernelError, KernelUnreachableError
from stepper.kernels.backends.ssh import ssh_errors
from stepper.kernels.backends.ssh.ssh_errors import in_words
from stepper.policy.kernel_config import SshSettings

# What runs there comes by its standard input, the lines of shell as the first line,
# then the program: no argument shows
# what is asked, and any login shell takes these words as they are.
SHELL = """exec sh -c 'IFS= read -r line; eval "$(printf %b "$line")"'"""
READS = "import sys, json; told = json.loads(sys.stdin.readline()); exec(told.pop('program')); main(told)"
# What the user's own configuration says is kept but for what is about another use of
# ssh.
OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "2",
    "StreamLocalBindUnlink": "yes",
    "StreamLocalBindMask": "0177",
    "ControlPersist": "no",
    "ClearAllForwardings": "yes",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "PermitLocalCommand": "no",
}
ASK_SECONDS = 20.0
UP_SECONDS = 15.0  # for a master to stand
RESUME_SECONDS = 5.0
AGAIN_SECONDS = 1.0, 15.0  # between two tries to bring it back: the first, and at most
SAID = 8000  # bytes that are kept of what ssh writes
FAILED = 255  # the exit code of ssh where it is its own


class Link:
    """The way to a host; `control` is the path of the master's socket, `sockets` what the forwarded ones begin with."""

    def __init__(self, where: SshSettings, control: str, sockets: str) -> None:
        self.where, self.control, self.sockets = where, control, sockets
        self.master: asyncio.subprocess.Process | None = None
        self.ports: list[int] = []
        self.cuts = 0  # how often it was down
        self.said = b""  # what ssh wrote last
        self.stands = False
        # why it can't be brought back, and the command that helps; '' while nobody knows
        self.outage = "", ""
        self.again: asyncio.Task[None] | None = None
        self.again_at, self.pause = 0.0, AGAIN_SECONDS[0]
        self.listens: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """Whether the master runs, and carries the ports."""
        return (
            self.stands and self.master is not None and self.master.returncode is None
        )

    def _command(self, *more: str) -> list[str]:
        options = [
            part
            for name, value in OPTIONS.items()
            for part in ("-o", f"{name}={value}")
        ]
        return ["ssh", *options, "-S", self.control, *self.where.extra, *more]

    async def open(self, ports: list[int]) -> None:
        """Have the host's ports be sockets here; raise KernelError in ssh's own words."""
        self.ports = ports
        await self._leave()
        self.said = b""
        self.master = await _started(
            *self._command("-M", self.where.host, "exec cat"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self.listens = asyncio.create_task(self._listen(self.master))
        until = time.monotonic() + UP_SECONDS
        while not Path(self.control).exists():
            if self.master.returncode is not None or time.monotonic() > until:
                raise await self._failed()
            await asyncio.sleep(0.02)
        forwards = [
            f"-L{self.sockets}-{number}:127.0.0.1:{port}"
            for number, port in enumerate(ports, 1)
        ]
        if not await self._tell("forward", *forwards):
            raise await self._failed()
        self.stands, self.pause = True, AGAIN_SECONDS[0]
        self.outage = "", ""

    async def resume(self, ports: list[int]) -> None:
        """Bring back the line of a former daemon; `is_up` tells whether it stands: nobody waits for long."""
        self.ports = ports
        self.keep()
        if self.again is not None:  # as a rule it stands at once
            await asyncio.wait([self.again], timeout=RESUME_SECONDS)

    def keep(self) -> None:
        """Have the master come back where it ended; nobody waits for that."""
        if (
            self.ports
            and not self.is_up
            and self.again is None
            and time.monotonic() > self.again_at
        ):
            self.again = asyncio.create_task(self._again())

    async def _again(self) -> None:
        try:
            await self.open(self.ports)
            self.cuts += 1
        except KernelError as error:
            self.outage = error.message, error.hint
            self.again_at, self.pause = (
                time.monotonic() + self.pause,
                min(2 * self.pause, AGAIN_SECONDS[1]),
            )
        finally:
            self.again = None

    @property
    def outage_text(self) -> str:
        """Why it can't be brought back, with the command that helps; '' if unknown."""
        why, command = self.outage
        if self.is_up or not why:
            return ""
        if ssh_errors.forbids(self.said):
            return f"{why}. To fix this, set: {command}"
        purpose = "fix" if ssh_errors.KEY_CHANGED in why else "check"
        return f"{why}. To {purpose} this, run: {command}"

    def lose(self) -> None:
        """Give up a master that runs, and through which nothing comes any more."""
        self.stands = False
        if self.master is not None:
            with contextlib.suppress(ProcessLookupError):
                self.master.kill()

    async def ask(
        self, what: str, told: Mapping[str, Any], seconds: float = ASK_SECONDS
    ) -> dict[str, Any]:
        """Have the host do something (`remote_launcher.py`); return what it says.

        Raise KernelUnreachableError where it can't be reached, KernelError where what answers there says something else.
        """
        program = (
            files("stepper.kernels.backends.ssh")
            .joinpath("remote_launcher.py")
            .read_text("utf-8")
        )
        shell = f"{self.where.setup}\nexec {shlex.quote(self.where.python)} -c {shlex.quote(READS)}\n"
        process = await _started(
            *self._command("-o", "ControlMaster=no", self.where.host, SHELL),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        escaped = shell.replace("\\", "\\\\").replace("\n", "\\n")
        line = f"{escaped}\n{json.dumps({'program': program, 'do': what, **told})}\n".encode()
        try:
            said, wrong = await asyncio.wait_for(process.communicate(line), seconds)
        except asyncio.TimeoutError:
            raise KernelUnreachableError(
                f"{self.where.host} did not answer within {seconds:.0f} s"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        # a profile may print before it
        answer = said.decode("utf-8", "replace").rpartition("stepper:")[2]
        try:
            found: dict[str, Any] = json.loads(answer)
        except ValueError:
            why, mend = in_words(
                wrong or said, self.where, process.returncode == FAILED
            )
            raise (
                KernelUnreachableError if process.returncode == FAILED else KernelError
            )(why, mend) from None
        return found

    def close(self) -> None:
        """End the master; its sockets go."""
        self.ports = []
        if self.again is not None:
            self.again.cancel()
        self.lose()
        # the daemon may end before it is reaped: asyncio would close its pipes too late
        if self.master is not None:
            self.master._transport.close()  # type: ignore[attr-defined]
        self._clear()

    async def _leave(self) -> None:
        """End a master: this daemon's, or one that a former daemon left on the same socket."""
        self.lose()
        if self.master is not None:
            await self.master.wait()
            self.master = None
        elif Path(self.control).exists():
            await self._tell("exit")
        self._clear()

    def _clear(self) -> None:
        for path in (
            self.control,
            *(f"{self.sockets}-{number}" for number in range(1, 6)),
        ):
            Path(path).unlink(missing_ok=True)

    async def _tell(self, what: str, *more: str) -> bool:
        """Tell the master something; return whether it did it. The user's configuration has no part in that."""
        process = await _started(
            "ssh",
            "-F",
            "none",
            "-S",
            self.control,
            "-O",
            what,
            *more,
            "there",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, wrong = await asyncio.wait_for(process.communicate(), ASK_SECONDS)
        except asyncio.TimeoutError:
            process.kill()
            return False
        self.said += wrong if process.returncode else b""
        return process.returncode == 0

    async def _listen(self, master: asyncio.subprocess.Process) -> None:
        """Keep what ssh writes last: a pipe that nobody reads would stop it."""
        assert master.stderr is not None  # as it was started
        while data := await master.stderr.read(SAID):
            self.said = (self.said + data)[-SAID:]

    async def _failed(self) -> KernelError:
        self.stands = False
        ended = self.master is not None and self.master.returncode is not None
        if ended and self.listens is not None:
            await self.listens
        said = self.said or f"it can't be reached within {UP_SECONDS:.0f} s".encode()
        return KernelUnreachableError(*in_words(said, self.where, True))


async def _started(*command: str, **more: Any) -> asyncio.subprocess.Process:
    """Start ssh; raise KernelError where it can't be."""
    try:
        return await asyncio.create_subprocess_exec(*command, **more)
    except OSError as error:
        raise KernelError(
            f"ssh can't be run on this machine: {error.strerror}", "command -v ssh"
        ) from error
