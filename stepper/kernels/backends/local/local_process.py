"""What this machine offers of one kernel: its sockets, signals, memory, what runs in it, how it died."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import time
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil

from stepper.common import private_files
from stepper.kernels.backend_protocols import Usage
from stepper.kernels.backends.local import launch, process_identity
from stepper.kernels.backends.local.launch import Files
from stepper.kernels.backends.local.memory import OomKills, usage
from stepper.kernels.backends.local.process_group import ProcessGroup
from stepper.kernels.backends.local.process_identity import Identity
from stepper.kernels.error_parsing import ESCAPES
from stepper.kernels.process_tree import TABLE
from stepper.kernels.zmq_channels import Channels
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription

# told of what the process wrote; kept of it
STDERR_CHARACTERS, STDERR_BYTES = 2000, 4 << 20
# What faulthandler writes of a crash, innermost call first: the outer ones are the
# kernel's own.
OUTER_CALLS = re.compile(
    r"((?:^  File .*\n){4})(?:^  File .*\n)+(?:\s*^Extension modules:.*\n?)?",
    re.MULTILINE,
)
GONE = 1 << 16  # the exit code of a process that is not our child: no one can know it
SAMPLE_SECONDS, SAMPLE_CHARACTERS = 0.5, 100_000
OUT_OF_MEMORY = "killed by the system: out of memory (SIGKILL)", "OutOfMemory"


class LocalProcess:
    """A kernel's process on this machine, our child or a former daemon's, reached by sockets that are files or ports.

    `told` is its record.
    """

    def __init__(
        self,
        told: dict[str, Any],
        identity: Identity,
        child: Popen[bytes] | None,
        files: Files,
        runtime: str,
    ) -> None:
        self.id, self.identity, self.child, self.files = (
            told["kernel"],
            identity,
            child,
            files,
        )
        self.python: str = told["python"]
        self.lacks = str(told.get("lacks", ""))
        # where its connection file lies, and its sockets where they are files
        self.runtime = runtime
        self.by_message = told.get("interrupt") == "message"
        self.log, self.stack = str(files.stderr), str(files.stack)
        self.channels = Channels(told["connection"])
        self.oom_kills = OomKills(identity.pid)
        self.group = ProcessGroup(identity, files.earlier)
        self.ended: Death | None = None
        self.cuts, self.away = 0, ""

    def describe(self) -> KernelDescription:
        """Return what it is: its interpreter and its process."""
        return KernelDescription(self.python, self.identity.pid, self.lacks)

    def begin(self) -> None:
        """A run begins: what earlier cells started is not its to interrupt."""
        if not self.by_message:
            self.group.begin()

    async def interrupt(self) -> None:
        """Interrupt it with what the run started in its process group.

        Never a pid or a group that others have taken, nor processes of earlier cells.
        """
        if self.by_message:
            self.channels.send_control("interrupt_request")
        elif self.identity.alive():
            with contextlib.suppress(ProcessLookupError):
                # It leads a group of its own, which is there as long as it is.
                if os.getpgid(self.identity.pid) == self.identity.pid:
                    await self.group.interrupt()
                else:
                    self.identity.send(signal.SIGINT)

    async def kill(self) -> None:
        """Kill it with its process tree."""
        await asyncio.to_thread(process_identity.clear, self.id, self.identity)

    async def death(self) -> Death | None:
        """Return how it ended, or None while it lives. What it started goes with it."""
        if self.ended is None:
            if self.child.poll() is None if self.child else self.identity.alive():
                return None
            code, cause = self.child.returncode if self.child else GONE, ""
            if code in (GONE, -signal.SIGKILL) and self.oom_kills.any():
                how, cause = OUT_OF_MEMORY
            elif code == GONE:
                how = "its process is gone"
            else:
                how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self.ended = Death(how, self.last_words(), cause)
            await asyncio.to_thread(process_identity.clear, self.id)
        return self.ended

    async def sample(self) -> str:
        """Return the stacks of its threads as faulthandler writes them; '' where it can't be asked."""
        try:
            os.close(private_files.open_private(self.stack, os.O_WRONLY | os.O_TRUNC))
            self.identity.send(signal.SIGURG)  # harmless unasked
            until, size = time.monotonic() + SAMPLE_SECONDS, 0
            while time.monotonic() < until:
                await asyncio.sleep(0.02)
                before, size = size, self.files.stack.stat().st_size
                if size and size == before:  # all of it is written
                    break
            return private_files.read(self.stack).decode("utf-8", "replace")[
                :SAMPLE_CHARACTERS
            ]
        except OSError:
            return ""

    def last_words(self) -> str:
        """Return the last lines that it wrote to stderr, without escapes."""
        try:
            data = private_files.read(self.log)[-STDERR_CHARACTERS * 4 :]
        except OSError:
            return ""
        text = OUTER_CALLS.sub(r"\1", ESCAPES.sub("", data.decode("utf-8", "replace")))
        return text.strip()[-STDERR_CHARACTERS:]

    def suggest_fix(self, death: Death) -> str:
        """Return the command that adds ipykernel where it died for want of it, '' for none."""
        if "No module named" not in death.stderr or "ipykernel" not in death.stderr:
            return ""
        programs = Path(self.python).parent
        if (programs.parent.parent / "uv.lock").exists():
            return "uv add --dev ipykernel"
        by_pip = f"{self.python} -m pip install ipykernel"
        packages = list(programs.parent.glob("lib*/python3*/*-packages"))
        if any((folder / "pip").is_dir() for folder in packages):
            return by_pip
        if shutil.which("uv"):
            return f"uv pip install --python {self.python} ipykernel"
        # Where the packages are not found, whether pip is there is not known.
        return f"{self.python} -m ensurepip && {by_pip}" if packages else by_pip

    def memory(self) -> int:
        """Return the resident memory of its process and its descendants in bytes, orphans left out."""
        if not self.identity.alive():
            return 0
        total = 0
        for pid in TABLE.list_family(self.identity.pid):
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                total += psutil.Process(pid).memory_info().rss
        return total

    def usage(self) -> Usage:
        """Return how full this machine is, or the tightest of its cgroups."""
        return usage(self.identity.pid)

    def rest(self) -> None:
        """A run begins or is over: what it starts may be killed for want of memory."""
        self.oom_kills.forget()

    def trim(self) -> None:
        """Keep the file of what it wrote to stderr small."""
        with contextlib.suppress(OSError):
            if self.files.stderr.stat().st_size > STDERR_BYTES:
                os.truncate(self.files.stderr, 0)

    def forget(self) -> None:
        """Remove its sockets and its record: it is gone."""
        launch.clear_files(self.runtime, self.id)
        self.files.forget()
