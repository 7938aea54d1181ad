"""Measure concurrent steps in 1, 4 and 16 notebooks.

    python benchmarks/concurrent_steps.py

A wave is one step in every notebook: the edits are made, then as many threads spawn the
hooks, timed from the first spawn to the last exit. Each wave is compared with as many
bare interpreters that ask an echo server. Memory is measured one second after the last
wave of each size.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
from common import (
    IDLE_MB,
    MB,
    Project,
    Row,
    create_parser,
    create_temporary_project,
    format_bound,
    measure_elapsed_ms,
    measure_rows,
    print_report,
    run_benchmark,
    spawn,
)
from edited_notebook import EditedNotebook

SIZES, CELLS, NOTEBOOK_MB = (1, 4, 16), 10, 3


class Wave:
    """A concurrent step in each of several notebooks.

    `hook_times` collects the hooks' durations.
    """

    def __init__(self, project: Project, pool: ThreadPoolExecutor) -> None:
        self.project, self.pool, self.floor = (
            project,
            pool,
            project.create_socket_floor(),
        )
        self.notebooks: list[EditedNotebook] = []
        self.hook_times: list[float] = []

    def add_notebooks(self, size: int) -> None:
        """Add notebooks, each with a kernel; discard the collected durations."""
        for number in range(len(self.notebooks), size):
            self.notebooks.append(EditedNotebook(self.project, f"many{number}", CELLS))
            self.notebooks[-1].step()
        self.hook_times = []

    def bare(self) -> float:
        """Return the milliseconds of as many bare interpreters."""
        started_at = time.perf_counter()
        for future in [self.pool.submit(self.floor) for _ in self.notebooks]:
            future.result()
        return measure_elapsed_ms(started_at)

    def run(self) -> float:
        """Return the milliseconds of a wave.

        Raise BrokenStepError unless each cell ran.
        """
        edits = [(notebook, *notebook.edit()) for notebook in self.notebooks]
        hook, started_at = (
            self.project.build_hook_command("PostToolUse"),
            time.perf_counter(),
        )
        results = [
            future.result()
            for future in [self.pool.submit(spawn, hook, data) for _, data, _ in edits]
        ]
        duration_ms = measure_elapsed_ms(started_at)
        for (notebook, _, marker), result in zip(edits, results, strict=True):
            notebook.check(result.output, marker)
            self.hook_times.append(result.ms)
        # one session, one message for all notebooks
        self.notebooks[0].end_message()
        return duration_ms


def measure_kernel_memory(daemon: psutil.Process) -> list[float]:
    """Return the USS of each child process of the daemon, in MiB."""
    return [
        process.memory_full_info().uss / MB
        for process in daemon.children(recursive=True)
    ]


def main() -> None:
    """Measure and print."""
    rounds = (
        create_parser("Measure concurrent steps in several notebooks.")
        .parse_args()
        .rounds
    )
    times, memory, first_rss = [], [], 0.0
    with create_temporary_project() as project, ThreadPoolExecutor(max(SIZES)) as pool:
        wave = Wave(project, pool)
        for size in SIZES:
            wave.add_notebooks(size)
            step, floor = Row("steps", wave.run), Row("floor", wave.bare)
            measure_rows((step, floor), rounds)
            steps_per_second, floors_per_second = (
                1000 * size / row.median for row in (step, floor)
            )
            median_hook = statistics.median(wave.hook_times)
            times.append(
                f"| {size} | {steps_per_second:.1f} | {median_hook:.1f} | {floors_per_second:.1f} | {step.median / floor.median:.2f} × |"
            )
            time.sleep(1)
            daemon = project.find_daemon()
            rss = daemon.memory_info().rss / MB
            kernel_memory = measure_kernel_memory(daemon)
            first_rss = first_rss or rss
            growth = (rss - first_rss) / (size - 1) if size > 1 else 0.0
            per_notebook = (
                f"{growth:.2f} | {format_bound(growth, NOTEBOOK_MB)}"
                if size > 1
                else f"| idle: {format_bound(rss, IDLE_MB)}"
            )
            memory.append(
                f"| {size} | {rss:.1f} | {per_notebook} | {len(kernel_memory)} | {statistics.median(kernel_memory):.1f} |"
            )
    print_report(
        rounds,
        [
            "| concurrent notebooks | steps per second | hook, median ms | interpreters per second | wave, relative to interpreters |",
            "| --- | --- | --- | --- | --- |",
            *times,
            "",
            "| notebooks | daemon RSS, MiB | per additional notebook | limit | kernels | MiB per kernel |",
            "| --- | --- | --- | --- | --- | --- |",
            *memory,
        ],
    )


if __name__ == "__main__":
    run_benchmark(main)
