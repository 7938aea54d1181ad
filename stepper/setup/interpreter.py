"""Runs a process to its end, and asks a Python what it is. Stdlib only."""

from __future__ import annotations

import re
import subprocess
from typing import NamedTuple

# The kernel's helper runs on it (stepper/kernel/helper.py).
OLDEST_KERNEL_PYTHON = (3, 9)
PROBE_SECONDS = 30.0
# Also Python 2 can run it: it must live to tell its version. The mark sets it apart from what a site prints.
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


class Result(NamedTuple):
    """What a process left: exit code (-1: could not run or did not end), output, errors."""

    code: int
    out: str
    err: str

    def tail(self) -> str:
        """Return the end of what it said, for a message (at most 1,000 characters)."""
        return (self.err.strip() or self.out.strip())[-1000:] or f"exit code {self.code}, no message"


class Interpreter(NamedTuple):
    """What a Python said of itself; `error` tells why it said nothing."""

    version: tuple[int, ...] = ()
    modules: tuple[str, ...] = ()
    error: str = ""

    @property
    def name(self) -> str:
        """Return its version as people write it."""
        return ".".join(map(str, self.version))


def run(*command: str, cwd: str = "/", seconds: float = 600.0) -> Result:
    """Run a command without input, to its end or `seconds`."""
    try:
        done = subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return Result(-1, "", f"no answer within {seconds:.0f} s")
    except (OSError, ValueError) as error:
        return Result(-1, "", getattr(error, "strerror", None) or str(error))
    return Result(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def probe(python: str) -> Interpreter:
    """Ask an interpreter for its version and whether it has ipykernel and pip. It writes no bytecode."""
    told = run(python, "-B", "-c", PROBE, seconds=PROBE_SECONDS)
    found = re.search(rf"^{PROBE_MARK} (\d+)\.(\d+)\.(\d+) ?(.*)$", told.out, re.MULTILINE)
    if not found:
        return Interpreter(error=told.tail())
    *version, modules = found.groups()
    return Interpreter(tuple(map(int, version)), tuple(modules.split()))
