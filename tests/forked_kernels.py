"""Local kernels that start without imports: forks of a process that has imported ipykernel.

A start of ipykernel takes 0.7 s of CPU time, nearly all of it for imports, and the tests
start about a thousand kernels. A fork executes the same command with the same folder,
environment and files, in a session of its own, and /proc shows the same arguments and
environment. The order of a set of strings is the same in all forks: tests of the order,
of starts and of imports use the fixture `spawned_kernels`. A kernel with another
interpreter is spawned, unless `start_server` was called for the interpreter.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from stepper.kernels.backends.local import kernel_command

SCRIPT = (
    "import sys; server = {{}}; exec(open({path!r}).read(), server);"
    " server['serve'](int(sys.argv[1]))"
)
# Room for the arguments and the environment of a kernel, as /proc shows them.
ARGUMENT_ROOM = 20_000
ENVIRONMENT_ROOM = 60_000
# Variables that take effect at the start of an interpreter.
START_PREFIXES = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")


class ForkServers:
    """Processes that fork kernels, one for each interpreter, and their sockets."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="kernel-forks-")
        # A test may change the environment after a server has started.
        self.environ = dict(os.environ)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, python: str) -> None:
        """Start a process with this interpreter if there is none."""
        if python in self.processes:
            return
        script_path = str(Path(__file__).with_name("kernel_fork_server.py"))
        script = SCRIPT.format(path=script_path)
        environ = {**self.environ, "ROOM": "-" * ENVIRONMENT_ROOM}
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(get_socket_path(self.folder, python))
            listener.listen(64)
            number = str(listener.fileno())
            self.processes[python] = subprocess.Popen(
                [python, "-c", script, number, "-" * ARGUMENT_ROOM],
                pass_fds=[listener.fileno()],
                env=environ,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # debugpy's warning on frozen modules
            )

    def close(self) -> None:
        """Stop the processes. Their kernels continue to run."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Address(NamedTuple):
    """The folder of the sockets, and the variables with which servers were started."""

    folder: str
    variables: Mapping[str, str]


def get_socket_path(folder: str, python: str) -> str:
    """Return the path of the socket of an interpreter's process."""
    return os.path.join(folder, hashlib.sha256(os.fsencode(python)).hexdigest()[:12])


@functools.cache
def create_servers(pid: int) -> ForkServers:
    """Create the servers of this process, whose pid is `pid`."""
    servers = ForkServers()
    servers.start(sys.executable)
    atexit.register(servers.close)
    return servers


def start_server(python: str) -> None:
    """Start a server for another interpreter that has ipykernel, if kernels are forked."""
    if kernel_command.Popen is not subprocess.Popen:
        create_servers(os.getpid()).start(python)


def select_start_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that take effect at the start of an interpreter."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(START_PREFIXES)
    }


def receive_number(connection: socket.socket) -> int:
    """Receive a number of 8 bytes; raise EOFError if the server exited."""
    data = b""
    while len(data) < 8:
        part = connection.recv(8 - len(data))
        if not part:
            raise EOFError("the server that forks kernels closed the connection")
        data += part
    return int.from_bytes(data, "big", signed=True)


class ForkedKernel:
    """The process of a kernel, with the part of Popen that stepper uses."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the kernel is running."""
        if self.returncode is None and select.select([self.connection], [], [], 0)[0]:
            self.returncode = receive_number(self.connection)
            self.connection.close()
        return self.returncode


def fork_kernel(
    socket_path: str,
    argv: Sequence[str],
    stdout: IO[bytes],
    cwd: str,
    env: Mapping[str, str],
) -> ForkedKernel:
    """Have the server fork a kernel; raise OSError if the folder cannot be entered."""
    if not os.access(cwd, os.X_OK):
        raise FileNotFoundError(2, os.strerror(2), cwd)
    umask = os.umask(0o077)
    os.umask(umask)
    request = json.dumps(
        {"argv": argv, "cwd": cwd, "environ": dict(env), "umask": umask}
    ).encode("utf-8", "surrogateescape")
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(socket_path)
    size = len(request).to_bytes(8, "big")
    socket.send_fds(connection, [size], [stdout.fileno(), stdout.fileno()])
    connection.sendall(request)
    return ForkedKernel(connection, receive_number(connection))


def get_address() -> Address | None:
    """Return the servers of this process, or None if kernels are spawned."""
    if kernel_command.Popen is subprocess.Popen:
        return None
    servers = create_servers(os.getpid())
    return Address(servers.folder, select_start_variables(servers.environ))


def spawn_kernels() -> None:
    """Make stepper start the kernels of this process as it does for users."""
    kernel_command.Popen = subprocess.Popen  # type: ignore[misc]


def fork_kernels(address: Address | None = None) -> None:
    """Make stepper fork the kernels of this process.

    `address` names the servers of another process, which are used instead of new ones.
    """

    def popen(argv: Sequence[str], **options: Any) -> Any:
        servers = address or get_address()
        assert servers is not None
        environ = options["env"]
        socket_path = get_socket_path(servers.folder, argv[0])
        is_same_start = select_start_variables(environ) == servers.variables
        if (
            is_same_start
            and argv[1] == "-c"
            and kernel_command.PARENT_PID not in environ
            and os.path.exists(socket_path)
        ):
            # The server starts every kernel like this.
            assert options["stdin"] == subprocess.DEVNULL
            assert options["stderr"] is options["stdout"]
            assert options["start_new_session"]
            cwd = options["cwd"]
            return fork_kernel(socket_path, argv, options["stdout"], cwd, environ)
        return subprocess.Popen(argv, **options)

    kernel_command.Popen = popen  # type: ignore[assignment,misc]
