"""The process of a local kernel: sockets, signals, memory, and its death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import signal
import time
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil

from stepper.common import secure_files
from stepper.kernels.backends.local import kernel_files, process_identity
from stepper.kernels.backends.local.available_memory import OomKills, get_memory_usage
from stepper.kernels.backends.local.interrupt_targets import ProcessGroup
from stepper.kernels.backends.local.kernel_files import KernelFiles
from stepper.kernels.backends.local.process_identity import Identity
from stepper.kernels.error_parsing import ESCAPES
from stepper.kernels.kernel_process import describe_exit
from stepper.kernels.memory_guard import MemoryUsage
from stepper.kernels.process_tree import TABLE
from stepper.kernels.zmq_channels import Channels
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription

STDERR_CHARACTERS = 2000  # of the end of stderr, which are reported
STDERR_SIZE = 4 << 20  # bytes; a larger file is emptied
# The calls that faulthandler prints after a crash, innermost first. The outer calls are
# calls of ipykernel.
OUTER_CALLS = re.compile(
    r"((?:^  File .*\n){4})(?:^  File .*\n)+(?:\s*^Extension modules:.*\n?)?",
    re.MULTILINE,
)
# Used as the exit code of a process that is not a child: its exit code is unknown.
UNKNOWN_EXIT_CODE = 1 << 16
SAMPLE_SECONDS = 0.5
SAMPLE_CHARACTERS = 100_000
OUT_OF_MEMORY = ("killed by the system: out of memory (SIGKILL)", "OutOfMemory")


class LocalProcess:
    """A kernel's process, a child of this daemon or of an earlier one.

    `data` is the content of the kernel's record, and `runtime` the folder of its
    sockets. `child` is None if an earlier daemon started the process.
    """

    def __init__(
        self,
        data: dict[str, Any],
        identity: Identity,
        child: Popen[bytes] | None,
        files: KernelFiles,
        runtime: str,
    ) -> None:
        self.id = data["kernel"]
        self.identity = identity
        self.child = child
        self.files = files
        self.python: str = data["python"]
        # The command that installs ipykernel if stepper's copy is used.
        self.install_command = str(data.get("lacks", ""))
        self.runtime = runtime
        self.interrupts_by_message = data.get("interrupt") == "message"
        self.log_location = str(files.stderr)
        self.stack_path = str(files.stack)
        self.channels = Channels(data["connection"])
        self.oom_kills = OomKills(identity.pid)
        self.group = ProcessGroup(identity, files.earlier)
        self.death: Death | None = None
        # Whether all processes of the kernel were killed on request.
        self.is_killed = False
        self.disconnect_count = 0
        self.unreachable_reason = ""

    def describe(self) -> KernelDescription:
        """Return the kernel's interpreter and pid."""
        return KernelDescription(self.python, self.identity.pid, self.install_command)

    def prepare_run(self) -> None:
        """Record running processes, which an interrupt of the next cell will spare."""
        if not self.interrupts_by_message:
            self.group.record_earlier_processes()

    async def interrupt(self) -> None:
        """Interrupt the kernel and the processes that the cell has started.

        A kernel that is interrupted by a message must interrupt these processes itself.
        Processes with a reused pid or process group are never signalled.
        """
        if self.interrupts_by_message:
            self.channels.send_control("interrupt_request")
            return
        if not self.identity.is_running():
            return
        pid = self.identity.pid
        with contextlib.suppress(ProcessLookupError):
            # The kernel leads its process group, which exists as long as the kernel.
            if os.getpgid(pid) == pid:
                await self.group.interrupt()
            else:
                self.identity.send_signal(signal.SIGINT)

    async def kill(self) -> None:
        """Kill the kernel and all processes that it started."""
        await asyncio.to_thread(
            process_identity.kill_kernel_processes, self.id, self.identity
        )
        self.is_killed = True

    async def poll(self) -> Death | None:
        """Return how the kernel died, or None while it is running.

        If the kernel died, also kill the processes that it started.
        """
        if self.death is not None:
            return self.death
        if self._is_running():
            return None
        exit_code = self.child.returncode if self.child else UNKNOWN_EXIT_CODE
        may_be_oom = exit_code in (UNKNOWN_EXIT_CODE, -signal.SIGKILL)
        cause = ""
        if may_be_oom and self.oom_kills.has_increased():
            reason, cause = OUT_OF_MEMORY
        elif exit_code == UNKNOWN_EXIT_CODE:
            reason = "the kernel's process no longer exists"
        else:
            reason = describe_exit(exit_code)
        self.death = Death(reason, self.read_log_tail(), cause)
        if not self.is_killed:
            await asyncio.to_thread(process_identity.kill_kernel_processes, self.id)
        return self.death

    def _is_running(self) -> bool:
        """Return whether the kernel's process is running."""
        if self.child:
            return self.child.poll() is None
        return self.identity.is_running()

    async def sample_stacks(self) -> str:
        """Return the stacks of all threads in faulthandler's format.

        Return an empty string if the stacks are not available.
        """
        try:
            empty_flags = os.O_WRONLY | os.O_TRUNC
            os.close(secure_files.open_private(self.stack_path, empty_flags))
            self.identity.send_signal(signal.SIGURG)  # ignored without faulthandler
            deadline = time.monotonic() + SAMPLE_SECONDS
            size = 0
            while time.monotonic() < deadline:
                await asyncio.sleep(0.02)
                last_size = size
                size = self.files.stack.stat().st_size
                if size and size == last_size:
                    break
            text = secure_files.read(self.stack_path).decode("utf-8", "replace")
        except OSError:
            return ""
        return text[:SAMPLE_CHARACTERS]

    def read_log_tail(self) -> str:
        """Return the last lines of the kernel's stderr, without escape sequences.

        After a crash, the outer calls of the stack are left out.
        """
        try:
            data = secure_files.read(self.log_location)
        except OSError:
            return ""
        end = data[-4 * STDERR_CHARACTERS :]  # a character has at most four bytes
        text = ESCAPES.sub("", end.decode("utf-8", "replace"))
        text = OUTER_CALLS.sub(r"\1", text)
        return text.strip()[-STDERR_CHARACTERS:]

    def suggest_fix(self, death: Death) -> str:
        """Return the command that installs ipykernel, or an empty string.

        The command is returned if the kernel's stderr says that ipykernel is missing.
        """
        if "No module named" not in death.stderr or "ipykernel" not in death.stderr:
            return ""
        programs = Path(self.python).parent
        # The project is managed by uv.
        if (programs.parent.parent / "uv.lock").exists():
            return "uv add --dev ipykernel"
        python = shlex.quote(self.python)
        pip = f"{python} -m pip install ipykernel"
        folders = list(programs.parent.glob("lib*/python3*/*-packages"))
        if any((folder / "pip").is_dir() for folder in folders):
            return pip
        if shutil.which("uv"):
            return f"uv pip install --python {python} ipykernel"
        # If no packages folder exists, nothing is known about pip.
        if not folders:
            return pip
        return f"{python} -m ensurepip && {pip}"

    def measure_memory(self) -> int:
        """Return the resident memory of the kernel and its descendants, in bytes."""
        if not self.identity.is_running():
            return 0
        total = 0
        for pid in TABLE.list_family(self.identity.pid):
            with contextlib.suppress(psutil.Error):  # the process has exited
                total += psutil.Process(pid).memory_info().rss
        return total

    def get_memory_usage(self) -> MemoryUsage:
        """Return the memory usage of the machine or of the kernel's fullest cgroup."""
        return get_memory_usage(self.identity.pid)

    def reset_oom_count(self) -> None:
        """Ignore the out-of-memory kills that have happened so far."""
        self.oom_kills.reset()

    def trim_log(self) -> None:
        """Empty the file with the kernel's stderr if it is too large."""
        with contextlib.suppress(OSError):
            if self.files.stderr.stat().st_size > STDERR_SIZE:
                os.truncate(self.files.stderr, 0)

    def remove_record(self) -> None:
        """Remove the sockets and the record of a kernel that has exited."""
        kernel_files.remove_sockets(self.runtime, self.id)
        self.files.remove()
