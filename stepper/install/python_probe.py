"""Run processes to completion and probe Python interpreters.

This module uses only the standard library.
"""

from __future__ import annotations

import re
from subprocess import DEVNULL, CompletedProcess, TimeoutExpired
from subprocess import run as run_process
from typing import NamedTuple

from stepper.common.errors import StepperError

# The oldest version that the kernel's helper supports (kernels/helper_loader.py).
OLDEST_KERNEL_PYTHON = (3, 9)
PROBE_SECONDS = 30.0
MAX_OUTPUT = 1000  # characters of a process's output in a message
# Python 2 must be able to run this code, which then reports the version. The mark
# separates the result from output of site customization.
PROBE_MARK = "stepper-probe"
PROBE = f"""
import sys
try:
    from importlib.util import find_spec
    names = [name for name in ("ipykernel", "pip") if find_spec(name)]
except ImportError:
    names = []
values = tuple(sys.version_info[:3]) + (" ".join(names),)
sys.stdout.write("\\n{PROBE_MARK} %d.%d.%d %s\\n" % values)
"""


class Interpreter(NamedTuple):
    """The version of an interpreter, and the names of some installed modules.

    `modules` contains `ipykernel` and `pip` if the interpreter can import them.
    """

    version: str
    modules: tuple[str, ...]


def run(*command: str, cwd: str = "/", seconds: float = 600.0) -> CompletedProcess[str]:
    """Run a command without input for up to `seconds`.

    The exit code is -1 if the command could not be started or timed out.
    """
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
        return CompletedProcess(command, -1, "", f"timed out after {seconds:.0f} s")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return CompletedProcess(command, -1, "", reason)


def get_output_tail(result: CompletedProcess[str]) -> str:
    """Return the end of a process's error output or else its output, for a message."""
    output = result.stderr.strip() or result.stdout.strip()
    if not output:
        return f"exit code {result.returncode} without a message"
    return output[-MAX_OUTPUT:]


def probe(python: str, name: str = "", hint: str = "") -> Interpreter:
    """Return the version and modules of an interpreter.

    `name` is the name of the interpreter in an error, by default its path. `hint` is
    the hint of the error.

    Raises:
        StepperError: The interpreter can't be run.
    """
    process = run(python, "-B", "-c", PROBE, seconds=PROBE_SECONDS)
    pattern = rf"^{PROBE_MARK} (\d+\.\d+\.\d+) ?(.*)$"
    match = re.search(pattern, process.stdout, re.MULTILINE)
    if not match:
        reason = get_output_tail(process)
        raise StepperError(f"{name or python} does not run: {reason}", hint)
    return Interpreter(match[1], tuple(match[2].split()))


def probe_kernel_python(python: str, name: str, hint: str) -> Interpreter:
    """Return the version and modules of an interpreter for kernels.

    Raises:
        StepperError: The interpreter can't be run or is too old for a kernel.
    """
    interpreter = probe(python, name, hint)
    version = tuple(map(int, interpreter.version.split(".")))
    if version < OLDEST_KERNEL_PYTHON:
        raise StepperError(
            f"{name} is Python {interpreter.version}: kernels need 3.9 or newer",
            hint,
        )
    return interpreter
