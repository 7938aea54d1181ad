"""Run many cells in many notebooks with random faults; check all state after each.

    python benchmarks/soak.py                          # 2,000 cells in 20 notebooks
    python benchmarks/soak.py --seconds 120 --seed 7   # for two minutes

Run it with the Python of an environment that has stepper and its test requirements.
Daemons are killed in the first half only. The second half runs on one daemon, whose
memory, descriptors and threads are measured after its first hundred cells and at the
end. The run stops at the first inconsistency and prints the seed that reproduces it.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from stepper.hook import daemon_client  # noqa: E402
from tests.conftest import CLIENT, Answer, Notebook, Project, text_of  # noqa: E402
from tests.kernel_traffic import OutputCounter  # noqa: E402

BOOKS, HANG_SECONDS, GROWTH = 20, 60.0, 0.10
# The counter in the kernel must count all runs, including those of replaced cells.
CONFIG = "max_cells: 100000\nmax_retries: 1000\nkernel_cwd: notebook\nundo: off\n"
# Each cell appends its mark to a file, which shows how often it ran.
CELL = "n = globals().get('n', 0) + 1\nopen('{book}.ran', 'a').write('{mark}\\n')\n{extra}print('{mark}', n)"


@dataclass
class Cell:
    """A cell and its expected mark, text, outcome and number of runs."""

    id: str
    mark: str
    text: str
    outcome: str = "ok"
    runs: int = 1


@dataclass
class Book:
    """A notebook and its expected cells; `n` is the expected counter in its kernel."""

    name: str
    notebook: Notebook
    cells: list[Cell] = field(default_factory=list)
    n: int = 0


class DisagreementError(Exception):
    """The notebook, the journal or the status is not as expected."""


def require(condition: object, expectation: str, *values: object) -> None:
    """Raise DisagreementError unless the condition holds."""
    if not condition:
        raise DisagreementError(
            f"{expectation}: {' | '.join(str(value)[-1500:] for value in values)}"
        )


class SoakRun:
    """The project, its notebooks, and the actions on them."""

    def __init__(self, project: Project, seed: int, books: int) -> None:
        self.project, self.random = project, random.Random(seed)
        self.books = [
            Book(f"book{n}", project.notebook(f"book{n}.ipynb")) for n in range(books)
        ]
        self.actions: collections.Counter[str] = collections.Counter()
        self.cells = 0

    # --- Requests and helpers

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Ask the daemon as the command line does."""
        return json.loads(
            daemon_client.send_request(
                self.project.paths, verb.encode(), json.dumps(arguments).encode()
            )
            or b"null"
        )

    def wait_until(self, condition: Callable[[], object], expectation: str) -> None:
        """Wait for a condition."""
        limit = time.monotonic() + HANG_SECONDS
        while not condition():
            require(time.monotonic() < limit, f"timed out: {expectation}")
            time.sleep(0.02)

    def get_kernel_status(self, book: Book) -> dict[str, Any]:
        """Return the status of a notebook's kernel."""
        return self.ask("status", notebook=book.name)["kernel"]

    def has_started(self, book: Book, mark: str) -> bool:
        """Return whether the cell with this mark has started."""
        return (
            mark in (book.notebook.path.parent / f"{book.name}.ran").read_text().split()
        )

    def create_source(self, book: Book, extra: str = "") -> tuple[str, str]:
        """Return a new cell's mark and source."""
        self.cells += 1
        mark = f"{book.name}-{self.cells}"
        return mark, CELL.format(book=book.name, mark=mark, extra=extra)

    def insert(self, book: Book, extra: str = "", expected: str = "") -> Cell:
        """Write a cell that must succeed."""
        mark, source = self.create_source(book, extra)
        cell_id, answer = book.notebook.insert(source)
        require("ran ok" in answer.text, "a cell ran ok", answer.text, answer.stop)
        return self.add_cell(book, cell_id, mark, expected)

    def add_cell(self, book: Book, cell_id: str, mark: str, expected: str = "") -> Cell:
        """Record a cell that succeeded."""
        book.n += 1
        cell = Cell(cell_id, mark, f"{expected}{mark} {book.n}\n")
        book.cells.append(cell)
        return cell

    def fix_cell(self, book: Book, cell_id: str, runs: int = 1) -> None:
        """Replace a failed cell by one that succeeds."""
        mark, source = self.create_source(book)
        answer = book.notebook.replace(cell_id, source)
        require(
            "ran ok" in answer.text, "a fixed cell ran ok", answer.text, answer.stop
        )
        self.add_cell(book, cell_id, mark)

    # --- Actions

    def add_plain_cell(self, book: Book) -> None:
        """Add a cell."""
        self.insert(book)

    def replace_cell(self, book: Book) -> None:
        """Replace an existing cell."""
        if book.cells:
            cell = self.random.choice(book.cells)
            book.cells.remove(cell)
            self.fix_cell(book, cell.id)

    def add_error(self, book: Book) -> None:
        """Add a cell that fails, and fix it."""
        cell_id, answer = book.notebook.insert("raise ValueError(0)")
        require("FAILED" in answer.text, "an error is reported", answer.text)
        self.fix_cell(book, cell_id)

    def exceed_deadline(self, book: Book) -> None:
        """Add a cell that exceeds its deadline, and fix it."""
        cell_id, answer = book.notebook.insert(
            "# stepper: timeout=1\nimport time; time.sleep(600)"
        )
        require(
            "Timeout" in answer.text, "a timeout is reported", answer.text, answer.stop
        )
        self.fix_cell(book, cell_id)

    def add_flood(self, book: Book) -> None:
        """Add a cell that prints 2 MB."""
        cell = self.insert(book, "print('y' * 2_000_000)\n")
        cell.text = f"… {cell.text}"  # only the end is compared

    def update_display(self, book: Book) -> None:
        """Add a cell that updates a display often."""
        extra = "from IPython.display import display\nh = display(0, display_id=True)\nfor i in range(300): h.update(i)\n"
        cell = self.insert(book, extra)
        outputs = book.notebook.cell(cell.id)["outputs"]
        shown = [output["data"]["text/plain"] for output in outputs if "data" in output]
        require(shown == [["299"]], "only the last update is kept", shown)

    def start_child(self, book: Book) -> None:
        """Add a cell that starts a process, which continues to print."""
        self.insert(
            book,
            "import subprocess\nsubprocess.Popen('for i in 1 2 3; do sleep 0.1; echo late; done', shell=True)\n",
        )

    def create_waiting_cell(
        self, book: Book, go: str = ""
    ) -> tuple[str, dict[str, Any]]:
        """Return the mark and the payload of a cell that waits for the file `go`."""
        wait = f"import os, time\nwhile not os.path.exists({go!r}): time.sleep(0.01)\n"
        mark, source = self.create_source(book, wait)
        last = (
            book.notebook.raw["cells"][-1]["id"] if book.notebook.raw["cells"] else None
        )
        return mark, book.notebook.edited("insert", source, last)

    def kill_hook(self, book: Book) -> None:
        """Kill the hook while its cell runs."""
        mark, payload = self.create_waiting_cell(book, "never")
        command = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            CLIENT,
            str(ROOT),
            str(self.project.folder),
            "PostToolUse",
        ]
        hook = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        hook.stdin.write(json.dumps(payload).encode())
        hook.stdin.close()
        self.wait_until(lambda: self.has_started(book, mark), "a cell runs")
        self.random.choice((hook.terminate, hook.kill))()
        hook.stdout.close()
        hook.wait()
        cell_id = payload["tool_response"]["cell_id"]
        self.wait_until(
            lambda: self.ask("history", notebook=book.name)[-1]["cell_id"] == cell_id,
            "a cancelled cell is journaled",
        )
        last = self.ask("history", notebook=book.name)[-1]
        require(last["outcome"] == "cancelled", "its outcome is `cancelled`", last)
        book.n += 1  # the cell counted before it waited
        self.fix_cell(book, cell_id)

    def interrupt(self, book: Book) -> None:
        """Interrupt a cell as the user does."""
        mark, payload = self.create_waiting_cell(book, "never")
        answers, thread = self.fire_hook(payload)
        self.wait_until(lambda: self.has_started(book, mark), "a cell runs")
        self.ask("interrupt", notebook=book.name)
        thread.join(HANG_SECONDS)
        require(
            answers and "CANCELLED" in answers[0].text,
            "an interrupt is reported",
            answers and answers[0].text,
        )
        book.n += 1
        self.fix_cell(book, payload["tool_response"]["cell_id"])

    def fire_hook(
        self, payload: dict[str, Any]
    ) -> tuple[list[Answer], threading.Thread]:
        """Run the hook in a thread."""
        answers: list[Answer] = []
        thread = threading.Thread(
            target=lambda: answers.append(self.project.hook("PostToolUse", payload))
        )
        thread.start()
        return answers, thread

    def run_concurrent_hooks(self, book: Book) -> None:
        """Run four hooks on this notebook and one on each of three others."""
        other_notebooks = self.random.sample(
            [other for other in self.books if other is not book],
            min(3, len(self.books) - 1),
        )
        edits = []
        for other in [book] * 4 + other_notebooks:
            mark, source = self.create_source(other)
            last = (
                other.notebook.raw["cells"][-1]["id"]
                if other.notebook.raw["cells"]
                else None
            )
            edits.append((other, mark, other.notebook.edited("insert", source, last)))
        with ThreadPoolExecutor(len(edits)) as pool:
            answers = [
                *pool.map(lambda edit: self.project.hook("PostToolUse", edit[2]), edits)
            ]
        for (other, mark, payload), answer in zip(edits, answers, strict=True):
            cell_id = payload["tool_response"]["cell_id"]
            require(
                "ran ok" in answer.text,
                "concurrent cells run ok",
                answer.text,
                answer.stop,
            )
            text = text_of(other.notebook.cell(cell_id))  # they run in order of arrival
            require(
                text.startswith(f"{mark} "), "every output is on its cell", mark, text
            )
            other.n += 1
            other.cells.append(Cell(cell_id, mark, text))
        counts = sorted(int(cell.text.split()[-1]) for cell in book.cells[-4:])
        require(
            counts == list(range(book.n - 3, book.n + 1)),
            "cells run one after the other",
            counts,
            book.n,
        )
        for other in other_notebooks:
            self.check_book(other)

    def kill_kernel(self, book: Book) -> None:
        """Kill the kernel while it is idle."""
        self.add_plain_cell(book)
        psutil.Process(self.get_kernel_status(book)["pid"]).kill()
        self.wait_until(
            lambda: self.ask("status", notebook=book.name)["state"] == "stopped",
            "a dead kernel stops",
        )
        self.resume(book)

    def exit_kernel(self, book: Book) -> None:
        """Add a cell that exits its kernel."""
        self.add_plain_cell(book)
        cell_id, answer = book.notebook.insert(
            f"import os; os._exit({self.random.randrange(1, 9)})"
        )
        require(
            "KernelDied" in answer.stop, "a dead kernel stops", answer.text, answer.stop
        )
        self.resume(book)
        self.fix_cell(book, cell_id)

    def resume(self, book: Book) -> None:
        """Resume the notebook, with or without restoring the successful cells."""
        book.n = 0
        if self.random.random() < 0.5:
            self.ask("continue", notebook=book.name)
            return
        result = self.ask("restore", notebook=book.name)
        require(
            result["ok"] and result["ran"] == len(book.cells),
            "restore runs the successful cells",
            result,
            len(book.cells),
        )
        order = {
            raw["id"]: index for index, raw in enumerate(book.notebook.raw["cells"])
        }
        for cell in sorted(book.cells, key=lambda cell: order[cell.id]):
            book.n += 1
            cell.runs += 1
            cell.text = f"{cell.text.rsplit(' ', 1)[0]} {book.n}\n"

    def restart(self, book: Book) -> None:
        """Restart the kernel as the user does."""
        self.ask("restart", notebook=book.name)
        book.n = 0

    def kill_idle_daemon(self, book: Book) -> None:
        """Kill the daemon while it is idle."""
        self.add_plain_cell(book)
        self.project.kill_daemon()

    def kill_busy_daemon(self, book: Book) -> None:
        """Kill the daemon while a cell runs and its hook waits."""
        go = f"go{self.cells}"
        mark, payload = self.create_waiting_cell(book, go)
        answers, thread = self.fire_hook(payload)
        self.wait_until(lambda: self.has_started(book, mark), "a cell runs")
        self.project.kill_daemon()
        (book.notebook.path.parent / go).touch()
        thread.join(HANG_SECONDS)
        require(
            answers and "ran ok" in answers[0].text,
            "a cell continues without its daemon",
            answers and answers[0].text,
        )
        self.add_cell(book, payload["tool_response"]["cell_id"], mark)

    # --- Checks

    def check_book(self, book: Book) -> None:
        """Raise DisagreementError if notebook, journal and status differ."""
        raw = {cell["id"]: cell for cell in book.notebook.raw["cells"]}
        marks = (
            (book.notebook.path.parent / f"{book.name}.ran").read_text().split()
            if book.cells
            else []
        )
        mark_counts = collections.Counter(marks)
        runs = self.ask("history", notebook=book.name)
        last = {run["cell_id"]: run for run in runs}
        journal = (
            (Path(self.project.paths.journals) / f"{book.name}.jsonl")
            .read_text()
            .splitlines()
        )
        written = [
            event for event in map(json.loads, journal) if event["event"] == "run"
        ]
        require(
            [run["run"] for run in runs] == [event["run"] for event in written],
            "history and journal agree",
        )
        require(
            len({run["run"] for run in runs}) == len(runs),
            "no run is listed twice",
        )
        for cell in book.cells:
            # A child's output, which the kernel cannot distinguish from the cell's.
            text = text_of(raw[cell.id]).replace("late\n", "")
            matches = (
                text.endswith(cell.text[2:])
                if cell.text.startswith("… ")
                else text == cell.text
            )
            require(matches, "the outputs belong to the cell", book.name, cell, text)
            require(
                last[cell.id]["outcome"] == cell.outcome,
                "the journal has the outcome",
                cell,
                last[cell.id],
            )
            require(
                mark_counts[cell.mark] == cell.runs,
                "the number of runs is correct",
                cell,
                mark_counts[cell.mark],
            )
        status = self.ask("status", notebook=book.name)
        require(
            status["state"] == "ready"
            and status["kernel"]["state"] in ("idle", "none"),
            "the status agrees",
            status,
        )

    def validate_notebooks(self) -> None:
        """Raise an error if a notebook is not valid."""
        for book in self.books:
            nbformat.validate(nbformat.read(book.notebook.path, 4))

    def measure_daemon(self) -> dict[str, float]:
        """Return the daemon's memory in MiB, descriptors and threads.

        Run a cell in each kernel first.
        """
        for book in self.books:
            self.add_plain_cell(book)
        process = psutil.Process(self.ask("status")["daemon"]["pid"])
        time.sleep(1.5)  # the last request's memory is freed a moment later
        memory = process.memory_info().rss / 2**20
        return {
            "pid": process.pid,
            "MiB": memory,
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
        }


