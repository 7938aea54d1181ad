"""The process of a kernel on this machine: sockets, signals, memory, and its death."""

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

from stepper.common import secure_files
from stepper.kernels.backends.local import kernel_files, process_identity
from stepper.kernels.backends.local.available_memory import OomKills, usage
from stepper.kernels.backends.local.interrupted_processes import ProcessGroup
from stepper.kernels.backends.local.kernel_files import KernelFiles
from stepper.kernels.backends.local.process_identity import Identity
from stepper.kernels.error_parsing import ESCAPES
from stepper.kernels.memory_guard import Usage
from stepper.kernels.process_tree import TABLE
from stepper.kernels.zmq_channels import Channels
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription

STDERR_CHARACTERS = 2000  # that are reported
STDERR_SIZE = 4 << 20  # bytes that are kept
# What faulthandler writes of a crash, innermost call first. The outer calls are those
# of ipykernel.
OUTER_CALLS = re.compile(
    r"((?:^  File .*\n){4})(?:^  File .*\n)+(?:\s*^Extension modules:.*\n?)?",
    re.MULTILINE,
)
# The exit code of a process that is not a child, which is not known.
UNKNOWN_EXIT_CODE = 1 << 16
SAMPLE_SECONDS = 0.5
SAMPLE_CHARACTERS = 100_000
OUT_OF_MEMORY = ("killed by the system: out of memory (SIGKILL)", "OutOfMemory")


class LocalProcess:
    """A kernel's process, a child of this daemon or of an earlier one."""

    def __init__(
        self,
        data: dict[str, Any],
        identity: Identity,
        child: Popen[bytes] | None,
        files: KernelFiles,
        runtime: str,
    ) -> None:
        """`data` is the content of the record, `runtime` the folder of its sockets."""
        self.id = data["kernel"]
        self.identity = identity
        self.child = child
        self.files = files
        self.python: str = data["python"]
        # The command that installs ipykernel if stepper's copy is used.
        self.install_command = str(data.get("lacks", ""))
        self.runtime = runtime
        self.interrupts_by_message = data.get("interrupt") == "message"
        self.log = str(files.stderr)
        self.stack = str(files.stack)
        self.channels = Channels(data["connection"])
        self.oom_kills = OomKills(identity.pid)
        self.group = ProcessGroup(identity, files.earlier)
        self.ended: Death | None = None
        self.cuts = 0
        self.away = ""

    def describe(self) -> KernelDescription:
        """Return its interpreter and its process id."""
        return KernelDescription(self.python, self.identity.pid, self.install_command)

    def begin(self) -> None:
        """Prepare a run: an interrupt spares what earlier cells started."""
        if not self.interrupts_by_message:
            self.group.begin()

    async def interrupt(self) -> None:
        """Interrupt the kernel and the processes in its group that the run started.

        A reused pid or process group is never signalled.
        """
        if self.interrupts_by_message:
            self.channels.send_control("interrupt_request")
            return
        if not self.identity.alive():
            return
        pid = self.identity.pid
        with contextlib.suppress(ProcessLookupError):
            # It leads its process group, which exists as long as it does.
            if os.getpgid(pid) == pid:
                await self.group.interrupt()
            else:
                self.identity.send(signal.SIGINT)

    async def kill(self) -> None:
        """Kill the kernel and all processes that it started."""
        await asyncio.to_thread(process_identity.clear, self.id, self.identity)

    async def death(self) -> Death | None:
        """Return how the kernel died, or None while it is running.

        The processes that a dead kernel has started are killed.
        """
        if self.ended is not None:
            return self.ended
        if self._is_running():
            return None
        exit_code = self.child.returncode if self.child else UNKNOWN_EXIT_CODE
        may_be_oom = exit_code in (UNKNOWN_EXIT_CODE, -signal.SIGKILL)
        cause = ""
        if may_be_oom and self.oom_kills.any():
            reason, cause = OUT_OF_MEMORY
        elif exit_code == UNKNOWN_EXIT_CODE:
            reason = "its process does not exist any more"
        elif exit_code < 0:
            reason = signal.Signals(-exit_code).name
        else:
            reason = f"exit code {exit_code}"
        self.ended = Death(reason, self.last_words(), cause)
        await asyncio.to_thread(process_identity.clear, self.id)
        return self.ended

    def _is_running(self) -> bool:
        if self.child:
            return self.child.poll() is None
        return self.identity.alive()

    async def sample(self) -> str:
        """Return the stacks of all threads as faulthandler writes them, or ''."""
        try:
            os.close(secure_files.open_private(self.stack, os.O_WRONLY | os.O_TRUNC))
            self.identity.send(signal.SIGURG)  # ignored without faulthandler
            deadline = time.monotonic() + SAMPLE_SECONDS
            size = 0
            while time.monotonic() < deadline:
                await asyncio.sleep(0.02)
                last_size = size
                size = self.files.stack.stat().st_size
                if size and size == last_size:
                    break
            text = secure_files.read(self.stack).decode("utf-8", "replace")
        except OSError:
            return ""
        return text[:SAMPLE_CHARACTERS]

    def last_words(self) -> str:
        """Return the last lines of its stderr, without escapes."""
        try:
            data = secure_files.read(self.log)
        except OSError:
            return ""
        end = data[-4 * STDERR_CHARACTERS :]  # a character has at most four bytes
        text = ESCAPES.sub("", end.decode("utf-8", "replace"))
        text = OUTER_CALLS.sub(r"\1", text)
        return text.strip()[-STDERR_CHARACTERS:]

    def suggest_fix(self, death: Death) -> str:
        """Return the command that installs ipykernel if it is missing, or ''."""
        if "No module named" not in death.stderr or "ipykernel" not in death.stderr:
            return ""
        programs = Path(self.python).parent
        if (programs.parent.parent / "uv.lock").exists():
            return "uv add --dev ipykernel"
        pip = f"{self.python} -m pip install ipykernel"
        folders = list(programs.parent.glob("lib*/python3*/*-packages"))
        if any((folder / "pip").is_dir() for folder in folders):
            return pip
        if shutil.which("uv"):
            return f"uv pip install --python {self.python} ipykernel"
        # Without a packages folder, it is not known whether pip exists.
        if not folders:
            return pip
        return f"{self.python} -m ensurepip && {pip}"

    def memory(self) -> int:
        """Return the resident memory of the kernel and its descendants, in bytes."""
        if not self.identity.alive():
            return 0
        total = 0
        for pid in TABLE.list_family(self.identity.pid):
            with contextlib.suppress(psutil.Error):  # the process has exited
                total += psutil.Process(pid).memory_info().rss
        return total

    def usage(self) -> Usage:
        """Return the memory use of the machine, or of its tightest cgroup."""
        return usage(self.identity.pid)

    def rest(self) -> None:
        """Forget the present out-of-memory count, because a run begins or is over."""
        self.oom_kills.forget()

    def trim(self) -> None:
        """Limit the size of the file with its stderr."""
        with contextlib.suppress(OSError):
            if self.files.stderr.stat().st_size > STDERR_SIZE:
                os.truncate(self.files.stderr, 0)

    def forget(self) -> None:
        """Remove the sockets and the record of a kernel that has exited."""
        kernel_files.remove_sockets(self.runtime, self.id)
        self.files.forget()
