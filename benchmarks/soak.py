"""Cells in many notebooks for long, with faults mixed in at random: outputs, journal and status must agree after each.

    python benchmarks/soak.py                          # 2,000 cells in 20 notebooks
    python benchmarks/soak.py --seconds 120 --seed 7   # for two minutes

Run it with the Python of an environment that holds stepper and its test requirements. Daemons are killed in the first
half only: the second half runs on one daemon, whose memory, descriptors and threads are looked at after its first
hundred cells and at the end. The run ends at the first disagreement, with the seed that repeats it.
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
from tests.kernel_traffic import Ear  # noqa: E402

BOOKS, HANG_SECONDS, GROWTH = 20, 60.0, 0.10
CONFIG = "max_cells: 100000\nmax_retries: 1000\nkernel_cwd: notebook\n"
# Each cell leaves its mark in a file, so that it is seen how often it ran.
CELL = "n = globals().get('n', 0) + 1\nopen('{book}.ran', 'a').write('{mark}\\n')\n{more}print('{mark}', n)"


@dataclass
class Cell:
    """A cell and what must stand of it: its mark, what it printed, how it ended, how often it ran."""

    id: str
    mark: str
    text: str
    outcome: str = "ok"
    runs: int = 1


@dataclass
class Book:
    """One notebook, with what must be in it. `n` is what its kernel must count."""

    name: str
    notebook: Notebook
    cells: list[Cell] = field(default_factory=list)
    n: int = 0


class DisagreementError(Exception):
    """What stands in the notebook, the journal or the status is not what must."""


def must(condition: object, what: str, *seen: object) -> None:
    """Raise DisagreementError unless the condition holds."""
    if not condition:
        raise DisagreementError(
            f"{what}: {' | '.join(str(one)[-1500:] for one in seen)}"
        )


class Soak:
    """The project, its notebooks, and what is done to them."""

    def __init__(self, project: Project, seed: int, books: int) -> None:
        self.project, self.random = project, random.Random(seed)
        self.books = [
            Book(f"book{n}", project.notebook(f"book{n}.ipynb")) for n in range(books)
        ]
        self.done: collections.Counter[str] = collections.Counter()
        self.cells = 0

    # --- how stepper is asked
    # ---------------------------------------------------------------------------------

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Ask the daemon as the command line does."""
        return json.loads(
            daemon_client.send_request(
                self.project.paths, verb.encode(), json.dumps(arguments).encode()
            )
            or b"null"
        )

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition."""
        limit = time.monotonic() + HANG_SECONDS
        while not condition():
            must(time.monotonic() < limit, f"it never came: {what}")
            time.sleep(0.02)

    def kernel(self, book: Book) -> dict[str, Any]:
        """Return the standing of a notebook's kernel."""
        return self.ask("status", notebook=book.name)["kernel"]

    def runs(self, book: Book, mark: str) -> bool:
        """Whether that cell has begun."""
        return (
            mark in (book.notebook.path.parent / f"{book.name}.ran").read_text().split()
        )

    def source(self, book: Book, more: str = "") -> tuple[str, str]:
        """Return a new cell's mark and source."""
        self.cells += 1
        mark = f"{book.name}-{self.cells}"
        return mark, CELL.format(book=book.name, mark=mark, more=more)

    def insert(self, book: Book, more: str = "", expected: str = "") -> Cell:
        """Write a cell that must run and end well."""
        mark, source = self.source(book, more)
        cell_id, answer = book.notebook.insert(source)
        must("ran ok" in answer.text, "a cell ran ok", answer.text, answer.stop)
        return self.noted(book, cell_id, mark, expected)

    def noted(self, book: Book, cell_id: str, mark: str, expected: str = "") -> Cell:
        """Note a cell that ended well."""
        book.n += 1
        cell = Cell(cell_id, mark, f"{expected}{mark} {book.n}\n")
        book.cells.append(cell)
        return cell

    def mend(self, book: Book, cell_id: str, runs: int = 1) -> None:
        """Replace a cell that failed by one that runs."""
        mark, source = self.source(book)
        answer = book.notebook.replace(cell_id, source)
        must("ran ok" in answer.text, "a mended cell ran ok", answer.text, answer.stop)
        self.noted(book, cell_id, mark)

    # --- what happens
    # -----------------------------------------------------------------------------------------

    def plain(self, book: Book) -> None:
        """A cell more."""
        self.insert(book)

    def replace(self, book: Book) -> None:
        """A cell that stands there is written anew."""
        if book.cells:
            cell = self.random.choice(book.cells)
            book.cells.remove(cell)
            self.mend(book, cell.id)

    def error(self, book: Book) -> None:
        """A cell fails and is mended."""
        cell_id, answer = book.notebook.insert("missing_name")
        must("FAILED" in answer.text, "an error is told", answer.text)
        self.mend(book, cell_id)

    def deadline(self, book: Book) -> None:
        """A cell passes its deadline and is mended."""
        cell_id, answer = book.notebook.insert(
            "# stepper: timeout=1\nimport time; time.sleep(600)"
        )
        must("Timeout" in answer.text, "a timeout is told", answer.text, answer.stop)
        self.mend(book, cell_id)

    def flood(self, book: Book) -> None:
        """A cell prints 2 MB."""
        cell = self.insert(book, "print('y' * 2_000_000)\n")
        cell.text = f"… {cell.text}"  # the end is what counts

    def updates(self, book: Book) -> None:
        """A display is updated often."""
        more = "from IPython.display import display\nh = display(0, display_id=True)\nfor i in range(300): h.update(i)\n"
        cell = self.insert(book, more)
        outputs = book.notebook.cell(cell.id)["outputs"]
        shown = [output["data"]["text/plain"] for output in outputs if "data" in output]
        must(shown == [["299"]], "updates are folded to the last", shown)

    def child(self, book: Book) -> None:
        """A cell leaves a process behind that prints on."""
        self.insert(
            book,
            "import subprocess\nsubprocess.Popen('for i in 1 2 3; do sleep 0.1; echo late; done', shell=True)\n",
        )

    def waits(self, book: Book, go: str = "") -> tuple[str, dict[str, Any]]:
        """Return the mark and the payload of a cell that waits for a file, or for ever."""
        wait = f"import os, time\nwhile not os.path.exists({go!r}): time.sleep(0.01)\n"
        mark, source = self.source(book, wait)
        last = (
            book.notebook.raw["cells"][-1]["id"] if book.notebook.raw["cells"] else None
        )
        return mark, book.notebook.edited("insert", source, last)

    def cancelled(self, book: Book) -> None:
        """The hook is killed while its cell runs."""
        mark, payload = self.waits(book, "never")
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
        self.until(lambda: self.runs(book, mark), "a cell runs")
        self.random.choice((hook.terminate, hook.kill))()
        hook.stdout.close()
        hook.wait()
        cell_id = payload["tool_response"]["cell_id"]
        self.until(
            lambda: self.ask("history", notebook=book.name)[-1]["cell_id"] == cell_id,
            "a cancelled cell ends",
        )
        last = self.ask("history", notebook=book.name)[-1]
        must(last["outcome"] == "cancelled", "a cancelled cell is journaled so", last)
        book.n += 1  # it counted before it waited
        self.mend(book, cell_id)

    def interrupted(self, book: Book) -> None:
        """The person interrupts a cell."""
        mark, payload = self.waits(book, "never")
        answers, thread = self.asked(payload)
        self.until(lambda: self.runs(book, mark), "a cell runs")
        self.ask("interrupt", notebook=book.name)
        thread.join(HANG_SECONDS)
        must(
            answers and "CANCELLED" in answers[0].text,
            "an interrupt is told",
            answers and answers[0].text,
        )
        book.n += 1
        self.mend(book, payload["tool_response"]["cell_id"])

    def asked(self, payload: dict[str, Any]) -> tuple[list[Answer], threading.Thread]:
        """Fire the hook in the background."""
        answers: list[Answer] = []
        thread = threading.Thread(
            target=lambda: answers.append(self.project.hook("PostToolUse", payload))
        )
        thread.start()
        return answers, thread

    def at_once(self, book: Book) -> None:
        """Four hooks at once on this notebook, one on each of three others."""
        others = self.random.sample(
            [one for one in self.books if one is not book], min(3, len(self.books) - 1)
        )
        made = []
        for one in [book] * 4 + others:
            mark, source = self.source(one)
            last = (
                one.notebook.raw["cells"][-1]["id"]
                if one.notebook.raw["cells"]
                else None
            )
            made.append((one, mark, one.notebook.edited("insert", source, last)))
        with ThreadPoolExecutor(len(made)) as pool:
            answers = [
                *pool.map(lambda each: self.project.hook("PostToolUse", each[2]), made)
            ]
        for (one, mark, payload), answer in zip(made, answers, strict=True):
            cell_id = payload["tool_response"]["cell_id"]
            must(
                "ran ok" in answer.text,
                "cells at once run ok",
                answer.text,
                answer.stop,
            )
            text = text_of(one.notebook.cell(cell_id))  # they run in order of arrival
            must(text.startswith(f"{mark} "), "every output is on its cell", mark, text)
            one.n += 1
            one.cells.append(Cell(cell_id, mark, text))
        counts = sorted(int(cell.text.split()[-1]) for cell in book.cells[-4:])
        must(
            counts == list(range(book.n - 3, book.n + 1)),
            "one after the other",
            counts,
            book.n,
        )
        for one in others:
            self.agree(one)

    def kernel_killed(self, book: Book) -> None:
        """The kernel dies while nothing runs."""
        self.plain(book)
        psutil.Process(self.kernel(book)["pid"]).kill()
        self.until(
            lambda: self.ask("status", notebook=book.name)["state"] == "stopped",
            "a dead kernel stops",
        )
        self.come_back(book)

    def kernel_ended(self, book: Book) -> None:
        """A cell ends its kernel."""
        self.plain(book)
        cell_id, answer = book.notebook.insert(
            f"import os; os._exit({self.random.randrange(1, 9)})"
        )
        must(
            "KernelDied" in answer.stop, "a dead kernel stops", answer.text, answer.stop
        )
        self.come_back(book)
        self.mend(book, cell_id)

    def come_back(self, book: Book) -> None:
        """Lift the stop: with a fresh kernel, or with what had ended well run again."""
        book.n = 0
        if self.random.random() < 0.5:
            self.ask("continue", notebook=book.name)
            return
        found = self.ask("restore", notebook=book.name)
        must(
            found["ok"] and found["ran"] == len(book.cells),
            "restore runs what had ended well",
            found,
            len(book.cells),
        )
        order = {
            raw["id"]: place for place, raw in enumerate(book.notebook.raw["cells"])
        }
        for cell in sorted(book.cells, key=lambda one: order[one.id]):
            book.n += 1
            cell.runs += 1
            cell.text = f"{cell.text.rsplit(' ', 1)[0]} {book.n}\n"

    def restarted(self, book: Book) -> None:
        """The person restarts the kernel."""
        self.ask("restart", notebook=book.name)
        book.n = 0

    def daemon_killed(self, book: Book) -> None:
        """The daemon is killed while nothing runs."""
        self.plain(book)
        self.project.kill_daemon()

    def daemon_killed_at_work(self, book: Book) -> None:
        """The daemon is killed while a cell runs; its hook waits."""
        go = f"go{self.cells}"
        mark, payload = self.waits(book, go)
        answers, thread = self.asked(payload)
        self.until(lambda: self.runs(book, mark), "a cell runs")
        self.project.kill_daemon()
        (book.notebook.path.parent / go).touch()
        thread.join(HANG_SECONDS)
        must(
            answers and "ran ok" in answers[0].text,
            "a cell goes on without its daemon",
            answers and answers[0].text,
        )
        self.noted(book, payload["tool_response"]["cell_id"], mark)

    # --- what must be true
    # ------------------------------------------------------------------------------------

    def agree(self, book: Book) -> None:
        """Raise DisagreementError unless notebook, journal and status say the same."""
        raw = {cell["id"]: cell for cell in book.notebook.raw["cells"]}
        ran = (
            (book.notebook.path.parent / f"{book.name}.ran").read_text().split()
            if book.cells
            else []
        )
        counted = collections.Counter(ran)
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
        must(
            [run["run"] for run in runs] == [event["run"] for event in written],
            "history and journal agree",
        )
        must(len({run["run"] for run in runs}) == len(runs), "no run is told twice")
        for cell in book.cells:
            text = text_of(raw[cell.id]).replace(
                "late\n", ""
            )  # a child's, which the kernel can't tell from the cell's own
            fits = (
                text.endswith(cell.text[2:])
                if cell.text.startswith("… ")
                else text == cell.text
            )
            must(fits, "the outputs are the cell's", book.name, cell, text)
            must(
                last[cell.id]["outcome"] == cell.outcome,
                "the journal knows how it ended",
                cell,
                last[cell.id],
            )
            must(
                counted[cell.mark] == cell.runs,
                "it ran as often as it must",
                cell,
                counted[cell.mark],
            )
        status = self.ask("status", notebook=book.name)
        must(
            status["state"] == "ready"
            and status["kernel"]["state"] in ("idle", "none"),
            "the status agrees",
            status,
        )

    def valid(self) -> None:
        """Raise where a notebook is not valid."""
        for book in self.books:
            nbformat.validate(nbformat.read(book.notebook.path, 4))

    def size(self) -> dict[str, float]:
        """Return the daemon's memory in MiB, its descriptors and threads, each notebook with a kernel at work."""
        for book in self.books:
            self.plain(book)
        process = psutil.Process(self.ask("status")["daemon"]["pid"])
        time.sleep(1.5)  # what a request needed goes back a moment later
        memory = process.memory_info().rss / 2**20
        return {
            "pid": process.pid,
            "MiB": memory,
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
        }


