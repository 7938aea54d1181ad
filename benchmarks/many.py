"""What several notebooks at once cost: 1, 4, 16 of them, a hook in each at the same time.

    python benchmarks/many.py

A wave is one step in every notebook: the edits are made, then as many threads spawn the hooks, timed from the first
spawn to the last exit. Beside each wave as many bare interpreters that ask a dummy over a socket: what the processes
alone take on this machine. Memory is looked at one second after the last wave of each size.
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
    options,
    played,
    report,
    scratch,
    since,
    spawn,
    take,
    within,
)
from subject import Subject

SIZES, CELLS, NOTEBOOK_MB = (1, 4, 16), 10, 3


class Wave:
    """A step in each of several notebooks at once; `single` gathers how long each hook took."""

    def __init__(self, project: Project, pool: ThreadPoolExecutor) -> None:
        self.project, self.pool, self.floor = project, pool, project.connected()
        self.subjects: list[Subject] = []
        self.single: list[float] = []

    def grow(self, size: int) -> None:
        """Add notebooks, each with a kernel; forget what was gathered."""
        for number in range(len(self.subjects), size):
            self.subjects.append(Subject(self.project, f"many{number}", CELLS))
            self.subjects[-1].step()
        self.single = []

    def bare(self) -> float:
        """Return the milliseconds of as many bare interpreters."""
        began = time.perf_counter()
        for done in [self.pool.submit(self.floor) for _ in self.subjects]:
            done.result()
        return since(began)

    def run(self) -> float:
        """Return the milliseconds of a wave; raise BrokenStepError unless each cell ran."""
        edits = [(subject, *subject.edit()) for subject in self.subjects]
        hook, began = self.project.hook("PostToolUse"), time.perf_counter()
        ended = [
            done.result()
            for done in [self.pool.submit(spawn, hook, data) for _, data, _ in edits]
        ]
        took = since(began)
        for (subject, _, word), one in zip(edits, ended, strict=True):
            subject.check(one.out, word)
            self.single.append(one.ms)
        # one session, one message: it is that of all notebooks
        self.subjects[0].end_message()
        return took


def kernels(daemon: psutil.Process) -> list[float]:
    """Return the USS of each process below the daemon, in MiB."""
    return [one.memory_full_info().uss / MB for one in daemon.children(recursive=True)]


def main() -> None:
    """Measure and print."""
    rounds = options("What several notebooks at once cost.").parse_args().rounds
    times, memory, first = [], [], 0.0
    with scratch() as project, ThreadPoolExecutor(max(SIZES)) as pool:
        wave = Wave(project, pool)
        for size in SIZES:
            wave.grow(size)
            step, floor = Row("steps", wave.run), Row("floor", wave.bare)
            take((step, floor), rounds)
            done, bare = (1000 * size / row.median for row in (step, floor))
            single = statistics.median(wave.single)
            times.append(
                f"| {size} | {done:.1f} | {single:.1f} | {bare:.1f} | {step.median / floor.median:.2f} × |"
            )
            time.sleep(1)
            daemon = project.daemon()
            rss, own = daemon.memory_info().rss / MB, kernels(daemon)
            first = first or rss
            each = (rss - first) / (size - 1) if size > 1 else 0.0
            more = (
                f"{each:.2f} | {within(each, NOTEBOOK_MB)}"
                if size > 1
                else f"| idle: {within(rss, IDLE_MB)}"
            )
            memory.append(
                f"| {size} | {rss:.1f} | {more} | {len(own)} | {statistics.median(own):.1f} |"
            )
    report(
        rounds,
        [
            "| notebooks at once | steps a second | a hook, median ms | interpreters a second | a wave to theirs |",
            "| --- | --- | --- | --- | --- |",
            *times,
            "",
            "| notebooks | daemon RSS, MiB | each further one adds | bound | processes below it | each one's, MiB |",
            "| --- | --- | --- | --- | --- | --- |",
            *memory,
        ],
    )


if __name__ == "__main__":
    played(main)
