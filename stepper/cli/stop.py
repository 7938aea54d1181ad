"""`stepper shutdown`: the daemon ends its kernels and itself; what hangs is ended by force, and nothing else."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from stepper.cli.present import say
from stepper.ground import private
from stepper.ground.errors import StepperError
from stepper.ground.paths import Paths

WAIT_SECONDS = 10.0  # for the daemon's process to be gone


def shutdown(paths: Paths, ask: Callable[[bool], Any]) -> Any:
    """End daemon and kernels; return what was ended, None where nothing ran.

    `ask` asks the daemon, one that is started for it where it is given True.
    """
    pid = daemon_pid(paths)
    try:
        ended = ask(False)
        if ended is None:
            pid = None  # of one that is gone: another process may have it now
            ended = ask(True) if kernels_on_record(paths) else None
    except StepperError as error:  # it hangs, or a wrong config keeps it from finding its notebooks
        say(f"stepper: {error.message}; ending it by force", err=True)
        ended = {"kernels": end_by_force(paths)}
    wait_gone(paths, pid)
    return ended


def daemon_pid(paths: Paths) -> int | None:
    """Return the pid that the daemon wrote down, or None."""
    try:
        with open(paths.daemon_json, encoding="utf-8") as stream:
            return int(json.load(stream)["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def kernels_on_record(paths: Paths) -> bool:
    """Whether kernels may live although no daemon does."""
    return any(name.endswith(".json") for _, _, names in os.walk(paths.kernels) for name in names)


def wait_gone(paths: Paths, pid: int | None) -> None:
    """Return when the daemon's process is gone, or the time is over."""
    if not os.path.isdir(paths.home):
        return  # a worktree in which nothing ran yet
    until = time.monotonic() + WAIT_SECONDS
    lock = private.opened(paths.daemon_lock, os.O_CREAT | os.O_RDWR)
    try:
        while time.monotonic() < until:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
    finally:
        os.close(lock)
    while pid and _runs(pid) and time.monotonic() < until:
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def end_by_force(paths: Paths) -> int:
    """Kill the project's daemon and its kernels with all that they started; return how many kernels there were."""
    from stepper.kernel.local.launch import Files  # what it loads takes longer than a shutdown
    from stepper.kernel.local.process import Identity, clear

    kernels = 0
    daemons = daemons_of(paths)
    for daemon in daemons:
        with contextlib.suppress(psutil.Error):  # gone already
            daemon.kill()
    psutil.wait_procs(daemons, timeout=5)
    for record in Path(paths.kernels).rglob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # unreadable
            told = json.loads(private.read(str(record)))
            root = Identity.recorded(told["provisioner"]) if "provisioner" in told else None
            kernels += clear(str(told["kernel"]), root) > 0
        with contextlib.suppress(OSError):  # a link is on the way: what is there is not stepper's
            Files(str(record)).forget()
    for leftover in (paths.socket, paths.daemon_json, *map(str, Path(paths.runtime).glob("k*"))):
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
