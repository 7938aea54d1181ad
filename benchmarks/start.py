"""Measure the time to the first result, with and without a running daemon and kernel.

    python benchmarks/start.py

Each round starts and ends without a daemon or kernel. The hook's rows are whole
processes, from spawn to exit, each in a new notebook (the warm one: the same notebook
again). They are compared with a kernel alone, up to its first printed word: by
jupyter_client (`KernelManager`, `start_channels`, `wait_for_ready`, one execution), in
a running and in a fresh process, and by raw sockets that reconnect every 5 ms.
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
    create_parser,
    create_temporary_project,
    format_bounds,
    format_times,
    measure_elapsed_ms,
    measure_rows,
    print_report,
    run_benchmark,
)
from edited_notebook import EditedNotebook
from jupyter_client import KernelManager
from kernels import RawKernel

CELLS = 10
MANAGER_RATIO, RAW_RATIO = 1.2, 1.5
# A fresh process that imports only jupyter_client.
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


def start_with_manager() -> float:
    """Return the milliseconds to a kernel's first word, with jupyter_client."""
    marker, messages = secrets.token_hex(8), []
    started_at = time.perf_counter()
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        client.execute_interactive(
            f"print('{marker}')", timeout=60, output_hook=messages.append
        )
        duration_ms = measure_elapsed_ms(started_at)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return check_output(
        duration_ms,
        "".join(message["content"].get("text", "") for message in messages),
        marker,
    )


def start_in_fresh_process() -> float:
    """Return the same for a new process, from its spawn."""
    marker, started_at = secrets.token_hex(8), time.perf_counter()
    command = [sys.executable, "-c", FRESH, marker]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        output = process.stdout.readline()
        duration_ms = measure_elapsed_ms(started_at)
    return check_output(duration_ms, output, marker)


def check_output(duration_ms: float, output: str, marker: str) -> float:
    """Return the time; raise BrokenStepError unless the word was printed."""
    if output.strip() != marker:
        raise BrokenStepError(f"a kernel printed {output!r}")
    return duration_ms


def start_with_raw_sockets() -> float:
    """Return the milliseconds of a kernel's start and first word, with raw sockets."""
    started_at = time.perf_counter()
    kernel = RawKernel()
    try:
        kernel.round_trip()
        return measure_elapsed_ms(started_at)
    finally:
        kernel.shut_down()


class Starts:
    """The three hooks of a round.

    Their order matters: each one uses the state that the last one left.
    """

    def __init__(self, project: Project) -> None:
        self.project, self.numbers = project, itertools.count()
        self.first = self.create_subject()

    def create_subject(self) -> EditedNotebook:
        """Return a new notebook."""
        return EditedNotebook(self.project, f"start{next(self.numbers)}", CELLS)

    def step_from_nothing(self) -> float:
        """Measure a step without a daemon or kernel."""
        self.first = self.create_subject()
        return self.first.step()

    def warm_step(self) -> float:
        """Measure a step with a daemon and a kernel."""
        return self.first.step()

    def step_without_kernel(self) -> float:
        """Measure a step with a daemon and no kernel; then shut down everything."""
        duration_ms = self.create_subject().step()
        self.project.stop_daemon()
        return duration_ms


def main() -> None:
    """Measure and print."""
    rounds = (
        create_parser(
            "Measure the first result, compared with kernels without stepper."
        )
        .parse_args()
        .rounds
    )
    with create_temporary_project() as project:
        starts = Starts(project)
        cold_row = Row("**no daemon, no kernel**", starts.step_from_nothing)
        warm_row = Row("**daemon and kernel run**", starts.warm_step)
        no_kernel_row = Row("**daemon runs, no kernel**", starts.step_without_kernel)
        manager = Row("`KernelManager`, running process", start_with_manager)
        process = Row("`KernelManager`, fresh process", start_in_fresh_process)
        sockets = Row("raw sockets, running process", start_with_raw_sockets)
        rows = (cold_row, warm_row, no_kernel_row, manager, process, sockets)
        measure_rows(rows, rounds, warm=1)
    bounds = [
        Bound(cold_row, "`KernelManager`, running process", (manager,), MANAGER_RATIO),
        Bound(cold_row, "`KernelManager`, fresh process", (process,)),
        Bound(cold_row, "raw sockets (goal)", (sockets,), RAW_RATIO),
        Bound(no_kernel_row, "`KernelManager`, running process", (manager,)),
        Bound(no_kernel_row, "raw sockets", (sockets,)),
        Bound(manager, "raw sockets", (sockets,)),
    ]
    print_report(rounds, [*format_times(rows), "", *format_bounds(bounds)])


if __name__ == "__main__":
    run_benchmark(main)