ALWAYS = {
    "plain": 70,
    "replace": 8,
    "error": 6,
    "deadline": 1,
    "flood": 2,
    "updates": 2,
    "child": 1,
    "cancelled": 2,
    "interrupted": 1,
    "at_once": 2,
    "kernel_killed": 1,
    "kernel_ended": 1,
    "restarted": 1,
}
FIRST_HALF = {"daemon_killed": 1.5, "daemon_killed_at_work": 1.5}


def soak(
    cells: int,
    seconds: float,
    seed: int,
    books: int,
    folder: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run it; return how often what was done, and the daemon's sizes. Raise DisagreementError."""
    project = Project(folder / "repo")
    project.config(CONFIG)
    work, ear = Soak(project, seed, books), Ear(project)
    began, sizes, first = time.monotonic(), dict[str, Any](), 0
    try:
        ear.__enter__()
        for book in work.books:
            work.plain(book)
        while True:
            share = max(work.cells / cells, (time.monotonic() - began) / seconds)
            if share >= 1:
                break
            if share >= 0.5 and not first:
                first = work.cells
            if first and work.cells >= first + 100 - books and "first" not in sizes:
                sizes["first"] = work.size()
                say(f"{work.cells} cells: {sizes['first']}")
            kinds = ALWAYS if first else ALWAYS | FIRST_HALF
            kind = work.random.choices(list(kinds), list(kinds.values()))[0]
            book = work.random.choice(work.books)
            getattr(work, kind)(book)
            work.done[kind] += 1
            work.agree(book)
            if sum(work.done.values()) % 50 == 0:
                work.valid()
                say(f"{work.cells} cells, {time.monotonic() - began:.0f} s")
        for book in work.books:
            work.agree(book)
        time.sleep(3)  # what comes late is written within two
        must(ear.begun, "what the kernels send is heard")
        ear.balance()
        sizes["end"] = work.size()
        return {
            "cells": work.cells,
            "seconds": time.monotonic() - began,
            "done": dict(work.done),
            "sizes": sizes,
        }
    finally:
        ear.__exit__(None, None, None)
        project.stepper("shutdown", check=None)
        shutil.rmtree(project.paths.runtime, ignore_errors=True)


def grown(sizes: dict[str, Any]) -> list[str]:
    """Return what grew by more than a tenth on one daemon."""
    if "first" not in sizes or sizes["first"]["pid"] != sizes["end"]["pid"]:
        return []
    pairs = {
        name: (sizes["first"][name], sizes["end"][name])
        for name in ("MiB", "descriptors")
    }
    return [
        f"{name}: {one:.1f} → {two:.1f}"
        for name, (one, two) in pairs.items()
        if two > one * (1 + GROWTH)
    ]


def main() -> None:
    """Run the soak and print what it did."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--books", type=int, default=BOOKS)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak"))
    try:
        found = soak(
            given.cells,
            given.seconds,
            given.seed,
            given.books,
            folder,
            lambda text: print(text, flush=True),
        )
    except DisagreementError as error:
        sys.exit(f"seed {given.seed}: {error}\nthe project is left in {folder}")
    print(json.dumps(found, indent=2))
    shutil.rmtree(folder, ignore_errors=True)
    if grown(found["sizes"]):
        sys.exit("grew by more than a tenth: " + "; ".join(grown(found["sizes"])))


if __name__ == "__main__":
    main()
