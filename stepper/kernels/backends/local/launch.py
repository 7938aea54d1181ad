"""Launches a kernel's process, and lists the files of a kernel on this machine.

jupyter_client's kernel manager could do this, but importing it takes half as long as
the start of a kernel, and it cannot manage a process that another daemon started.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import IO, TYPE_CHECKING, Any

from stepper.common import secure_files
from stepper.kernels.backends.local import memory_limits
from stepper.kernels.backends.local.process_identity import MARKER
from stepper.session.protocols import LaunchConfig

if TYPE_CHECKING:
    from stepper.kernels.backends.local.kernelspecs import Spec

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
# Like `-m ipykernel_launcher`, but without the notebook's folder on the path, where
# another person may have put modules of these names. The launcher adds that folder for
# the cells.
START = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); {}import runpy;"
    " runpy.run_module('ipykernel_launcher', run_name='__main__', alter_sys=True)"
)
# The last folder on the path: the project's own versions of packages come first.
ADD_BUNDLED_IPYKERNEL = "sys.path.append({!r} + '%d.%d' % sys.version_info[:2]); "
PARENT_PID = "JPY_PARENT_PID"  # an ipykernel exits with this process
# Variables that belong to another Python, to another kernel, or to a test run, in which
# ipykernel would not capture the output of child processes.
REMOVED_VARIABLES = ("PYTHONEXECUTABLE", PARENT_PID, "PYTEST_CURRENT_TEST")
# Without a history file: its lock blocks kernels on network file systems, and an
# agent's cells do not belong in the user's history.
ARGUMENTS = ("--HistoryManager.hist_file=:memory:", "-f")


class Files:
    """The files of a kernel: its record, its stderr and its stack samples."""

    def __init__(self, record: str) -> None:
        self.record = Path(record)
        self.stderr = self.record.with_suffix(".stderr")
        self.stack = self.record.with_suffix(".stack")
        # The processes before its last cell, if there are any.
        self.earlier = self.record.with_suffix(".earlier")

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Replace the record atomically."""
        secure_files.replace(str(self.record), json.dumps(record).encode())

    def forget(self) -> None:
        """Remove the files of a kernel that has exited, except its stderr."""
        secure_files.remove(str(self.record))
        secure_files.remove(str(self.stack))
        secure_files.remove(str(self.earlier))


def socket_path(runtime: str, kernel_id: str) -> str:
    """Return the beginning of the paths of a kernel's sockets; `-1` to `-5` follow."""
    return os.path.join(runtime, f"k{kernel_id[:8]}")


def launch(
    config: LaunchConfig,
    kernel_id: str,
    runtime: str,
    stderr: IO[bytes],
    bundled_ipykernel: str = "",
    spec: Spec | None = None,
) -> tuple[Popen[bytes], dict[str, Any]]:
    """Start a kernel's process; return it and its connection. Raise OSError.

    It leads a session of its own, so that it survives the daemon. If memory runs out,
    the system kills it first. `bundled_ipykernel` is that of `config`, if it is needed.
    The kernel of a kernelspec gets TCP ports, because few languages' kernels support
    Unix sockets.
    """
    environ: Mapping[str, str] = {
        name: value
        for name, value in config.environ.items()
        if name not in REMOVED_VARIABLES
    }
    ip = socket_path(runtime, kernel_id)
    connection_file = f"{ip}.json"
    if spec is None:
        ports = {f"{name}_port": number for number, name in enumerate(CHANNELS, 1)}
        connection: dict[str, Any] = {**ports, "transport": "ipc", "ip": ip}
        add_path = ""
        if bundled_ipykernel:
            add_path = ADD_BUNDLED_IPYKERNEL.format(bundled_ipykernel)
        code = START.format(add_path)
        command = [config.python, "-c", code, *ARGUMENTS, connection_file]
    else:
        from stepper.kernels.backends.local import kernelspecs

        connection = kernelspecs.create_tcp_connection(CHANNELS)
        command = spec.build_command(connection_file, config.python)
        environ = spec.build_environ(environ)
    connection["key"] = secrets.token_hex(32)
    connection["signature_scheme"] = "hmac-sha256"
    # JupyterLab requires the name.
    kernel_name = spec.name if spec else "python3"
    content = {**connection, "kernel_name": kernel_name}
    secure_files.replace(connection_file, json.dumps(content).encode())
    kernel_environ = {**environ, MARKER: kernel_id}
    if config.exits_with_daemon:
        kernel_environ[PARENT_PID] = str(os.getpid())
    process = Popen(
        command,
        stdin=DEVNULL,
        stdout=stderr,
        stderr=stderr,
        cwd=config.cwd,
        env=kernel_environ,
        start_new_session=True,
    )
    memory_limits.kill_first(process.pid)
    return process, connection


def clear_files(runtime: str, kernel_id: str) -> None:
    """Remove the sockets and the connection file of a kernel that has exited."""
    # Also the unfinished files of a daemon that was killed.
    for path in Path(runtime).glob(f"*k{kernel_id[:8]}*"):
        path.unlink(missing_ok=True)
