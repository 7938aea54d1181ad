"""Run the command line in forks of one process that has already imported it.

A fork executes the same `main` with the caller's folder, environment, umask and
arguments. This saves the 0.2 s that Python needs to start and import, in thousands of
calls. A daemon that such a command starts is a fork too. The start of real processes
is tested by test_costs.py, test_install.py, test_processes.py, the hook tests and the
tests with the real client.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests import forked_kernels

CompletedCommand = subprocess.CompletedProcess[str]
IMPORTED = (
    *(
        "stepper.cli.main",
        "stepper.cli.rendering",
        "stepper.messages.run_report",
        "stepper.cli.shutdown",
    ),  # modules that most commands load
    *(
        "stepper.hook.daemon_start",
        "stepper.daemon.server",
        "nbformat",
        "jsonschema",
        "jupyter_client",
    ),  # … and each daemon
)


class ForkServer:
    """The process that has imported the package, and the socket for fork requests."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="nursery")
        self.path = os.path.join(self.folder, "s")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path)
            listener.listen(64)
            script = (
                "import sys, tests.forked_cli; tests.forked_cli.serve(int(sys.argv[1]))"
            )
            self.process = subprocess.Popen(
                [sys.executable, "-c", script, str(listener.fileno())],
                pass_fds=[listener.fileno()],
                cwd=Path(__file__).parent.parent,
                stdin=subprocess.DEVNULL,
            )

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@functools.cache
def get_fork_server(pid: int) -> ForkServer:
    """Return the fork server of this process; a fork of it has another pid."""
    get_fork_server = ForkServer()
    atexit.register(get_fork_server.close)
    return get_fork_server


def run(
    arguments: list[str], cwd: Path, timeout: float, daemons: bool = True
) -> CompletedCommand:
    """Run `stepper` like `subprocess.run(…, capture_output=True, text=True)`.

    With `daemons=False`, a daemon that it starts is a new Python process, whose
    command line is that of a daemon.
    """
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(get_fork_server(os.getpid()).path)
        pipes = [os.pipe(), os.pipe()]
        os.umask(umask := os.umask(0o077))
        about = json.dumps(
            {
                "argv": arguments,
                "cwd": str(cwd),
                "environ": dict(os.environ),
                "umask": umask,
                "daemons": daemons,
                "kernels": forked_kernels.get_address(),
            }
        )
        try:
            socket.send_fds(
                link, [len(about).to_bytes(8, "big")], [write for _, write in pipes]
            )
            link.sendall(about.encode("utf-8", "surrogateescape"))
        finally:
            for _, write in pipes:
                os.close(write)
        pid = int.from_bytes(link.recv(8), "big")
        messages = ["", ""]
        readers = [
            threading.Thread(target=read, args=(messages, n, pipes[n][0]), daemon=True)
            for n in (0, 1)
        ]
        for reader in readers:
            reader.start()
        link.settimeout(timeout)
        try:
            code = link.recv(8)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(["stepper", *arguments], timeout) from None
        for reader in readers:
            reader.join(timeout)
    return subprocess.CompletedProcess(
        ["stepper", *arguments], int.from_bytes(code, "big", signed=True), *messages
    )


def read(message: list[str], number: int, pipe: int) -> None:
    with open(pipe, encoding="utf-8") as stream:
        message[number] = stream.read()


# --- in the process that has imported the package -------------------------------------


def serve(listener: int) -> None:
    """Fork for each request, until the parent process exits."""
    for item in IMPORTED:
        importlib.import_module(item)
    importlib.import_module("nbformat").validate(
        {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    )
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the shared memory pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    parent = os.getppid()
    with socket.socket(fileno=listener) as door:
        door.settimeout(5)
        while os.getppid() == parent:
            try:
                link, _ = door.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                door.close()
                return run_request(link)
            link.close()
    os._exit(0)


def run_request(link: socket.socket) -> None:
    """In a fork: fork the command, wait for it and send its exit code.

    Returns only in the command's process.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    link.settimeout(None)
    size, outputs, _, _ = socket.recv_fds(link, 8, 2)
    text = b""
    while len(text) < int.from_bytes(size, "big"):
        text += link.recv(1 << 16)
    pid = os.fork()
    if pid == 0:
        link.close()
        return run_as_process(
            json.loads(text.decode("utf-8", "surrogateescape")), outputs
        )
    for output in outputs:
        os.close(output)
    link.sendall(pid.to_bytes(8, "big"))
    _, status = os.waitpid(pid, 0)
    link.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))
    os._exit(0)
    return None


def run_as_process(request: dict[str, Any], outputs: list[int]) -> None:
    """Run `main` like `python -c 'from stepper.cli.main import main; main()' …`."""
    from stepper.cli.main import main

    os.dup2(outputs[0], 1)
    os.dup2(outputs[1], 2)
    for output in outputs:
        os.close(output)
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    for name in set(os.environ) - set(request["environ"]):
        del os.environ[name]
    os.environ.update(request["environ"])
    sys.argv = ["-c", *request["argv"]]
    if request["daemons"]:
        from stepper.hook import daemon_start

        if request["kernels"] is not None:
            forked_kernels.fork_kernels(forked_kernels.Address(*request["kernels"]))
        daemon_start.subprocess = SimpleNamespace(
            Popen=Daemon, DEVNULL=subprocess.DEVNULL
        )  # type: ignore[assignment]
    run_and_exit(main)


def run_and_exit(main: Callable[[], None]) -> None:
    """Run `main` and exit like the interpreter."""
    code = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - printed as the interpreter prints it
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # finalizing the interpreter takes as long as the command


class Daemon:
    """A fork that replaces `Popen` of `python -I -m stepper.daemon PROJECT`."""

    def __init__(
        self,
        command: list[str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        cwd: str,
        start_new_session: bool,
        env: dict[str, str],
    ) -> None:
        assert command[1:4] == ["-I", "-m", "stepper.daemon"] and start_new_session
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        os.setsid()
        with open(os.devnull) as null_device:
            for number, file in enumerate((null_device.fileno(), stdout, stderr)):
                os.dup2(file, number)
        os.closerange(3, 1024)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - not the command's streams
        sys.argv = command[3:]
        from stepper.daemon.server import main

        run_and_exit(main)

    def poll(self) -> int | None:
        if self.returncode is None and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.returncode = 1  # the log contains the real code
        return self.returncode
