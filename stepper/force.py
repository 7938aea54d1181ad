"""End by force a daemon that does not answer, and the kernels on its record. Nothing else is signalled."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import psutil

from stepper.paths import Paths


def end_by_force(paths: Paths) -> int:
    """Kill the project's daemon and its kernels with all their children; return how many kernels there were."""
    kernels = 0
    for process in psutil.process_iter(["pid", "cmdline"]):
        if (process.info["cmdline"] or [])[-3:] == ["-m", "stepper.daemon", paths.project]:
            _kill(process)
    for record in Path(paths.kernels).rglob("*.json"):
        try:
            told = json.loads(record.read_text())["provisioner"]
            process = psutil.Process(told["pid"])
            if abs(process.create_time() - told["created"]) < 1.0:  # else another process has that pid now
                _kill(process)
                kernels += 1
        except (OSError, ValueError, KeyError, TypeError, psutil.Error):
            pass  # unreadable, or gone already
        record.unlink(missing_ok=True)
    for leftover in (paths.socket, paths.daemon_json):
        if os.path.exists(leftover):
            os.unlink(leftover)
    return kernels


def _kill(process: psutil.Process) -> None:
    family = [process, *process.children(recursive=True)]
    for member in family:
        with contextlib.suppress(psutil.Error):  # gone already
            member.kill()
    psutil.wait_procs(family, timeout=5)
