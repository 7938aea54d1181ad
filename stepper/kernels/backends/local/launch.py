"""A kernel's process is started, before anything is loaded that talks to it; its files on this machine.

jupyter_client's manager and provisioner would start and watch it, but loading them takes as long as half a kernel's
start, and they can't watch a process that another daemon started.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import IO, TYPE_CHECKING, Any

from stepper.common import private_files
from stepper.kernels.backends.local import memory
from stepper.kernels.backends.local.process_identity import MARKER
from stepper.session.protocols import LaunchConfig

if TYPE_CHECKING:
    from stepper.kernels.backends.local.kernelspecs import Spec

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
# As `-m ipykernel_launcher`, which would take that and what it needs from the
# notebook's own folder, where a stranger
# may have put modules of those names. What the launcher starts puts the folder on the
# path for the cells.
START = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); {}import runpy;"
    " runpy.run_module('ipykernel_launcher', run_name='__main__', alter_sys=True)"
)
# Behind all that the interpreter has: what the project holds of it in other versions is
# what is imported.
WITH_COPY = "sys.path.append({!r} + '%d.%d' % sys.version_info[:2]); "
# What says of another Python where it lies, of another kernel whose end is its own, of
# tests in which ipykernel would
# not read what children write.
TIED = "JPY_PARENT_PID"  # the process whose end ends an ipykernel
NOT_ITS_OWN = ("PYTHONEXECUTABLE", TIED, "PYTEST_CURRENT_TEST")
# No history file: on network homes its lock hangs kernels, and an agent's cells are no
# person's history.
ARGUMENTS = ("--HistoryManager.hist_file=:memory:", "-f")


class Files:
    """What is kept of a kernel on disk: its record, what it writes to stderr, where it writes what runs when asked."""

    def __init__(self, record: str) -> None:
        self.record = Path(record)
        self.stderr, self.stack = (
            self.record.with_suffix(".stderr"),
            self.record.with_suffix(".stack"),
        )
        # the processes that were there before its last cell, while there are any
        self.earlier = self.record.with_suffix(".earlier")

    def note(self, told: Mapping[str, Any]) -> None:
        """Write the record: whole, or not at all."""
        private_files.replace(str(self.record), json.dumps(told).encode())

    def forget(self) -> None:
        """Remove the record of a kernel that is gone."""
        private_files.remove(str(self.record))
        private_files.remove(str(self.stack))
        private_files.remove(str(self.earlier))


def socket_path(runtime: str, kernel: str) -> str:
    """Return what the paths of a kernel's sockets begin with; `-1` to `-5` follow."""
    return os.path.join(runtime, f"k{kernel[:8]}")


def launch(
    place: LaunchConfig,
    kernel: str,
    runtime: str,
    stderr: IO[bytes],
    copy: str = "",
    spec: Spec | None = None,
) -> tuple[Popen[bytes], dict[str, Any]]:
    """Start a kernel's process, the first to go where memory runs out; return it and how it is reached. Raise OSError.

    It leads a session of its own, to live on when the daemon dies. `copy` is that of `place`, where it is needed; what
    a kernelspec starts is told the ports of this machine: few languages' kernels know sockets that are files.
    """
    ip = socket_path(runtime, kernel)
    connection: dict[str, Any] = {
        f"{name}_port": number for number, name in enumerate(CHANNELS, 1)
    }
    connection |= {"transport": "ipc", "ip": ip}
    file = f"{ip}.json"
    environ: Mapping[str, str] = {
        name: told for name, told in place.environ.items() if name not in NOT_ITS_OWN
    }
    if spec is None:
        command = [
            place.python,
            "-c",
            START.format(WITH_COPY.format(copy) if copy else ""),
            *ARGUMENTS,
            file,
        ]
    else:
        from stepper.kernels.backends.local import kernelspecs

        connection = kernelspecs.loopback(CHANNELS)
        command, environ = spec.command(file, place.python), spec.environ(environ)
    connection |= {"key": secrets.token_hex(32), "signature_scheme": "hmac-sha256"}
    told = {
        **connection,
        "kernel_name": spec.name if spec else "python3",
    }  # JupyterLab wants it
    private_files.replace(file, json.dumps(told).encode())
    child = Popen(
        command,
        stdin=DEVNULL,
        stdout=stderr,
        stderr=stderr,
        cwd=place.cwd,
        env={
            **environ,
            MARKER: kernel,
            **({TIED: str(os.getpid())} if place.exits_with_daemon else {}),
        },
        start_new_session=True,
    )
    memory.first_to_go(child.pid)
    return child, connection


def clear_files(runtime: str, kernel: str) -> None:
    """Remove the sockets and the connection file of a kernel that is gone."""
    # with what a daemon that was killed had begun to write
    for path in Path(runtime).glob(f"*k{kernel[:8]}*"):
        path.unlink(missing_ok=True)
