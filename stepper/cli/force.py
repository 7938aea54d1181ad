"""End by force a daemon that does not answer, and the kernels on its record. Nothing else is signalled."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import psutil

from stepper.ground import private
from stepper.ground.paths import Paths
from stepper.kernel.local.launch import Files
from stepper.kernel.local.process import Identity, clear


def end_by_force(paths: Paths) -> int:
    """Kill the project's daemon and its kernels with all that they started; return how many kernels there were."""
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
            Files.beside(str(record)).forget()
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
