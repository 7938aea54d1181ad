"""What a shutdown looks at: the daemon's pid, kernels on record, and when the daemon is gone."""

from __future__ import annotations

import fcntl
import json
import os
import time

import psutil

from stepper.ground import private
from stepper.ground.paths import Paths


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
    """Return when the daemon's process is gone, 10 seconds at most."""
    if not os.path.isdir(paths.home):
        return  # a worktree in which nothing ran yet
    until = time.monotonic() + 10
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
