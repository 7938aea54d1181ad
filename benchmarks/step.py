"""Measure a step with whole processes, from spawn to exit, and its lower bounds.

    python benchmarks/step.py

Run it with the Python of an environment that has stepper and ipykernel. It creates a
project in a temporary folder, edits real notebooks as NotebookEdit does, and calls the
real hook script as Claude Code does.

Each round measures each row once, right after a bare `python -I -S -c pass`. A row's
ratio is its median, divided by the median of its own bare runs. After each step, the
report and the notebook are checked, which is not timed: if the cell did not run, the
benchmark fails.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from common import (
    MB,
    Bound,
    Project,
    Row,
    add_rows,
    create_parser,
    create_temporary_project,
    format_bounds,
    format_memory_row,
    measure_daemon_memory,
    measure_elapsed_ms,
    measure_peak,
    measure_rows,
    print_report,
    replace_file,
    run_benchmark,
    spawn,
)
from edited_notebook import NAMES, EditedNotebook
from kernels import Kernel, RawKernel

CELLS = (1, 10, 50, 100)
# relative to a bare Python: with 10 cells; with 100 cells and 5 MB
BARE_RATIO, LARGE_RATIO = 4, 12
FLOORS_RATIO, GATE_RATIO, HUNDRED_RATIO, WAKER_RATIO = 1.6, 1.4, 1.3, 1.1


def format_cells(cells: int) -> str:
    """Return the size of a notebook as text."""
    return f"{cells} cells" if cells > 1 else "1 cell"


def measure_rewrite(path: Path) -> float:
    """Return the milliseconds that it takes to read a file and to write it safely."""
    started_at = time.perf_counter()
    replace_file(path.with_suffix(".floor"), path.read_bytes())
    return measure_elapsed_ms(started_at)


def hook_memory(
    project: Project, small: EditedNotebook, large: EditedNotebook
) -> list[str]:
    """Return the rows on the peaks of the hook process."""
    return [
        format_memory_row(
            "a bare Python's peak", measure_peak(project, project.bare)[0]
        ),
        format_memory_row("hook process's peak, 10 cells", small.peak_mb()),
        format_memory_row(
            "hook process's peak, 100 cells, 5 MB (stdin: 11 MB)", large.peak_mb()
        ),
    ]


class Bench:
    """The rows and their limits."""

    def __init__(self, project: Project, kernel: Kernel, raw: RawKernel) -> None:
        notebooks = {
            cells: EditedNotebook(project, f"cells{cells}", cells) for cells in CELLS
        }
        self.ten = notebooks[10]
        self.ten.step()  # starts daemon and kernel
        self.memory = measure_daemon_memory(
            project, "after one step in a notebook of 10 cells"
        )
        self.large = EditedNotebook(project, "large", 100, 5 * MB)
        client = project.build_client_command("PostToolUse")
        self.socket = Row(
            "floor: `python -I -S`, `_socket`, round trip to an echo server",
            project.create_socket_floor(),
        )
        self.raw = Row(
            "floor: kernel round trip, raw ZeroMQ (in one process)", raw.round_trip
        )
        self.file = Row(
            "floor: read, write, fsync, rename: 10 cells",
            lambda: measure_rewrite(self.ten.path),
        )
        self.pre_hooks = {
            n: Row(f"PreToolUse, {format_cells(n)}", notebook.ask)
            for n, notebook in notebooks.items()
        }
        self.post_hooks = {
            n: Row(f"**PostToolUse, {format_cells(n)}**", notebook.step)
            for n, notebook in notebooks.items()
        }
        self.socket_rows = {
            n: Row(f"socket to answer, {format_cells(n)}", notebook.answer)
            for n, notebook in notebooks.items()
        }
        self.python_client = {
            "PreToolUse": Row(
                "PreToolUse, 10 cells, Python's client",
                lambda: project.measure_with_python_client(self.ten.ask),
            ),
            **{
                n: Row(
                    f"PostToolUse, {format_cells(n)}, Python's client",
                    lambda notebook=notebooks[n]: project.measure_with_python_client(
                        notebook.step
                    ),
                )
                for n in (10, 100)
            },
        }
        self.with_waker = {
            n: Row(
                f"PostToolUse, {format_cells(n)}, with its waiting hook",
                notebooks[n].step_with_waker,
            )
            for n in (10, 100)
        }
        named = EditedNotebook(project, "named", 10)
        named.message(first=NAMES)
        self.large_row = Row(
            "**PostToolUse, 100 cells, 5 MB of outputs**", self.large.step
        )
        self.rows = [
            Row("floor: `sh -c :`", lambda: spawn(["sh", "-c", ":"]).ms),
            self.socket,
            self.raw,
            Row("the same with jupyter_client", kernel.round_trip),
            self.file,
            Row("the same: 100 cells", lambda: measure_rewrite(notebooks[100].path)),
            *self.pre_hooks.values(),
            *self.post_hooks.values(),
            Row(
                "PostToolUse, 10 cells, without the script's shell",
                lambda: self.ten.step(client),
            ),
            *self.with_waker.values(),
            *self.python_client.values(),
            *self.socket_rows.values(),
            self.large_row,
            Row("the same without the script's shell", lambda: self.large.step(client)),
            Row("PostToolUse, 10 cells, 160 names in the kernel", named.step),
            Row(
                "PostToolBatch, once per message with edits",
                lambda: self.ten.message()[1],
            ),
            Row(
                "PostToolBatch, once per message without edits",
                lambda: self.ten.end_message().ms,
            ),
        ]

    def bounds(self) -> list[Bound]:
        """Return the rows that are compared with lower bounds."""
        floors = (self.socket, self.raw, self.file)
        return [
            Bound(
                self.post_hooks[10],
                "interpreter + socket, kernel round trip, read and write",
                floors,
                FLOORS_RATIO,
            ),
            Bound(
                self.post_hooks[100],
                "the same with 10 cells",
                (self.post_hooks[10],),
                HUNDRED_RATIO,
            ),
            *(
                Bound(row, "interpreter + socket", (self.socket,), GATE_RATIO)
                for row in self.pre_hooks.values()
            ),
            Bound(
                self.python_client["PreToolUse"],
                "interpreter + socket",
                (self.socket,),
                GATE_RATIO,
            ),
            Bound(
                self.python_client[10],
                "interpreter + socket, kernel round trip, read and write",
                floors,
                FLOORS_RATIO,
            ),
            Bound(
                self.python_client[100],
                "the same with 10 cells",
                (self.python_client[10],),
                HUNDRED_RATIO,
            ),
            *(
                Bound(
                    self.with_waker[n],
                    "the same without it",
                    (self.post_hooks[n],),
                    WAKER_RATIO,
                )
                for n in (10, 100)
            ),
            *(
                Bound(
                    self.socket_rows[n], "kernel round trip, read and write", floors[1:]
                )
                for n in (10, 100)
            ),
            Bound(self.post_hooks[10], "a bare Python", (), BARE_RATIO),
            Bound(self.large_row, "a bare Python", (), LARGE_RATIO),
        ]

    def format_tables(self) -> list[str]:
        """Return the lines of the tables."""
        steps = [
            add_rows(
                f"**a step, {format_cells(n)}**: both hooks",
                self.pre_hooks[n],
                self.post_hooks[n],
            )
            for n in CELLS
        ]
        return [
            "| | to bare Python | median ms | middle half ms | bare ms |",
            "| --- | --- | --- | --- | --- |",
            *(
                f"| {row.name} | {Bound(row, '').ratio:.2f} × | {row.median:.1f} | {row.middle} "
                f"| {statistics.median(row.bare):.1f} |"
                for row in (*self.rows, *steps)
            ),
            "",
            *format_bounds(self.bounds()),
            "",
            "| memory | MiB | limit |",
            "| --- | --- | --- |",
            *self.memory,
        ]


def main() -> None:
    """Measure and print."""
    rounds = (
        create_parser("Measure a step, compared with lower bounds of the same run.", 30)
        .parse_args()
        .rounds
    )
    with create_temporary_project() as project:
        kernel, raw = Kernel(), RawKernel()
        try:
            bench = Bench(project, kernel, raw)
            measure_rows(bench.rows, rounds, lambda: spawn(project.bare).ms)
        finally:
            kernel.shut_down()
            raw.shut_down()
        bench.memory += measure_daemon_memory(project, "after all these steps")
        bench.memory += hook_memory(project, bench.ten, bench.large)
        print_report(rounds, bench.format_tables())


if __name__ == "__main__":
    run_benchmark(main)
