"""Run Python scripts in forks of a process that has imported large packages.

    PYTHON benchmarks/forked_scripts.py MODULE...

A script starts within milliseconds, although its imports would take seconds. Each line
of standard input is a JSON object with `script`, `arguments`, the text `input` for its
standard input, and `seconds`. The answer is a line of JSON with its standard output and
`is_done`, which is false if the script used more than `seconds` of processor time.
This module runs with the Python of the packages and needs nothing of stepper.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import resource
import runpy
import signal
import sys
import tempfile
import time
import warnings
from typing import Any

POLL_SECONDS = 0.02
WAIT_FACTOR = 10  # a script may wait, and the processors may be busy


def run_child(request: dict[str, Any], input_file: int, output_file: int) -> None:
    """Run a script in this process, which then ends."""
    os.setsid()
    seconds = int(request["seconds"])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    os.dup2(input_file, 0)
    os.dup2(output_file, 1)
    sys.stdin = os.fdopen(0)
    sys.stdout = os.fdopen(1, "w")
    sys.argv = [request["script"], *request["arguments"]]
    sys.path[0] = os.path.dirname(request["script"])
    # Otherwise all scripts would draw the same random numbers.
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    status = 1
    try:
        runpy.run_path(request["script"], run_name="__main__")
        sys.stdout.flush()
        status = 0
    finally:
        os._exit(status)


def run_script(request: dict[str, Any]) -> dict[str, Any]:
    """Run a script in a fork; return its output."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as received:
        given.write(request["input"].encode())
        given.seek(0)
        process = os.fork()
        if process == 0:
            run_child(request, given.fileno(), received.fileno())
        ends_at = time.monotonic() + WAIT_FACTOR * request["seconds"]
        ended, status = 0, 1
        while not ended and time.monotonic() < ends_at:
            ended, status = os.waitpid(process, os.WNOHANG)
            time.sleep(POLL_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        if not ended:
            os.waitpid(process, 0)
        is_done = bool(ended) and not os.WIFSIGNALED(status)
        received.seek(0)
        output = received.read().decode(errors="replace")
    return {"output": output, "is_done": is_done}


def main() -> None:
    """Import the modules, then run scripts until standard input ends."""
    os.environ["MPLBACKEND"] = "Agg"
    # Threads of a library do not survive a fork.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.simplefilter("ignore")
    for module in sys.argv[1:]:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    for line in sys.stdin:
        print(json.dumps(run_script(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