ALWAYS = {
    "add_plain_cell": 70,
    "replace_cell": 8,
    "add_error": 6,
    "exceed_deadline": 1,
    "add_flood": 2,
    "update_display": 2,
    "start_child": 1,
    "kill_hook": 2,
    "interrupt": 1,
    "run_concurrent_hooks": 2,
    "kill_kernel": 1,
    "exit_kernel": 1,
    "restart": 1,
}
FIRST_HALF = {"kill_idle_daemon": 1.5, "kill_busy_daemon": 1.5}


def soak(
    cells: int,
    seconds: float,
    seed: int,
    books: int,
    folder: Path,
    report_progress: Callable[[str], None],
) -> dict[str, Any]:
    """Run the actions.

    Return their counts and the daemon's sizes. Raise DisagreementError.
    """
    project = Project(folder / "repo")
    project.config(CONFIG)
    run, listener = SoakRun(project, seed, books), OutputCounter(project)
    started_at, sizes, first_cell_count = time.monotonic(), dict[str, Any](), 0
    try:
        listener.__enter__()
        for book in run.books:
            run.add_plain_cell(book)
        while True:
            progress = max(run.cells / cells, (time.monotonic() - started_at) / seconds)
            if progress >= 1:
                break
            if progress >= 0.5 and not first_cell_count:
                first_cell_count = run.cells
            if (
                first_cell_count
                and run.cells >= first_cell_count + 100 - books
                and "first" not in sizes
            ):
                sizes["first"] = run.measure_daemon()
                report_progress(f"{run.cells} cells: {sizes['first']}")
            kinds = ALWAYS if first_cell_count else ALWAYS | FIRST_HALF
            kind = run.random.choices(list(kinds), list(kinds.values()))[0]
            book = run.random.choice(run.books)
            getattr(run, kind)(book)
            run.actions[kind] += 1
            run.check_book(book)
            if sum(run.actions.values()) % 50 == 0:
                run.validate_notebooks()
                report_progress(
                    f"{run.cells} cells, {time.monotonic() - started_at:.0f} s"
                )
        for book in run.books:
            run.check_book(book)
        time.sleep(3)  # late output is written within two
        require(listener.begun, "messages of the kernels are received")
        listener.assert_output_saved()
        sizes["end"] = run.measure_daemon()
        return {
            "cells": run.cells,
            "seconds": time.monotonic() - started_at,
            "done": dict(run.actions),
            "sizes": sizes,
        }
    finally:
        listener.__exit__(None, None, None)
        project.stepper("shutdown", check=None)
        shutil.rmtree(project.paths.runtime, ignore_errors=True)


def list_growth(sizes: dict[str, Any]) -> list[str]:
    """Return the values that grew by more than a tenth on one daemon."""
    if "first" not in sizes or sizes["first"]["pid"] != sizes["end"]["pid"]:
        return []
    pairs = {
        name: (sizes["first"][name], sizes["end"][name])
        for name in ("MiB", "descriptors")
    }
    return [
        f"{name}: {first_value:.1f} → {last_value:.1f}"
        for name, (first_value, last_value) in pairs.items()
        if last_value > first_value * (1 + GROWTH)
    ]


def main() -> None:
    """Run the soak test and print its results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--books", type=int, default=BOOKS)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak"))
    try:
        result = soak(
            arguments.cells,
            arguments.seconds,
            arguments.seed,
            arguments.books,
            folder,
            lambda text: print(text, flush=True),
        )
    except DisagreementError as error:
        sys.exit(f"seed {arguments.seed}: {error}\nthe project is in {folder}")
    print(json.dumps(result, indent=2))
    shutil.rmtree(folder, ignore_errors=True)
    if list_growth(result["sizes"]):
        sys.exit(
            "growth of more than a tenth: " + "; ".join(list_growth(result["sizes"]))
        )


if __name__ == "__main__":
    main()
