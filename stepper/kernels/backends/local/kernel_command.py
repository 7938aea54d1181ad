"""The command that starts a local kernel, and a function that executes the command.

jupyter_client's kernel manager is not used: importing it takes half as long as starting
a kernel, and it cannot manage a process that another daemon started.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from subprocess import DEVNULL, Popen
from typing import IO, Any

from stepper.common import secure_files
from stepper.kernels.backends.local import available_memory
from stepper.kernels.backends.local.kernel_files import get_socket_path
from stepper.kernels.backends.local.process_identity import MARKER
from stepper.session.protocols import LaunchConfig

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
# Runs ipykernel_launcher without the notebook's folder on the path, because the folder
# may contain modules with the same names. The launcher adds the folder for the cells.
START = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); {}import runpy;"
    " runpy.run_module('ipykernel_launcher', run_name='__main__', alter_sys=True)"
)
# Adds the last folder of the path, so that the project's own packages come first.
ADD_BUNDLED_IPYKERNEL = "sys.path.append({!r} + '%d.%d' % sys.version_info[:2]); "
PARENT_PID = "JPY_PARENT_PID"  # an ipykernel exits with this process
# These variables belong to another Python, to another kernel, or to a test run. In a
# test run, ipykernel does not capture the output of child processes.
REMOVED_VARIABLES = ("PYTHONEXECUTABLE", PARENT_PID, "PYTEST_CURRENT_TEST")
# The history is kept in memory: the lock of a history file blocks kernels on network
# file systems, and an agent's cells do not belong in the user's history.
ARGUMENTS = ("--HistoryManager.hist_file=:memory:", "-f")


@dataclass(frozen=True)
class KernelCommand:
    """The command that starts a kernel, with its connection and environment.

    `connection` contains the fields of the connection file except the key.
    """

    argv: Sequence[str]
    connection: Mapping[str, Any]
    environ: Mapping[str, str]
    kernel_name: str = "python3"
    # `message` if the kernel must be interrupted by a message instead of a signal.
    interrupt_mode: str = ""


def get_connection_file(runtime: str, kernel_id: str) -> str:
    """Return the path of a kernel's connection file."""
    return f"{get_socket_path(runtime, kernel_id)}.json"


def remove_foreign_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without variables that a kernel must not inherit."""
    return {
        name: value for name, value in environ.items() if name not in REMOVED_VARIABLES
    }


def build_ipykernel_command(
    config: LaunchConfig, kernel_id: str, runtime: str, bundled_ipykernel: str
) -> KernelCommand:
    """Return the command that starts ipykernel with Unix sockets.

    `bundled_ipykernel` is the path of stepper's copies of ipykernel without the Python
    version at its end. If it is empty, the interpreter uses its own ipykernel.
    """
    ports = {f"{name}_port": number for number, name in enumerate(CHANNELS, 1)}
    sockets = get_socket_path(runtime, kernel_id)
    connection = {**ports, "transport": "ipc", "ip": sockets}
    add_path = ""
    if bundled_ipykernel:
        add_path = ADD_BUNDLED_IPYKERNEL.format(bundled_ipykernel)
    code = START.format(add_path)
    connection_file = get_connection_file(runtime, kernel_id)
    argv = [config.python, "-c", code, *ARGUMENTS, connection_file]
    return KernelCommand(argv, connection, remove_foreign_variables(config.environ))


def start_process(
    command: KernelCommand,
    config: LaunchConfig,
    kernel_id: str,
    runtime: str,
    stderr: IO[bytes],
) -> tuple[Popen[bytes], dict[str, Any]]:
    """Start a kernel's process, and return the process and its connection.

    Also write the connection file. The process is the leader of a new POSIX session and
    keeps running when the daemon exits, unless `config.exits_with_daemon` is true. If
    memory runs out, Linux kills this process before others. Raise OSError if the file
    cannot be written or the process cannot be started.
    """
    connection = {
        **command.connection,
        "key": secrets.token_hex(32),
        "signature_scheme": "hmac-sha256",
    }
    # JupyterLab requires the name.
    content = {**connection, "kernel_name": command.kernel_name}
    connection_file = get_connection_file(runtime, kernel_id)
    secure_files.replace(connection_file, json.dumps(content).encode())
    kernel_environ = {**command.environ, MARKER: kernel_id}
    if config.exits_with_daemon:
        kernel_environ[PARENT_PID] = str(os.getpid())
    process = Popen(
        command.argv,
        stdin=DEVNULL,
        stdout=stderr,
        stderr=stderr,
        cwd=config.cwd,
        env=kernel_environ,
        start_new_session=True,
    )
    available_memory.raise_oom_score(process.pid)
    return process, connection
