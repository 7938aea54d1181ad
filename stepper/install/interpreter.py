"""Runs a process to its end, and asks a Python what it is. Stdlib only."""

from __future__ import annotations

import re
from subprocess import DEVNULL, CompletedProcess, TimeoutExpired
from subprocess import run as run_process
from typing import NamedTuple

from stepper.common.errors import StepperError

# The kernel's helper runs on it (stepper/kernels/helper_loader.py).
OLDEST_KERNEL_PYTHON = (3, 9)
PROBE_SECONDS = 30.0
# Also Python 2 can run it: it must live to tell its version. The mark sets it apart
# from what a site prints.
PROBE_MARK = "stepper-probe"
PROBE = f"""
import sys
try:
    from importlib.util import find_spec
    names = [name for name in ("ipykernel", "pip") if find_spec(name)]
except ImportError:
    names = []
sys.stdout.write("\\n{PROBE_MARK} %d.%d.%d %s\\n" % (tuple(sys.version_info[:3]) + (" ".join(names),)))
"""


class Interpreter(NamedTuple):
    """What a Python said of itself: its version, and which of ipykernel and pip it has."""

    version: str
    modules: tuple[str, ...]


def run(*command: str, cwd: str = "/", seconds: float = 600.0) -> CompletedProcess[str]:
    """Run a command without input, to its end or `seconds`. Exit code -1: it could not run, or did not end."""
    try:
        return run_process(
            command,
            cwd=cwd,
            stdin=DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except TimeoutExpired:
        return CompletedProcess(command, -1, "", f"no answer within {seconds:.0f} s")
    except (OSError, ValueError) as error:
        return CompletedProcess(
            command, -1, "", getattr(error, "strerror", None) or str(error)
        )


def get_output_tail(done: CompletedProcess[str]) -> str:
    """Return the end of what a process said, for a message (at most 1,000 characters)."""
    return (done.stderr.strip() or done.stdout.strip())[
        -1000:
    ] or f"exit code {done.returncode}, no message"


def probe(python: str, name: str = "", mend: str = "") -> Interpreter:
    """Ask an interpreter what it is; it writes no bytecode. Raise StepperError where it does not run."""
    told = run(python, "-B", "-c", PROBE, seconds=PROBE_SECONDS)
    found = re.search(
        rf"^{PROBE_MARK} (\d+\.\d+\.\d+) ?(.*)$", told.stdout, re.MULTILINE
    )
    if not found:
        raise StepperError(
            f"{name or python} does not run: {get_output_tail(told)}", mend
        )
    return Interpreter(found[1], tuple(found[2].split()))


def probe_kernel_python(python: str, name: str, mend: str) -> Interpreter:
    """Return what an interpreter says of itself; raise StepperError where no kernel can run on it."""
    about = probe(python, name, mend)
    if tuple(map(int, about.version.split("."))) < OLDEST_KERNEL_PYTHON:
        raise StepperError(
            f"{name} is Python {about.version}: the kernel needs 3.9 or newer", mend
        )
    return about
