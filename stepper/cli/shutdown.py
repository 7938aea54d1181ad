"""`stepper shutdown`: the daemon ends its kernels and itself; what hangs is ended by force, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import psutil

from stepper.cli.terminal import say
from stepper.common import private_files
from stepper.common.errors import StepperError
from stepper.common.paths import Paths
from stepper.common.text import one_line
from stepper.hook import client
from stepper.hook.start import locked
from stepper.kernels import kernel_records

WAIT_SECONDS = 10.0  # for the daemon's process to be gone


def shutdown(paths: Paths, notebook: str | None = None) -> Any:
    """End the notebook's kernel, else daemon and kernels; return what was ended, None where nothing ran."""
    told = json.dumps({"notebook": notebook}).encode()
    try:
        ended = client.ask(paths, b"shutdown", told, launch=False)
        # kernels may live although no daemon does
        if ended is None and any(kernel_records.of_project(paths)):
            ended = client.ask(paths, b"shutdown", told)
        answer = json.loads(ended or b"null")
        if notebook:
            return answer
    except StepperError as error:
        # it hangs, or a wrong config keeps it from finding its notebooks
        if notebook:
            raise
        say(f"stepper: {error.message}; ending it by force", err=True)
        kernels = end_by_force(paths)
        if remote_kernels(paths):
            kernels += _end_remote_kernels(paths, error.message)
        answer = {"kernels": kernels, "notebook": None, "left": None}
    if os.path.isdir(paths.home):  # else a worktree in which nothing ran yet
        with open(
            private_files.open_private(paths.daemon_lock, os.O_CREAT | os.O_RDWR)
        ) as lock:
            # the daemon lets go of it when its process ends
            locked(lock.fileno(), WAIT_SECONDS)
    return answer


def remote_kernels(paths: Paths) -> list[str]:
    """Return the kernels on record that run on other machines, each with its backend."""
    found = []
    for record in kernel_records.of_project(paths):
        # unreadable
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError, AttributeError
        ):
            told = json.loads(private_files.read(str(record)))
            if "definition" in told:
                found.append(
                    one_line(
                        f"{told['kernel']} ({told['kind']}, `kernels.{told['name']}`)",
                        300,
                    )
                )
    return found


def _end_remote_kernels(paths: Paths, first_error: str) -> int:
    """Have a new daemon end the kernels on other machines, which only a daemon reaches; return how many it ended."""
    kernels = 0
    reason = ""
    try:
        answer = client.ask(paths, b"shutdown", b"{}")
        kernels = int(json.loads(answer or b"{}").get("kernels", 0))
    except StepperError as error:
        if error.message != first_error:
            reason = f": {error.message}"
        end_by_force(paths)
    for kernel in remote_kernels(paths):
        say(
            f"stepper: the kernel {kernel} was NOT ended and may still run there{reason}",
            err=True,
        )
    return kernels


def end_by_force(paths: Paths) -> int:
    """Kill the daemon and its kernels on this machine with all they started; return how many kernels there were."""
    # what it loads takes longer than a shutdown
    from stepper.kernels.backends.local.launch import Files
    from stepper.kernels.backends.local.process_identity import Identity, clear

    kernels = 0
    daemons = daemons_of(paths)
    for daemon in daemons:
        with contextlib.suppress(psutil.Error):  # gone already
            daemon.kill()
    psutil.wait_procs(daemons, timeout=5)
    for record in kernel_records.of_project(paths):
        # unreadable
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError, AttributeError
        ):
            told = json.loads(private_files.read(str(record)))
            # on another machine: its record is all that leads there
            if "definition" in told:
                continue
            root = (
                Identity.recorded(told["provisioner"])
                if "provisioner" in told
                else None
            )
            kernels += clear(str(told["kernel"]), root) > 0
        # a link is on the way: what is there is not stepper's
        with contextlib.suppress(OSError):
            Files(str(record)).forget()
    for leftover in (
        paths.socket,
        paths.daemon_json,
        *map(str, Path(paths.runtime).glob("k*")),
    ):
        if os.path.exists(leftover):
            os.unlink(leftover)
    return kernels


def daemons_of(paths: Paths) -> list[psutil.Process]:
    """Return the processes that are this user's daemon of the project; what was written down is not asked."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            ours = process.cmdline()[-3:] == ["-m", "stepper.daemon", paths.project]
            if ours and process.uids().real == os.getuid():
                found.append(process)
    return found
