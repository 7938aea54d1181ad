"""What a step costs: whole processes, spawn to exit, beside the floors of the same run. No timed test.

    python benchmarks/step.py

Run it with the Python of an environment that holds stepper and ipykernel. It makes a project of its own in a
temporary folder, edits real notebooks as NotebookEdit does, calls the real hook script as Claude Code does, and
ends the daemon and the kernels again.

Each round measures each subject once, right after a bare `python -I -S -c pass` of its own: a subject's ratio is its
median over the median of its own bare runs. After each step the report and the notebook are checked, untimed: a step
whose cell did not run ends the benchmark.
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
    bounds_table,
    daemon_memory,
    memory_row,
    options,
    peak,
    played,
    replace,
    report,
    scratch,
    since,
    spawn,
    take,
    total,
)
from kernels import Kernel, RawKernel
from subject import NAMES, Subject

CELLS = (1, 10, 50, 100)
# to a bare Python: with 10 cells; with 100 cells and 5 MB
BARE_RATIO, LARGE_RATIO = 4, 12
FLOORS_RATIO, GATE_RATIO, HUNDRED_RATIO, BESIDE_RATIO = 1.6, 1.4, 1.3, 1.1


def of(cells: int) -> str:
    """Return how a notebook's size is said."""
    return f"{cells} cells" if cells > 1 else "1 cell"


def rewritten(path: Path) -> float:
    """Return the milliseconds of reading a file and writing it carefully, to a file beside it."""
    began = time.perf_counter()
    replace(path.with_suffix(".floor"), path.read_bytes())
    return since(began)


def hook_memory(project: Project, small: Subject, large: Subject) -> list[str]:
    """Return the rows about the peaks of the hook process."""
    return [
        memory_row("a bare Python's peak", peak(project, project.bare)[0]),
        memory_row("hook process's peak, 10 cells", small.peak_mb()),
        memory_row(
            "hook process's peak, 100 cells, 5 MB (stdin: 11 MB)", large.peak_mb()
        ),
    ]


class Bench:
    """The rows, and what they are held against."""

    def __init__(self, project: Project, kernel: Kernel, raw: RawKernel) -> None:
        books = {cells: Subject(project, f"cells{cells}", cells) for cells in CELLS}
        self.ten = books[10]
        self.ten.step()  # starts daemon and kernel
        self.memory = daemon_memory(project, "after one step in a notebook of 10 cells")
        self.large = Subject(project, "large", 100, 5 * MB)
        client = project.client("PostToolUse")
        self.socket = Row(
            "floor: `python -I -S`, `_socket`, round trip to a dummy",
            project.connected(),
        )
        self.raw = Row(
            "floor: kernel round trip, raw ZeroMQ (in one process)", raw.round_trip
        )
        self.file = Row(
            "floor: read, write, fsync, rename: 10 cells",
            lambda: rewritten(self.ten.path),
        )
        self.before = {
            n: Row(f"PreToolUse, {of(n)}", book.ask) for n, book in books.items()
        }
        self.after = {
            n: Row(f"**PostToolUse, {of(n)}**", book.step) for n, book in books.items()
        }
        self.answers = {
            n: Row(f"socket to answer, {of(n)}", book.answer)
            for n, book in books.items()
        }
        self.slower = {
            "PreToolUse": Row(
                "PreToolUse, 10 cells, Python's client",
                lambda: project.interpreted(self.ten.ask),
            ),
            **{
                n: Row(
                    f"PostToolUse, {of(n)}, Python's client",
                    lambda book=books[n]: project.interpreted(book.step),
                )
                for n in (10, 100)
            },
        }
        self.beside = {
            n: Row(f"PostToolUse, {of(n)}, its waker beside", books[n].beside)
            for n in (10, 100)
        }
        named = Subject(project, "named", 10)
        named.message(first=NAMES)
        self.big = Row("**PostToolUse, 100 cells, 5 MB of outputs**", self.large.step)
        self.rows = [
            Row("floor: `sh -c :`", lambda: spawn(["sh", "-c", ":"]).ms),
            self.socket,
            self.raw,
            Row("the same with jupyter_client", kernel.round_trip),
            self.file,
            Row("the same: 100 cells", lambda: rewritten(books[100].path)),
            *self.before.values(),
            *self.after.values(),
            Row(
                "PostToolUse, 10 cells, without the script's shell",
                lambda: self.ten.step(client),
            ),
            *self.beside.values(),
            *self.slower.values(),
            *self.answers.values(),
            self.big,
            Row("the same without the script's shell", lambda: self.large.step(client)),
            Row("PostToolUse, 10 cells, 160 names in the kernel", named.step),
            Row(
                "once a message with edits: PostToolBatch",
                lambda: self.ten.message()[1],
            ),
            Row(
                "once a message without edits: PostToolBatch",
                lambda: self.ten.end_message().ms,
            ),
        ]

    def bounds(self) -> list[Bound]:
        """Return what was promised."""
        floors = (self.socket, self.raw, self.file)
        return [
            Bound(
                self.after[10],
                "interpreter + socket, kernel round trip, read and write",
                floors,
                FLOORS_RATIO,
            ),
            Bound(
                self.after[100],
                "the same with 10 cells",
                (self.after[10],),
                HUNDRED_RATIO,
            ),
            *(
                Bound(row, "interpreter + socket", (self.socket,), GATE_RATIO)
                for row in self.before.values()
            ),
            Bound(
                self.slower["PreToolUse"],
                "interpreter + socket",
                (self.socket,),
                GATE_RATIO,
            ),
            Bound(
                self.slower[10],
                "interpreter + socket, kernel round trip, read and write",
                floors,
                FLOORS_RATIO,
            ),
            Bound(
                self.slower[100],
                "the same with 10 cells",
                (self.slower[10],),
                HUNDRED_RATIO,
            ),
            *(
                Bound(self.beside[n], "the same alone", (self.after[n],), BESIDE_RATIO)
                for n in (10, 100)
            ),
            *(
                Bound(self.answers[n], "kernel round trip, read and write", floors[1:])
                for n in (10, 100)
            ),
            Bound(self.after[10], "a bare Python", (), BARE_RATIO),
            Bound(self.big, "a bare Python", (), LARGE_RATIO),
        ]

    def lines(self) -> list[str]:
        """Return the tables."""
        steps = [
            total(f"**a step, {of(n)}**: both hooks", self.before[n], self.after[n])
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
            *bounds_table(self.bounds()),
            "",
            "| memory | MiB | bound |",
            "| --- | --- | --- |",
            *self.memory,
        ]


def main() -> None:
    """Measure and print."""
    rounds = (
        options("What a step costs, beside the floors of the same run.", 30)
        .parse_args()
        .rounds
    )
    with scratch() as project:
        kernel, raw = Kernel(), RawKernel()
        try:
            bench = Bench(project, kernel, raw)
            take(bench.rows, rounds, lambda: spawn(project.bare).ms)
        finally:
            kernel.end()
            raw.end()
        bench.memory += daemon_memory(project, "after all these steps")
        bench.memory += hook_memory(project, bench.ten, bench.large)
        report(rounds, bench.lines())


if __name__ == "__main__":
    played(main)
