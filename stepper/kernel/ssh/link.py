"""One ssh to a host: a master that carries all, the kernel's ports as sockets of this machine, and what is asked there.

The sockets are files in the user's own folder. A master that ends, whatever ended it, is started again on the same
ones: ZeroMQ goes on by itself on sockets that come back.
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

from stepper.ground.errors import KernelError
from stepper.ground.text import one_line
from stepper.policy.kernels import Ssh

# The first line that it reads is the program: no argument shows what is asked.
READS = "import sys, json; told = json.loads(sys.stdin.readline()); exec(told.pop('program')); main(told)"
OPTIONS = {
    "BatchMode": "yes", "ConnectTimeout": "10", "ServerAliveInterval": "5", "ServerAliveCountMax": "3",
    "ExitOnForwardFailure": "yes", "StreamLocalBindUnlink": "yes", "StreamLocalBindMask": "0177",
}  # fmt: skip
ASK_SECONDS = 20.0
UP_SECONDS = 15.0  # for a master to stand
AGAIN_SECONDS = 1.0  # between two tries to bring it back


class Link:
    """The way to a host; `control` is the path of the master's socket, `sockets` what the forwarded ones begin with."""

    def __init__(self, where: Ssh, control: str, sockets: str) -> None:
        self.where, self.control, self.sockets = where, control, sockets
        self.master: asyncio.subprocess.Process | None = None
        self.ports: list[int] = []
        self.cuts = 0  # how often it was down
        self.tried_at = 0.0

    @property
    def is_up(self) -> bool:
        """Whether the master runs."""
        return self.master is not None and self.master.returncode is None

    def _command(self, *more: str) -> list[str]:
        options = [part for name, value in OPTIONS.items() for part in ("-o", f"{name}={value}")]
        return ["ssh", *options, "-S", self.control, *self.where.extra, *more]

    async def open(self, ports: list[int]) -> None:
        """Have the host's ports be sockets here; raise KernelError in ssh's own words."""
        self.ports = ports
        await self._leave()
        forwards = [f"-L{self.sockets}-{number}:127.0.0.1:{port}" for number, port in enumerate(ports, 1)]
        self.master = await asyncio.create_subprocess_exec(
            *self._command("-M", "-N", *forwards, self.where.host),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        until = time.monotonic() + UP_SECONDS
        waited = [Path(self.control), *(Path(f"{self.sockets}-{number}") for number in range(1, len(ports) + 1))]
        while not all(path.exists() for path in waited):
            if self.master.returncode is not None or time.monotonic() > until:
                raise KernelError(await self._why())
            await asyncio.sleep(0.02)

    async def keep(self) -> bool:
        """Bring the master back where it ended; return whether the line is up."""
        if self.is_up or not self.ports:
            return self.is_up
        if time.monotonic() > self.tried_at + AGAIN_SECONDS:
            self.tried_at = time.monotonic()
            with contextlib.suppress(KernelError):
                await self.open(self.ports)
                self.cuts += 1
        return self.is_up

    async def ask(self, what: str, told: Mapping[str, Any]) -> dict[str, Any]:
        """Have the host do something (`far`); return what it says. Raise KernelError where it says nothing."""
        program = files("stepper.kernel.ssh").joinpath("far.py").read_text("utf-8")
        shell = f"{self.where.setup}\nexec {shlex.quote(self.where.python)} -c {shlex.quote(READS)}"
        process = await asyncio.create_subprocess_exec(
            *self._command("-o", "ControlMaster=no", self.where.host, f"exec sh -c {shlex.quote(shell)}"),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        line = json.dumps({"program": program, "do": what, **told}).encode() + b"\n"
        try:
            said, wrong = await asyncio.wait_for(process.communicate(line), ASK_SECONDS)
        except asyncio.TimeoutError:
            raise KernelError(f"{self.where.host} did not answer within {ASK_SECONDS:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        answer = said.decode("utf-8", "replace").rpartition("stepper:")[2]  # a profile may print before it
        try:
            found: dict[str, Any] = json.loads(answer)
        except ValueError:
            why = _last(wrong) or _last(said) or f"ssh ended with {process.returncode}"
            raise KernelError(f"{self.where.host}: {why}", f"ssh {self.where.host} true") from None
        return found

    async def close(self) -> None:
        """End the master; its sockets go."""
        self.ports = []
        await self._leave()

    async def _leave(self) -> None:
        """End a master: this daemon's, or one that a former daemon left on the same socket."""
        if Path(self.control).exists():
            process = await asyncio.create_subprocess_exec(
                *self._command("-O", "exit", self.where.host),
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), ASK_SECONDS)
        if self.master is not None:
            with contextlib.suppress(ProcessLookupError):
                self.master.kill()
            await self.master.wait()
            self.master = None
        for path in (self.control, *(f"{self.sockets}-{number}" for number in range(1, 6))):
            Path(path).unlink(missing_ok=True)

    async def _why(self) -> str:
        if self.master is None or self.master.returncode is None or self.master.stderr is None:
            return f"{self.where.host} can't be reached by ssh within {UP_SECONDS:.0f} s"
        return f"{self.where.host}: {_last(await self.master.stderr.read()) or 'ssh ended'}"


def _last(data: bytes) -> str:
    """Return the last line that says something."""
    lines = [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    return one_line(lines[-1], 300) if lines else ""
