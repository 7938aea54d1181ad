"""`stepper shutdown`: stop the kernels and the daemon.

The daemon stops its kernels and itself. If it does not respond, its processes on this
machine are killed, and a new daemon stops the kernels that only their backend can
reach.
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
from stepper.hook.start import acquire_lock
from stepper.kernels import sealed_kernel_records

EXIT_SECONDS = 10.0  # for the daemon's process to exit
KILL_SECONDS = 5
DAEMON_ARGUMENTS = ["-m", "stepper.daemon"]
# Errors of reading a record that someone else may have written.
RECORD_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError)


def shutdown(paths: Paths, notebook: str | None = None) -> Any:
    """Stop the notebook's kernel; without a notebook, all kernels and the daemon.

    Returns what was stopped, or None if nothing was running.
    """
    try:
        answer = _ask_daemon(paths, notebook)
        if notebook:
            return answer
    except StepperError as error:
        # The daemon hangs, or an invalid configuration hides its notebooks.
        if notebook:
            raise
        print_text(f"stepper: {error.message}; killing its processes", err=True)
        kernel_count = kill_processes(paths)
        if list_remote_kernels(paths):
            kernel_count += _stop_remote_kernels(paths, error.message)
        answer = {"kernels": kernel_count, "notebook": None, "left": None}
    # The folder is missing in a worktree in which nothing ran.
    if os.path.isdir(paths.home):
        _wait_for_daemon_exit(paths)
    return answer


def _ask_daemon(paths: Paths, notebook: str | None) -> Any:
    """Ask the daemon to stop kernels; start one if only kernels are running."""
    request = json.dumps({"notebook": notebook}).encode()
    body = daemon_client.send_request(paths, b"shutdown", request, launch=False)
    if body is None and any(sealed_kernel_records.find_project_records(paths)):
        body = daemon_client.send_request(paths, b"shutdown", request)
    return json.loads(body or b"null")


def _wait_for_daemon_exit(paths: Paths) -> None:
    """Wait until the daemon's process has exited, which releases its lock."""
    flags = os.O_CREAT | os.O_RDWR
    handle = secure_files.open_private(paths.daemon_lock, flags)
    with open(handle) as lock:
        acquire_lock(lock.fileno(), EXIT_SECONDS)


def list_remote_kernels(paths: Paths) -> list[str]:
    """Return the recorded kernels that only their backend can reach, with its name."""
    kernels = []
    for path in sealed_kernel_records.find_project_records(paths):
        with contextlib.suppress(*RECORD_ERRORS):
            record = json.loads(secure_files.read(str(path)))
            if "kind" in record:
                backend = f"{record['kind']}, `kernels.{record.get('name', '?')}`"
                kernel = record.get("kernel") or path.stem
                kernels.append(one_line(f"{kernel} ({backend})", 300))
    return kernels


def _stop_remote_kernels(paths: Paths, first_error: str) -> int:
    """Stop the kernels of other backends with a new daemon; return their number.

    Only a daemon can reach these kernels.
    """
    kernel_count = 0
    reason = ""
    try:
        body = daemon_client.send_request(paths, b"shutdown", b"{}")
        answer = json.loads(body or b"{}")
        kernel_count = int(answer.get("kernels", 0))
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
    """Kill the daemon and its kernels on this machine, with their child processes.

    A kernel that only its backend can reach is left alone, and so is its record.
    Returns the number of killed kernels.
    """
    # A normal shutdown does not need this module.
    from stepper.kernels import backend_registry

    daemons = find_daemons(paths)
    for daemon in daemons:
        with contextlib.suppress(psutil.Error):  # it has exited
            daemon.kill()
    psutil.wait_procs(daemons, timeout=KILL_SECONDS)
    kernel_count = 0
    for record in sealed_kernel_records.find_project_records(paths):
        kernel_count += backend_registry.kill_recorded_kernel(str(record))
    _remove_runtime_files(paths)
    return kernel_count


def _remove_runtime_files(paths: Paths) -> None:
    connection_files = Path(paths.runtime).glob("k*")
    for path in (paths.socket, paths.daemon_json, *map(str, connection_files)):
        if os.path.exists(path):
            os.unlink(path)


def find_daemons(paths: Paths) -> list[psutil.Process]:
    """Return the processes that are this user's daemon of the project.

    This searches all processes: the recorded process id may be out of date.
    """
    command = [*DAEMON_ARGUMENTS, paths.project]
    daemons = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has exited
            is_daemon = process.cmdline()[-len(command) :] == command
            if is_daemon and process.uids().real == os.getuid():
                daemons.append(process)
    return daemons
