"""`stepper shutdown`: stop the kernels and the daemon.

The daemon stops its kernels and exits. If the daemon does not respond, the daemon and
its local kernels are killed, and a new daemon stops the remote kernels.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import psutil

from stepper.cli.terminal import print_text
from stepper.common import secure_files
from stepper.common.errors import StepperError
from stepper.common.paths import Paths
from stepper.common.text import one_line
from stepper.hook import daemon_client
from stepper.hook.daemon_start import acquire_lock
from stepper.kernels import sealed_kernel_records

EXIT_SECONDS = 10.0  # for the daemon's process to exit
KILL_SECONDS = 5
KERNEL_CHARACTERS = 300  # the maximum length of a kernel's description
DAEMON_ARGUMENTS = ["-m", "stepper.daemon"]
# Errors of reading a record that someone else may have written.
RECORD_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError)


def shutdown(paths: Paths, notebook: str | None = None) -> Any:
    """Stop a notebook's kernel or, without a notebook, all kernels and the daemon.

    If the daemon does not stop them, kill the daemon and the local kernels. Return the
    daemon's response, a response with the number of stopped kernels, or None if nothing
    was running.

    Raises:
        StepperError: The kernel of the notebook could not be stopped.
    """
    try:
        response = _request_shutdown(paths, notebook)
        if notebook:
            return response
    except StepperError as error:
        # The daemon hangs, or an invalid configuration hides its notebooks.
        if notebook:
            raise
        print_text(
            f"stepper: {error.message}. Killing the daemon and its local kernels.",
            err=True,
        )
        kernel_count = kill_processes(paths)
        if list_remote_kernels(paths):
            kernel_count += _stop_remote_kernels(paths, error.message)
        response = {"kernels": kernel_count, "notebook": None, "left": None}
    # The folder is missing in a worktree in which nothing ran.
    if os.path.isdir(paths.home):
        _wait_for_daemon_exit(paths)
    return response


def _request_shutdown(paths: Paths, notebook: str | None) -> Any:
    """Request the daemon to stop kernels, and return its response.

    If no daemon is running but kernels are recorded, start a daemon. Return None if
    there is neither a daemon nor a recorded kernel.
    """
    request = json.dumps({"notebook": notebook}).encode()
    body = daemon_client.send_request(paths, b"shutdown", request, launch=False)
    if body is None and any(sealed_kernel_records.find_project_records(paths)):
        body = daemon_client.send_request(paths, b"shutdown", request)
    return json.loads(body or b"null")


def _wait_for_daemon_exit(paths: Paths) -> None:
    """Wait up to EXIT_SECONDS for the exit of the daemon, which releases its lock."""
    flags = os.O_CREAT | os.O_RDWR
    handle = secure_files.open_private(paths.daemon_lock, flags)
    with open(handle) as lock:
        acquire_lock(lock.fileno(), EXIT_SECONDS)


def list_remote_kernels(paths: Paths) -> list[str]:
    """Return the names of recorded remote kernels, with their backends.

    Remote kernels can only be stopped by a daemon.
    """
    kernels = []
    for path in sealed_kernel_records.find_project_records(paths):
        with contextlib.suppress(*RECORD_ERRORS):
            record = json.loads(secure_files.read(str(path)))
            if "kind" not in record:  # a local kernel
                continue
            backend = f"{record['kind']}, `kernels.{record.get('name', '?')}`"
            kernel = record.get("kernel") or path.stem
            description = f"{kernel} ({backend})"
            kernels.append(one_line(description, KERNEL_CHARACTERS))
    return kernels


def _stop_remote_kernels(paths: Paths, first_error: str) -> int:
    """Stop the remote kernels with a new daemon, and return their number.

    If the new daemon fails, kill it. Print a message for each kernel that was not
    stopped. `first_error` is the error of the first request, which is not repeated in
    these messages.
    """
    kernel_count = 0
    reason = ""
    try:
        body = daemon_client.send_request(paths, b"shutdown", b"{}")
        response = json.loads(body or b"{}")
        kernel_count = int(response.get("kernels", 0))
    except StepperError as error:
        if error.message != first_error:
            reason = f": {error.message}"
        kill_processes(paths)
    for kernel in list_remote_kernels(paths):
        print_text(
            f"stepper: the kernel {kernel} was NOT stopped and may still be"
            f" running{reason}",
            err=True,
        )
    return kernel_count


def kill_processes(paths: Paths) -> int:
    """Kill the daemon and its local kernels, with their child processes.

    Also remove the files that they remove on exit. Remote kernels and their records are
    not changed. Return the number of killed kernels.
    """
    # A normal shutdown does not need this module.
    from stepper.kernels import backend_registry

    daemons = find_daemons(paths)
    for daemon in daemons:
        with contextlib.suppress(psutil.Error):  # the daemon has exited
            daemon.kill()
    psutil.wait_procs(daemons, timeout=KILL_SECONDS)
    kernel_count = 0
    for record in sealed_kernel_records.find_project_records(paths):
        kernel_count += backend_registry.kill_recorded_kernel(str(record))
    _remove_runtime_files(paths)
    return kernel_count


def _remove_runtime_files(paths: Paths) -> None:
    """Remove the files that the daemon and its kernels would remove on exit."""
    connection_files = Path(paths.runtime).glob("k*")
    for path in (paths.socket, paths.daemon_json, *map(str, connection_files)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def find_daemons(paths: Paths) -> list[psutil.Process]:
    """Return the daemon processes of the project that belong to this user.

    All processes are searched, because the recorded process ID may be outdated.
    """
    # The path of the interpreter, which precedes these arguments, may differ.
    arguments = [*DAEMON_ARGUMENTS, paths.project]
    daemons = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # the process has exited
            last_arguments = process.cmdline()[-len(arguments) :]
            is_own = process.uids().real == os.getuid()
            if last_arguments == arguments and is_own:
                daemons.append(process)
    return daemons
