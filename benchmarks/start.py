"""What the first result costs: from nothing, with the daemon there, with the kernel there; beside kernels alone.

    python benchmarks/start.py

Each round begins with no daemon and no kernel and ends so. The hook's rows are whole processes, spawn to exit, each
in a notebook that was never seen before (the warm one: the same notebook again). Beside them a kernel alone, up to its
first printed word, by jupyter_client (`KernelManager`, `start_channels`, `wait_for_ready`, one execution), as a process
that is there already and as a fresh one, and by raw sockets that connect again every 5 ms.
"""

from __future__ import annotations

import itertools
import secrets
import subprocess
import sys
import time

from common import (
    Bound,
    BrokenStepError,
    Project,
    Row,
    bounds_table,
    options,
    played,
    report,
    scratch,
    since,
    take,
    times_table,
)
from jupyter_client import KernelManager
from kernels import RawKernel
from subject import Subject

CELLS = 10
MANAGER_RATIO, RAW_RATIO = 1.2, 1.5
# Nothing but jupyter_client is imported: a fresh process pays for what it needs alone.
FRESH = """
import subprocess, sys
from jupyter_client import KernelManager
manager = KernelManager(kernel_name="python3")
manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=60)
client.execute_interactive(f"print('{sys.argv[1]}')", timeout=60)
sys.stdout.flush()
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


def managed() -> float:
    """Return the milliseconds of a kernel's start and first word by jupyter_client, in this process."""
    word, seen = secrets.token_hex(8), []
    began = time.perf_counter()
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        client.execute_interactive(
            f"print('{word}')", timeout=60, output_hook=seen.append
        )
        took = since(began)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return checked(
        took, "".join(message["content"].get("text", "") for message in seen), word
    )


def fresh() -> float:
    """Return the same of a process of its own, from its spawn."""
    word, began = secrets.token_hex(8), time.perf_counter()
    command = [sys.executable, "-c", FRESH, word]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        took = since(began)
    return checked(took, said, word)


def checked(took: float, said: str, word: str) -> float:
    """Return the time; raise BrokenStepError unless the word was printed."""
    if said.strip() != word:
        raise BrokenStepError(f"a kernel printed {said!r}")
    return took


def raw() -> float:
    """Return the milliseconds of a kernel's start and first word by raw sockets."""
    began = time.perf_counter()
    kernel = RawKernel()
    try:
        kernel.round_trip()
        return since(began)
    finally:
        kernel.end()


class Starts:
    """The three hooks of a round, in this order: each leaves what the next one finds."""

    def __init__(self, project: Project) -> None:
        self.project, self.numbers = project, itertools.count()
        self.first = self.other()

    def other(self) -> Subject:
        """Return a notebook that was never seen."""
        return Subject(self.project, f"start{next(self.numbers)}", CELLS)

    def from_nothing(self) -> float:
        """No daemon, no kernel."""
        self.first = self.other()
        return self.first.step()

    def warm(self) -> float:
        """All is there."""
        return self.first.step()

    def no_kernel(self) -> float:
        """The daemon is there, the notebook's kernel is not. The round ends: so do all of them."""
        took = self.other().step()
        self.project.stop()
        return took


def main() -> None:
    """Measure and print."""
    rounds = (
        options("What the first result costs, beside kernels alone.")
        .parse_args()
        .rounds
    )
    with scratch() as project:
        starts = Starts(project)
        nothing = Row("**from nothing**", starts.from_nothing)
        warm = Row("**kernel there**", starts.warm)
        cold = Row("**daemon there, no kernel**", starts.no_kernel)
        manager = Row("`KernelManager`, process there", managed)
        process = Row("`KernelManager`, fresh process", fresh)
        sockets = Row("raw sockets, process there", raw)
        rows = (nothing, warm, cold, manager, process, sockets)
        take(rows, rounds, warm=1)
    bounds = [
        Bound(nothing, "`KernelManager`, process there", (manager,), MANAGER_RATIO),
        Bound(nothing, "`KernelManager`, fresh process", (process,)),
        Bound(nothing, "raw sockets (an aim)", (sockets,), RAW_RATIO),
        Bound(cold, "`KernelManager`, process there", (manager,)),
        Bound(cold, "raw sockets", (sockets,)),
        Bound(manager, "raw sockets", (sockets,)),
    ]
    report(rounds, [*times_table(rows), "", *bounds_table(bounds)])


if __name__ == "__main__":
    played(main)
